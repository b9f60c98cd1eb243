use std::path::Path;

use tollgate_core::time::{Moment, Span};
use tollgate_core::watch::WatchSettings;
use tollgate_gatekeeper::clock::{Clock, Hand};

use super::*;
use crate::settings::WebUrl;

fn watch(directory: Option<&Path>) -> (Watch, Hand) {
    let (clock, hand) = Clock::by_hand();
    let home = directory.map_or(Persistence::Memory, |directory| Persistence::Directory(directory.to_path_buf()));
    (Watch::new(WatchSettings::default(), home, Arc::default(), Arc::default(), Calendar::new(clock), false), hand)
}

fn refused(key: &str, count: u64) -> Vec<Entry<'static>> {
    vec![Entry { class: "user".into(), key: key.to_owned().into(), count }]
}

fn accounts(watch: &Watch) -> Vec<String> {
    watch.flags(false).into_iter().map(|flag| flag.account).collect()
}

#[test]
fn a_duplicate_report_is_counted_once() {
    let (watch, _) = watch(None);
    for _ in 0..3 {
        watch.report("r1", &refused("u1", 400)).unwrap();
    }
    assert_eq!(watch.episodes()[0].count, 400);
    watch.report("r2", &refused("u1", 599)).unwrap();
    assert_eq!(accounts(&watch), [""; 0]);
    let reported = watch.report("r3", &refused("u1", 1)).unwrap();
    assert_eq!((reported.flagged, accounts(&watch)), (vec!["u1".to_owned()], vec!["u1".to_owned()]));
}

#[test]
fn acknowledged_reports_flags_and_changes_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = watch(Some(folder.path()));
    first.report("r1", &refused("u1", 999)).unwrap();
    first.report("r2", &refused("u2", 5000)).unwrap();
    first.report("r3", &refused("u3", 5000)).unwrap();
    first.clear("u3", "ann", "a test").unwrap().unwrap();
    first.record_change("ann", "by a token", "tried it");
    let (flags, episodes) = (first.flags(true), first.episodes());
    drop(first);
    for _ in 0..2 {
        let (second, _) = watch(Some(folder.path()));
        assert_eq!((second.flags(true), second.changes().len()), (flags.clone(), 1));
        assert_eq!(second.episodes().len(), episodes.len());
        assert!(second.report("r1", &refused("u1", 999)).unwrap().repeated);
        assert_eq!(accounts(&second), ["u2"]);
        // In the second iteration the journal has been rewritten.
        second.rewrite_journal(&mut second.lock()).unwrap();
    }
    let (third, _) = watch(Some(folder.path()));
    assert_eq!(third.report("r4", &refused("u1", 1)).unwrap().flagged, ["u1"]);
    assert!(third.report("r5", &refused("u3", 999)).unwrap().flagged.is_empty());
    assert_eq!(third.report("r6", &refused("u3", 1)).unwrap().flagged, ["u3"]);
}

#[test]
fn logins_do_not_push_out_other_changes() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = watch(Some(folder.path()));
    first.record_change("ann", "by the operator's token", &format!("{LOGGED_IN} operator"));
    first.record_change("ann", "by the operator's token", "cleared it");
    for number in 0..250 {
        first.record_change(&format!("x{number}"), "by the viewer's token", &format!("{LOGGED_IN} viewer"));
    }
    first.record_change("ann", "by the operator's token", "cleared it again");
    let changes = first.changes();
    assert_eq!((changes.len(), &*changes[0].what, &*changes[101].what), (103, "cleared it again", "cleared it"));
    // The latest logins are kept.
    assert_eq!((&*changes[1].by, &*changes[100].by, &*changes[102].by), ("x249", "x150", "ann"));
    drop(first);
    assert_eq!(watch(Some(folder.path())).0.changes(), changes);
}

/// The refusals of a gate are counted up to four seconds later. Refusals from before a clearing must not set the flag
/// again.
#[test]
fn a_cleared_flag_is_not_set_again_by_earlier_refusals() {
    let (watch, _) = watch(None);
    let refuse = |count: usize| (0..count).for_each(|_| watch.feed.refused("user", b"u1"));
    refuse(1000);
    watch.take_feed();
    assert_eq!(accounts(&watch), ["u1"]);
    refuse(5000);
    watch.clear("u1", "ann", "a test").unwrap().unwrap();
    refuse(999);
    watch.take_feed();
    assert!(accounts(&watch).is_empty());
    refuse(1);
    watch.take_feed();
    assert_eq!(accounts(&watch), ["u1"]);
}

