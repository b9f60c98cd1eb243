//! A fleet on a bad network: gates and a master in separate network namespaces, with delay and loss between them.
//!
//! The test reaches each gate over a clean link. Gates reach the master over links with delay and packet loss: by `tc
//! netem` or, if the kernel lacks it, by a relay between tun devices. The test needs root and `ip`; without them it
//! prints the reason and ends. It prints which of the two it used. To run it on netem on a machine without it, boot a
//! distribution's kernel in an emulator (`qemu-system-x86_64 -kernel`) with an initramfs of `ip`, `tc`, the modules
//! `veth` and `sch_netem`, and the built test.
//!
//! The excess depends on the time until gates know of each other's requests, which TCP on such a network makes
//! anything from 0.1 s to many seconds. This time is measured with beacons: keys that are used up at one gate and
//! requested at another until it refuses them.
#![allow(clippy::print_stderr, clippy::unwrap_used)]

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const GATES: usize = 2;
/// Attackers have ten per second with a burst of ten. The innocent client has a burst of one, so that any excess debt
/// at a gate becomes a delay. Beacons stay used up for longer than the test.
const RULES: &str = r#"
[[rule]]
name = "attackers"
class = "header:x-key"
when = { path = "/attack" }
rate = { rate = "10/s", burst = 10 }
state = "master"
hold = "0s"

[[rule]]
name = "innocents"
class = "header:x-key"
when = { path = "/patient" }
rate = { rate = "10/s", burst = 1 }
state = "master"
hold = "10s"

[[rule]]
name = "beacons"
class = "header:x-key"
when = { path = "/beacon" }
rate = { rate = "1/min", burst = 7 }
state = "master"
hold = "0s"
"#;
/// The pause of an attacker after a refusal. It still exceeds its limit many times, and leaves CPU time to others.
const ATTACK_PAUSE: Duration = Duration::from_millis(10);
/// The pause of the innocent client between a response and its next request, for at most nine per second.
const PACE: Duration = Duration::from_millis(110);
/// The quality of the links between gates and the master, each way.
const BAD: Quality = Quality { delay_ms: 40, jitter_ms: 10, loss_percent: 10 };
const CUT: Quality = Quality { delay_ms: 0, jitter_ms: 0, loss_percent: 100 };
/// The timeout for connecting to the master over these links.
const JOINED_WITHIN: Duration = Duration::from_secs(60);
/// The interval between beacons while gates connect.
const JOINED_AFTER_MAX: Duration = Duration::from_secs(5);
/// The longest stall of the machine that is tolerated while the innocent client waits.
const STALL: Duration = Duration::from_secs(5);
/// The interval between beacons, and the delay until the first query for one, which doubles for each further query.
/// The load is low, because it uses the same network.
const BEACON_EVERY: Duration = Duration::from_secs(1);
const BEACON_ASKED_AFTER: Duration = Duration::from_millis(500);
/// Few enough that the queried gate has no reason of its own to refuse them.
const BEACON_ASKED_TIMES: u32 = 6;

#[derive(Clone, Copy)]
struct Quality {
    delay_ms: u32,
    jitter_ms: u32,
    loss_percent: u32,
}

/// Namespaces, links and files, removed after the test. The test itself runs in one of the namespaces, so that
/// addresses do not collide with another run.
struct Ground {
    name: String,
    home: PathBuf,
    /// The relay, if the kernel has no netem.
    relay: Option<Process>,
}

