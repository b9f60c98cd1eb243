//! Calls of one kind: as many as a server answers, and at a fixed rate.

use std::io::Write;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use crate::{paced, rls};

/// Different keys, so that not all calls meet one counter.
const KEYS: &str = "100000";
/// Connections of the load.
const CONNECTIONS: usize = 64;
/// The body of a check.
const CHECK: &str = r#"{"rule": "api", "key": "caller-1"}"#;

/// One kind of call.
#[derive(Clone)]
pub(crate) enum Call {
    /// A command for `redis-benchmark`, and the number of calls in a pipeline.
    Resp(usize, Vec<String>),
    /// A check.
    Http,
    /// A call of Envoy's rate limit service.
    Rls,
}

impl Call {
    pub(crate) fn resp(pipeline: usize, words: &[&str]) -> Self {
        Self::Resp(pipeline, words.iter().map(|word| (*word).to_owned()).collect())
    }

    /// The number of calls, and calls per second, with many in flight.
    pub(crate) fn per_second(&self, address: SocketAddr, span: Duration) -> (f64, f64) {
        match self {
            Self::Resp(pipeline, words) => redis_benchmark(address, *pipeline, words, span),
            Self::Http => wrk(address, span),
            Self::Rls => rls::runtime().block_on(rls::throughput(address, span)),
        }
    }

    /// The latencies of calls at a fixed rate, in microseconds.
    pub(crate) fn latencies(&self, address: SocketAddr, per_second: f64, span: Duration) -> Vec<f64> {
        match self {
            Self::Resp(pipeline, words) => {
                let mut message = Vec::new();
                for caller in 0..*pipeline {
                    write_command(&mut message, words, caller);
                }
                // A pipeline of calls is sent at once.
                let replies = paced::Replies::RespArrays(*pipeline);
                paced::latencies(address, &message, replies, per_second / *pipeline as f64, span)
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

fn redis_benchmark(address: SocketAddr, pipeline: usize, words: &[String], span: Duration) -> (f64, f64) {
    let (port, clients, pipeline) = (address.port().to_string(), CONNECTIONS.to_string(), pipeline.to_string());
    let run = |calls: f64| {
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &port, "-c", &clients, "-P", &pipeline, "-r", KEYS, "--csv"]);
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
