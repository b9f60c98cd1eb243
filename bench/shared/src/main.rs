//! Benchmark of limits that several gates share through one Redis: decisions per second, compared with the scheme of
//! Sharkey's rate limiter and with `redis-benchmark` running a one-line script on the same server. The schemes take
//! turns in each round, and ratios are within one round.
#![expect(clippy::print_stdout, reason = "the table is the output")]

mod bare;
mod leased;
mod parent;
mod server;
mod stalls;

use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tollgate_core::band::Band;
use tollgate_core::class::Class;
use tollgate_core::limit::{Bucket, Limit};
use tollgate_core::rule::{Rule, Situation};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::shared::{AskedRule, Options, SharedRule, Store};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);
/// Concurrent requests, in every scheme.
const CONCURRENT: usize = 256;
/// The number of clients, each with a bucket.
const KEYS: u64 = 10_000;

/// The limit: a bucket size, and the refill per second.
#[derive(Clone, Copy)]
struct Allowance {
    size: u32,
    drip: u32,
}

/// Every request is admitted: each one writes, and Sharkey's scheme needs at least two transactions.
const WITHIN: Allowance = Allowance { size: 1_000, drip: 1_000 };
/// Nearly every request is refused: nothing is written, and Sharkey's scheme needs one transaction.
const OVER: Allowance = Allowance { size: 10, drip: 1 };

type Failure = Box<dyn core::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    server::pin(std::process::id(), 0);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(run())
}

async fn run() -> Result<(), Failure> {
    let server = server::Server::start()?;
    let within = Arc::new(SharedRule::new("bench:", "within", rule(WITHIN))?);
    let over = Arc::new(SharedRule::new("bench:", "over", rule(OVER))?);
    // With a number, only latencies are measured at this rate, for two seconds per round or for the second
    // number of seconds.
    if let Some(rate) = std::env::args().nth(1) {
        let secs = std::env::args().nth(2).map_or(Ok(ROUND.as_secs()), |secs| secs.parse())?;
        return latencies(&server, &within, rate.parse()?, Duration::from_secs(secs)).await;
    }
    let mut schemes = [
        Scheme::new("shared: one script call, pipelined", 0),
        Scheme::new("Sharkey's scheme: 2 to 4 transactions, one connection per concurrent request", 0),
        Scheme::new("Sharkey's scheme, all on one connection", 0),
        Scheme::new("redis-benchmark: a script of one line", 0),
        Scheme::new("shared, a tenth of each bucket leased", 0),
        Scheme::new("shared, nearly all refused", 5),
        Scheme::new("Sharkey's scheme on one connection, nearly all refused: mostly 1 transaction", 5),
    ];
    for round in 1..=ROUNDS {
        println!("round {round} of {ROUNDS}");
        for (place, scheme) in schemes.iter_mut().enumerate() {
            let start = Cpu::now(&server);
            let rate = match place {
                0 => rate(&server, &within).await,
                1 => parent::rate(&server, WITHIN, true).await?,
                2 => parent::rate(&server, WITHIN, false).await?,
                3 => server.one_line_rate()?,
                4 => leased::rate(&server).await?,
                5 => rate(&server, &over).await,
                _ => parent::rate(&server, OVER, false).await?,
            };
            scheme.add(rate, start.since(&server));
        }
    }
    println!(
        "\n| scheme | decisions/s | shared against it (min..max) | server's CPU | gate's CPU |\n|---|---|---|---|---|"
    );
    for scheme in &schemes {
        scheme.print(&schemes[scheme.against]);
    }
    let times: Vec<_> =
        schemes[4].rates.iter().zip(&schemes[1].rates).map(|(leased, parent)| leased / parent).collect();
    println!("\nLeased, compared with Sharkey's scheme on separate connections: {:.0}x.", median(&times));
    println!("\nShared at half that load:\n");
    latencies(&server, &within, median(&schemes[0].rates) / 2.0, ROUND).await
}

/// The latency of decisions at `rate`, the latency of the baseline with and without a server, and the share
/// of time in which the machine stalls.
async fn latencies(server: &server::Server, rule: &Arc<SharedRule>, rate: f64, span: Duration) -> Result<(), Failure> {
    println!(
        "| decisions/s | p50 | p99 | server's CPU | left to the local state | in a pipeline | bare: p50 | p99 | \
         server's CPU | no store: p99 | a core stalls |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for _ in 0..ROUNDS {
        let still = tokio::task::spawn_blocking(stalls::stalls).await.unwrap_or_default();
        let idle = latency(None, rule, rate, span).await;
        let asked = latency(Some(server), rule, rate, span).await;
        let (mut bare, bare_cpu) = tokio::task::block_in_place(|| bare::bare(server, rate, span))?;
        bare.sort_by(f64::total_cmp);
        println!(
            "| {rate:.0} | {:.2} ms | {:.2} ms | {:.1} us | {} of {} | {:.0} | {:.2} ms | {:.2} ms | {bare_cpu:.1} us \
             | {:.2} ms | {:.1} % of the time |",
            asked.p50,
            asked.p99,
            asked.cpu,
            asked.unanswered,
            asked.asked,
            asked.together,
            bare[bare.len() / 2],
            bare[bare.len() * 99 / 100],
            idle.p99,
            still * 100.0
        );
    }
    Ok(())
}

