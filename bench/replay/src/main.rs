//! The speed and memory of `tollgate replay` on one core.
//!
//! A generated trace is piped into the real binary, so neither disk nor page cache is involved. An access log is a
//! file, which is read twice: once for costs and order, and once for the decisions. The result is the CPU time of the
//! binary, including that of the kernel for it, which excludes other processes. `cargo build --release -p tollgate &&
//! cargo run --release -p bench-replay [-- path/to/tollgate]`
#![expect(clippy::print_stdout, reason = "the output is a table")]

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::sys::resource::{UsageWho, getrusage};

/// One rule, on addresses.
const RULES: &str = "[[rule]]\nname = \"api\"\nclass = \"ip/32\"\nrate = { rate = \"20/s\", burst = 40 }\n";
const CLIENTS: u64 = 200_000;
const LINES: [u64; 3] = [1_000_000, 5_000_000, 10_000_000];
const AGENTS: [&str; 4] = [
    "Mozilla/5.0 (X11; Linux x86_64; rv:144.0) Gecko/20100101 Firefox/144.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36",
    "curl/8.9.1",
    "GreedyBot/2.1 (+https://greedy.example/about)",
];

fn main() -> io::Result<()> {
    let default = PathBuf::from("target/release/tollgate");
    let binary = std::env::args_os().nth(1).map_or(default, PathBuf::from);
    let config = std::env::temp_dir().join(format!("bench-replay-{}.toml", std::process::id()));
    std::fs::write(&config, RULES)?;
    println!("| command | input | lines | CPU s | lines/s/core | peak MiB |\n|---|---|---|---|---|---|");
    for input in [Input::Trace, Input::Log] {
        for mode in ["--json", "--decisions"] {
            for lines in LINES {
                let (cpu_s, peak_kib) = match input {
                    Input::Trace => measured(|| replay_trace(&binary, &config, mode, lines))?,
                    Input::Log => replay_log(&binary, &config, mode, lines)?,
                };
                let (rate, peak_mib, input) = (lines as f64 / cpu_s, peak_kib / 1024, input.name());
                println!("| replay {mode} | {input} | {lines} | {cpu_s:.2} | {rate:.0} | {peak_mib} |");
            }
        }
    }
    std::fs::remove_file(config)
}

#[derive(Clone, Copy)]
enum Input {
    /// A trace through a pipe, with costs.
    Trace,
    /// An access log in a file, with durations.
    Log,
}

impl Input {
    fn name(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Log => "combined",
        }
    }
}

/// The CPU time of all children that end meanwhile, and the result.
fn measured<T>(run: impl FnOnce() -> io::Result<T>) -> io::Result<(f64, T)> {
    let before = cpu_s()?;
    let result = run()?;
    Ok((cpu_s()? - before, result))
}

/// Replays an access log of this many lines. Returns the CPU time and the peak memory in KiB.
fn replay_log(binary: &PathBuf, config: &PathBuf, mode: &str, lines: u64) -> io::Result<(f64, u64)> {
    let log = std::env::temp_dir().join(format!("bench-replay-{}.log", std::process::id()));
    write_log(lines, &mut std::fs::File::create(&log)?)?;
    let outcome = measured(|| {
        let mut child = Command::new(binary)
            .args(["replay", mode, "--format", "combined", "--config"])
            .args([config, &log])
            .stdout(Stdio::null())
            .spawn()?;
        let mut peak_kib = 0;
        let status = loop {
            // The status of an ended process has no memory.
            peak_kib = self::peak_kib(child.id()).unwrap_or(0).max(peak_kib);
            if let Some(status) = child.try_wait()? {
                break status;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        if status.success() { Ok(peak_kib) } else { Err(io::Error::other(format!("replay ended with {status}"))) }
    });
    std::fs::remove_file(log)?;
    outcome
}

/// Replays this many lines. Returns the peak memory in KiB.
fn replay_trace(binary: &PathBuf, config: &PathBuf, mode: &str, lines: u64) -> io::Result<u64> {
    let mut child = Command::new(binary)
        .args(["replay", mode, "--format", "trace", "--config"])
        .arg(config)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| io::Error::other(format!("{}: {error}: build it first", binary.display())))?;
    let mut stdin = child.stdin.take().expect("it was asked for");
    write_trace(lines, &mut stdin)?;
    // All lines but those in the pipe have been read.
    let peak_kib = peak_kib(child.id())?;
    drop(stdin);
    let status = child.wait()?;
    if status.success() { Ok(peak_kib) } else { Err(io::Error::other(format!("replay ended with {status}"))) }
}

/// The peak memory of a process.
fn peak_kib(id: u32) -> io::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    Ok(line.trim().trim_end_matches(" kB").parse().unwrap_or(0))
}

/// A generated request.
struct Generated {
    at_ms: u64,
    client: [u8; 4],
    page: u64,
    agent: &'static str,
    cost_ms: u64,
}

/// Writes requests, two per millisecond, from many clients with very different rates.
fn write_lines(
    lines: u64,
    output: &mut impl Write,
    mut write_line: impl FnMut(&mut String, &Generated) -> std::fmt::Result,
) -> io::Result<()> {
    let mut state = 7u64;
    let mut text = String::new();
    for line in 0..lines {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let dice = state >> 32;
        // The product of two random numbers is small more often than not.
        let client = (dice % CLIENTS) * (dice / 7 % 1000) / 1000;
        let client = [10, (client >> 16) as u8, (client >> 8) as u8, client as u8];
        let agent = AGENTS[(dice % 4) as usize];
        let request = Generated { at_ms: line / 2, client, page: dice % 1009, agent, cost_ms: dice % 300 };
        write_line(&mut text, &request).map_err(io::Error::other)?;
        if text.len() > 1 << 16 {
            output.write_all(text.as_bytes())?;
            text.clear();
        }
    }
    output.write_all(text.as_bytes())
}

fn write_trace(lines: u64, output: &mut impl Write) -> io::Result<()> {
    write_lines(lines, output, |text, Generated { at_ms, client: [a, b, c, d], page, agent, cost_ms }| {
        writeln!(
            text,
            r#"{{"at_ms": {at_ms}, "client": "{a}.{b}.{c}.{d}", "method": "GET", "path": "/page/{page}", "headers": {{"user-agent": "{agent}"}}, "cost_ms": {cost_ms}}}"#,
        )
    })
}

/// The same requests as nginx logs them, with their duration.
fn write_log(lines: u64, output: &mut impl Write) -> io::Result<()> {
    write_lines(lines, output, |text, Generated { at_ms, client: [a, b, c, d], page, agent, cost_ms }| {
        let (hour, minute, second) = (at_ms / 3_600_000 % 24, at_ms / 60_000 % 60, at_ms / 1000 % 60);
        writeln!(
            text,
            r#"{a}.{b}.{c}.{d} - - [16/Nov/2026:{hour:02}:{minute:02}:{second:02} +0000] "GET /page/{page} HTTP/1.1" 200 5120 "-" "{agent}" rt=0.{cost_ms:03}"#,
        )
    })
}

/// CPU time of all ended children, in seconds.
fn cpu_s() -> io::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}
