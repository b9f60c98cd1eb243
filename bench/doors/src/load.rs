//! The load on a server: calls of one kind, as many as it answers, or at a fixed rate.

use std::io::Write;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use crate::pace::Latencies;
use crate::{paced, rls};

/// Different keys, so that not all calls meet one counter.
const KEYS: usize = 100_000;
/// Connections of the load.
const CONNECTIONS: usize = 64;
/// The body of a check.
const CHECK: &str = r#"{"rule": "api", "key": "caller-1"}"#;

/// The program that sends commands, and the commands that it sends at once.
#[derive(Clone, Copy)]
pub(crate) enum RespLoad {
    /// `redis-benchmark` with pipelines of this length.
    Benchmark(usize),
    /// A thread that polls its connections and sends each command alone.
    Polling,
}

/// One kind of call.
#[derive(Clone)]
pub(crate) enum Call {
    /// A command, with `__rand_int__` in its key.
    Resp(RespLoad, Vec<String>),
    /// A check.
    Http,
    /// A call of Envoy's rate limit service.
    Rls,
}

impl Call {
    pub(crate) fn resp(load: RespLoad, words: &[&str]) -> Self {
        Self::Resp(load, words.iter().map(|word| (*word).to_owned()).collect())
    }

    /// The number of calls, and calls per second, with many in flight.
    pub(crate) fn per_second(&self, address: SocketAddr, span: Duration) -> (f64, f64) {
        match self {
            Self::Resp(RespLoad::Benchmark(pipeline), words) => redis_benchmark(address, *pipeline, words, span),
            Self::Resp(RespLoad::Polling, words) => polled(address, words, span),
            Self::Http => wrk(address, span),
            Self::Rls => rls::runtime().block_on(rls::throughput(address, span)),
        }
    }

    /// The latencies of calls at a fixed rate.
    pub(crate) fn latencies(&self, address: SocketAddr, per_second: f64, span: Duration) -> Latencies {
        match self {
            Self::Resp(load, words) => {
                let pipeline = match load {
                    RespLoad::Benchmark(pipeline) => *pipeline,
                    RespLoad::Polling => 1,
                };
                let mut message = Vec::new();
                for caller in 0..pipeline {
                    write_command(&mut message, words, caller);
                }
                // A pipeline of calls is sent at once.
                let replies = paced::Replies::RespArrays(pipeline);
                paced::latencies(address, &message, replies, per_second / pipeline as f64, span)
            }
            Self::Http => {
                let length = CHECK.len();
                let message =
                    format!("POST /v1/check HTTP/1.1\r\nHost: bench\r\nContent-Length: {length}\r\n\r\n{CHECK}");
                paced::latencies(address, message.as_bytes(), paced::Replies::Http, per_second, span)
            }
            Self::Rls => rls::runtime().block_on(rls::latencies(address, per_second, span)),
        }
    }
}

fn write_command(message: &mut Vec<u8>, words: &[String], caller: usize) {
    write!(message, "*{}\r\n", words.len()).unwrap();
    for word in words {
        let word = word.replace("__rand_int__", &format!("{caller:012}"));
        write!(message, "${}\r\n{word}\r\n", word.len()).unwrap();
    }
}

/// Calls with one in flight on each connection, each with the next of the keys.
fn polled(address: SocketAddr, words: &[String], span: Duration) -> (f64, f64) {
    let commands: Vec<Vec<u8>> = (0..KEYS)
        .map(|caller| {
            let mut command = Vec::new();
            write_command(&mut command, words, caller);
            command
        })
        .collect();
    let write = |message: &mut Vec<u8>, number: usize| message.extend_from_slice(&commands[number % KEYS]);
    paced::throughput(address, CONNECTIONS, paced::Replies::RespArrays(1), span, write)
}

fn redis_benchmark(address: SocketAddr, pipeline: usize, words: &[String], span: Duration) -> (f64, f64) {
    let (port, clients, pipeline) = (address.port().to_string(), CONNECTIONS.to_string(), pipeline.to_string());
    let run = |calls: f64| {
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &port, "-c", &clients, "-P", &pipeline, "-r", &KEYS.to_string(), "--csv"]);
        let output = command.args(["-n", &format!("{calls:.0}")]).args(words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().last().unwrap_or_default();
        let rate = line.split("\",\"").nth(1).and_then(|field| field.trim_matches('"').parse::<f64>().ok());
        rate.unwrap_or_else(|| panic!("redis-benchmark printed {text}"))
    };
    // It takes a number of calls, not a time.
    let calls = run(20_000.0) * span.as_secs_f64();
    (calls + 20_000.0, run(calls))
}

fn wrk(address: SocketAddr, span: Duration) -> (f64, f64) {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("check.lua");
    std::fs::write(&script, format!("wrk.method = 'POST'\nwrk.body = '{CHECK}'\n")).unwrap();
    let seconds = format!("-d{}s", span.as_secs().max(1));
    let mut command = Command::new("wrk");
    command.args(["-t1", &format!("-c{CONNECTIONS}"), &seconds, "-s"]).arg(script);
    let output = command.arg(format!("http://{address}/v1/check")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!text.contains("Non-2xx"), "{text}");
    let calls =
        text.lines().find(|line| line.contains(" requests in ")).and_then(|line| line.split_whitespace().next());
    let rate = text.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
    (calls.unwrap().parse().unwrap(), rate.unwrap().trim().parse().unwrap())
}