/// A scheme with the results of each round.
struct Scheme {
    name: &'static str,
    /// The index of our scheme with the same limit, with which this one is compared.
    against: usize,
    rates: Vec<f64>,
    /// CPU time of the server and of the gate, in microseconds per decision.
    cpu: [Vec<f64>; 2],
}

impl Scheme {
    fn new(name: &'static str, against: usize) -> Self {
        Self { name, against, rates: Vec::new(), cpu: Default::default() }
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

/// CPU time and wall time, absolute or as a difference.
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

fn rule(Allowance { size, drip }: Allowance) -> Rule {
    let bucket = Bucket::new(size, drip, Span::from_secs(1)).expect("the parameters are valid");
    Rule::new("api", Class::parse("ip/32").expect("it is a class"), Limit::Bucket(bucket))
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Asks Redis for a decision as a gate does. Returns whether there was an answer.
async fn ask(store: &Store, rule: &Arc<SharedRule>, key: u64) -> bool {
    let key = format!("10.0.{}.{}", key / 256, key % 256);
    let situation = Situation { now: Moment::MAX, started: Moment::ZERO, band: Band::Normal };
    store.decide(vec![AskedRule::new(0, rule, key.as_bytes())], Toll::ONE, &situation).await.is_ok()
}

/// Decisions per second with `CONCURRENT` requests always in flight.
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
    /// The number of calls per pipeline.
    together: f64,
    /// The server's CPU time per decision in microseconds.
    cpu: f64,
}

/// Latencies from the due time of each request, at `rate` per second, with the default deadline. Without a
/// server, this measures the machine alone.
async fn latency(server: Option<&server::Server>, rule: &Arc<SharedRule>, rate: f64, span: Duration) -> Latency {
    let store = server.map(|server| Store::open(server.address(), Options::default()));
    // The first connection is made in the background.
    while let Some(store) = &store
        && !ask(store, rule, 0).await
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let counts = || store.as_ref().map(Store::counts).unwrap_or_default();
    let before = counts();
    let cpu = || server.map_or(0.0, server::Server::cpu);
    let cpu_before = cpu();
    let times = Arc::new(Mutex::new(Vec::with_capacity((rate * span.as_secs_f64()) as usize + 1)));
    let crowd = Crowd { store: store.clone(), rule: Arc::clone(rule), times: Arc::clone(&times) };
    // Requests are generated on the worker thread, like those of a gate's sockets. Another thread would take
    // the core away ten times per millisecond.
    let pace = async move {
        let (start, mut sent) = (Instant::now(), 0);
        while start.elapsed() < span {
            let due = (start.elapsed().as_secs_f64() * rate) as u64;
            for request in sent..due {
                let due = start + Duration::from_secs_f64(request as f64 / rate);
                tokio::spawn(crowd.clone().ask(request, due));
            }
            sent = due;
            tokio::task::yield_now().await;
        }
        sent
    };
    let sent = tokio::spawn(pace).await.unwrap_or_default();
    let lock = || times.lock().unwrap_or_else(PoisonError::into_inner);
    while (lock().len() as u64) < sent {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut times = core::mem::take(&mut *lock());
    times.sort_by(f64::total_cmp);
    let (p50, p99, asked) = (times[times.len() / 2], times[times.len() * 99 / 100], times.len());
    let after = counts();
    let together = (after.calls - before.calls) as f64 / (after.pipelines - before.pipelines).max(1) as f64;
    let cpu = (cpu() - cpu_before) * 1e6 / asked as f64;
    Latency { p50, p99, asked, unanswered: after.unanswered() - before.unanswered(), together, cpu }
}

/// The requesters and their latencies in milliseconds.
#[derive(Clone)]
struct Crowd {
    store: Option<Store>,
    rule: Arc<SharedRule>,
    times: Arc<Mutex<Vec<f64>>>,
}

impl Crowd {
    async fn ask(self, request: u64, due: Instant) {
        match &self.store {
            Some(store) => drop(ask(store, &self.rule, request % KEYS).await),
            None => tokio::task::yield_now().await,
        }
        self.times.lock().unwrap_or_else(PoisonError::into_inner).push(due.elapsed().as_secs_f64() * 1000.0);
    }
}
