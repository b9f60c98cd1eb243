//! The subcommand `tax`: the overhead of a gate without a storm.
//!
//! The gate has a core of its own; a minimal backend and the load generator share the other. Absolute values
//! on a shared machine drift by tens of percent within minutes, so gates take turns and are compared within
//! each round.

use crate::wrk::{self, Round};
use bench_storm::{
    machine::{ScratchDir, find_tollgate},
    peers::{self, FORWARDING, Gate, Peer, REFUSING},
    stats::median,
};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;
use tollgate_storm::{client::Client, cpu, crowd::Crowd, target::Target};

/// The number of connections that are opened at the same time.
const OPENING_AT_ONCE: usize = 128;
/// The number of addresses per batch of connections.
const BATCH: usize = 1000;
const MEGABYTE: f64 = 1e6;

/// Options of the measurement.
#[derive(clap::Args)]
pub(crate) struct TaxArguments {
    /// The gates to compare; the first is the reference.
    #[arg(long, value_delimiter = ',', default_values = FORWARDING)]
    gates: Vec<String>,
    /// The number of rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The duration of a turn in seconds.
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    /// The number of idle connections while memory is measured.
    #[arg(long, default_value_t = 10_000)]
    connections: u32,
    /// The number of addresses that send one request each.
    #[arg(long, default_value_t = 1_000_000)]
    addresses: u32,
    /// The core of the gate. Nothing else runs on it.
    #[arg(long, default_value_t = 1)]
    gate_core: usize,
    /// The core of the backend and of the load generator.
    #[arg(long, default_value_t = 0)]
    load_core: usize,
    /// The Tollgate to test; built from this source if not given.
    #[arg(long)]
    tollgate: Option<PathBuf>,
}

/// A gate in its two configurations: forwarding and refusing.
struct Pair {
    name: &'static str,
    forwarding: Gate,
    refusing: Gate,
    _dirs: [ScratchDir; 2],
    rounds: Vec<Turn>,
}

/// The results of one gate in one round.
struct Turn {
    forwarded: Round,
    /// CPU time of the gate per forwarded request, in microseconds.
    forwarded_cpu_us: f64,
    refused: Round,
    /// CPU time of the gate per refused request, in microseconds.
    refused_cpu_us: f64,
}

/// Measures and prints everything.
pub(crate) fn levy(arguments: &TaxArguments) -> io::Result<()> {
    let tollgate = match arguments.gates.iter().any(|name| name == "tollgate") {
        true => find_tollgate(arguments.tollgate.as_deref())?,
        false => PathBuf::new(),
    };
    cpu::pin(arguments.load_core)?;
    let dir = ScratchDir::new()?;
    let (backend, _backend) = peers::start_backend(dir.path())?;
    cpu::pin(arguments.gate_core)?;
    let pairs: io::Result<Vec<Pair>> =
        arguments.gates.iter().map(|name| Pair::start(name, backend, &tollgate)).collect();
    cpu::pin(arguments.load_core)?;
    let mut pairs = pairs?;
    for round in 0..arguments.rounds {
        let count = pairs.len();
        for turn in 0..count {
            pairs[(round + turn) % count].take_turn(Duration::from_secs(arguments.seconds))?;
        }
    }
    print_throughput(&pairs);
    print_refusals(&pairs);
    drop(pairs);
    cpu::pin(arguments.gate_core)?;
    let pairs: io::Result<Vec<Pair>> =
        arguments.gates.iter().map(|name| Pair::start(name, backend, &tollgate)).collect();
    cpu::pin(arguments.load_core)?;
    print_memory(&pairs?, arguments)
}

impl Pair {
    fn start(name: &str, backend: SocketAddr, tollgate: &std::path::Path) -> io::Result<Self> {
        let forwarding = Peer::of_name(name).map_err(io::Error::other)?;
        let refusing = REFUSING.into_iter().find(|peer| peer.name == name);
        let refusing = refusing.ok_or_else(|| io::Error::other(format!("{name} has no refusing twin")))?;
        let dirs = [ScratchDir::new()?, ScratchDir::new()?];
        Ok(Self {
            name: forwarding.name,
            forwarding: forwarding.start(backend, dirs[0].path(), tollgate)?,
            refusing: refusing.start(backend, dirs[1].path(), tollgate)?,
            _dirs: dirs,
            rounds: Vec::new(),
        })
    }

    fn take_turn(&mut self, span: Duration) -> io::Result<()> {
        let (forwarded, forwarded_cpu_us) = measure(&self.forwarding, span)?;
        let (refused, refused_cpu_us) = measure(&self.refusing, span)?;
        self.rounds.push(Turn { forwarded, forwarded_cpu_us, refused, refused_cpu_us });
        Ok(())
    }

    fn median(&self, of: impl Fn(&Turn) -> f64) -> f64 {
        median(self.rounds.iter().map(of).collect())
    }
}

/// One turn of load, and the gate's CPU time per request in microseconds.
fn measure(gate: &Gate, span: Duration) -> io::Result<(Round, f64)> {
    let cpu = || gate.cpu_time();
    let before = cpu();
    let round = wrk::run(gate.listen, span)?;
    let used = cpu().saturating_sub(before);
    Ok((round, used.as_secs_f64() * 1e6 / round.requests.max(1) as f64))
}

