//! Flags that all gates share.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use tollgate_gatekeeper::shared::{
    Address, Clearing, FlagChanges, FlagWriteOutcome, SharedFlag, SharedFlags, Since, Unanswered,
};

use crate::fixtures::{ALONE, PATIENT};
use crate::redis_server::{Cluster, RedisServer};

fn flags(url: &str, most: usize) -> SharedFlags {
    SharedFlags::new(Address::parse(url, None).unwrap(), "test:", most).with_patience(PATIENT.deadline)
}

/// The flag of an account, set at this time.
fn set(account: &str, rejected: u64, flagged_at_us: u64) -> SharedFlag {
    SharedFlag { account: account.to_owned(), flagged_at_us, rejected, cleared: None }
}

/// The same flag, cleared at this time.
fn cleared(flag: SharedFlag, at_us: u64) -> SharedFlag {
    SharedFlag { cleared: Some(Clearing { at_us, by: "ops".to_owned(), note: "a test".to_owned() }), ..flag }
}

/// The changes as account, refusals and operator of the clearing.
fn changed(changes: &FlagChanges) -> Vec<(&str, u64, Option<&str>)> {
    changes
        .flags
        .iter()
        .map(|flag| (flag.account.as_str(), flag.rejected, flag.cleared.as_ref().map(|cleared| cleared.by.as_str())))
        .collect()
}

