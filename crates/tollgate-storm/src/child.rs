//! A child process that is stopped when its value is dropped: the demo and the benchmarks run sites, gates and other
//! proxies in it.
//!
//! A parent that is killed cannot clean up, and an orphaned server keeps its port and its core. The kernel is
//! therefore asked to kill the child with its parent.

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read, Seek},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread::sleep,
    time::{Duration, Instant},
};

/// The longest time until a child listens.
const START_MAX: Duration = Duration::from_secs(15);
/// The part of a child's standard error that is read to explain why it did not start.
const LOG_BYTES_MAX: u64 = 64 * 1024;
/// The longest wait for the end of a child.
const STOP_MAX: Duration = Duration::from_secs(3);

/// A running process.
pub struct Child {
    process: std::process::Child,
    /// Its standard error.
    log: File,
}

impl Child {
    /// Starts `program` on the cores of this thread, and waits until it listens on `address`.
    pub fn start(
        program: &Path,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
        address: SocketAddr,
    ) -> io::Result<Self> {
        Self::start_with_state(program, args, address, None)
    }

    /// As [`Child::start`], for a program that stores state below `state_home`; without one it stores none.
    pub fn start_with_state(
        program: &Path,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
        address: SocketAddr,
        state_home: Option<&Path>,
    ) -> io::Result<Self> {
        let log = nameless_file()?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.try_clone()?);
        // The child must neither read nor leave state in the user's home directory.
        command.env_remove("HOME").env_remove("XDG_STATE_HOME").env_remove("STATE_DIRECTORY");
        if let Some(state_home) = state_home {
            command.env("XDG_STATE_HOME", state_home);
        }
        die_with_parent(&mut command);
        let process = command
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("cannot run {}: {error}", program.display())))?;
        let mut child = Self { process, log };
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        child.wait_until_it_listens(&name, address)?;
        Ok(child)
    }

    fn wait_until_it_listens(&mut self, name: &str, address: SocketAddr) -> io::Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < START_MAX {
            if let Some(status) = self.process.try_wait()? {
                return Err(io::Error::other(format!("{name} ended at once ({status}): {}", self.complaint())));
            }
            if TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok() {
                return Ok(());
            }
            sleep(Duration::from_millis(20));
        }
        Err(io::Error::other(format!("{name} does not listen on {address}: {}", self.complaint())))
    }

    /// The last lines of standard error, for an error message.
    fn complaint(&self) -> String {
        let mut text = String::new();
        let read = (&self.log).rewind().and_then(|()| (&self.log).take(LOG_BYTES_MAX).read_to_string(&mut text));
        if read.is_err() {
            return "its output is not readable".to_owned();
        }
        let tail: Vec<&str> = text.lines().rev().take(5).collect();
        tail.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }

    /// The process and its children, because nginx serves from one.
    fn family(&self) -> Vec<u32> {
        let pid = self.process.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        std::iter::once(pid).chain(children.split_whitespace().filter_map(|pid| pid.parse().ok())).collect()
    }

    /// Kills the process and its children without a chance to drain or to save state.
    pub fn crash(mut self) {
        let family = self.family();
        let _ = self.process.kill();
        // The children are killed after their parent, because nginx replaces a worker that ends.
        for pid in family.iter().skip(1).filter_map(|&pid| Pid::from_raw(pid.try_into().ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.process.wait();
        // A child holds the listening socket until it has ended, and would accept a connection that it then
        // resets.
        let begin = Instant::now();
        while family.iter().any(|&pid| is_running(pid)) && begin.elapsed() < STOP_MAX {
            sleep(Duration::from_millis(1));
        }
    }

    /// The CPU time of all threads of the process and its children.
    pub fn cpu_time(&self) -> Duration {
        self.family().into_iter().filter_map(|pid| schedule_of(pid, 0)).sum()
    }

    /// The time for which the threads of the process and its children were ready to run and had no core.
    pub fn run_delay(&self) -> Duration {
        self.family().into_iter().filter_map(|pid| schedule_of(pid, 1)).sum()
    }

    /// The memory that would be freed if it ended (proportional set size), in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.family().into_iter().filter_map(memory_bytes_of).sum()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.process);
        let _ = kill_process(pid, Signal::TERM);
        let begin = Instant::now();
        while begin.elapsed() < STOP_MAX {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            sleep(Duration::from_millis(10));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An unlinked file, so that nothing is left of it in any case.
fn nameless_file() -> io::Result<File> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("tollgate-storm-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
    let path = std::env::temp_dir().join(name);
    let file = File::options().read(true).append(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

#[expect(unsafe_code, reason = "the compiler cannot check code between fork and exec")]
fn die_with_parent(command: &mut Command) {
    let ask = || set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from);
    // SAFETY: the closure makes one system call and touches no memory of the parent, so it may run after a
    // fork.
    unsafe { command.pre_exec(ask) };
}

/// Whether a process has not ended. A zombie holds no sockets.
fn is_running(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|text| !text.lines().any(|line| line.starts_with("State:\tZ")))
}

/// The sum over all threads of a field of the scheduler's statistics, in nanoseconds: 0 is the CPU time, 1 the time on
/// a run queue. `stat` counts only in ticks of 10 ms.
fn schedule_of(pid: u32, field: usize) -> Option<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let nanos = |thread: fs::DirEntry| -> Option<u64> {
        fs::read_to_string(thread.path().join("schedstat")).ok()?.split_whitespace().nth(field)?.parse().ok()
    };
    Some(Duration::from_nanos(threads.filter_map(|thread| nanos(thread.ok()?)).sum()))
}

fn memory_bytes_of(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// A free loopback address.
pub fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_ends_immediately_is_reported_with_its_output() {
        let args = ["-c", "echo no such port >&2; exit 3"];
        let error = Child::start(Path::new("/bin/sh"), args, free_address().unwrap()).err().unwrap();
        assert!(error.to_string().contains("no such port"), "{error}");
    }

    #[test]
    fn a_child_ends_with_its_value() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let child = Child::start(Path::new("/bin/sleep"), ["60"], address).unwrap();
        let process = format!("/proc/{}", child.process.id());
        assert!(Path::new(&process).exists());
        drop(child);
        assert!(!Path::new(&process).exists());
    }

    #[test]
    fn a_crash_ends_the_children_of_a_process_too() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let child = Child::start(Path::new("/bin/sh"), ["-c", "sleep 60 & wait"], address).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while child.family().len() < 2 {
            assert!(Instant::now() < deadline, "the shell starts no child");
            sleep(Duration::from_millis(1));
        }
        let family = child.family();
        child.crash();
        assert!(!family.into_iter().any(is_running));
    }

    #[test]
    fn a_process_has_used_time_and_memory() {
        let pid = std::process::id();
        assert!(schedule_of(pid, 0).unwrap() > Duration::ZERO);
        assert!(memory_bytes_of(pid).unwrap() > 100_000);
    }
}
