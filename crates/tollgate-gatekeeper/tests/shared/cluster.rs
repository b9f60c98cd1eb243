//! The same tests on a Cluster of three masters.

use core::time::Duration;

use crate::fixtures::*;
use crate::hammer::hammer;
use crate::load::*;
use crate::redis_server::Cluster;

#[test]
fn four_processes_on_a_cluster_admit_exactly_the_limit() {
    let _alone = ALONE.blocking_lock();
    let cluster = Cluster::start();
    for name in LIMITS {
        let expected = room(&rule(name, limit(name, 10)));
        assert_eq!(hammer(&cluster.url(), name, 10), expected, "{name}");
    }
}

#[tokio::test]
async fn a_refusal_on_one_node_charges_nothing_on_another() {
    let _alone = ALONE.lock().await;
    let cluster = Cluster::start();
    let store = open(&cluster.url(), PATIENT);
    let wide = shared(rule("wide", limit("drip-1", 50)));
    let narrow = shared(rule("narrow", limit("drip-1", 5)));
    // Keys on different nodes, very likely on all three.
    let keys: Vec<_> = (0..8).map(|key| format!("key-{key}").into_bytes()).collect();
    for key in &keys {
        let mut admitted = 0;
        for _ in 0..20 {
            admitted += usize::from(ask(&store, &[(&wide, b"all"), (&narrow, key)]).await.unwrap().is_some());
        }
        assert_eq!(admitted, 5);
    }
    // 40 of 50 requests of the wider rule were admitted: the 120 refused ones must have charged nothing.
    let mut left = 0;
    while ask(&store, &[(&wide, b"all")]).await.unwrap().is_some() {
        left += 1;
    }
    assert_eq!(left, 10);
    assert!(store.counts().given_back > 0, "all keys fell on one node");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_node_affects_only_its_own_keys() {
    let _alone = ALONE.lock().await;
    let mut cluster = Cluster::start();
    // The deadline is one that a busy machine keeps, so that only a failed node counts as down.
    let (store, rule) = open_with(&cluster.url(), Duration::from_millis(200)).await;
    drop(cluster.nodes.remove(1));
    // The first requests wait in vain; the breaker spares the others.
    eventually("two of three nodes answer for what they have", async || {
        let report = Load::during(&store, &rule, Duration::from_millis(500)).await;
        let share = report.answered as f64 / (report.answered + report.unanswered()) as f64;
        (0.5..0.8).contains(&share) && (0.2..0.5).contains(&store.health().gone())
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
async fn a_replica_takes_over_with_the_state_of_a_killed_master() {
    let _alone = ALONE.lock().await;
    let mut cluster = Cluster::start();
    let replica = cluster.replicate(0);
    let (store, load_rule) = open_with(&cluster.url(), DEADLINE).await;
    let patient = open(&cluster.url(), PATIENT);
    let rule = shared(rule("rule", limit("drip-1", 5)));
    // A key of the first node, with its full quota used.
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
    // All keys are asked again, which covers all parts of the Cluster.
    let begun = std::time::Instant::now();
    while store.health().gone() > 0.0 || begun.elapsed() < Duration::from_secs(1) {
        assert!(begun.elapsed() < LONG, "{} is still gone", store.health().gone());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let report = load.stop().await;
    report.assert_in_time();
    assert!(report.unanswered() > 0 && report.answered > 0);
    answers(&patient, &rule).await;
    assert!(ask(&patient, &[(&rule, &key)]).await.unwrap().is_none(), "what was used up is used up");
}
