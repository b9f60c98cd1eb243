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
    println!(
        "| call | server | calls/s | Tollgate / it | target | CPU per call | p50 at half load | p99, target 1 ms |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (name, call, targets, contenders) in [
        ("resp-16", "`CL.THROTTLE`, pipelines of 16", &[1.3, 1.2][..], servers.resp(16)),
        ("resp-1", "`CL.THROTTLE`, single calls", &[1.0, 1.2], servers.resp(1)),
        ("http", "`POST /v1/check`", &[0.8], servers.http()),
        ("rls", "`ShouldRateLimit`", &[0.8], servers.rls()),
    ] {
        if arguments.only.iter().any(|only| only == name) {
            print_rows(call, targets, &measure(&contenders, arguments.rounds, span));
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

/// Prints medians, and for each other server the ratio in the same round with its target.
fn print_rows(call: &str, targets: &[f64], rows: &[(&str, Vec<Sample>)]) {
    let ours = &rows[0].1;
    for (place, (name, samples)) in rows.iter().enumerate() {
        let of = |value: fn(&Sample) -> f64| median(samples.iter().map(value));
        let ratios = ours.iter().zip(samples).map(|(our, its)| our.per_second / its.per_second).collect::<Vec<_>>();
        let (call, ratio, target) = match place.checked_sub(1) {
            None => (call, String::new(), String::new()),
            Some(other) => ("", with_range(&ratios, 2), targets[other].to_string()),
        };
        let p99: Vec<f64> = samples.iter().map(|sample| sample.p99_us).collect();
        println!(
            "| {call} | {name} | {:.0} | {ratio} | {target} | {:.2} us | {:.0} us | {} us |",
            of(|sample| sample.per_second),
            of(|sample| sample.cpu_us),
            of(|sample| sample.p50_us),
            with_range(&p99, 0),
        );
    }
}

/// The median, with the smallest and largest value.
fn with_range(values: &[f64], digits: usize) -> String {
    let (low, high) = values.iter().fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(*value), high.max(*value)));
    format!("{:.digits$} [{low:.digits$}-{high:.digits$}]", median(values.iter().copied()))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
