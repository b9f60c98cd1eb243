//! The speed and memory of `tollgate replay` on one core.
//!
//! A generated trace is piped into the real binary, so neither disk nor page cache is involved. The result is
//! the CPU time of the binary, including reading the pipe, which excludes other processes. `cargo build
//! --release -p tollgate && cargo run --release -p bench-replay [-- path/to/tollgate]`
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
    println!("| command | lines | CPU s | lines/s/core | peak MiB |\n|---|---|---|---|---|");
    for mode in ["--json", "--decisions"] {
        for lines in LINES {
            let before = cpu_s()?;
            let peak_mib = replay(&binary, &config, mode, lines)? / 1024;
            let cpu_s = cpu_s()? - before;
            let rate = lines as f64 / cpu_s;
            println!("| replay {mode} | {lines} | {cpu_s:.2} | {rate:.0} | {peak_mib} |");
        }
    }
    std::fs::remove_file(config)
}

/// Replays this many lines. Returns the peak memory in KiB.
fn replay(binary: &PathBuf, config: &PathBuf, mode: &str, lines: u64) -> io::Result<u64> {
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

/// Two requests per millisecond from many clients with very different rates.
fn write_trace(lines: u64, output: &mut impl Write) -> io::Result<()> {
    let mut state = 7u64;
    let mut text = String::new();
    for line in 0..lines {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let dice = state >> 32;
        // The product of two random numbers is small more often than not.
        let client = (dice % CLIENTS) * (dice / 7 % 1000) / 1000;
        let _ = writeln!(
            text,
            r#"{{"at_ms": {}, "client": "10.{}.{}.{}", "method": "GET", "path": "/page/{}", "headers": {{"user-agent": "{}"}}, "cost_ms": {}}}"#,
            line / 2,
            client >> 16,
            client >> 8 & 255,
            client & 255,
            dice % 1009,
            AGENTS[(dice % 4) as usize],
            dice % 300,
        );
        if text.len() > 1 << 16 {
            output.write_all(text.as_bytes())?;
            text.clear();
        }
    }
    output.write_all(text.as_bytes())
}

/// CPU time of all ended children, in seconds.
fn cpu_s() -> io::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}