fn print_throughput(pairs: &[Pair]) {
    println!("| gate | requests/s | of {} | p50 | p99 | CPU per request | not 2xx |", pairs[0].name);
    println!("|---|---|---|---|---|---|---|");
    for pair in pairs {
        let ratios: Vec<f64> = pair.rounds.iter().zip(&pairs[0].rounds).map(ratio).collect();
        let (low, high) = ratios.iter().fold((f64::MAX, 0f64), |(low, high), &ratio| (low.min(ratio), high.max(ratio)));
        println!(
            "| {} | {:.0} | {:.2} [{low:.2}-{high:.2}] | {:.2} ms | {:.2} ms | {:.1} us | {:.0} |",
            pair.name,
            pair.median(|turn| turn.forwarded.requests_per_second),
            median(ratios),
            pair.median(|turn| turn.forwarded.p50.as_secs_f64() * 1e3),
            pair.median(|turn| turn.forwarded.p99.as_secs_f64() * 1e3),
            pair.median(|turn| turn.forwarded_cpu_us),
            pair.median(|turn| turn.forwarded.refused as f64),
        );
    }
    println!();
}

fn ratio((turn, measure): (&Turn, &Turn)) -> f64 {
    turn.forwarded.requests_per_second / measure.forwarded.requests_per_second
}

fn print_refusals(pairs: &[Pair]) {
    println!("| gate | CPU per refusal | per forwarded request | refusal / forwarded | refused |");
    println!("|---|---|---|---|---|");
    for pair in pairs {
        println!(
            "| {} | {:.1} us | {:.1} us | {:.2} | {:.2} % |",
            pair.name,
            pair.median(|turn| turn.refused_cpu_us),
            pair.median(|turn| turn.forwarded_cpu_us),
            pair.median(|turn| turn.refused_cpu_us / turn.forwarded_cpu_us),
            pair.median(|turn| turn.refused.refused as f64 / turn.refused.requests as f64 * 100.0),
        );
    }
    println!();
}

fn megabytes(gate: &Gate) -> f64 {
    gate.memory_bytes() as f64 / MEGABYTE
}

/// Addresses are measured first, because memory of earlier connections would hide the effect of addresses.
fn print_memory(pairs: &[Pair], arguments: &TaxArguments) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("| gate | addresses answered | in | memory before | at a quarter | at half | at the end |");
    println!("|---|---|---|---|---|---|---|");
    for pair in pairs {
        print_addresses(pair, arguments.addresses, &runtime);
    }
    println!("\n| gate | memory before | {} idle connections | answered |", arguments.connections);
    println!("|---|---|---|---|");
    for pair in pairs {
        let gate = &pair.forwarding;
        let before = megabytes(gate);
        let kept = runtime.block_on(knock(gate.listen, 0..arguments.connections));
        println!("| {} | {before:.1} MB | {:.1} MB | {} |", pair.name, megabytes(gate), kept.len());
    }
    Ok(())
}

fn print_addresses(pair: &Pair, addresses: u32, runtime: &tokio::runtime::Runtime) {
    let gate = &pair.forwarding;
    let quarter = addresses.div_ceil(4);
    let begin = Instant::now();
    let mut memory = vec![megabytes(gate)];
    let mut answered = 0;
    for first in (0..addresses).step_by(quarter as usize) {
        let last = (first + quarter).min(addresses);
        for batch in (first..last).step_by(BATCH) {
            answered += runtime.block_on(knock(gate.listen, batch..(batch + BATCH as u32).min(last))).len();
        }
        memory.push(megabytes(gate));
    }
    let (start, end) = (memory[0], memory[memory.len() - 1]);
    let at = |part: usize| memory.get(part).copied().unwrap_or(end);
    let span_s = begin.elapsed().as_secs_f64();
    println!(
        "| {} | {answered} | {span_s:.0} s | {start:.1} MB | {:.1} MB | {:.1} MB | {end:.1} MB |",
        pair.name,
        at(1),
        at(2)
    );
}

/// Sends one request from each of these addresses. Returns the clients that got a response, with open
/// connections.
async fn knock(target: SocketAddr, addresses: std::ops::Range<u32>) -> Vec<Client> {
    let turns = Arc::new(Semaphore::new(OPENING_AT_ONCE));
    let target = Arc::new(Target::new(target));
    let mut clients = tokio::task::JoinSet::new();
    for index in addresses {
        let (turns, target) = (Arc::clone(&turns), Arc::clone(&target));
        clients.spawn(async move {
            let _turn = turns.acquire().await.ok()?;
            let mut client = Client::new(Crowd::Human, address(index), target);
            client.ask("/").await.ok().map(|()| client)
        });
    }
    clients.join_all().await.into_iter().flatten().collect()
}

/// Address number `index`, in the part of 127/8 that machines do not use themselves.
fn address(index: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 16, 0, 1)) + index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_addresses_are_distinct_and_on_loopback() {
        assert_eq!(address(0), Ipv4Addr::new(127, 16, 0, 1));
        assert!(address(999_999).is_loopback());
        assert_ne!(address(999_999), address(999_998));
    }
}
