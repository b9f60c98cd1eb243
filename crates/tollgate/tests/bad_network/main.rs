//! A fleet over a bad network: gates and a master in network namespaces of their own, with delay and loss between them.
//!
//! Each gate is reached from this test over a clean link, and reaches the master over one that delays and loses packets: by `tc netem`, or
//! where the kernel has none, by a relay of packets between tun devices that does the same. It needs root and `ip`; where it cannot have
//! them it says which, and ends.
#![allow(clippy::print_stderr, clippy::unwrap_used)]

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const GATES: usize = 2;
/// Ten a second, ten at once, held for up to two seconds.
const RULE: &str = "[[rule]]\nname = \"each\"\nclass = \"header:x-key\"\nrate = { rate = \"10/s\", burst = 10 }\n\
                    state = \"master\"\nhold = \"0s\"\n";
/// What packets between gates and the master go through, each way.
const BAD: Quality = Quality { delay_ms: 40, jitter_ms: 10, loss_percent: 10 };
const CUT: Quality = Quality { delay_ms: 0, jitter_ms: 0, loss_percent: 100 };
/// How long gates may take to find the master, through all of that.
const JOINED_WITHIN: Duration = Duration::from_secs(60);
/// Lost packets are sent again by TCP after at least 200 ms, and again after twice as long.
const LAG_SECONDS: f64 = 2.0;

#[derive(Clone, Copy)]
struct Quality {
    delay_ms: u32,
    jitter_ms: u32,
    loss_percent: u32,
}

/// Namespaces, links and files that are gone when the test is.
struct Ground {
    name: String,
    home: PathBuf,
    /// What makes the network bad, if the kernel does not.
    relay: Option<Process>,
}

