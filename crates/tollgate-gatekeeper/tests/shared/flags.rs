//! Flags that all gates see.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use tollgate_gatekeeper::shared::{Address, FlagChanges, Flagging, SharedFlags, Unanswered};

use crate::redis_server::{Cluster, RedisServer};
use crate::world::ALONE;

fn flags(url: &str, most: usize) -> SharedFlags {
    SharedFlags::new(Address::parse(url, None).unwrap(), "test:", most)
}

/// What is new, as account, refusals and who cleared it.
fn told(changes: &FlagChanges) -> Vec<(&str, u64, Option<&str>)> {
    changes
        .flags
        .iter()
        .map(|flag| (flag.account.as_str(), flag.rejected, flag.cleared.as_ref().map(|cleared| cleared.by.as_str())))
        .collect()
}

async fn goes_round(url: &str) {
    let (first, second) = (flags(url, 100), flags(url, 100));
    assert_eq!(first.changes(0).await, Ok(FlagChanges::default()));
    assert_eq!(first.set("a", 1_000).await, Ok(Flagging::Set));
    assert_eq!(second.set("a", 5_000).await, Ok(Flagging::WasSet));
    assert_eq!(second.set("b|{}\r\n", 7).await, Ok(Flagging::Set));
    let seen = first.changes(0).await.unwrap();
    assert_eq!(told(&seen), [("a", 1_000, None), ("b|{}\r\n", 7, None)]);
    assert!(!seen.more && seen.flags[0].flagged_at_ms > 1_700_000_000_000);

    assert_eq!(second.clear("a", "ops", "a test").await, Ok(true));
    assert_eq!(second.clear("a", "ops", "a test").await, Ok(false));
    assert_eq!(second.clear("nobody", "ops", "").await, Ok(false));
    let cleared = first.changes(seen.last).await.unwrap();
    assert_eq!(told(&cleared), [("a", 1_000, Some("ops"))]);
    assert_eq!(cleared.flags[0].cleared.as_ref().unwrap().note, "a test");
    assert_eq!(
        first.changes(cleared.last).await.unwrap(),
        FlagChanges { last: cleared.last, ..FlagChanges::default() }
    );

    // It returns for what is refused after the clearing.
    assert_eq!(first.set("a", 1_001).await, Ok(Flagging::Set));
    assert_eq!(told(&second.changes(cleared.last).await.unwrap()), [("a", 1_001, None)]);
}

#[tokio::test]
async fn a_flag_is_set_once_seen_by_all_and_cleared_for_all() {
    let server = RedisServer::start(&[]);
    goes_round(&server.url()).await;
}

#[tokio::test]
async fn a_flag_is_set_once_seen_by_all_and_cleared_for_all_on_a_cluster() {
    let _alone = ALONE.lock().await;
    let cluster = Cluster::start();
    goes_round(&cluster.url()).await;
}

#[tokio::test]
async fn of_many_gates_that_flag_at_once_one_does() {
    let server = RedisServer::start(&[]);
    let tasks: Vec<_> = (0..20)
        .map(|gate| {
            let flags = Arc::new(flags(&server.url(), 100));
            tokio::spawn(async move { flags.set("a", gate).await.unwrap() })
        })
        .collect();
    let mut set = 0;
    for task in tasks {
        set += usize::from(task.await.unwrap() == Flagging::Set);
    }
    assert_eq!(set, 1);
}

#[tokio::test]
async fn there_are_no_more_flags_than_there_may_be() {
    let server = RedisServer::start(&[]);
    let flags = flags(&server.url(), 2);
    assert_eq!([flags.set("a", 1).await, flags.set("b", 1).await], [Ok(Flagging::Set), Ok(Flagging::Set)]);
    assert_eq!(flags.set("c", 1).await, Ok(Flagging::Full));
    assert_eq!(flags.set("a", 1).await, Ok(Flagging::WasSet));
}

#[tokio::test]
async fn many_changes_are_told_in_parts() {
    let server = RedisServer::start(&[]);
    let flags = flags(&server.url(), 10_000);
    for account in 0..1_100 {
        flags.set(&account.to_string(), 1).await.unwrap();
    }
    let first = flags.changes(0).await.unwrap();
    let rest = flags.changes(first.last).await.unwrap();
    assert_eq!((first.flags.len(), first.more, rest.flags.len(), rest.more), (1_000, true, 100, false));
}

#[tokio::test]
async fn a_store_that_is_gone_or_holds_something_else_says_so_and_is_asked_again() {
    let server = RedisServer::start(&[]);
    let flags = flags(&server.url(), 100);
    server.command(&["SET", "test:{flags}", "a word"]);
    assert_eq!(flags.set("a", 1).await, Err(Unanswered::Failed));
    server.command(&["DEL", "test:{flags}"]);
    assert_eq!(flags.set("a", 1).await, Ok(Flagging::Set));
    let port = server.port();
    drop(server);
    let began = Instant::now();
    assert!(flags.set("b", 1).await.is_err());
    assert!(began.elapsed() < Duration::from_secs(5));
    let _server = RedisServer::start_on(port, &[]);
    assert_eq!(flags.set("b", 1).await, Ok(Flagging::Set));
}
