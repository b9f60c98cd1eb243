//! A master for one test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) struct Master {
    process: Child,
    pub(crate) accounting: SocketAddr,
    pub(crate) control: SocketAddr,
    pub(crate) admin: SocketAddr,
    directory: PathBuf,
}

impl Master {
    /// One per second with a burst of ten, and the state on disk.
    pub(crate) fn start(name: &str) -> Self {
        let rule = "[[rule]]\nname = \"each\"\nclass = \"identifier\"\nrate = { rate = \"1/s\", burst = 10 }\n";
        Self::start_with(name, rule)
    }

    /// With these rules, and the state on disk.
    pub(crate) fn start_with(name: &str, rules: &str) -> Self {
        Self::start_with_link(name, "", rules)
    }

    /// With these lines in `[master]`, these rules, and the state on disk.
    pub(crate) fn start_with_link(name: &str, link: &str, rules: &str) -> Self {
        // Tests of one process may use the same name.
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("master-{name}-{process}-{number}"));
        std::fs::create_dir_all(&directory).unwrap();
        let [accounting, control, admin] = free_addresses();
        let settings = format!(
            "[master]\naccounting = \"{accounting}\"\ncontrol = \"{control}\"\nstate_dir = \"{}\"\n{link}\
             [admin]\nlisten = \"{admin}\"\n{rules}",
            directory.display()
        );
        std::fs::write(directory.join("tollgate.toml"), settings).unwrap();
        let process = launch(&directory);
        Self { process, accounting, control, admin, directory }
    }

    /// Kills it and starts another in its place.
    pub(crate) fn kill_and_restart(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = launch(&self.directory);
    }

    /// Kills it.
    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Sends it a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    /// Stops it and waits for its end.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        self.process.wait().unwrap().code()
    }

    pub(crate) fn start_again(&mut self) {
        self.process = launch(&self.directory);
    }

    /// Makes it reload its settings.
    pub(crate) fn hang_up(&self) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &id]).status().unwrap().success());
    }

    pub(crate) fn settings_file(&self) -> PathBuf {
        self.directory.join("tollgate.toml")
    }

    pub(crate) fn state_file(&self) -> PathBuf {
        self.directory.join("master.state")
    }

    /// The value of a metric, once it is at least `least`.
    pub(crate) fn metric(&self, name: &str, least: u64) -> u64 {
        for _ in 0..100 {
            let mut stream = TcpStream::connect(self.admin).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            let value = line.map_or(0, |value| value.trim().parse().unwrap());
            if value >= least {
                return value;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{name} did not reach {least}");
    }

    pub(crate) fn memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Starts it and waits until it is ready.
fn launch(directory: &std::path::Path) -> Child {
    let mut process = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .arg("master")
        .arg("--config")
        .arg(directory.join("tollgate.toml"))
        .env_remove("NOTIFY_SOCKET")
        // A separate default state directory.
        .env("XDG_STATE_HOME", directory)
        .env_remove("STATE_DIRECTORY")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("the master is ready") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "the master ended before it was ready");
    }
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    process
}

/// Free addresses outside the ephemeral port range: the system could otherwise assign one to another connection
/// before the program starts.
pub(crate) fn free_addresses<const N: usize>() -> [SocketAddr; N] {
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    [(); N].map(|()| {
        (0..COUNT)
            .map(|_| {
                let place = std::process::id().wrapping_mul(101).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
                SocketAddr::from(([127, 0, 0, 1], (FIRST + place % COUNT) as u16))
            })
            .find(|address| TcpListener::bind(address).is_ok())
            .unwrap()
    })
}

pub(crate) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}
