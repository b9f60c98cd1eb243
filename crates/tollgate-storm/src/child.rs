//! A process that we started, and end: by its own id, when the value goes out of scope.
//!
//! A parent that is killed cannot clean up, and a server left behind holds its port and its core. So the kernel is asked to
//! end the child with its parent.

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

const START_MAX: Duration = Duration::from_secs(15);
const LOG_BYTES_MAX: u64 = 64 * 1024;
const STOP_MAX: Duration = Duration::from_secs(3);

/// A running process with what it wrote to standard error.
pub struct Child {
    process: std::process::Child,
    log: File,
}

impl Child {
    /// Starts `program` on the cores that this thread is pinned to, and waits until it listens on `address`.
    pub fn start<I, S>(program: &Path, args: I, address: SocketAddr) -> io::Result<Self>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        Self::start_with_state(program, args, address, None)
    }

    /// As [`Child::start`], for a program that keeps its state below `state_home`; without one it keeps none.
    pub fn start_with_state<I, S>(
        program: &Path,
        args: I,
        address: SocketAddr,
        state_home: Option<&Path>,
    ) -> io::Result<Self>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let log = nameless_file()?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.try_clone()?);
        // The child must neither read nor leave state in the home directory of the person who starts it.
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

    fn complaint(&self) -> String {
        let mut text = String::new();
        let read = (&self.log).rewind().and_then(|()| (&self.log).take(LOG_BYTES_MAX).read_to_string(&mut text));
        if read.is_err() {
            return "and what it said is not readable".to_owned();
        }
        let tail: Vec<&str> = text.lines().rev().take(5).collect();
        tail.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }

    /// The process and its children: nginx works in one.
    fn family(&self) -> Vec<u32> {
        let pid = self.process.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        std::iter::once(pid).chain(children.split_whitespace().filter_map(|pid| pid.parse().ok())).collect()
    }

    /// Ends the process and its children at once, without a chance to drain or to save state: a crash.
    pub fn crash(mut self) {
        let family = self.family();
        let _ = self.process.kill();
        // The children are ended after their parent, because nginx replaces a worker that ends.
        for pid in family.iter().skip(1).filter_map(|&pid| Pid::from_raw(pid.try_into().ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.process.wait();
        // A child holds the listening socket until it has ended, and would accept a connection that it then resets.
        let begin = Instant::now();
        while family.iter().any(|&pid| is_running(pid)) && begin.elapsed() < STOP_MAX {
            sleep(Duration::from_millis(1));
        }
    }

    /// CPU time used so far, by all threads of the process and its children.
    pub fn cpu_time(&self) -> Duration {
        self.family().into_iter().filter_map(cpu_time_of).sum()
    }

    /// Memory that would come free if it ended (proportional set size), in bytes.
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

/// A file that has no name any more, so that nothing is left of it however we end.
fn nameless_file() -> io::Result<File> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("tollgate-storm-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
    let path = std::env::temp_dir().join(name);
    let file = File::options().read(true).append(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

#[expect(unsafe_code, reason = "what runs between fork and exec is beyond the compiler")]
fn die_with_parent(command: &mut Command) {
    let ask = || set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from);
    // SAFETY: the closure makes one system call and touches no memory of the parent, so it may run after a fork.
    unsafe { command.pre_exec(ask) };
}

/// Whether a process has not ended yet. A process that has ended but was not waited for holds no sockets.
fn is_running(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|text| !text.lines().any(|line| line.starts_with("State:\tZ")))
}

/// The scheduler's own sum for every thread, in nanoseconds; `stat` counts only in ticks of 10 ms.
fn cpu_time_of(pid: u32) -> Option<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let nanos = |thread: fs::DirEntry| -> Option<u64> {
        fs::read_to_string(thread.path().join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()
    };
    Some(Duration::from_nanos(threads.filter_map(|thread| nanos(thread.ok()?)).sum()))
}

fn memory_bytes_of(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// An address on loopback that nobody listens on at the moment.
pub fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_ends_at_once_is_reported_with_what_it_said() {
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
        assert!(cpu_time_of(pid).unwrap() > Duration::ZERO);
        assert!(memory_bytes_of(pid).unwrap() > 100_000);
    }
}
