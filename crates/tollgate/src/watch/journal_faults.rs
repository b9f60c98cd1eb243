//! Tests that the journal loses no acknowledged record: its process is killed at any system call, the power fails, or
//! the disk is full.
//!
//! The journal is written by a child process, which is this test binary with [`DIRECTORY`] set. The tests that start
//! with [`child_directory`] are the programs of the child. In a usual test run they do nothing.

#![expect(clippy::print_stderr, reason = "a test that is skipped has to show it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::journal::Journal;
use super::record::Record;

/// Environment variable with the directory of the child's journal. Only the child has it.
const DIRECTORY: &str = "TOLLGATE_TEST_JOURNAL";
/// The child prints this, and the number of the record, after each append that returned without an error.
const ACKNOWLEDGED: &str = "acknowledged ";

fn record(number: usize) -> Record<'static> {
    Record::Reported { id: number.to_string() }
}

fn bytes(numbers: impl Iterator<Item = usize>) -> Vec<u8> {
    let mut bytes = Vec::new();
    numbers.for_each(|number| record(number).write(&mut bytes));
    bytes
}

fn read(directory: &Path) -> (Journal, Vec<Record<'static>>) {
    let mut records = Vec::new();
    let journal = Journal::open(directory, |record| records.push(record)).unwrap();
    (journal, records)
}

fn child_directory() -> Option<PathBuf> {
    std::env::var_os(DIRECTORY).map(PathBuf::from)
}

/// Runs a test of this file in a child process. `command` is a wrapper such as `strace`; the path and the arguments of
/// the test binary are appended to it.
fn run_child(mut command: Command, test: &str, directory: &Path) -> Output {
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("watch::journal_faults::{test}"), "--nocapture", "--test-threads=1"]);
    command.env(DIRECTORY, directory).output().unwrap()
}

/// For the child: appends six records, and replaces the journal after the third.
#[test]
#[allow(clippy::print_stdout)]
fn writer_that_is_killed() {
    let Some(directory) = child_directory() else { return };
    let (mut journal, _) = read(&directory);
    for number in 0..6 {
        journal.append(&bytes(number..=number)).unwrap();
        println!("\n{ACKNOWLEDGED}{number}");
        if number == 2 {
            journal.rewrite(&[&bytes(0..3)]).unwrap();
        }
    }
}

fn has_strace() -> bool {
    let has_strace = Command::new("strace").arg("--version").output().is_ok();
    if !has_strace {
        eprintln!("skipped: strace is not installed");
    }
    has_strace
}

/// The calls of a child that write, sync, truncate or rename files, in order, with the paths of the files.
fn traced(test: &str, directory: &Path) -> Vec<String> {
    let (trace, mut strace) = (tempfile::NamedTempFile::new().unwrap(), Command::new("strace"));
    strace.args(["-f", "-qq", "-y", "-e", "trace=write,fsync,fdatasync,ftruncate,rename", "-o"]).arg(trace.path());
    let output = run_child(strace, test, directory);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    fs::read_to_string(trace.path()).unwrap().lines().map(str::to_owned).collect()
}

/// After a kill, the kernel still writes the data that it has buffered; after a loss of power it cannot. This test
/// cannot cut the power, so it checks the order of the system calls.
#[test]
fn a_record_is_synced_before_it_is_acknowledged() {
    if !has_strace() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut is_synced, mut acknowledged) = (true, 0);
    for call in traced("writer_that_is_killed", folder.path()) {
        if call.contains("write(") && call.contains("/watch.journal") {
            is_synced = false;
        } else if call.contains("sync(") && call.contains("/watch.journal") {
            is_synced = true;
        } else if call.contains("write(") && call.contains(ACKNOWLEDGED.trim_end()) {
            assert!(is_synced, "{call}");
            acknowledged += 1;
        }
    }
    assert_eq!(acknowledged, 6);
}

/// Otherwise a loss of power after a rewrite could leave an empty journal, or the old one without later records.
#[test]
fn a_rewritten_journal_is_synced_before_it_replaces_the_old_one_and_its_name_before_the_next_acknowledgement() {
    if !has_strace() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let directory = format!("<{}>", folder.path().display());
    let (mut is_synced, mut is_named, mut renames) = (true, true, 0);
    for call in traced("writer_that_is_killed", folder.path()) {
        if call.contains("rename(") && call.contains("/watch.journal.new") {
            assert!(is_synced, "{call}");
            is_named = false;
            renames += 1;
        } else if call.contains("/watch.journal.new") {
            is_synced = call.contains("sync(");
        } else if call.contains("fsync(") && call.contains(&directory) {
            is_named = true;
        } else if call.contains("write(") && call.contains(ACKNOWLEDGED.trim_end()) {
            assert!(is_named, "{call}");
        }
    }
    assert_eq!(renames, 2, "when it is created, and after the third record");
}

