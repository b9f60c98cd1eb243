//! The crawler storm and the no-storm tax, against peers in the same run: see `bench/README.md`.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark talks to the person who started it")]

mod journal;
mod machine;
mod peers;
mod plot;
mod report;
mod run;
mod scenario;
mod scrape;
mod tax;
mod verdict;
mod wrk;

use clap::{Args, Parser, Subcommand};
use journal::{Journal, Played, Title};
use peers::Peer;
use run::Bench;
use scenario::Scenario;
use std::{
    hash::{DefaultHasher, Hasher},
    io,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};
use tollgate_storm::{
    cpu,
    plan::{Phases, Plan},
    site,
};

const PHASES: Phases =
    Phases { calm: Duration::from_secs(20), storm: Duration::from_secs(60), recovery: Duration::from_secs(30) };
const QUICK_PHASES: Phases =
    Phases { calm: Duration::from_secs(8), storm: Duration::from_secs(12), recovery: Duration::from_secs(6) };

/// Plays the crawler storm against every gate and prints one table.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Role>,
    #[command(flatten)]
    storm: StormArguments,
}

#[derive(Args)]
struct StormArguments {
    /// What to put in front of the site, by name.
    #[arg(long, value_delimiter = ',', value_parser = Peer::of_name, default_values_t = peers::ALL.iter().copied())]
    gates: Vec<Peer>,
    /// Where the crawler sits.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Scenario::S0, Scenario::S1, Scenario::S2, Scenario::S3])]
    scenarios: Vec<Scenario>,
    /// How often each storm is played.
    #[arg(long, default_value_t = 3)]
    runs: u64,
    /// Short phases, to see that everything works.
    #[arg(long)]
    quick: bool,
    /// Where chance begins.
    #[arg(long, default_value_t = 20_261_115)]
    seed: u64,
    /// Gives dear pages the same kind of path as cheap ones, so that no cost can be learned from a path.
    #[arg(long)]
    alike: bool,
    /// The round trip that the crawler waits before each try, in milliseconds.
    #[arg(long, default_value_t = 20)]
    crawler_round_trip_ms: u64,
    /// The core of the site, which has it alone.
    #[arg(long, default_value_t = 1)]
    site_core: usize,
    /// The core of the gate and of everybody who knocks.
    #[arg(long, default_value_t = 0)]
    load_core: usize,
    /// The Tollgate to test; built from this source if not given.
    #[arg(long)]
    tollgate: Option<PathBuf>,
    /// Writes every storm to this file, and does not play again what is in it.
    #[arg(long)]
    journal: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Role {
    /// Measures what a gate costs when there is no storm.
    Tax(tax::TaxArguments),
    /// Draws pictures of storms that were played.
    Plot(plot::PlotArguments),
    /// Serves the site under attack (the benchmark starts it by itself).
    Site {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        core: usize,
        #[arg(long)]
        server_timing: bool,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Some(Role::Site { listen, core, server_timing }) => serve_site(listen, core, server_timing),
        Some(Role::Tax(arguments)) => tax::levy(&arguments),
        Some(Role::Plot(arguments)) => plot::draw(&arguments),
        None => play_storms(&arguments.storm),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-storm: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve_site(listen: SocketAddr, core: usize, server_timing: bool) -> io::Result<()> {
    cpu::pin(core)?;
    site::serve(&TcpListener::bind(listen)?, site::Settings { server_timing, ..site::Settings::default() })
}

fn play_storms(arguments: &StormArguments) -> io::Result<()> {
    if let Some(missing) = arguments.gates.iter().find_map(|gate| gate.missing()) {
        return Err(io::Error::other(missing));
    }
    let (tollgate, build) = match arguments.gates.iter().any(|gate| gate.is_tollgate()) {
        true => {
            let tollgate = find_tollgate(arguments.tollgate.as_deref())?;
            let build = fingerprint(&tollgate)?;
            (tollgate, build)
        }
        false => (PathBuf::new(), 0),
    };
    // Before any thread or child is started: all of them inherit it, and the site then moves to its own.
    cpu::pin(arguments.load_core)?;
    let bench = Bench { site_core: arguments.site_core, tollgate };
    let titles = titles(arguments, build);
    let mut journal = Journal::open(arguments.journal.as_deref())?;
    let mut failures = 0;
    for (number, title) in titles.iter().enumerate() {
        let what = format!("{} of {}: {} against {}", number + 1, titles.len(), title.scenario.name(), title.peer);
        if journal.has(title) {
            eprintln!("{what}: in the journal");
            continue;
        }
        eprintln!("{what}");
        let plan = Plan {
            alike: title.alike,
            crawler_round_trip: Duration::from_millis(title.crawler_round_trip_ms),
            ..Plan::new(title.seed, title.phases, title.scenario.origin())
        };
        match run::run(&bench, title.peer, plan) {
            Ok(outcome) => journal.add(Played { title: title.clone(), outcome })?,
            // Hours of other gates' runs are not thrown away for one that did not start.
            Err(error) => {
                eprintln!("  not played: {error}");
                failures += 1;
            }
        }
    }
    println!("{}", report::markdown(&journal.of_titles(&titles), phases(arguments)));
    if failures > 0 { Err(io::Error::other(format!("{failures} storms were not played"))) } else { Ok(()) }
}

const fn phases(arguments: &StormArguments) -> Phases {
    if arguments.quick { QUICK_PHASES } else { PHASES }
}

/// Every storm that was asked for, in the order in which they are played: gates take turns.
fn titles(arguments: &StormArguments, build: u64) -> Vec<Title> {
    let mut titles = Vec::new();
    for run in 0..arguments.runs {
        for &scenario in &arguments.scenarios {
            for &peer in &arguments.gates {
                titles.push(Title {
                    scenario,
                    peer,
                    seed: arguments.seed.wrapping_add(run),
                    phases: phases(arguments),
                    alike: arguments.alike,
                    crawler_round_trip_ms: arguments.crawler_round_trip_ms,
                    build: peer.is_tollgate().then_some(build),
                });
            }
        }
    }
    titles
}

/// What tells one build of a program from another.
fn fingerprint(program: &Path) -> io::Result<u64> {
    let mut hasher = DefaultHasher::new();
    hasher.write(&std::fs::read(program)?);
    Ok(hasher.finish())
}

/// The Tollgate that was named, or else the one of this source, built as it is released.
fn find_tollgate(named: Option<&Path>) -> io::Result<PathBuf> {
    if let Some(path) = named {
        return path.canonicalize();
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo).args(["build", "--release", "-q", "-p", "tollgate"]).status()?;
    if !status.success() {
        return Err(io::Error::other("tollgate does not build"));
    }
    // Beside this program's own profile, wherever the target directory is.
    let built = std::env::current_exe()?.with_file_name("../release/tollgate");
    built.canonicalize().map_err(|error| io::Error::new(error.kind(), format!("no tollgate at {}", built.display())))
}
