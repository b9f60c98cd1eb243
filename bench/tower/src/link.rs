//! The cost of a decision with the link to a master up, down and flapping, and without one.
//!
//! The master is the built program, which is killed and restarted a few times per second where the link
//! flaps. Requests come in batches of a thousand with pauses, as at a busy gate. With two cores, the deciding
//! thread has one, and masters, links and the restarting thread share the other, so that scheduling does not
//! affect the result. Both wall time and CPU time are reported.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tollgate_gatekeeper::link::{Endpoint, LinkSettings, LinkedRule, MasterSettings};
use tollgate_gatekeeper::tower::{Keeper, KeeperLayer};
use tower::Layer;

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_secs(2);
const BATCH: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(5);
const KILL_EVERY: Duration = Duration::from_millis(300);
/// The timeout until a link is up.
const PATIENCE: Duration = Duration::from_secs(20);

/// A master at a separate address.
struct Master {
    accounting: SocketAddr,
    control: SocketAddr,
    file: PathBuf,
    process: Option<Child>,
}

impl Master {
    fn new(name: &str) -> Self {
        let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let (accounting, control) = (free(), free());
        let file = std::env::temp_dir().join(format!("bench-tower-{name}-{}.toml", std::process::id()));
        let text = format!(
            "[master]\naccounting = \"{accounting}\"\ncontrol = \"{control}\"\n[[rule]]\nname = \"each\"\nclass = \"ip/32\"\n\
             rate = {{ rate = \"1000000/s\", burst = 1000000 }}\nstate = \"master\"\n"
        );
        std::fs::write(&file, text).unwrap();
        Self { accounting, control, file, process: None }
    }

    fn start(&mut self) {
        let program = std::env::current_exe().unwrap().with_file_name("tollgate");
        let mut process = Command::new(&program)
            .arg("master")
            .arg("--config")
            .arg(&self.file)
            .env("XDG_STATE_HOME", self.file.with_extension("state"))
            .env_remove("STATE_DIRECTORY")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}: build tollgate first", program.display()));
        let mut log = BufReader::new(process.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("the master is ready") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "the master ended before it was ready");
        }
        self.process = Some(process);
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    fn layer(&self) -> KeeperLayer {
        let [accounting, control] =
            [self.accounting, self.control].map(|address| Endpoint::parse(&address.to_string()).unwrap());
        let rules = vec![LinkedRule { rule: "each".to_string(), domain: "default/each".to_string() }];
        let master = MasterSettings { accounting, control, key: None, rules };
        let link = LinkSettings {
            masters: vec![master],
            refusals_sampled: None,
            identifiers_max: 100_000,
            log_info: false,
            keys: None,
        };
        KeeperLayer::new(Keeper::linked(super::plan(1_000_000), link).unwrap()).headers(false)
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Two cores that this process may use: one for decisions, one for everything else.
fn cores() -> Option<(usize, usize)> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
    Some((cores.next()?, cores.next()?))
}

/// Pins this thread and its children to one core.
fn stay_on(core: Option<usize>) {
    let Some(core) = core else { return };
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).unwrap();
}

/// Nanoseconds of a request.
#[derive(Clone, Copy)]
struct Cost {
    cpu: f64,
    wall: f64,
}

/// The CPU time of this thread.
fn cpu_nanos() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The time per request.
fn measure(runtime: &tokio::runtime::Runtime, layer: &KeeperLayer) -> Cost {
    let end = Instant::now() + ROUND;
    let (mut spent, mut passed, mut requests) = (0, Duration::ZERO, 0);
    while Instant::now() < end {
        let (begin, since) = (cpu_nanos(), Instant::now());
        runtime.block_on(super::run(layer.layer(super::inner()), BATCH));
        passed += since.elapsed();
        spent += cpu_nanos() - begin;
        requests += BATCH;
        std::thread::sleep(PAUSE);
    }
    let each = |nanos: f64| nanos / f64::from(requests);
    Cost { cpu: each(spent as f64), wall: each(passed.as_nanos() as f64) }
}

/// The same while `master` is killed and restarted, on another core.
fn measure_flapping(
    runtime: &tokio::runtime::Runtime,
    layer: &KeeperLayer,
    master: &mut Master,
    core: Option<usize>,
) -> Cost {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stay_on(core);
            while !is_over.load(Ordering::Relaxed) {
                master.start();
                std::thread::sleep(KILL_EVERY);
                master.kill();
            }
        });
        let cost = measure(runtime, layer);
        is_over.store(true, Ordering::Relaxed);
        cost
    })
}

fn until_up(layer: &KeeperLayer) {
    let end = Instant::now() + PATIENCE;
    let is_up = || layer.keeper().link().unwrap().masters().all(|(_, report)| report.heard && report.accounting_up);
    while !is_up() {
        assert!(Instant::now() < end, "the master sends no beacon");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn table(runtime: &tokio::runtime::Runtime) {
    let cores = cores();
    let (here, elsewhere) = (cores.map(|cores| cores.0), cores.map(|cores| cores.1));
    stay_on(elsewhere);
    let (mut there, away, mut flapping) = (Master::new("up"), Master::new("down"), Master::new("flapping"));
    there.start();
    let alone = super::layer(1_000_000).headers(false);
    let layers = [there.layer(), away.layer(), flapping.layer()];
    stay_on(here);
    until_up(&layers[0]);
    let mut figures: [Vec<Cost>; 4] = Default::default();
    for round in 0..ROUNDS {
        // Each one is first in turn, so that disturbances affect all of them equally.
        for turn in 0..figures.len() {
            let place = (round + turn) % figures.len();
            figures[place].push(match place {
                0 => measure(runtime, &alone),
                3 => measure_flapping(runtime, &layers[2], &mut flapping, elsewhere),
                _ => measure(runtime, &layers[place - 1]),
            });
        }
    }
    let sent: u64 = layers[0].keeper().link().unwrap().masters().map(|(_, report)| report.reports_sent).sum();
    assert!(sent > 0, "the link that is up has reported nothing");
    println!(
        "medians of {ROUNDS} rounds of {} s, one thread, {BATCH} requests every {} ms\n",
        ROUND.as_secs(),
        PAUSE.as_millis()
    );
    println!("| the master | CPU ns a request (min..max) | ns a request (min..max) |\n|---|---|---|");
    for (name, costs) in ["no master configured", "up", "down", "restarted continuously"].into_iter().zip(figures) {
        let column = |of: fn(&Cost) -> f64| {
            let mut figures: Vec<_> = costs.iter().map(of).collect();
            figures.sort_by(f64::total_cmp);
            format!("{:.0} ({:.0}..{:.0})", figures[ROUNDS / 2], figures[0], figures[ROUNDS - 1])
        };
        println!("| {name} | {} | {} |", column(|cost| cost.cpu), column(|cost| cost.wall));
    }
}
