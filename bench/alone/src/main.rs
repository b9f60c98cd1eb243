//! Benchmark of a single client that uses a backend alone: directly, through Tollgate and through nginx. A gate should
//! not slow down a client that competes with nobody. See `bench/README.md`.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark writes its table to the terminal")]

mod backend;
mod figures;
mod law;
mod load;
mod page;
mod report;

use backend::Backend;
use bench_storm::{
    machine::{ScratchDir, find_tollgate},
    peers::{NGINX, NGINX_HTTP2, NONE, Peer, TOLLGATE, TOLLGATE_HTTP2},
    site_process::{self, SiteArguments},
};
use clap::{Args, Parser, Subcommand};
use figures::{Figures, Stage};
use load::{AtOnce, Connections};
use report::{Rounds, Row};
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};
use tollgate_storm::{child::free_address, cpu};

/// The loads of a complete measurement.
const AT_ONCE: [AtOnce; 8] = [
    AtOnce::Connections(1),
    AtOnce::Connections(8),
    AtOnce::Connections(16),
    AtOnce::Connections(32),
    AtOnce::Connections(64),
    AtOnce::Connections(100),
    AtOnce::Connections(256),
    AtOnce::Page,
];

/// The rows of `--quick`.
const QUICK: [(&str, AtOnce); 7] = [
    ("20ms-cpu", AtOnce::Connections(8)),
    ("20ms-cpu", AtOnce::Connections(32)),
    ("2ms-cpu", AtOnce::Connections(32)),
    ("20ms-cpu", AtOnce::Page),
    ("50ms-sleep", AtOnce::Connections(16)),
    ("50ms-sleep", AtOnce::Connections(100)),
    ("250ms-sleep", AtOnce::Connections(64)),
];

/// The time for which a gate that has just started counts as cold.
const COLD: Duration = Duration::from_secs(4);
/// The first part of that time, which is judged separately if the backend sleeps.
const FIRST: Duration = Duration::from_secs(1);

/// Compares one client's throughput, p99 and refusals through a fresh gate with those without a gate.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Role>,
    #[command(flatten)]
    alone: AloneArguments,
}

#[derive(Args)]
struct AloneArguments {
    /// Backends to measure; all by default.
    #[arg(long, value_delimiter = ',', value_parser = Backend::of_name)]
    only: Vec<Backend>,
    /// Requests at once: numbers of connections, and `page` for bursts of 100 requests over one HTTP/2 connection.
    #[arg(long, value_delimiter = ',')]
    at_once: Vec<AtOnce>,
    /// Runs of each row; medians are reported.
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of the warm stage.
    #[arg(long)]
    warm_seconds: Option<u64>,
    /// Few rows, one round, without nginx: under two minutes.
    #[arg(long)]
    quick: bool,
    /// Leaves nginx out.
    #[arg(long)]
    no_nginx: bool,
    /// The Tollgate to test; built from this source if not given.
    #[arg(long)]
    gate: Option<PathBuf>,
    /// Writes all figures to this file as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// The core of the backend. Nothing else runs on it.
    #[arg(long, default_value_t = 1)]
    backend_core: usize,
    /// The core of the gate and of the client.
    #[arg(long, default_value_t = 0)]
    load_core: usize,
}

#[derive(Subcommand)]
enum Role {
    /// Serves the backend (the benchmark starts this itself).
    Site(SiteArguments),
}

/// A server that the client connects to.
#[derive(Clone, Copy)]
struct Target {
    name: &'static str,
    /// The gate of a closed loop.
    peer: Peer,
    /// The gate of a page load.
    page_peer: Peer,
}

const DIRECT: Target = Target { name: "direct", peer: NONE, page_peer: NONE };
const GATE: Target = Target { name: "gate", peer: TOLLGATE, page_peer: TOLLGATE_HTTP2 };
const PROXY: Target = Target { name: "nginx", peer: NGINX, page_peer: NGINX_HTTP2 };

/// Settings of all runs.
struct Bench {
    tollgate: PathBuf,
    backend_core: usize,
    warm: Duration,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Some(Role::Site(arguments)) => site_process::serve(&arguments).map(|()| true),
        None => measure_all(&arguments.alone),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-alone: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures and prints every selected row. Returns whether the law holds in all of them.
fn measure_all(arguments: &AloneArguments) -> io::Result<bool> {
    let targets: &[Target] =
        if arguments.quick || arguments.no_nginx { &[DIRECT, GATE] } else { &[DIRECT, GATE, PROXY] };
    if let Some(missing) = targets.iter().find_map(|target| target.peer.missing()) {
        return Err(io::Error::other(missing));
    }
    let warm_seconds = arguments.warm_seconds.unwrap_or(if arguments.quick { 2 } else { 4 });
    let rounds = arguments.rounds.unwrap_or(if arguments.quick { 1 } else { 3 });
    let bench = Bench {
        tollgate: find_tollgate(arguments.gate.as_deref())?,
        backend_core: arguments.backend_core,
        warm: Duration::from_secs(warm_seconds.max(1)),
    };
    // Threads and children inherit the core, so this precedes them. The backend then moves to its own core.
    cpu::pin(arguments.load_core)?;
    let selected = selected(arguments);
    let mut rows = Vec::new();
    for (number, &(backend, at_once)) in selected.iter().enumerate() {
        eprintln!("{} of {}: {}, {at_once} at once", number + 1, selected.len(), backend.name);
        rows.extend(bench.rows(backend, at_once, targets, rounds.max(1))?);
    }
    println!("{}", report::markdown(&rows));
    if let Some(path) = &arguments.json {
        write_json(path, &rows)?;
    }
    Ok(report::holds(&rows))
}

fn write_json(path: &Path, rows: &[Row]) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(rows)?;
    text.push('\n');
    fs::write(path, text)
}

