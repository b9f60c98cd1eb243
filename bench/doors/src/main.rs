//! The doors compared with other servers, in alternating rounds of one run: `CL.THROTTLE` with a Lua script on Redis
//! and with throttlecrab, `POST /v1/check` with nginx that answers a constant, and Envoy's rate limit service with an
//! empty tonic service. Each server has one core, and the load has another one.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "the output is a table")]
#![forbid(unsafe_code)]

mod empty;
mod load;
mod pace;
mod paced;
mod rls;
mod server;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;

use load::{Call, RespLoad};
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
    #[arg(long, value_delimiter = ',', default_values = ["resp-16", "resp-1", "resp-polled", "http", "rls"])]
    only: Vec<String>,
    /// Serves the empty tonic service on this address
    #[arg(long, hide = true)]
    serve_empty: Option<std::net::SocketAddr>,
}

/// One measurement of a server.
#[derive(Clone, Copy, Default)]
struct Sample {
    /// Calls per second with many in flight.
    per_second: f64,
    /// Calls for each second of CPU time of the server: its throughput if the load were not the bound.
    per_cpu_second: f64,
    /// Latency at half of `per_second`, from the due time of a call, in microseconds.
    p50_us: f64,
    p99_us: f64,
    /// The shares of the time of that measurement in which other processes had the core of the server while it was
    /// ready to run, and the core of the load.
    server_delayed: f64,
    load_stalled: f64,
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
        "| call | server | calls/s | Tollgate / it | target | core used | calls per CPU-second | Tollgate / it | \
         p50 at half load | p99, target 1 ms | server delayed | load stalled |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    // `targets` has, for each server after Tollgate, the ratio of throughputs that Tollgate should reach, if any.
    for (name, call, targets, contenders) in [
        (
            "resp-16",
            "`CL.THROTTLE`, pipelines of 16",
            &[Some(1.3), None, Some(1.2)][..],
            servers.resp(RespLoad::Benchmark(16)),
        ),
        ("resp-1", "`CL.THROTTLE`, single calls", &[Some(1.0), None, Some(1.2)], servers.resp(RespLoad::Benchmark(1))),
        (
            "resp-polled",
            "`CL.THROTTLE`, single calls, polling load",
            &[Some(1.0), None, Some(1.2)],
            servers.resp(RespLoad::Polling),
        ),
        ("http", "`POST /v1/check`", &[Some(0.8)], servers.http()),
        ("rls", "`ShouldRateLimit`", &[Some(0.8)], servers.rls()),
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
            let per_cpu_second = calls / (server.cpu_time() - before).as_secs_f64();
            let (waited, begin) = (server.run_delay(), Instant::now());
            let mut latencies = call.latencies(server.address, per_second / 2.0, span);
            let server_delayed = (server.run_delay() - waited).as_secs_f64() / begin.elapsed().as_secs_f64();
            let (p50_us, p99_us) = (latencies.quantile(0.50), latencies.quantile(0.99));
            let load_stalled = latencies.stalled;
            samples.push(Sample { per_second, per_cpu_second, p50_us, p99_us, server_delayed, load_stalled });
        }
    }
    rows
}

/// Prints medians, and for each other server the ratio in the same round with its target.
fn print_rows(call: &str, targets: &[Option<f64>], rows: &[(&str, Vec<Sample>)]) {
    let ours = &rows[0].1;
    for (place, (name, samples)) in rows.iter().enumerate() {
        let of = |value: fn(&Sample) -> f64| median(samples.iter().map(value));
        let ratios = |value: fn(&Sample) -> f64| {
            with_range(&ours.iter().zip(samples).map(|(our, its)| value(our) / value(its)).collect::<Vec<_>>(), 2)
        };
        let (call, [ratio, cpu_ratio], target) = match place.checked_sub(1) {
            None => (call, [String::new(), String::new()], String::new()),
            Some(other) => {
                let both = [ratios(|sample| sample.per_second), ratios(|sample| sample.per_cpu_second)];
                ("", both, targets[other].map_or_else(String::new, |target| target.to_string()))
            }
        };
        let p99: Vec<f64> = samples.iter().map(|sample| sample.p99_us).collect();
        println!(
            "| {call} | {name} | {:.0} | {ratio} | {target} | {:.0} % | {:.0} | {cpu_ratio} | {:.0} us | {} us | {:.2} % | {:.2} % |",
            of(|sample| sample.per_second),
            of(|sample| 100.0 * sample.per_second / sample.per_cpu_second),
            of(|sample| sample.per_cpu_second),
            of(|sample| sample.p50_us),
            with_range(&p99, 0),
            of(|sample| 100.0 * sample.server_delayed),
            of(|sample| 100.0 * sample.load_stalled),
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
