//! Shared decisions per second through one Redis, against the scheme of the limiter that Tollgate descends from and against what
//! `redis-benchmark` gets out of the same server with a script of one line. Rounds alternate, and ratios are of the same round.
#![expect(clippy::print_stdout, reason = "the table is the output")]

mod leased;
mod parent;
mod server;

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Handle;
use tollgate_core::band::Band;
use tollgate_core::class::Class;
use tollgate_core::condition::Condition;
use tollgate_core::limit::{Bucket, Limit};
use tollgate_core::rule::{Mode, Rule, Situation};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::shared::{Asked, Options, SharedRule, Store};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(3);
/// Requests that are under way at once, in every scheme.
const CONCURRENT: usize = 256;
/// Clients whose buckets are asked for.
const KEYS: u64 = 10_000;
const SIZE: u32 = 10;

type Failure = Box<dyn core::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(run())
}

async fn run() -> Result<(), Failure> {
    let server = server::Server::start()?;
    let rule = Arc::new(SharedRule::new("bench:", "default", rule())?);
    let mut schemes = [
        Scheme::new("shared: one script call, pipelined"),
        Scheme::new("the parent's: 1 to 4 transactions, a connection per request under way"),
        Scheme::new("the parent's, all on one connection"),
        Scheme::new("redis-benchmark: a script of one line"),
        Scheme::new("shared, a tenth of each bucket leased"),
    ];
    for round in 1..=ROUNDS {
        println!("round {round} of {ROUNDS}");
        let start = Cpu::now(&server);
        schemes[0].add(rate(&server, &rule).await, start.since(&server));
        for (scheme, own_connections) in [(1, true), (2, false)] {
            let start = Cpu::now(&server);
            schemes[scheme].add(parent::rate(&server, own_connections).await?, start.since(&server));
        }
        let start = Cpu::now(&server);
        schemes[3].add(server.one_line_rate()?, start.since(&server));
        let start = Cpu::now(&server);
        schemes[4].add(leased::rate(&server).await?, start.since(&server));
    }
    println!(
        "\n| scheme | decisions/s | shared against it (min..max) | server's CPU | gate's CPU |\n|---|---|---|---|---|"
    );
    for scheme in &schemes {
        scheme.print(&schemes[0]);
    }
    let times: Vec<_> =
        schemes[4].rates.iter().zip(&schemes[1].rates).map(|(leased, parent)| leased / parent).collect();
    println!("\nLeased, against the parent's on connections of their own: {:.0}x.", median(&times));
    let half = latency(&server, &rule, median(&schemes[0].rates) / 2.0).await;
    println!(
        "\nShared at half that load: p50 {:.2} ms, p99 {:.2} ms; {} of {} left to the local state.",
        half.p50, half.p99, half.unanswered, half.asked
    );
    Ok(())
}

/// A way to decide, with what each round made of it.
struct Scheme {
    name: &'static str,
    rates: Vec<f64>,
    /// CPU time of the server and of the gate, in microseconds per decision.
    cpu: [Vec<f64>; 2],
}

impl Scheme {
    fn new(name: &'static str) -> Self {
        Self { name, rates: Vec::new(), cpu: Default::default() }
    }

    fn add(&mut self, rate: f64, cpu: Cpu) {
        let decisions = rate * cpu.wall;
        self.rates.push(rate);
        self.cpu[0].push(cpu.server * 1e6 / decisions);
        self.cpu[1].push(cpu.gate * 1e6 / decisions);
    }

    fn print(&self, ours: &Self) {
        let ratios: Vec<_> = ours.rates.iter().zip(&self.rates).map(|(ours, theirs)| ours / theirs).collect();
        let (low, high) =
            ratios.iter().fold((f64::MAX, 0.0_f64), |(low, high), ratio| (low.min(*ratio), high.max(*ratio)));
        println!(
            "| {} | {:.0} | {:.2}x ({low:.2}..{high:.2}) | {:.1} us | {:.1} us |",
            self.name,
            median(&self.rates),
            median(&ratios),
            median(&self.cpu[0]),
            median(&self.cpu[1])
        );
    }
}

