//! The same on a Cluster of three masters.

use core::time::Duration;

use crate::hammer::hammer;
use crate::load::*;
use crate::redis_server::Cluster;
use crate::world::*;

#[test]
fn four_processes_admit_exactly_what_there_is_room_for_on_a_cluster() {
    let _alone = ALONE.blocking_lock();
    let cluster = Cluster::start();
    for name in LIMITS {
        let expected = room(&rule(name, limit(name, 10)));
        assert_eq!(hammer(&cluster.url(), name, 10), expected, "{name}");
    }
}

#[tokio::test]
async fn a_refusal_on_one_node_takes_nothing_on_another() {
    let _alone = ALONE.lock().await;
    let cluster = Cluster::start();
    let store = open(&cluster.url(), PATIENT);
    let wide = shared(rule("wide", limit("drip-1", 50)));
    let narrow = shared(rule("narrow", limit("drip-1", 5)));
    // Keys that fall on different nodes, with all likelihood on all three.
    let keys: Vec<_> = (0..8).map(|key| format!("key-{key}").into_bytes()).collect();
    for key in &keys {
        let mut admitted = 0;
        for _ in 0..20 {
            admitted += usize::from(ask(&store, &[(&wide, b"all"), (&narrow, key)]).await.unwrap().is_some());
        }
        assert_eq!(admitted, 5);
    }
    // Of the wide one's fifty, forty were admitted: the hundred and twenty that were refused must have taken nothing.
    let mut left = 0;
    while ask(&store, &[(&wide, b"all")]).await.unwrap().is_some() {
        left += 1;
    }
    assert_eq!(left, 10);
    assert!(store.counts().given_back > 0, "all keys fell on one node");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_gone_takes_only_its_own_keys_with_it() {
    let _alone = ALONE.lock().await;
    let mut cluster = Cluster::start();
    // With a deadline that a busy machine keeps, so that only who is gone counts as gone.
    let (store, rule) = open_with(&cluster.url(), Duration::from_millis(200)).await;
    drop(cluster.nodes.remove(1));
    // The first wait in vain, and the others are spared that.
    eventually("two of three nodes answer for what they have", async || {
        let report = Load::during(&store, &rule, Duration::from_millis(500)).await;
        let share = report.answered as f64 / (report.answered + report.unanswered()) as f64;
        (0.5..0.8).contains(&share) && (0.2..0.5).contains(&store.vitals().gone())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_to_another_node_keeps_its_count() {
    let _alone = ALONE.lock().await;
    let cluster = Cluster::start();
    let store = open(&cluster.url(), PATIENT);
    let rule = shared(rule("rule", limit("drip-1", 200)));
    let slot_name = String::from_utf8(rule.slot(b"key")).unwrap();
    let slot = cluster.nodes[0].command(&["CLUSTER", "KEYSLOT", &slot_name]);
    let slot = slot.trim_start_matches("int(").trim_end_matches(')').to_owned();
    let owner = cluster.nodes.iter().position(|node| node.command_or_error(&["GET", &slot_name]).is_ok()).unwrap();
    let (from, to) = (&cluster.nodes[owner], &cluster.nodes[(owner + 1) % 3]);
    let (from_id, to_id) = (from.command(&["CLUSTER", "MYID"]), to.command(&["CLUSTER", "MYID"]));

    let asking = tokio::spawn({
        let (store, rule) = (store.clone(), rule.clone());
        async move {
            let mut admitted = 0;
            for _ in 0..400 {
                admitted += usize::from(ask(&store, &[(&rule, b"key")]).await.unwrap().is_some());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            admitted
        }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
    from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    from.command(&["MIGRATE", "127.0.0.1", &to.port().to_string(), &slot_name, "0", "60000"]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    for node in [to, from] {
        node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
    }
    assert_eq!(asking.await.unwrap(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_takes_over_from_a_master_that_is_killed_and_knows_what_it_knew() {
    let _alone = ALONE.lock().await;
    let mut cluster = Cluster::start();
    let replica = cluster.replicate(0);
    let (store, load_rule) = open_with(&cluster.url(), DEADLINE).await;
    let patient = open(&cluster.url(), PATIENT);
    let rule = shared(rule("rule", limit("drip-1", 5)));
    // A key of the first node, all used up.
    let mut keys = (0..).map(|key: u32| key.to_string().into_bytes());
    let key = keys
        .find(|key| {
            let slot = String::from_utf8(rule.slot(key)).unwrap();
            cluster.nodes[0].command_or_error(&["GET", &slot]).is_ok()
        })
        .unwrap();
    for _ in 0..5 {
        assert!(ask(&patient, &[(&rule, &key)]).await.unwrap().is_some());
    }
    assert!(ask(&patient, &[(&rule, &key)]).await.unwrap().is_none());
    cluster.nodes[0].eventually(&["WAIT", "1", "1000"], |acknowledged| acknowledged == "int(1)");

    let load = Load::start(&store, &load_rule);
    drop(cluster.nodes.remove(0));
    cluster.nodes[replica - 1].eventually(&["ROLE"], |role| role.contains("master"));
    // Everybody is asked again, that is all parts of the Cluster.
    let begun = std::time::Instant::now();
    while store.vitals().gone() > 0.0 || begun.elapsed() < Duration::from_secs(1) {
        assert!(begun.elapsed() < LONG, "{} is still gone", store.vitals().gone());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let report = load.stop().await;
    report.assert_in_time();
    assert!(report.unanswered() > 0 && report.answered > 0);
    answers(&patient, &rule).await;
    assert!(ask(&patient, &[(&rule, &key)]).await.unwrap().is_none(), "what was used up is used up");
}
