//! The doors compared with other servers, in alternating rounds of one run: `CL.THROTTLE` with a Lua script on Redis
//! and with throttlecrab, `POST /v1/check` with nginx that answers a constant, and Envoy's rate limit service with an
//! empty tonic service. Each server has one core, and the load has another one.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "the output is a table")]
#![forbid(unsafe_code)]

mod empty;
mod load;
mod paced;
mod rls;
mod server;

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use load::Call;
use server::{Server, Servers};

/// The core of all servers, which take turns, and the core of the load.
const SERVER_CORE: usize = 1;
const LOAD_CORE: usize = 0;

#[derive(Parser)]
struct Arguments {
    /// The program to measure
    #[arg(required_unless_present = "serve_empty")]
    tollgate: Option<PathBuf>,
    /// The program throttlecrab-server; without it, it is not compared
    #[arg(long)]
    throttlecrab: Option<PathBuf>,
    /// Rounds of each measurement
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Only these tables
    #[arg(long, value_delimiter = ',', default_values = ["resp-16", "resp-1", "http", "rls"])]
    only: Vec<String>,
    /// Serves the empty tonic service on this address
    #[arg(long, hide = true)]
    serve_empty: Option<std::net::SocketAddr>,
}

/// One measurement of a server.
#[derive(Clone, Copy, Default)]
struct Sample {
    per_second: f64,
    /// CPU time of the server for one call, in microseconds.
    cpu_us: f64,
    /// Latency at half of that rate, from the due time of a call, in microseconds.
    p50_us: f64,
    p99_us: f64,
}

fn main() {
    let arguments = Arguments::parse();
    if let Some(address) = arguments.serve_empty {
        return rls::runtime().block_on(empty::serve(address));
    }
    let tollgate = arguments.tollgate.as_deref().unwrap();
    let servers = Servers::start(tollgate, arguments.throttlecrab.as_deref()).unwrap();
    tollgate_storm::cpu::pin(LOAD_CORE).unwrap();
    let span = Duration::from_secs(arguments.seconds);
    for (name, target, contenders) in [
        ("resp-16", "at least 1.3 times Redis and 1.2 times throttlecrab", servers.resp(16)),
        ("resp-1", "at least Redis and 1.2 times throttlecrab", servers.resp(1)),
        ("http", "at least 0.8 times nginx", servers.http()),
        ("rls", "at least 0.8 times the empty service", servers.rls()),
    ] {
        if arguments.only.iter().any(|only| only == name) {
            println!("\n{name}: {target}; p99 below 1 ms at half load\n");
            print_table(&measure(&contenders, arguments.rounds, span));
        }
    }
}

/// The samples of each contender, which take turns in each round.
fn measure<'a>(contenders: &[(&'a Server, Call)], rounds: usize, span: Duration) -> Vec<(&'a str, Vec<Sample>)> {
    let mut rows: Vec<(&str, Vec<Sample>)> = contenders.iter().map(|(server, _)| (server.name, Vec::new())).collect();
    for (server, call) in contenders {
        call.per_second(server.address, Duration::from_millis(500));
    }
    for _ in 0..rounds {
        for ((server, call), (_, samples)) in contenders.iter().zip(&mut rows) {
            let before = server.cpu_time();
            let (calls, per_second) = call.per_second(server.address, span);
            let cpu_us = (server.cpu_time() - before).as_secs_f64() * 1e6 / calls;
            let mut latencies = call.latencies(server.address, per_second / 2.0, span);
            latencies.sort_by(f64::total_cmp);
            let at = |part: f64| latencies.get((latencies.len() as f64 * part) as usize).copied().unwrap_or(f64::NAN);
            samples.push(Sample { per_second, cpu_us, p50_us: at(0.50), p99_us: at(0.99) });
        }
    }
    rows
}

/// Prints medians, and the ratio to each other server in the same round.
fn print_table(rows: &[(&str, Vec<Sample>)]) {
    println!("| server | calls/s | Tollgate / it, same round | CPU per call | p50 | p99 at half load |");
    println!("|---|---|---|---|---|---|");
    let ours = &rows[0].1;
    for (name, samples) in rows {
        let of = |value: fn(&Sample) -> f64| median(samples.iter().map(value));
        let ratios: Vec<f64> = ours.iter().zip(samples).map(|(our, its)| our.per_second / its.per_second).collect();
        let (low, high) =
            ratios.iter().fold((f64::MAX, 0.0_f64), |(low, high), ratio| (low.min(*ratio), high.max(*ratio)));
        println!(
            "| {name} | {:.0} | {:.2} [{low:.2}-{high:.2}] | {:.2} us | {:.0} us | {:.0} us |",
            of(|sample| sample.per_second),
            median(ratios.iter().copied()),
            of(|sample| sample.cpu_us),
            of(|sample| sample.p50_us),
            of(|sample| sample.p99_us),
        );
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