#[test]
fn refusals_of_gates_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = watch(Some(folder.path()));
    for _ in 0..999 {
        first.feed.refused("user", b"u1");
        first.feed.refused("ip/32", b"203.0.113.7");
    }
    first.take_feed();
    assert_eq!((first.episodes().len(), accounts(&first).len()), (2, 0));
    drop(first);
    let (second, _) = watch(Some(folder.path()));
    second.feed.refused("user", b"u1");
    second.take_feed();
    assert_eq!(accounts(&second), ["u1"]);
    drop(second);
    assert_eq!(accounts(&watch(Some(folder.path())).0), ["u1"]);
}

#[test]
fn a_report_that_cannot_be_written_is_rejected_and_not_counted() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("state");
    let (first, _) = watch(Some(&directory));
    first.report("r1", &refused("u1", 600)).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    std::fs::write(&directory, "in the way").unwrap();
    assert!(first.report("r2", &refused("u1", 400)).is_err());
    assert!(first.report("r2", &refused("u1", 400)).is_err());
    assert!(accounts(&first).is_empty() && !first.status().is_persisted);
    // Gates go on, and their refusals count.
    first.feed.refused("user", b"u1");
    first.take_feed();
    assert_eq!(first.episodes()[0].count, 601);
    std::fs::remove_file(&directory).unwrap();
    std::fs::create_dir(&directory).unwrap();
    let reported = first.report("r2", &refused("u1", 399)).unwrap();
    assert_eq!((reported.repeated, reported.flagged), (false, vec!["u1".to_owned()]));
    assert!(first.status().is_persisted);
    drop(first);
    assert_eq!(accounts(&watch(Some(&directory)).0), ["u1"]);
}

#[test]
fn fault_43_the_gate_starts_with_an_unusable_directory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let (watch, _) = watch(Some(&file));
    assert!(watch.report("r1", &refused("u1", 1)).is_err());
    std::fs::remove_file(&file).unwrap();
    watch.report("r1", &refused("u1", 1)).unwrap();
}

fn somebody() -> WebhookSettings {
    let url = WebUrl { tls: false, authority: "192.0.2.1:80".to_owned(), path: "/".to_owned() };
    WebhookSettings { url, secret: b"secret".to_vec().into() }
}

#[test]
fn counts_of_a_former_account_class_do_not_return_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = watch(Some(folder.path()));
    first.report("r1", &refused("u1", 999)).unwrap();
    first.rewrite_journal(&mut first.lock()).unwrap();
    first.set_flagging(WatchSettings { account_class: "header:x-api-key".into(), ..WatchSettings::default() });
    first.take_feed();
    drop(first);
    let (second, _) = watch(Some(folder.path()));
    assert!(second.report("r2", &refused("u1", 1)).unwrap().flagged.is_empty());
}

/// The process ended after the report was written and before the flag was.
#[test]
fn a_flag_that_a_crash_left_unwritten_is_written_and_announced_after_the_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path(), |_| {}).unwrap();
    let mut bytes = Vec::new();
    Record::Report { at: Moment::from_millis(1), id: "r1".to_owned(), entries: refused("u1", 1000) }.write(&mut bytes);
    journal.append(&bytes).unwrap();
    drop(journal);
    let announced = |times: u64, waiting: usize| {
        let (watch, _) = watch(Some(folder.path()));
        watch.set_webhook(Some(somebody()));
        watch.take_feed();
        assert_eq!(accounts(&watch), ["u1"]);
        assert_eq!(watch.counts.flags_set.load(Ordering::Relaxed), times);
        assert_eq!(watch.status().announcements_waiting, waiting);
    };
    announced(1, 1);
    announced(0, 1);
}