impl Ground {
    /// Creates them, or returns why that is not possible.
    fn create() -> Result<Self, String> {
        let name = format!("tg{}", std::process::id());
        let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("netem-{}", std::process::id()));
        std::fs::create_dir_all(&home).map_err(|error| error.to_string())?;
        let mut ground = Self { name, home, relay: None };
        let (here, master) = (format!("{}h", ground.name), format!("{}m", ground.name));
        ground.run(&format!("ip netns add {here}"))?;
        let space = std::fs::File::open(format!("/run/netns/{here}")).map_err(|error| error.to_string())?;
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| format!("setns: {error}"))?;
        ground.run(&format!("ip netns add {master}"))?;
        for gate in 0..GATES {
            let net = format!("{}g{gate}", ground.name);
            ground.run(&format!("ip netns add {net}"))?;
            // From the test to the gate: clean.
            ground.must(&format!("ip link add {net}h type veth peer name near netns {net}"));
            ground.must(&format!("ip addr add 10.233.{gate}.1/30 dev {net}h"));
            ground.must(&format!("ip link set {net}h up"));
            ground.must(&format!("ip -n {net} addr add 10.233.{gate}.2/30 dev near"));
            ground.must(&format!("ip -n {net} link set near up"));
            ground.must(&format!("ip -n {net} link set lo up"));
            // From the gate to the master: bad.
            ground.must(&format!("ip -n {net} link add far type veth peer name far{gate} netns {master}"));
        }
        ground.must(&format!("ip -n {master} link set lo up"));
        match ground.shape(BAD, "add") {
            Ok(()) => eprintln!("packets are delayed and lost by the kernel's netem"),
            Err(why) => {
                eprintln!("packets are delayed and lost by a relay of the test: {why}");
                ground.relay = Some(ground.start_relay()?);
                ground.make(BAD);
            }
        }
        for gate in 0..GATES {
            let net = format!("{}g{gate}", ground.name);
            ground.must(&format!("ip -n {net} addr add 10.234.{gate}.2/30 dev far"));
            ground.must(&format!("ip -n {master} addr add 10.234.{gate}.1/30 dev far{gate}"));
            ground.must(&format!("ip -n {net} link set far up"));
            ground.must(&format!("ip -n {master} link set far{gate} up"));
        }
        Ok(ground)
    }

    /// Sets the quality of all links between gates and the master.
    fn make(&mut self, quality: Quality) {
        let Quality { delay_ms, jitter_ms, loss_percent } = quality;
        match &mut self.relay {
            Some(relay) => writeln!(relay.0.stdin.as_mut().unwrap(), "{delay_ms} {jitter_ms} {loss_percent}").unwrap(),
            None => self.shape(quality, "change").unwrap(),
        }
    }

    /// The same with netem.
    fn shape(&self, quality: Quality, how: &str) -> Result<(), String> {
        let Quality { delay_ms, jitter_ms, loss_percent } = quality;
        let quality = format!("netem delay {delay_ms}ms {jitter_ms}ms loss {loss_percent}%");
        for gate in 0..GATES {
            self.run(&format!("tc -n {}g{gate} qdisc {how} dev far root {quality}", self.name))?;
            self.run(&format!("tc -n {}m qdisc {how} dev far{gate} root {quality}", self.name))?;
        }
        Ok(())
    }

    /// Starts the relay, with tun devices in place of the bad links.
    fn start_relay(&self) -> Result<Process, String> {
        let pairs = (0..GATES).flat_map(|gate| [format!("{}a{gate}", self.name), format!("{}b{gate}", self.name)]);
        let pairs: Vec<_> = pairs.collect();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bad_network/relay.py");
        let mut command = Command::new("python3");
        let relay = command.arg(script).args(&pairs).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut relay = Process(relay.map_err(|error| format!("python3: {error}"))?);
        let mut said = String::new();
        let _ = BufReader::new(relay.0.stdout.take().unwrap()).read_line(&mut said);
        if said.trim_end() != "made" {
            return Err("/dev/net/tun cannot be used, and the kernel has no netem".to_owned());
        }
        for (gate, pair) in pairs.chunks_exact(2).enumerate() {
            let (net, master) = (format!("{}g{gate}", self.name), format!("{}m", self.name));
            self.must(&format!("ip -n {net} link del far"));
            self.must(&format!("ip link set {} netns {net} name far", pair[0]));
            self.must(&format!("ip link set {} netns {master} name far{gate}", pair[1]));
        }
        Ok(relay)
    }

    /// Setup that every kernel with namespaces supports.
    fn must(&self, line: &str) {
        self.run(line).unwrap();
    }

    /// Runs a command, or returns why it failed.
    fn run(&self, line: &str) -> Result<(), String> {
        let mut words = line.split(' ');
        let output = Command::new(words.next().unwrap()).args(words).output();
        let output = output.map_err(|error| format!("`{line}`: {error} (Debian: iproute2)"))?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() { Ok(()) } else { Err(format!("`{line}`: {said}")) }
    }

    /// Starts a built program in this namespace.
    fn start(&self, space: &str, role: &str, settings: &str, ready: &str) -> Process {
        let file = self.home.join(format!("{space}.toml"));
        std::fs::write(&file, settings).unwrap();
        let mut process = Command::new("ip")
            .args(["netns", "exec", &format!("{}{space}", self.name), env!("CARGO_BIN_EXE_tollgate"), role, "--config"])
            .arg(&file)
            .env_remove("NOTIFY_SOCKET")
            // A separate default state directory, because all of them have the same port.
            .env("XDG_STATE_HOME", file.with_extension("state"))
            .env_remove("STATE_DIRECTORY")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains(ready) {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "{role} ended before it was ready");
        }
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Process(process)
    }

    fn keys(&self, name: &str) -> (PathBuf, String) {
        let file = self.home.join(name);
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("keys").arg(&file).output().unwrap();
        (file, String::from_utf8(output.stdout).unwrap().trim_end().to_owned())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let spaces = (0..GATES)
            .map(|gate| format!("{}g{gate}", self.name))
            .chain(["m", "h"].map(|place| format!("{}{place}", self.name)));
        for space in spaces {
            let _ = self.run(&format!("ip netns del {space}"));
        }
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A backend of this test, which responds at once.
fn backend(address: &str) -> SocketAddr {
    let listener = TcpListener::bind(address).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream);
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|count| count > 0) {
                    if line == "\r\n" {
                        let _ = reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
                    }
                    line.clear();
                }
            });
        }
    });
    address
}

