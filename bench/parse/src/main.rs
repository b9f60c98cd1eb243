//! The speed of parsing trace lines: Tollgate's scanner compared with JSON parsers.
//!
//! All of them parse the same million lines in alternating rounds into the same fields: time, client, method,
//! path, one header and cost, borrowed where possible. `cargo run --release` prints a table of medians;
//! parser names after `--` select some of them.

use std::borrow::Cow;
use std::hint::black_box;

use serde::Deserialize;
use tollgate_core::request::Request as _;
use tollgate_wire::log::{Format, Line, Parser};

const LINES: usize = 1_000_000;
const ROUNDS: usize = 7;

/// The fields that replay needs, for serde.
#[derive(Deserialize)]
struct Request<'a> {
    at_ms: f64,
    #[serde(borrow)]
    client: Cow<'a, str>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    path: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    headers: Headers<'a>,
    #[serde(default)]
    cost_ms: Option<f64>,
}

#[derive(Default, Deserialize)]
struct Headers<'a> {
    #[serde(borrow, default, rename = "user-agent")]
    user_agent: Option<Cow<'a, str>>,
}

impl Request<'_> {
    /// A part of every field, so that none is optimized away.
    fn digest(&self) -> u64 {
        let length = |text: &Option<Cow<'_, str>>| text.as_ref().map_or(0, |text| text.len());
        let client: std::net::IpAddr = self.client.parse().expect("the lines have addresses");
        self.at_ms as u64
            + u64::from(client.is_ipv4())
            + (length(&self.method) + length(&self.path) + length(&self.headers.user_agent)) as u64
            + self.cost_ms.unwrap_or(0.0) as u64
    }
}

/// All lines, without the empty one after the last line feed.
fn each(lines: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut start = 0;
    memchr::memchr_iter(b'\n', lines).map(move |end| &lines[std::mem::replace(&mut start, end + 1)..end])
}

fn tollgate(lines: &[u8]) -> u64 {
    let mut parser = Parser::new();
    let mut sum = 0;
    for line in each(lines) {
        let Ok(Line::Request(request)) = parser.parse(Format::Trace, line) else { panic!("a line was not read") };
        let agent = request.header("user-agent").map_or(0, <[u8]>::len);
        sum += request.at.as_nanos() / 1_000_000
            + u64::from(request.client().is_some_and(|client| client.is_ipv4()))
            + (request.method().len() + request.target().len() + agent) as u64
            + request.cost.map_or(0, |cost| cost.as_nanos() / 1_000_000);
    }
    sum
}

fn serde_json(lines: &[u8]) -> u64 {
    each(lines).map(|line| serde_json::from_slice::<Request<'_>>(line).expect("a trace").digest()).sum()
}

fn sonic_rs(lines: &[u8]) -> u64 {
    each(lines).map(|line| sonic_rs::from_slice::<Request<'_>>(line).expect("a trace").digest()).sum()
}

fn simd_json(lines: &[u8]) -> u64 {
    let mut buffers = simd_json::Buffers::default();
    let mut copy = Vec::new();
    let mut sum = 0;
    for line in each(lines) {
        // It unescapes in place, so it needs a writable copy.
        copy.clear();
        copy.extend_from_slice(line);
        sum += simd_json::serde::from_slice_with_buffers::<Request<'_>>(&mut copy, &mut buffers).expect("a trace").digest();
    }
    sum
}

/// Lines of a site with many visitors. The generator is a linear congruence, so every run parses the same
/// lines.
fn lines() -> Vec<u8> {
    use std::fmt::Write;
    let agents = [
        "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
        "curl/8.9.1",
        "GreedyBot/2.1 (+http://bot.example/)",
    ];
    let mut text = String::new();
    let mut state = 7u64;
    for at_ms in 0..LINES {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let dice = state >> 33;
        writeln!(
            text,
            r#"{{"at_ms": {at_ms}, "client": "203.{}.{}.{}", "method": "GET", "path": "/page/{}", "headers": {{"user-agent": "{}"}}, "cost_ms": {}}}"#,
            dice % 7,
            dice % 251,
            dice % 241,
            dice % 1009,
            agents[dice as usize % 3],
            dice % 300,
        )
        .expect("writing to memory");
    }
    text.into_bytes()
}

/// CPU time of this thread, which excludes other processes.
fn cpu_nanos() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn main() {
    let lines = lines();
    let readers: [(&str, fn(&[u8]) -> u64); 4] =
        [("tollgate", tollgate), ("serde_json", serde_json), ("sonic-rs", sonic_rs), ("simd-json", simd_json)];
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let readers = readers.into_iter().filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name));
    let readers: Vec<_> = readers.collect();
    let expect = tollgate(&lines);
    let mut nanos = vec![Vec::new(); readers.len()];
    for _ in 0..ROUNDS {
        for ((_, read), nanos) in readers.iter().zip(&mut nanos) {
            let start = cpu_nanos();
            assert_eq!(read(black_box(&lines)), expect, "readers must agree");
            nanos.push((cpu_nanos() - start) as f64 / LINES as f64);
        }
    }
    println!("{LINES} lines of {} bytes, {ROUNDS} rounds\n\n| reader | ns per line | MB/s |\n|---|---|---|", lines.len() / LINES);
    for ((name, _), nanos) in readers.iter().zip(&mut nanos) {
        nanos.sort_by(f64::total_cmp);
        let median = nanos[ROUNDS / 2];
        println!("| {name} | {median:.0} | {:.0} |", lines.len() as f64 / LINES as f64 / median * 1e3);
    }
}