impl Ground {
    /// Lays it out, or says why that is not possible.
    fn lay() -> Result<Self, String> {
        let name = format!("tg{}", std::process::id());
        let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("netem-{}", std::process::id()));
        std::fs::create_dir_all(&home).map_err(|error| error.to_string())?;
        let mut ground = Self { name, home, relay: None };
        ground.run(&format!("ip netns add {}m", ground.name))?;
        for gate in 0..GATES {
            let (net, master) = (format!("{}g{gate}", ground.name), format!("{}m", ground.name));
            ground.run(&format!("ip netns add {net}"))?;
            // From here to the gate: clean.
            ground.must(&format!("ip link add {net}h type veth peer name near netns {net}"));
            ground.must(&format!("ip addr add 10.233.{gate}.1/30 dev {net}h"));
            ground.must(&format!("ip link set {net}h up"));
            ground.must(&format!("ip -n {net} addr add 10.233.{gate}.2/30 dev near"));
            ground.must(&format!("ip -n {net} link set near up"));
            ground.must(&format!("ip -n {net} link set lo up"));
            // From the gate to the master: bad.
            ground.must(&format!("ip -n {net} link add far type veth peer name far{gate} netns {master}"));
        }
        ground.must(&format!("ip -n {}m link set lo up", ground.name));
        match ground.shape(BAD, "add") {
            Ok(()) => eprintln!("packets are delayed and lost by the kernel's netem"),
            Err(why) => {
                eprintln!("packets are delayed and lost by a relay of the test: {why}");
                ground.relay = Some(ground.start_relay()?);
                ground.make(BAD);
            }
        }
        for gate in 0..GATES {
            let (net, master) = (format!("{}g{gate}", ground.name), format!("{}m", ground.name));
            ground.must(&format!("ip -n {net} addr add 10.234.{gate}.2/30 dev far"));
            ground.must(&format!("ip -n {master} addr add 10.234.{gate}.1/30 dev far{gate}"));
            ground.must(&format!("ip -n {net} link set far up"));
            ground.must(&format!("ip -n {master} link set far{gate} up"));
        }
        Ok(ground)
    }

    /// Puts all ways between gates and the master through this.
    fn make(&mut self, quality: Quality) {
        let Quality { delay_ms, jitter_ms, loss_percent } = quality;
        match &mut self.relay {
            Some(relay) => writeln!(relay.0.stdin.as_mut().unwrap(), "{delay_ms} {jitter_ms} {loss_percent}").unwrap(),
            None => self.shape(quality, "change").unwrap(),
        }
    }

    /// The same by the kernel.
    fn shape(&self, quality: Quality, how: &str) -> Result<(), String> {
        let Quality { delay_ms, jitter_ms, loss_percent } = quality;
        let quality = format!("netem delay {delay_ms}ms {jitter_ms}ms loss {loss_percent}%");
        for gate in 0..GATES {
            self.run(&format!("tc -n {}g{gate} qdisc {how} dev far root {quality}", self.name))?;
            self.run(&format!("tc -n {}m qdisc {how} dev far{gate} root {quality}", self.name))?;
        }
        Ok(())
    }

    /// Starts the relay, with tun devices in the place of the bad links.
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

    /// What works wherever namespaces do.
    fn must(&self, line: &str) {
        self.run(line).unwrap();
    }

    /// Runs a command, or says why it cannot be.
    fn run(&self, line: &str) -> Result<(), String> {
        let mut words = line.split(' ');
        let output = Command::new(words.next().unwrap()).args(words).output();
        let output = output.map_err(|error| format!("`{line}`: {error} (Debian: iproute2)"))?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() { Ok(()) } else { Err(format!("`{line}`: {said}")) }
    }

    /// A program of ours in the namespace of this name.
    fn start(&self, space: &str, role: &str, settings: &str, ready: &str) -> Process {
        let file = self.home.join(format!("{space}.toml"));
        std::fs::write(&file, settings).unwrap();
        let mut process = Command::new("ip")
            .args(["netns", "exec", &format!("{}{space}", self.name), env!("CARGO_BIN_EXE_tollgate"), role, "--config"])
            .arg(&file)
            .env_remove("NOTIFY_SOCKET")
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
        let spaces = (0..GATES).map(|gate| format!("{}g{gate}", self.name)).chain([format!("{}m", self.name)]);
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

/// A backend of this test, which answers at once.
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

    fn get(&mut self, key: &str) -> u16 {
        write!(self.0.get_mut(), "GET / HTTP/1.1\r\nhost: x\r\nx-key: {key}\r\n\r\n").unwrap();
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

/// What an attacker at all gates and an innocent client, which takes four a second and goes from gate to gate, get in this time.
fn storm(seconds: u64, attacker: &str, innocent: &str) -> (u32, u32, f64) {
    let stop = AtomicBool::new(false);
    let begin = Instant::now();
    let (admitted, refused) = std::thread::scope(|scope| {
        let attack: Vec<_> = (0..GATES)
            .map(|gate| {
                let (stop, mut client) = (&stop, Client::connect(gate));
                scope.spawn(move || {
                    let mut admitted = 0;
                    while !stop.load(Ordering::Relaxed) {
                        match client.get(attacker) {
                            200 => admitted += 1,
                            429 => std::thread::sleep(Duration::from_millis(2)),
                            status => panic!("a request failed with {status}"),
                        }
                    }
                    admitted
                })
            })
            .collect();
        let mut clients: Vec<_> = (0..GATES).map(Client::connect).collect();
        let mut refused = 0;
        for turn in 0..seconds * 4 {
            refused += u32::from(clients[turn as usize % GATES].get(innocent) != 200);
            std::thread::sleep(Duration::from_millis(250));
        }
        stop.store(true, Ordering::Relaxed);
        (attack.into_iter().map(|attack| attack.join().unwrap()).sum::<u32>(), refused)
    });
    (admitted, refused, begin.elapsed().as_secs_f64())
}

/// Until each gate hears from the master of what another let through.
fn until_joined() {
    let begin = Instant::now();
    for (teller, hearer) in (0..GATES).zip((0..GATES).cycle().skip(1)) {
        let (mut teller, mut hearer) = (Client::connect(teller), Client::connect(hearer));
        let mut attempt = 0;
        loop {
            assert!(begin.elapsed() < JOINED_WITHIN, "the gates do not hear of each other");
            attempt += 1;
            let key = format!("probe-{}-{attempt}", begin.elapsed().as_nanos());
            while teller.get(&key) == 200 {}
            // So few that the gate which is asked has no reason of its own to refuse them.
            let is_known = (0..8).any(|_| {
                std::thread::sleep(Duration::from_millis(100));
                teller.get(&key);
                hearer.get(&key) == 429
            });
            if is_known {
                break;
            }
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
    let mut ground = match Ground::lay() {
        Ok(ground) => ground,
        Err(why) => return eprintln!("not run: network namespaces cannot be made here: {why}"),
    };
    let (master_file, master_key) = ground.keys("master.key");
    let gates: Vec<_> = (0..GATES).map(|gate| ground.keys(&format!("gate-{gate}.key"))).collect();
    let mut known = String::new();
    gates.iter().for_each(|(_, key)| write!(known, "\"{key}\", ").unwrap());
    let master = format!(
        "[master]\naccounting = \"0.0.0.0:10004\"\ncontrol = \"0.0.0.0:10005\"\nkey_file = \"{}\"\ngates = [{known}]\n{RULE}",
        master_file.display()
    );
    let _master = ground.start("m", "master", &master, "the master is ready");
    let _gates: Vec<_> = gates
        .iter()
        .enumerate()
        .map(|(gate, (file, _))| {
            let backend = backend(&format!("10.233.{gate}.1:0"));
            let settings = format!(
                "[gate]\nlisten = \"10.233.{gate}.2:8888\"\nbackend = \"http://{backend}\"\nworkers = 1\n{RULE}\
                 [link]\nkey_file = \"{}\"\n[[link.master]]\naccounting = \"10.234.{gate}.1:10004\"\nkey = \"{master_key}\"\n",
                file.display()
            );
            ground.start(&format!("g{gate}"), "gate", &settings, "\"listening\"")
        })
        .collect();
    until_joined();

    let (admitted, refused, seconds) = storm(8, "attacker", "innocent");
    let most = bound(seconds, LAG_SECONDS);
    eprintln!("bad network: {admitted} admitted of at most {most:.0} in {seconds:.1} s");
    assert!(f64::from(admitted) <= most, "{admitted} admitted, at most {most:.1} in {seconds:.1} s");
    // Alone each gate would let ten a second through.
    assert!(
        f64::from(admitted) < 10.0 * 1.6 * seconds + 20.0,
        "{admitted} admitted: the gates do not know of each other"
    );
    assert_eq!(refused, 0, "an innocent client was refused");

    // Cut off from the master, each goes on by itself: all that both may have, and no more.
    ground.make(CUT);
    let (admitted, refused, cut) = storm(10, "attacker", "innocent");
    eprintln!("partition: {admitted} admitted in {cut:.1} s");
    assert!(f64::from(admitted) <= GATES as f64 * (10.0 + 10.0 * cut) + 2.0, "{admitted} in {cut:.1} s of partition");
    assert_eq!(refused, 0, "an innocent client was refused during the partition");

    // Healed: nobody is blocked for what was served in between, and the limit is one again.
    ground.make(BAD);
    let (_, refused, _) = storm(8, "attacker", "innocent");
    assert_eq!(refused, 0, "an innocent client was refused after the partition");
    let (admitted, _, seconds) = storm(6, "attacker", "innocent");
    let most = bound(seconds, LAG_SECONDS);
    eprintln!("healed: {admitted} admitted of at most {most:.0} in {seconds:.1} s");
    assert!(
        f64::from(admitted) <= most,
        "{admitted} admitted after the partition, at most {most:.1} in {seconds:.1} s"
    );
}
