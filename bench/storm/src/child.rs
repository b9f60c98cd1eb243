//! A process that this benchmark started, and ends: by its own id, when the value goes out of scope.
//!
//! A benchmark that is killed in the middle must not leave a server behind either, so every child asks the kernel to be
//! told when its parent dies (`setpriv --pdeathsig`; from util-linux, and it keeps this crate free of unsafe code).

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

const START_MAX: Duration = Duration::from_secs(15);
const STOP_MAX: Duration = Duration::from_secs(3);

/// A running process with what it wrote to standard error.
pub(crate) struct Child {
    process: std::process::Child,
    log: PathBuf,
}

impl Child {
    /// Starts `program` on the cores that this thread is pinned to, and waits until it listens on `address`.
    pub(crate) fn start<I, S>(program: &Path, args: I, dir: &Path, address: SocketAddr) -> io::Result<Self>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let log = dir.join(format!("{name}.stderr"));
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(args)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("cannot run setpriv (util-linux): {error}")))?;
        let mut child = Self { process, log };
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
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let tail: Vec<&str> = text.lines().rev().take(5).collect();
        tail.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }

    /// The process and its children: nginx works in one.
    fn family(&self) -> Vec<u32> {
        let pid = self.process.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        std::iter::once(pid).chain(children.split_whitespace().filter_map(|pid| pid.parse().ok())).collect()
    }

    /// CPU time used so far, by all threads of the process and its children.
    pub(crate) fn cpu_time(&self) -> Duration {
        self.family().into_iter().filter_map(cpu_time_of).sum()
    }

    /// Memory that would come free if it ended (proportional set size), in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.family().into_iter().filter_map(memory_bytes_of).sum()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
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

/// A directory for one run, removed with everything in it when the run is over.
pub(crate) struct ScratchDir(PathBuf);

impl ScratchDir {
    pub(crate) fn new() -> io::Result<Self> {
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let path = std::env::temp_dir().join(format!("bench-storm-{}-{nanos}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An address on loopback that nobody listens on at the moment.
pub(crate) fn free_address() -> io::Result<SocketAddr> {
    std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// Where a program is: on the path, or where distributions hide daemons.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    dirs.map(|dir| dir.join(name)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_ends_at_once_is_reported_with_what_it_said() {
        let dir = ScratchDir::new().unwrap();
        let shell = find_program("sh").unwrap();
        let address = free_address().unwrap();
        let error = Child::start(&shell, ["-c", "echo no such port >&2; exit 3"], dir.path(), address).err().unwrap();
        assert!(error.to_string().contains("no such port"), "{error}");
    }

    #[test]
    fn a_scratch_directory_leaves_nothing_behind() {
        let dir = ScratchDir::new().unwrap();
        let path = dir.path().to_owned();
        fs::write(path.join("file"), "x").unwrap();
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn a_process_has_used_time_and_memory() {
        let pid = std::process::id();
        assert!(cpu_time_of(pid).unwrap() > Duration::ZERO);
        assert!(memory_bytes_of(pid).unwrap() > 100_000);
    }
}