/// For the child: opens a journal whose second record is damaged.
#[test]
fn opener_of_a_damaged_journal() {
    if let Some(directory) = child_directory() {
        assert_eq!(read(&directory).1, [record(0)]);
    }
}

/// Otherwise a loss of power could take both the copy and the damaged records.
#[test]
fn the_copy_of_a_damaged_journal_is_synced_before_the_journal_is_replaced() {
    if !has_strace() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    read(folder.path()).0.append(&bytes(0..2)).unwrap();
    let path = folder.path().join("watch.journal");
    let mut damaged = fs::read(&path).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&path, &damaged).unwrap();
    let calls = traced("opener_of_a_damaged_journal", folder.path());
    let first = |names: &[&str], file: &str| {
        let is_it = |call: &String| names.iter().any(|name| call.contains(name)) && call.contains(file);
        calls.iter().position(is_it).unwrap_or_else(|| panic!("{names:?} of {file} is not among {calls:#?}"))
    };
    let replaced = first(&["rename("], "/watch.journal\"");
    assert!(first(&["fsync(", "fdatasync("], "/watch.damaged>") < replaced, "{calls:#?}");
    assert!(!calls[..replaced].iter().any(|call| call.contains("ftruncate(") && call.contains("/watch.journal>")));
    assert_eq!(fs::read(folder.path().join("watch.damaged")).unwrap(), damaged);
}

#[test]
fn a_process_that_is_killed_at_any_system_call_loses_no_record_that_it_acknowledged() {
    if !has_strace() {
        return;
    }
    for call in ["write", "fsync", "fdatasync", "rename", "openat"] {
        let mut kills = 0;
        for when in 1.. {
            let folder = tempfile::tempdir().unwrap();
            let mut strace = Command::new("strace");
            strace.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}")]);
            strace.args(["-e", &format!("inject={call}:signal=KILL:when={when}")]);
            let output = run_child(strace, "writer_that_is_killed", folder.path());
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            let acknowledged = printed.lines().filter(|line| line.starts_with(ACKNOWLEDGED)).count();
            let (mut journal, records) = read(folder.path());
            // One more record may be on disk that was not acknowledged yet.
            assert!((acknowledged..=acknowledged + 1).contains(&records.len()), "{call} {when}: {printed}");
            assert_eq!(records, (0..records.len()).map(record).collect::<Vec<_>>(), "{call} {when}");
            journal.append(&bytes(9..10)).unwrap();
            drop(journal);
            assert_eq!(read(folder.path()).1.last(), Some(&record(9)));
            if output.status.success() {
                assert_eq!(acknowledged, 6);
                break;
            }
            assert!(when < 200, "{call}: {}", String::from_utf8_lossy(&output.stderr));
            kills += 1;
        }
        assert!(kills > 0, "{call} was never called");
    }
}

/// For the child: appends until the disk is full, removes the file that fills the rest of it, and continues.
#[test]
fn writer_whose_disk_is_full() {
    let Some(directory) = child_directory() else { return };
    let directory = directory.join("state");
    let (mut journal, _) = read(&directory);
    let mut acknowledged = 0;
    while journal.append(&bytes(acknowledged..acknowledged + 100)).is_ok() {
        acknowledged += 100;
        assert!(acknowledged < 1_000_000, "the disk is not full");
    }
    assert!(acknowledged > 0 && journal.is_broken() && journal.append(&bytes(0..1)).is_err());
    assert!(journal.rewrite(&[&bytes(0..acknowledged)]).is_err(), "there is no room for a second file");
    assert!(!directory.join("watch.journal.new").exists(), "nothing is left behind");
    drop(journal);
    let (mut journal, records) = read(&directory);
    assert_eq!(records, (0..acknowledged).map(record).collect::<Vec<_>>());
    fs::remove_file(directory.parent().unwrap().join("ballast")).unwrap();
    journal.rewrite(&[&bytes(0..10)]).unwrap();
    journal.append(&bytes(10..11)).unwrap();
    drop(journal);
    assert_eq!(read(&directory).1, (0..11).map(record).collect::<Vec<_>>());
}

#[test]
fn a_full_disk_loses_no_record_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        "mount -t tmpfs -o size=256k tmpfs \"$1\" && head -c 100000 /dev/zero >\"$1/ballast\" && shift && exec \"$@\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "sh", "-c", script, "sh"]).arg(folder.path());
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a mount namespace (unshare -m) needs root");
        return;
    }
    let output = run_child(unshare, "writer_whose_disk_is_full", folder.path());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}
