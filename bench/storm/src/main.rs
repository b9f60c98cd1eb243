//! The storm benchmark: people and a crawler use a site through Tollgate and through other gates in the same run. The
//! subcommand `tax` measures the overhead of gates without a crawler. See `bench/README.md`.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the output is a table")]

mod course;
mod journal;
mod law;
mod plot;
mod report;
mod run;
mod scenario;
mod scrape;
mod tax;
mod variation;
mod verdict;
mod wrk;

use bench_storm::{
    machine::find_tollgate,
    peers::{self, Peer},
    site_process::{self, SiteArguments},
};
use clap::{Args, Parser, Subcommand};
use course::Course;
use journal::{Journal, Played, Title};
use run::Bench;
use scenario::Scenario;
use std::{
    hash::{DefaultHasher, Hasher},
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};
use tollgate_storm::{cpu, plan::Phases};
use variation::Variation;

const PHASES: Phases =
    Phases { calm: Duration::from_secs(20), storm: Duration::from_secs(60), recovery: Duration::from_secs(30) };
const QUICK_PHASES: Phases =
    Phases { calm: Duration::from_secs(8), storm: Duration::from_secs(12), recovery: Duration::from_secs(6) };
/// The calm of a random storm is drawn from its seed; these are its other phases.
const RANDOM_PHASES: Phases =
    Phases { calm: Duration::ZERO, storm: Duration::from_secs(30), recovery: Duration::from_secs(5) };
/// The longest calm of a random storm with `--quick`.
const QUICK_CALM_MAX: Duration = Duration::from_secs(4);

/// Plays crawler storms against gates and prints tables.
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
    /// Gates in front of the site, by name.
    #[arg(long, value_delimiter = ',', value_parser = Peer::of_name, default_values_t = peers::ALL.iter().copied())]
    gates: Vec<Peer>,
    /// Networks of the crawler.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Scenario::S0, Scenario::S1, Scenario::S2, Scenario::S3])]
    scenarios: Vec<Scenario>,
    /// Order in which people and the crawler arrive.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Course::Storm])]
    courses: Vec<Course>,
    /// Runs of each storm.
    #[arg(long, default_value_t = 3)]
    runs: u64,
    /// Plays this number of storms whose parameters are drawn from consecutive seeds, instead of the fixed scenarios.
    #[arg(long, conflicts_with_all = ["scenarios", "runs"])]
    random: Option<u64>,
    /// Short phases, to see that everything works.
    #[arg(long)]
    quick: bool,
    /// The first seed.
    #[arg(long, default_value_t = 20_261_115)]
    seed: u64,
    /// Gives expensive pages the same kind of path as cheap ones, so that no cost can be learned from a path.
    #[arg(long)]
    alike: bool,
    /// The round trip that the crawler waits before each try, in milliseconds.
    #[arg(long, default_value_t = 20)]
    crawler_round_trip_ms: u64,
    /// The number of workers of the site, 16 by default: with 1 it serves requests one after another.
    #[arg(long, conflicts_with = "random", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,
    /// The core of the site. Nothing else runs on it.
    #[arg(long, default_value_t = 1)]
    site_core: usize,
    /// The core of the gate and of all clients.
    #[arg(long, default_value_t = 0)]
    load_core: usize,
    /// The Tollgate to test; built from this source if not given.
    #[arg(long)]
    tollgate: Option<PathBuf>,
    /// Appends every storm to this file, and does not play the storms that it has.
    #[arg(long)]
    journal: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Role {
    /// Measures what a gate costs when there is no storm.
    Tax(tax::TaxArguments),
    /// Draws pictures of storms that were played.
    Plot(plot::PlotArguments),
    /// Serves the site (the benchmark starts this itself).
    Site(SiteArguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Some(Role::Site(arguments)) => site_process::serve(&arguments),
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
    // Threads and children inherit the core, so this precedes them. The site then moves to its own core.
    cpu::pin(arguments.load_core)?;
    let bench = Bench { site_core: arguments.site_core, tollgate };
    let titles = titles(arguments, build);
    let mut journal = Journal::open(arguments.journal.as_deref())?;
    let mut failures = 0;
    for (number, title) in titles.iter().enumerate() {
        let (scenario, course) = (title.scenario.name(), title.course.name());
        let what = format!("{} of {}: {scenario}{course} against {}", number + 1, titles.len(), title.peer);
        let what =
            title.variation.map_or(what.clone(), |variation| format!("{what}, seed {}: {variation}", title.seed));
        if journal.has(title) {
            eprintln!("{what}: in the journal");
            continue;
        }
        eprintln!("{what}");
        match run::run(&bench, title) {
            Ok(outcome) => journal.add(Played { title: title.clone(), outcome })?,
            // One gate that does not start must not end a measurement of hours.
            Err(error) => {
                eprintln!("  not played: {error}");
                failures += 1;
            }
        }
    }
    let played = journal.of_titles(&titles);
    if arguments.random.is_none() {
        println!("{}", report::markdown(&played));
    }
    println!("{}", report::law(&played));
    if failures > 0 { Err(io::Error::other(format!("{failures} storms were not played"))) } else { Ok(()) }
}

/// All storms to play, in order. Gates take turns.
fn titles(arguments: &StormArguments, build: u64) -> Vec<Title> {
    let mut titles = Vec::new();
    let mut add = |seed: u64, scenario: Scenario, course: Course, phases: Phases, variation: Option<Variation>| {
        for &peer in &arguments.gates {
            titles.push(Title {
                scenario,
                peer,
                seed,
                phases: course.phases(phases),
                alike: arguments.alike,
                crawler_round_trip_ms: arguments.crawler_round_trip_ms,
                workers: arguments.workers.map(usize::from),
                build: peer.is_tollgate().then_some(build),
                course,
                variation,
            });
        }
    };
    if let Some(count) = arguments.random {
        for seed in (0..count).map(|number| arguments.seed.wrapping_add(number)) {
            let variation = Variation::of_seed(seed);
            let phases = random_phases(&variation, arguments.quick);
            // The calm of the same storm is the measure, however short the calm before the crawler is.
            add(seed, Scenario::S0, Course::Storm, phases, Some(variation));
            for &course in &arguments.courses {
                add(seed, variation::scenario_of_seed(seed), course, phases, Some(variation));
            }
        }
        return titles;
    }
    let phases = if arguments.quick { QUICK_PHASES } else { PHASES };
    for seed in (0..arguments.runs).map(|run| arguments.seed.wrapping_add(run)) {
        for &course in &arguments.courses {
            for &scenario in &arguments.scenarios {
                // Without a crawler, all courses are equal.
                if scenario != Scenario::S0 {
                    add(seed, scenario, course, phases, None);
                } else if course == arguments.courses[0] {
                    add(seed, scenario, Course::Storm, phases, None);
                }
            }
        }
    }
    titles
}

fn random_phases(variation: &Variation, is_quick: bool) -> Phases {
    match is_quick {
        false => Phases { calm: variation.calm, ..RANDOM_PHASES },
        true => Phases { calm: variation.calm.min(QUICK_CALM_MAX), ..QUICK_PHASES },
    }
}

/// Identifies a build of a program.
fn fingerprint(program: &Path) -> io::Result<u64> {
    let mut hasher = DefaultHasher::new();
    hasher.write(&std::fs::read(program)?);
    Ok(hasher.finish())
}