/// One client's connection to a gate.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(gate: usize) -> Self {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            match TcpStream::connect((format!("10.233.{gate}.2").as_str(), 8888)) {
                Ok(stream) => {
                    stream.set_nodelay(true).unwrap();
                    return Self(BufReader::new(stream));
                }
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn get(&mut self, path: &str, key: &str) -> u16 {
        write!(self.0.get_mut(), "GET {path} HTTP/1.1\r\nhost: x\r\nx-key: {key}\r\n\r\n").unwrap();
        let (mut line, mut status, mut length) = (String::new(), 0, 0);
        loop {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the gate hung up");
            let text = line.trim_end();
            if let Some(rest) = text.strip_prefix("HTTP/1.1 ") {
                status = rest[..3].parse().unwrap();
            } else if let Some(value) = text.to_ascii_lowercase().strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            } else if text.is_empty() {
                break;
            }
        }
        self.0.read_exact(&mut vec![0; length]).unwrap();
        status
    }
}

/// When an admitted request was sent, and when its response arrived.
type Admission = (Instant, Instant);

/// The results of an attacker at all gates, and of an innocent client that alternates between gates.
struct Storm {
    admissions: Vec<Admission>,
    lasted: Duration,
    /// The longest time until each gate knew of the other's requests. `None` if that never happened.
    lag: Option<Duration>,
    refused: u32,
    slowest: Duration,
}

