//! The rate limit service of a Tollgate compared with an empty tonic service that has the same messages: calls per
//! second with many calls in flight, and the latency of single calls. Each server has one thread; both take turns.
//!
//! `bench-grpc TOLLGATE [SECONDS]`; `bench-grpc serve` is the empty service.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "the output is a table")]

mod empty;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use empty::{Descriptor, Entry, RateLimitRequest, RateLimitResponse};

const ROUNDS: usize = 5;
const IN_FLIGHT: usize = 64;
/// Different callers, so that not all calls meet one counter.
const CALLERS: usize = 1_000;
const LIMITS: &str =
    "domain: bench\ndescriptors:\n- key: client\n  rate_limit: {unit: day, requests_per_unit: 4000000000}\n";

/// A server process. Ends with the benchmark.
struct Server {
    child: Child,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start_empty() -> Server {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = command.arg("serve").stdout(Stdio::piped()).spawn().unwrap();
    let mut address = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
    Server { child, address: address.trim().to_owned() }
}

fn start_tollgate(program: &str, folder: &std::path::Path) -> Server {
    let limits = folder.join("limits.yaml");
    std::fs::write(&limits, LIMITS).unwrap();
    let config = folder.join("tollgate.toml");
    let mut file = std::fs::File::create(&config).unwrap();
    write!(file, "[doors]\ngrpc = '127.0.0.1:0'\nthreads = 1\nratelimit = '{}'\n", limits.display()).unwrap();
    write!(file, "[admin]\nlisten = '127.0.0.1:0'\n").unwrap();
    let mut command = Command::new(program);
    command.args(["run", "--config"]).arg(&config).env("XDG_STATE_HOME", folder);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = lines.find_map(|line| line.ok().filter(|line| line.contains("\"door\":\"grpc\""))).unwrap();
    std::thread::spawn(move || lines.for_each(drop));
    let address = line.split("\"address\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    Server { child, address }
}

async fn call(grpc: &mut Grpc<Channel>, caller: usize) {
    let entry = Entry { key: "client".to_owned(), value: format!("caller-{}", caller % CALLERS) };
    let descriptors = vec![Descriptor { entries: vec![entry] }];
    let request = RateLimitRequest { domain: "bench".to_owned(), descriptors, hits_addend: 0 };
    grpc.ready().await.unwrap();
    let path = PathAndQuery::from_static(empty::PATH);
    let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
    let response = grpc.unary(tonic::Request::new(request), path, codec).await.unwrap();
    assert_eq!(response.get_ref().overall_code, 1);
}

/// Calls per second with many in flight.
async fn throughput(channel: &Channel, time: Duration) -> f64 {
    let begin = Instant::now();
    let tasks: Vec<_> = (0..IN_FLIGHT)
        .map(|task| {
            let mut grpc = Grpc::new(channel.clone());
            tokio::spawn(async move {
                let mut calls = 0;
                while begin.elapsed() < time {
                    call(&mut grpc, task * 31 + calls).await;
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    let mut calls = 0;
    for task in tasks {
        calls += task.await.unwrap();
    }
    calls as f64 / begin.elapsed().as_secs_f64()
}

/// The median and the 99th percentile of single calls, in microseconds.
async fn latency(channel: &Channel, time: Duration) -> (f64, f64) {
    let (begin, mut grpc, mut times) = (Instant::now(), Grpc::new(channel.clone()), Vec::new());
    while begin.elapsed() < time {
        let started = Instant::now();
        call(&mut grpc, times.len()).await;
        times.push(started.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

async fn run(program: &str, time: Duration) {
    let folder = tempfile::tempdir().unwrap();
    let servers = [("empty tonic service", start_empty()), ("Tollgate", start_tollgate(program, folder.path()))];
    let mut rows: Vec<Vec<(f64, f64, f64)>> = vec![Vec::new(); servers.len()];
    for _ in 0..ROUNDS {
        for ((_, server), row) in servers.iter().zip(&mut rows) {
            let channel = Endpoint::new(format!("http://{}", server.address)).unwrap().connect().await.unwrap();
            let per_second = throughput(&channel, time).await;
            let (median, p99) = latency(&channel, time / 2).await;
            row.push((per_second, median, p99));
        }
    }
    let median = |row: &[(f64, f64, f64)], of: fn(&(f64, f64, f64)) -> f64| {
        let mut values: Vec<f64> = row.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!("| server | calls/s | ratio | p50 us | p99 us |\n|---|---|---|---|---|");
    let base = median(&rows[0], |row| row.0);
    for ((name, _), row) in servers.iter().zip(&rows) {
        let per_second = median(row, |row| row.0);
        let (p50, p99) = (median(row, |row| row.1), median(row, |row| row.2));
        println!("| {name} | {per_second:.0} | {:.2} | {p50:.0} | {p99:.0} |", per_second / base);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve"] => runtime.block_on(empty::serve()),
        [program] => runtime.block_on(run(program, Duration::from_secs(3))),
        [program, seconds] => runtime.block_on(run(program, Duration::from_secs(seconds.parse().unwrap()))),
        _ => println!("usage: bench-grpc TOLLGATE [SECONDS]"),
    }
}
