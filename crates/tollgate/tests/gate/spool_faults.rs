//! Faults of the spool's file system. Responses stay complete, memory stays bounded, and each fault is logged once.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::buffering::{assert_others_are_served, buffered, gate, not_reading, pattern, two_workers};
use crate::support::{Gate, eventually, read_response};

/// The memory of the buffers. One client may use a quarter.
const MEMORY_MAX: u64 = 4 << 20;
const LOGGED: &str = "responses cannot be spooled";

/// Whether file systems can be mounted. If not, prints why the test is skipped.
fn may_mount() -> bool {
    let may = rustix::process::geteuid().is_root()
        && Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success());
    if !may {
        eprintln!("skipped: a mount namespace (unshare -m) needs root");
    }
    may
}

/// A gate in a new mount namespace, whose spool is on a separate file system.
fn gate_with_spool_on(mount_options: &str) -> Gate {
    let folder = tempfile::tempdir().unwrap();
    let spool = folder.path().join("spool");
    std::fs::create_dir(&spool).unwrap();
    let config = format!(
        "[gate]\nworkers = 1\nin_flight = 2\nbackend = \"http://{}\"\n\
         buffer = {{ memory = \"{MEMORY_MAX}B\", dir = \"{}\" }}\n",
        two_workers(),
        spool.display(),
    );
    let file = folder.path().join("tollgate.toml");
    std::fs::write(&file, config).unwrap();
    let script = "mount -t tmpfs -o \"$1\" tmpfs \"$2\" && exec \"$3\" gate --config \"$4\" \
                  --listen 127.0.0.1:0 --admin 127.0.0.1:0";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh", mount_options]).arg(&spool);
    command.arg(env!("CARGO_BIN_EXE_tollgate")).arg(&file);
    Gate::spawn(command, folder)
}

/// Asserts that a client that reads late gets every byte, that others are served in the meantime, and that one line is
/// logged.
fn assert_nothing_breaks(gate: Gate, fault: &str) {
    let slow = not_reading(&gate, 1, "/big");
    gate.logged(LOGGED);
    eventually("memory is used", || buffered(&gate).0 >= MEMORY_MAX / 4);
    assert_others_are_served(&gate);
    assert!(buffered(&gate).0 <= MEMORY_MAX, "{fault}: {:?} bytes", buffered(&gate));
    let response = read_response(&mut BufReader::new(slow)).unwrap();
    assert!(response.body == pattern(), "{fault}: {} bytes arrived", response.body.len());
    eventually("nothing is left", || buffered(&gate) == (0, 0));
    let lines = gate.end();
    assert_eq!(lines.iter().filter(|line| line.contains(LOGGED)).count(), 1, "{fault}");
}

#[test]
fn a_full_disk_under_the_spool_breaks_no_response() {
    if may_mount() {
        assert_nothing_breaks(gate_with_spool_on("size=3m"), "full");
    }
}

#[test]
fn a_read_only_file_system_under_the_spool_breaks_no_response() {
    if may_mount() {
        assert_nothing_breaks(gate_with_spool_on("ro"), "read-only");
    }
}

#[test]
fn a_spool_directory_that_is_a_file_breaks_no_response() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines = format!("buffer = {{ memory = \"{MEMORY_MAX}B\", dir = \"{}\" }}", file.path().display());
    assert_nothing_breaks(gate(two_workers(), &lines), "not a directory");
}

#[test]
fn a_removed_spool_directory_stays_usable() {
    let folder = tempfile::tempdir().unwrap();
    let gate = gate(two_workers(), &format!("buffer = {{ dir = \"{}\" }}", folder.path().display()));
    let first = not_reading(&gate, 1, "/big");
    eventually("the spool is used", || buffered(&gate).1 > 1 << 20);
    drop(folder);
    let second = not_reading(&gate, 2, "/big");
    eventually("the backend is done", || buffered(&gate).1 > 40_000_000);
    for stream in [first, second] {
        assert!(read_response(&mut BufReader::new(stream)).unwrap().body == pattern());
    }
    assert!(gate.end().iter().all(|line| !line.contains(LOGGED)));
}

/// Stops one thread of a process, as a hung file system does. The thread continues when this is dropped.
struct StoppedThread(Child);

impl StoppedThread {
    fn of(process: u32, name: &str) -> Self {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let is_named = |path: &Path| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name);
        let thread = tasks.map(|task| task.unwrap().path()).find(|path| is_named(path)).unwrap();
        // PTRACE_SEIZE and PTRACE_INTERRUPT, until the end of the input.
        let script = "import ctypes, sys\nptrace = ctypes.CDLL(None).ptrace\nthread = int(sys.argv[1])\n\
            ok = ptrace(0x4206, thread, 0, 0) == 0 and ptrace(0x4207, thread, 0, 0) == 0\n\
            print('stopped' if ok else 'refused', flush=True)\nsys.stdin.read()";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(thread.file_name().unwrap());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "stopped", "ptrace is not allowed");
        Self(child)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn a_hung_file_system_blocks_only_the_responses_on_it() {
    let gate = gate(two_workers(), &format!("buffer = {{ memory = \"{MEMORY_MAX}B\" }}"));
    let spooled = not_reading(&gate, 1, "/big");
    eventually("the spool is used", || buffered(&gate).1 > 20_000_000);
    let stopped = StoppedThread::of(gate.id(), "gate-spool");
    let late = not_reading(&gate, 2, "/big");
    gate.logged(LOGGED);
    assert_others_are_served(&gate);
    assert!(buffered(&gate).0 <= MEMORY_MAX, "{:?} bytes", buffered(&gate));
    // Unwritten blocks are back in the memory of their download.
    assert!(read_response(&mut BufReader::new(late)).unwrap().body == pattern());
    drop(stopped);
    assert!(read_response(&mut BufReader::new(spooled)).unwrap().body == pattern());
    eventually("nothing is left", || buffered(&gate) == (0, 0));
    assert_eq!(gate.end().iter().filter(|line| line.contains(LOGGED)).count(), 1);
}