async fn goes_round(url: &str) {
    let (first, second) = (flags(url, 100), flags(url, 100));
    let nothing = first.changes(&Since::default()).await.unwrap();
    assert!(nothing.is_from_start && nothing.flags.is_empty() && nothing.now_us > 1_700_000_000_000_000);
    assert!(!first.changes(&nothing.since).await.unwrap().is_from_start);
    assert_eq!(first.write(&set("a", 1_000, 10)).await, Ok(FlagWriteOutcome::Taken));
    assert_eq!(second.write(&set("a", 5_000, 11)).await, Ok(FlagWriteOutcome::IsSet));
    assert_eq!(second.write(&set("b|{}\r\n", 7, 12)).await, Ok(FlagWriteOutcome::Taken));
    let seen = first.changes(&nothing.since).await.unwrap();
    assert_eq!(changed(&seen), [("a", 1_000, None), ("b|{}\r\n", 7, None)]);
    assert_eq!((seen.more, seen.is_from_start, seen.flags[0].flagged_at_us), (false, false, 10));

    assert_eq!(second.write(&cleared(set("a", 5_000, 11), 20)).await, Ok(FlagWriteOutcome::Taken));
    assert_eq!(second.write(&cleared(set("a", 5_000, 11), 21)).await, Ok(FlagWriteOutcome::IsCleared));
    let seen = first.changes(&seen.since).await.unwrap();
    assert_eq!(changed(&seen), [("a", 1_000, Some("ops"))], "it is the flag that was set first");
    assert_eq!(seen.flags[0].cleared, cleared(set("a", 1_000, 10), 20).cleared);
    let none = first.changes(&seen.since).await.unwrap();
    assert_eq!((none.flags.len(), &none.since), (0, &seen.since));

    // It is set again only for refusals after the clearing.
    assert_eq!(first.write(&set("a", 1_001, 20)).await, Ok(FlagWriteOutcome::IsCleared));
    assert_eq!(first.write(&set("a", 1_001, 2_000_000)).await, Ok(FlagWriteOutcome::Taken));
    assert_eq!(changed(&second.changes(&Since::default()).await.unwrap()), [("b|{}\r\n", 7, None), ("a", 1_001, None)]);
    // A clearing of the previous flag does not clear this one.
    assert_eq!(second.write(&cleared(set("a", 5_000, 11), 20)).await, Ok(FlagWriteOutcome::IsSet));
    // Its own clearing does, although its time, converted with another offset, is after it.
    assert_eq!(second.write(&set("d", 3, 1_000_300)).await, Ok(FlagWriteOutcome::Taken));
    assert_eq!(second.write(&cleared(set("d", 3, 1_000_000), 1_000_200)).await, Ok(FlagWriteOutcome::Taken));
    // A flag that no other gate knows is written with its clearing.
    assert_eq!(second.write(&cleared(set("c", 3, 1), 2)).await, Ok(FlagWriteOutcome::Taken));
    assert_eq!(first.write(&set("c", 3, 2)).await, Ok(FlagWriteOutcome::IsCleared));
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
async fn one_of_many_concurrent_gates_sets_the_flag() {
    let server = RedisServer::start(&[]);
    let tasks: Vec<_> = (0..20)
        .map(|gate| {
            let flags = Arc::new(flags(&server.url(), 100));
            tokio::spawn(async move { flags.write(&set("a", gate, gate)).await.unwrap() })
        })
        .collect();
    let mut taken = 0;
    for task in tasks {
        taken += usize::from(task.await.unwrap() == FlagWriteOutcome::Taken);
    }
    assert_eq!(taken, 1);
}

#[tokio::test]
async fn flags_are_bounded_and_cleared_ones_do_not_count() {
    let server = RedisServer::start(&[]);
    let flags = flags(&server.url(), 2);
    assert_eq!(flags.write(&set("a", 1, 1)).await, Ok(FlagWriteOutcome::Taken));
    assert_eq!(flags.write(&set("b", 1, 1)).await, Ok(FlagWriteOutcome::Taken));
    assert_eq!(flags.write(&set("c", 1, 1)).await, Ok(FlagWriteOutcome::Full));
    assert_eq!(flags.write(&set("a", 1, 1)).await, Ok(FlagWriteOutcome::IsSet));
    assert_eq!(flags.write(&cleared(set("a", 1, 1), 2)).await, Ok(FlagWriteOutcome::Taken));
    assert_eq!(flags.write(&set("c", 1, 1)).await, Ok(FlagWriteOutcome::Taken));
    assert_eq!(flags.write(&set("a", 1, 3)).await, Ok(FlagWriteOutcome::Full));
}

#[tokio::test]
async fn a_clock_that_is_ahead_does_not_prevent_flags() {
    let server = RedisServer::start(&[]);
    let flags = flags(&server.url(), 2);
    assert_eq!(flags.write(&cleared(set("a", 1, 1), u64::MAX >> 12)).await, Ok(FlagWriteOutcome::Taken));
    let seen = flags.changes(&Since::default()).await.unwrap();
    assert!(seen.flags[0].cleared.as_ref().unwrap().at_us <= seen.now_us + 1_000_000);
}

#[tokio::test]
async fn many_changes_are_returned_in_parts() {
    let server = RedisServer::start(&[]);
    let flags = flags(&server.url(), 10_000);
    for account in 0..1_100 {
        flags.write(&set(&account.to_string(), 1, 1)).await.unwrap();
    }
    let first = flags.changes(&Since::default()).await.unwrap();
    let rest = flags.changes(&first.since).await.unwrap();
    assert_eq!((first.flags.len(), first.more, rest.flags.len(), rest.more), (1_000, true, 100, false));
    assert!(first.is_from_start && !rest.is_from_start);
}

#[tokio::test]
async fn a_failed_or_foreign_store_is_reported_and_retried() {
    let server = RedisServer::start(&[]);
    let flags = flags(&server.url(), 100);
    server.command(&["SET", "test:{flags}", "a word"]);
    assert_eq!(flags.write(&set("a", 1, 1)).await, Err(Unanswered::Failed));
    server.command(&["DEL", "test:{flags}"]);
    assert_eq!(flags.write(&set("a", 1, 1)).await, Ok(FlagWriteOutcome::Taken));
    let port = server.port();
    drop(server);
    let began = Instant::now();
    assert!(flags.write(&set("b", 1, 1)).await.is_err());
    assert!(began.elapsed() < Duration::from_secs(10));
    let _server = RedisServer::start_on(port, &[]);
    assert_eq!(flags.write(&set("b", 1, 1)).await, Ok(FlagWriteOutcome::Taken));
}

/// Gates must write their flags again.
#[tokio::test]
async fn a_store_that_lost_its_data_is_detected() {
    let server = RedisServer::start(&[]);
    let flags = flags(&server.url(), 100);
    flags.write(&set("a", 1, 1)).await.unwrap();
    flags.write(&set("b", 1, 1)).await.unwrap();
    let before = flags.changes(&Since::default()).await.unwrap().since;
    // As many changes as before, so that the numbers are the same.
    server.command(&["FLUSHALL"]);
    flags.write(&set("c", 1, 1)).await.unwrap();
    flags.write(&set("d", 1, 1)).await.unwrap();
    let after = flags.changes(&before).await.unwrap();
    assert!(after.is_from_start);
    assert_eq!(changed(&after), [("c", 1, None), ("d", 1, None)]);
    // The same era with an older state.
    server.command(&["ZREM", "test:{flags}", "d"]);
    assert!(flags.changes(&after.since).await.unwrap().is_from_start);
    // Another connection: changes in between are unknown.
    let known = flags.changes(&Since::default()).await.unwrap().since;
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    let mut again = flags.changes(&known).await;
    for _ in 0..50 {
        if again.is_ok() {
            break;
        }
        again = flags.changes(&known).await;
    }
    assert!(again.unwrap().is_from_start);
}
