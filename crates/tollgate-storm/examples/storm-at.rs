//! Plays the storm of the demo against a site or gate that is running: `storm-at ADDRESS:PORT CALM_S STORM_S`.
//!
//! `docs/pictures/make` uses it to photograph the console during a storm.
#![allow(clippy::print_stderr, reason = "a program for the terminal")]

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate_storm::crowd::Origin;
use tollgate_storm::plan::{Phases, Plan};
use tollgate_storm::{storm, tally::Tally, target::Target};

/// The seed of the demo.
const SEED: u64 = 20;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((target, phases)) = parse(&words) else {
        eprintln!("usage: storm-at ADDRESS:PORT CALM_S STORM_S");
        return ExitCode::from(2);
    };
    let plan = Arc::new(Plan::new(SEED, phases, Origin::Network));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return ExitCode::FAILURE };
    // The crawler stops with the plan. Visitors that still wait are not waited for.
    let end = storm::play(plan, Arc::new(Target::new(target)), Instant::now(), Arc::new(Tally::default()));
    runtime.block_on(async { tokio::time::timeout(phases.end_at(), end).await.ok() });
    ExitCode::SUCCESS
}

fn parse(words: &[String]) -> Option<(SocketAddr, Phases)> {
    let [target, calm, storm] = words else { return None };
    let secs = |text: &String| text.parse().ok().map(Duration::from_secs);
    let phases = Phases { calm: secs(calm)?, storm: secs(storm)?, recovery: Duration::ZERO };
    Some((target.parse().ok()?, phases))
}