/// The rows to measure, in the order of the table.
fn selected(arguments: &AloneArguments) -> Vec<(Backend, AtOnce)> {
    let AloneArguments { only, at_once, quick, .. } = arguments;
    let is_all = only.is_empty() && at_once.is_empty();
    let mut selected = Vec::new();
    for backend in backend::ALL.into_iter().filter(|backend| only.is_empty() || only.contains(backend)) {
        let loads = if at_once.is_empty() { &AT_ONCE } else { &at_once[..] };
        for &load in loads {
            if !(*quick && is_all) || QUICK.contains(&(backend.name, load)) {
                selected.push((backend, load));
            }
        }
    }
    selected
}

impl Bench {
    /// All stages of one backend and load, every round with all targets in turn.
    fn rows(&self, backend: Backend, at_once: AtOnce, targets: &[Target], rounds: usize) -> io::Result<Vec<Row>> {
        let mut figures: Vec<Vec<Vec<(Stage, Figures)>>> = vec![Vec::new(); targets.len()];
        for round in 0..rounds {
            for turn in 0..targets.len() {
                let index = (round + turn) % targets.len();
                figures[index].push(self.run(backend, at_once, targets[index])?);
            }
        }
        let stages: Vec<Stage> = figures[0][0].iter().map(|(stage, _)| *stage).collect();
        let of_stage = |at: usize| -> Vec<Rounds> {
            let rounds = |runs: &Vec<Vec<(Stage, Figures)>>| runs.iter().map(|run| run[at].1).collect();
            targets
                .iter()
                .zip(&figures)
                .map(|(target, runs)| Rounds { target: target.name, rounds: rounds(runs) })
                .collect()
        };
        Ok(stages.into_iter().enumerate().map(|(at, stage)| Row::new(backend, at_once, stage, of_stage(at))).collect())
    }

    /// One run against a fresh backend and a fresh gate.
    fn run(&self, backend: Backend, at_once: AtOnce, target: Target) -> io::Result<Vec<(Stage, Figures)>> {
        let dir = ScratchDir::new()?;
        let site = free_address()?;
        let _site = site_process::start(site, self.backend_core, backend.settings())?;
        let peer = if at_once == AtOnce::Page { target.page_peer } else { target.peer };
        let gate = peer.start(site, dir.path(), &self.tollgate)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        match at_once {
            AtOnce::Connections(count) => {
                let mut connections = Connections::new(count, gate.listen, backend);
                let cold = runtime.block_on(connections.run(COLD));
                let warm = runtime.block_on(connections.run(self.warm));
                let of_cold = |stage, window| (stage, Figures::of_window(&cold, &window));
                let mut stages = match backend.sleeps {
                    true => vec![
                        of_cold(Stage::ColdFirstSecond, Duration::ZERO..FIRST),
                        of_cold(Stage::ColdRest, FIRST..COLD),
                    ],
                    false => vec![of_cold(Stage::Cold, Duration::ZERO..COLD)],
                };
                stages.push((Stage::Warm, Figures::of_window(&warm, &(Duration::ZERO..self.warm))));
                Ok(stages)
            }
            AtOnce::Page => {
                let bursts = runtime.block_on(load::bursts(gate.listen, backend, peer != NONE))?;
                let stages = Stage::BURSTS.into_iter().zip(&bursts);
                Ok(stages.map(|(stage, burst)| (stage, Figures::of_burst(burst))).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(args: &[&str]) -> Vec<(&'static str, String)> {
        let arguments = Arguments::try_parse_from([&["bench-alone"], args].concat()).unwrap().alone;
        selected(&arguments).into_iter().map(|(backend, load)| (backend.name, load.to_string())).collect()
    }

    #[test]
    fn rows_are_selected_by_backend_and_by_load() {
        assert_eq!(of(&[]).len(), backend::ALL.len() * AT_ONCE.len());
        assert_eq!(of(&["--only", "20ms-cpu", "--at-once", "32"]), [("20ms-cpu", "32".to_owned())]);
        assert_eq!(of(&["--quick"]).len(), QUICK.len());
        assert_eq!(of(&["--quick", "--at-once", "7,page"]).len(), backend::ALL.len() * 2);
    }
}