impl Storm {
    /// With `is_joined`, beacons measure the time until gates know of each other's requests.
    fn run(lasts: Duration, attacker: &str, is_joined: bool) -> Self {
        let (stop, calm) = (AtomicBool::new(false), AtomicBool::new(false));
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let beacons: Vec<_> = (0..GATES)
                .filter(|_| is_joined)
                .map(|gate| (Client::connect(gate), Client::connect((gate + 1) % GATES)))
                .map(|(teller, hearer)| scope.spawn(|| longest_lag(teller, hearer, &calm)))
                .collect();
            let attacks: Vec<_> =
                (0..GATES).map(Client::connect).map(|client| scope.spawn(|| attack(client, attacker, &stop))).collect();
            let mut clients: Vec<_> = (0..GATES).map(Client::connect).collect();
            let (mut refused, mut slowest) = (0, Duration::ZERO);
            for gate in (0..GATES).cycle().take_while(|_| begin.elapsed() < lasts) {
                let sent = Instant::now();
                refused += u32::from(clients[gate].get("/patient", "innocent") != 200);
                slowest = slowest.max(sent.elapsed());
                std::thread::sleep(PACE);
            }
            stop.store(true, Ordering::Relaxed);
            let admissions = attacks.into_iter().flat_map(|attack| attack.join().unwrap()).collect();
            let lasted = begin.elapsed();
            calm.store(true, Ordering::Relaxed);
            let lag = beacons.into_iter().map(|beacons| beacons.join().unwrap()).max();
            Self { admissions, lasted, lag, refused, slowest }
        })
    }

    /// Checks the bound over all intervals, and the waits of the innocent client. A new attacker has no debt and gets
    /// its limit.
    fn check(&self, when: &str, is_fresh: bool) {
        let Self { admissions, lasted, lag, refused, slowest } = self;
        let bound = |stretch: Duration| bound(stretch.as_secs_f64(), lag.unwrap_or(stretch).as_secs_f64());
        let (count, most, lag_max) = (admissions.len(), bound(*lasted), lag.unwrap_or(*lasted));
        let known = lag.map_or("never".to_owned(), |lag| format!("after {lag:.1?}"));
        eprintln!(
            "{when}: {count} admitted of at most {most:.0} in {lasted:.1?}; gates knew of each other {known}; \
             an innocent client waited {slowest:.1?}"
        );
        for &(from, _) in admissions {
            let mut ends: Vec<_> = admissions.iter().filter(|(sent, _)| *sent >= from).map(|(_, end)| *end).collect();
            ends.sort_unstable();
            for (before, end) in ends.into_iter().enumerate() {
                let (count, stretch) = (before + 1, end.duration_since(from));
                assert!(count as f64 <= bound(stretch), "{when}: {count} admitted in {stretch:.2?}");
            }
        }
        // Half, because the machine may have stalled meanwhile.
        if is_fresh {
            let least = 5.0 * lasted.as_secs_f64();
            assert!(count as f64 >= least, "{when}: {count} admitted, at least {least:.0} in {lasted:.1?}");
        }
        assert_eq!(*refused, 0, "{when}: an innocent client was refused");
        assert!(*slowest <= lag_max + STALL, "{when}: an innocent client waited {slowest:.1?}");
    }
}

/// Sends requests on one connection until it is stopped.
fn attack(mut client: Client, key: &str, stop: &AtomicBool) -> Vec<Admission> {
    let mut admissions = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let sent = Instant::now();
        match client.get("/attack", key) {
            200 => admissions.push((sent, Instant::now())),
            429 => std::thread::sleep(ATTACK_PAUSE),
            status => panic!("a request failed with {status}"),
        }
    }
    admissions
}

/// A key that is used up at one gate, until another refuses it.
struct Beacon {
    key: String,
    /// The time of the previous beacon: anything after it became known before this one did.
    since: Instant,
    lit: Instant,
    asked: u32,
}

impl Beacon {
    fn light(teller: &mut Client, since: Instant) -> Self {
        static LIT: AtomicU32 = AtomicU32::new(0);
        let (key, lit) = (format!("beacon-{}", LIT.fetch_add(1, Ordering::Relaxed)), Instant::now());
        while teller.get("/beacon", &key) == 200 {}
        Self { key, since, lit, asked: 0 }
    }

    /// Queries the beacon if it is due. Returns the elapsed time if the gate refused it.
    fn seen(&mut self, hearer: &mut Client) -> Option<Duration> {
        if self.lit.elapsed() < BEACON_ASKED_AFTER * (1 << self.asked) {
            return None;
        }
        assert!(self.asked < BEACON_ASKED_TIMES, "the gates do not hear of each other");
        self.asked += 1;
        (hearer.get("/beacon", &self.key) == 429).then(|| self.since.elapsed())
    }
}

