//! Flags that all gates see.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use tollgate_gatekeeper::shared::{
    Address, Clearing, FlagChanges, SharedFlag, SharedFlags, Since, Telling, Unanswered,
};

use crate::redis_server::{Cluster, RedisServer};
use crate::world::{ALONE, PATIENT};

fn flags(url: &str, most: usize) -> SharedFlags {
    SharedFlags::new(Address::parse(url, None).unwrap(), "test:", most).with_patience(PATIENT.deadline)
}

/// The flag of an account, set at a moment.
fn set(account: &str, rejected: u64, flagged_at_us: u64) -> SharedFlag {
    SharedFlag { account: account.to_owned(), flagged_at_us, rejected, cleared: None }
}

/// The same, cleared at a moment.
fn cleared(flag: SharedFlag, at_us: u64) -> SharedFlag {
    SharedFlag { cleared: Some(Clearing { at_us, by: "ops".to_owned(), note: "a test".to_owned() }), ..flag }
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
    let nothing = first.changes(&Since::default()).await.unwrap();
    assert!(nothing.anew && nothing.flags.is_empty() && nothing.now_us > 1_700_000_000_000_000);
    assert!(!first.changes(&nothing.since).await.unwrap().anew);
    assert_eq!(first.tell(&set("a", 1_000, 10)).await, Ok(Telling::Taken));
    assert_eq!(second.tell(&set("a", 5_000, 11)).await, Ok(Telling::IsSet));
    assert_eq!(second.tell(&set("b|{}\r\n", 7, 12)).await, Ok(Telling::Taken));
    let seen = first.changes(&nothing.since).await.unwrap();
    assert_eq!(told(&seen), [("a", 1_000, None), ("b|{}\r\n", 7, None)]);
    assert_eq!((seen.more, seen.anew, seen.flags[0].flagged_at_us), (false, false, 10));

    assert_eq!(second.tell(&cleared(set("a", 5_000, 11), 20)).await, Ok(Telling::Taken));
    assert_eq!(second.tell(&cleared(set("a", 5_000, 11), 21)).await, Ok(Telling::IsCleared));
    let seen = first.changes(&seen.since).await.unwrap();
    assert_eq!(told(&seen), [("a", 1_000, Some("ops"))], "it is the flag that was set first");
    assert_eq!(seen.flags[0].cleared, cleared(set("a", 1_000, 10), 20).cleared);
    let none = first.changes(&seen.since).await.unwrap();
    assert_eq!((none.flags.len(), &none.since), (0, &seen.since));

    // It returns for what is refused after the clearing, and for nothing else.
    assert_eq!(first.tell(&set("a", 1_001, 20)).await, Ok(Telling::IsCleared));
    assert_eq!(first.tell(&set("a", 1_001, 21)).await, Ok(Telling::Taken));
    assert_eq!(told(&second.changes(&Since::default()).await.unwrap()), [("b|{}\r\n", 7, None), ("a", 1_001, None)]);
    // A clearing that was meant for the flag before does not take this one.
    assert_eq!(second.tell(&cleared(set("a", 5_000, 11), 20)).await, Ok(Telling::IsSet));
    // One that nobody else had heard of is told with its end.
    assert_eq!(second.tell(&cleared(set("c", 3, 1), 2)).await, Ok(Telling::Taken));
    assert_eq!(first.tell(&set("c", 3, 2)).await, Ok(Telling::IsCleared));
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
            tokio::spawn(async move { flags.tell(&set("a", gate, gate)).await.unwrap() })
        })
        .collect();
    let mut taken = 0;
    for task in tasks {
        taken += usize::from(task.await.unwrap() == Telling::Taken);
    }
    assert_eq!(taken, 1);
}

