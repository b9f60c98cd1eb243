//! The same on a Cluster of three masters.

use crate::hammer::hammer;
use crate::redis_server::Cluster;
use crate::world::*;

#[test]
fn four_processes_admit_exactly_what_there_is_room_for_on_a_cluster() {
    let cluster = Cluster::start();
    for name in LIMITS {
        let expected = room(&rule(name, limit(name, 10)));
        assert_eq!(hammer(&cluster.url(), name, 10), expected, "{name}");
    }
}

#[tokio::test]
async fn a_refusal_on_one_node_takes_nothing_on_another() {
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