/// The longest time until a gate knew of the other's requests, over all beacons before this time.
fn longest_lag(mut teller: Client, mut hearer: Client, until: &AtomicBool) -> Duration {
    let (mut since, mut longest) = (Instant::now(), Duration::ZERO);
    let mut beacons = vec![Beacon::light(&mut teller, since)];
    let mut is_last = false;
    while !(is_last && beacons.is_empty()) {
        if !is_last && since.elapsed() >= BEACON_EVERY {
            is_last = until.load(Ordering::Relaxed);
            beacons.push(Beacon::light(&mut teller, std::mem::replace(&mut since, Instant::now())));
        }
        beacons.retain_mut(|beacon| match beacon.seen(&mut hearer) {
            Some(lag) => {
                longest = longest.max(lag);
                false
            }
            None => true,
        });
        std::thread::sleep(Duration::from_millis(10));
    }
    longest
}

/// Waits until each gate receives the other's requests from the master.
fn until_joined() {
    let begin = Instant::now();
    for gate in 0..GATES {
        let (mut teller, mut hearer) = (Client::connect(gate), Client::connect((gate + 1) % GATES));
        // The first beacon may have been lit before the subscription.
        loop {
            let mut beacon = Beacon::light(&mut teller, Instant::now());
            let is_seen = loop {
                if beacon.seen(&mut hearer).is_some() {
                    break true;
                } else if beacon.lit.elapsed() > JOINED_AFTER_MAX {
                    break false;
                }
                std::thread::sleep(Duration::from_millis(10));
            };
            if is_seen {
                break;
            }
            assert!(begin.elapsed() < JOINED_WITHIN, "the gates do not hear of each other");
        }
    }
}

/// The bound of docs/decisions/fleet.md.
fn bound(seconds: f64, lag_seconds: f64) -> f64 {
    let gates = GATES as f64;
    10.0 + 10.0 * seconds + (gates - 1.0) * (10.0 + 10.0 * lag_seconds) + gates
}

#[test]
fn a_fleet_keeps_its_bound_over_a_bad_network_and_through_a_partition() {
    let mut ground = match Ground::create() {
        Ok(ground) => ground,
        Err(why) => return eprintln!("not run: network namespaces cannot be made here: {why}"),
    };
    let (master_file, master_key) = ground.keys("master.key");
    let gates: Vec<_> = (0..GATES).map(|gate| ground.keys(&format!("gate-{gate}.key"))).collect();
    let mut known = String::new();
    gates.iter().for_each(|(_, key)| write!(known, "\"{key}\", ").unwrap());
    let master = format!(
        "[master]\naccounting = \"0.0.0.0:10004\"\ncontrol = \"0.0.0.0:10005\"\nkey_file = \"{}\"\ngates = [{known}]\n{RULES}",
        master_file.display()
    );
    let _master = ground.start("m", "master", &master, "the master is ready");
    let _gates: Vec<_> = gates
        .iter()
        .enumerate()
        .map(|(gate, (file, _))| {
            let backend = backend(&format!("10.233.{gate}.1:0"));
            let settings = format!(
                "[gate]\nlisten = \"10.233.{gate}.2:8888\"\nbackend = \"http://{backend}\"\nworkers = 1\n{RULES}\
                 [link]\nkey_file = \"{}\"\n[[link.master]]\naccounting = \"10.234.{gate}.1:10004\"\nkey = \"{master_key}\"\n",
                file.display()
            );
            ground.start(&format!("g{gate}"), "gate", &settings, "\"listening\"")
        })
        .collect();
    until_joined();

    Storm::run(Duration::from_secs(10), "attacker", true).check("bad network", true);

    // Partitioned from the master, each gate enforces the limit alone.
    ground.make(CUT);
    Storm::run(Duration::from_secs(8), "attacker", false).check("partition", false);

    // After the partition no client is blocked for earlier requests, and the limit is shared again.
    ground.make(BAD);
    Storm::run(Duration::from_secs(8), "attacker", false).check("healing", false);
    until_joined();
    Storm::run(Duration::from_secs(10), "late", true).check("healed", true);
}