#[test]
fn announcements_are_bounded_and_survive_a_rewrite_of_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = watch(Some(folder.path()));
    first.set_webhook(Some(somebody()));
    let entries = (0..1100).flat_map(|account| refused(&account.to_string(), 1000));
    assert_eq!(first.report("r1", &entries.collect::<Vec<_>>()).unwrap().flagged.len(), 1100);
    assert_eq!(first.status().announcements_waiting, 1024);
    assert_eq!(first.counts.announcements_dropped.load(Ordering::Relaxed), 1100 - 1024);
    first.rewrite_journal(&mut first.lock()).unwrap();
    drop(first);
    assert_eq!(watch(Some(folder.path())).0.status().announcements_waiting, 1024);
}

#[test]
fn flagged_accounts_are_published_for_rules_until_they_are_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = watch(Some(folder.path()));
    first.report("r1", &[refused("u1", 1000), refused("u2", 1000)].concat()).unwrap();
    assert!(first.flagged.contains(b"u1") && first.flagged.contains(b"u2"));
    first.clear("u2", "ann", "seen").unwrap().unwrap();
    assert!(first.flagged.contains(b"u1") && !first.flagged.contains(b"u2"));
    drop(first);
    let second = watch(Some(folder.path())).0;
    assert!(second.flagged.contains(b"u1") && !second.flagged.contains(b"u2"));
}

#[test]
fn the_size_of_the_journal_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let (watch, hand) = watch(Some(folder.path()));
    let mut largest = 0;
    for report in 0..60u64 {
        let entries =
            (0..20_000).map(|key| Entry { class: "user".into(), key: format!("{report}-{key}").into(), count: 1 });
        watch.report(&format!("r{report}"), &entries.collect::<Vec<_>>()).unwrap();
        watch.take_feed();
        hand.advance(Span::from_secs(1));
        largest = largest.max(std::fs::metadata(folder.path().join("watch.journal")).unwrap().len());
    }
    assert!(largest < 16 << 20, "{largest}");
    assert_eq!(watch.status().flags, 0);
}

#[test]
fn times_in_the_future_are_replaced_by_the_current_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path(), |_| {}).unwrap();
    let mut bytes = Vec::new();
    let future = Moment::from_millis(9_000_000_000_000);
    Record::Report { at: future, id: "r1".to_owned(), entries: refused("u1", 999) }.write(&mut bytes);
    Record::Flag(Flag { account: "u2".to_owned(), flagged_at: future, rejected: 1000, cleared: None })
        .write(&mut bytes);
    journal.append(&bytes).unwrap();
    drop(journal);
    let (watch, hand) = watch(Some(folder.path()));
    assert!(watch.flags(false)[0].flagged_at <= watch.calendar.now());
    hand.advance(Span::from_secs(601));
    assert!(watch.report("r2", &refused("u1", 1)).unwrap().flagged.is_empty());
}

/// Cost is linear, and a large report is accepted well within its sender's timeout.
#[test]
fn a_report_of_a_hundred_thousand_keys_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let (watch, _) = watch(Some(folder.path()));
    let mut entries: Vec<_> = (0..100_000).flat_map(|key| refused(&format!("sprayed-{key}"), 1)).collect();
    entries.extend(refused("offender", 1000));
    let begin = std::time::Instant::now();
    assert_eq!(watch.report("r1", &entries).unwrap().flagged, ["offender"]);
    assert!(begin.elapsed().as_secs() < 5, "{:?}", begin.elapsed());
}

#[test]
fn the_default_directory_is_used_by_one_process_and_others_stay_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let at_home = |directory: &Path| {
        let home = Persistence::IfPossible(directory.to_path_buf());
        let calendar = Calendar::new(Clock::by_hand().0);
        Watch::new(WatchSettings::default(), home, Arc::default(), Arc::default(), calendar, false)
    };
    let (first, second) = (at_home(folder.path()), at_home(folder.path()));
    assert_eq!((first.state_dir.as_deref(), second.state_dir.as_deref()), (Some(folder.path()), None));
    for watch in [&first, &second] {
        watch.report("r1", &refused("u1", 1000)).unwrap();
        assert!(watch.status().is_persisted);
    }
    drop((first, second));
    assert_eq!(accounts(&at_home(folder.path())), ["u1"]);
    let no_directory = folder.path().join("watch.journal").join("below a file");
    let nowhere = at_home(&no_directory);
    nowhere.report("r1", &refused("u1", 1000)).unwrap();
    assert_eq!((nowhere.state_dir.clone(), accounts(&nowhere)), (None, vec!["u1".to_owned()]));
}