/// CPU time so far, or since, and the time on the wall.
struct Cpu {
    server: f64,
    gate: f64,
    wall: f64,
    at: Instant,
}

impl Cpu {
    fn now(server: &server::Server) -> Self {
        Self { server: server.cpu(), gate: server::cpu_of("self"), wall: 0.0, at: Instant::now() }
    }

    fn since(self, server: &server::Server) -> Self {
        let now = Self::now(server);
        Self {
            server: now.server - self.server,
            gate: now.gate - self.gate,
            wall: self.at.elapsed().as_secs_f64(),
            at: now.at,
        }
    }
}

fn rule() -> Rule {
    let bucket = Bucket::new(SIZE, 1, Span::from_secs(1)).expect("the figures make a bucket");
    Rule {
        name: "api".into(),
        when: Condition::default(),
        unless: None,
        class: Class::parse("ip/32").expect("it is a class"),
        limit: Limit::Bucket(bucket),
        escalation: None,
        warmup: None,
        hold_max: Span::ZERO,
        mode: Mode::Enforce,
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Asks as a gate does, and says whether there was an answer.
async fn ask(store: &Store, rule: &Arc<SharedRule>, key: u64) -> bool {
    let key = format!("10.0.{}.{}", key / 256, key % 256);
    let situation = Situation { now: Moment::MAX, started: Moment::ZERO, band: Band::Normal };
    store.decide(&[Asked { place: 0, rule, key: key.as_bytes() }], Toll::ONE, &situation).await.is_ok()
}

/// Decisions per second when `CONCURRENT` requests are always under way.
async fn rate(server: &server::Server, rule: &Arc<SharedRule>) -> f64 {
    let patient = Options { deadline: Duration::from_secs(5), ..Options::default() };
    let store = Store::open(server.address(), patient);
    let end = Instant::now() + ROUND;
    let tasks: Vec<_> = (0..CONCURRENT)
        .map(|task| {
            let (store, rule) = (store.clone(), Arc::clone(rule));
            tokio::spawn(async move {
                let mut key = task as u64;
                let mut answered = 0_u64;
                while Instant::now() < end {
                    key = (key + 7_919) % KEYS;
                    answered += u64::from(ask(&store, &rule, key).await);
                }
                answered
            })
        })
        .collect();
    let mut answered = 0;
    for task in tasks {
        answered += task.await.unwrap_or(0);
    }
    answered as f64 / ROUND.as_secs_f64()
}

struct Latency {
    p50: f64,
    p99: f64,
    asked: usize,
    unanswered: u64,
}

/// Times from when each request was due, at `rate` per second, with the default deadline.
async fn latency(server: &server::Server, rule: &Arc<SharedRule>, rate: f64) -> Latency {
    let store = Store::open(server.address(), Options::default());
    // The first connection is made in the background.
    while !ask(&store, rule, 0).await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let before = store.counts().unanswered();
    let (runtime, store_asked, rule_asked) = (Handle::current(), store.clone(), Arc::clone(rule));
    // A thread of its own has a finer clock than the runtime, whose timers tick once a millisecond.
    let pace = move || {
        let start = Instant::now();
        let mut tasks = Vec::new();
        while start.elapsed() < ROUND {
            let due_count = (start.elapsed().as_secs_f64() * rate) as usize;
            while tasks.len() < due_count {
                let due = start + Duration::from_secs_f64(tasks.len() as f64 / rate);
                let (store, rule, key) = (store_asked.clone(), Arc::clone(&rule_asked), tasks.len() as u64 % KEYS);
                tasks.push(runtime.spawn(async move {
                    ask(&store, &rule, key).await;
                    due.elapsed().as_secs_f64() * 1000.0
                }));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        tasks
    };
    let tasks = tokio::task::spawn_blocking(pace).await.unwrap_or_default();
    let mut times = Vec::with_capacity(tasks.len());
    for task in tasks {
        times.extend(task.await);
    }
    times.sort_by(f64::total_cmp);
    let unanswered = store.counts().unanswered() - before;
    Latency { p50: times[times.len() / 2], p99: times[times.len() * 99 / 100], asked: times.len(), unanswered }
}