#[tokio::test]
async fn there_are_no_more_flags_than_there_may_be_and_cleared_ones_take_no_place() {
    let server = RedisServer::start(&[]);
    let flags = flags(&server.url(), 2);
    assert_eq!(flags.tell(&set("a", 1, 1)).await, Ok(Telling::Taken));
    assert_eq!(flags.tell(&set("b", 1, 1)).await, Ok(Telling::Taken));
    assert_eq!(flags.tell(&set("c", 1, 1)).await, Ok(Telling::Full));
    assert_eq!(flags.tell(&set("a", 1, 1)).await, Ok(Telling::IsSet));
    assert_eq!(flags.tell(&cleared(set("a", 1, 1), 2)).await, Ok(Telling::Taken));
    assert_eq!(flags.tell(&set("c", 1, 1)).await, Ok(Telling::Taken));
    assert_eq!(flags.tell(&set("a", 1, 3)).await, Ok(Telling::Full));
}

#[tokio::test]
async fn a_clock_that_is_ahead_does_not_keep_a_flag_away_for_ever() {
    let server = RedisServer::start(&[]);
    let flags = flags(&server.url(), 2);
    assert_eq!(flags.tell(&cleared(set("a", 1, 1), u64::MAX >> 12)).await, Ok(Telling::Taken));
    let seen = flags.changes(&Since::default()).await.unwrap();
    assert!(seen.flags[0].cleared.as_ref().unwrap().at_us <= seen.now_us + 1_000_000);
}

#[tokio::test]
async fn many_changes_are_told_in_parts() {
    let server = RedisServer::start(&[]);
    let flags = flags(&server.url(), 10_000);
    for account in 0..1_100 {
        flags.tell(&set(&account.to_string(), 1, 1)).await.unwrap();
    }
    let first = flags.changes(&Since::default()).await.unwrap();
    let rest = flags.changes(&first.since).await.unwrap();
    assert_eq!((first.flags.len(), first.more, rest.flags.len(), rest.more), (1_000, true, 100, false));
    assert!(first.anew && !rest.anew);
}

#[tokio::test]
async fn a_store_that_is_gone_or_holds_something_else_says_so_and_is_asked_again() {
    let server = RedisServer::start(&[]);
    let flags = flags(&server.url(), 100);
    server.command(&["SET", "test:{flags}", "a word"]);
    assert_eq!(flags.tell(&set("a", 1, 1)).await, Err(Unanswered::Failed));
    server.command(&["DEL", "test:{flags}"]);
    assert_eq!(flags.tell(&set("a", 1, 1)).await, Ok(Telling::Taken));
    let port = server.port();
    drop(server);
    let began = Instant::now();
    assert!(flags.tell(&set("b", 1, 1)).await.is_err());
    assert!(began.elapsed() < Duration::from_secs(10));
    let _server = RedisServer::start_on(port, &[]);
    assert_eq!(flags.tell(&set("b", 1, 1)).await, Ok(Telling::Taken));
}

/// Whoever has told it something before must tell it again.
#[tokio::test]
async fn a_store_that_has_forgotten_is_noticed() {
    let server = RedisServer::start(&[]);
    let flags = flags(&server.url(), 100);
    flags.tell(&set("a", 1, 1)).await.unwrap();
    flags.tell(&set("b", 1, 1)).await.unwrap();
    let before = flags.changes(&Since::default()).await.unwrap().since;
    // As many changes as before, so that the numbers alone say nothing.
    server.command(&["FLUSHALL"]);
    flags.tell(&set("c", 1, 1)).await.unwrap();
    flags.tell(&set("d", 1, 1)).await.unwrap();
    let after = flags.changes(&before).await.unwrap();
    assert!(after.anew);
    assert_eq!(told(&after), [("c", 1, None), ("d", 1, None)]);
    // The same era, but an older state.
    server.command(&["ZREM", "test:{flags}", "d"]);
    assert!(flags.changes(&after.since).await.unwrap().anew);
    // Another connection: nobody knows what was between.
    let known = flags.changes(&Since::default()).await.unwrap().since;
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    let mut again = flags.changes(&known).await;
    for _ in 0..50 {
        if again.is_ok() {
            break;
        }
        again = flags.changes(&known).await;
    }
    assert!(again.unwrap().anew);
}
