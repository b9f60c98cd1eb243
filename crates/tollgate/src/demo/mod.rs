//! `tollgate demo`: shows the effect of a gate. It runs the same storm (a load of people and a crawler) twice on this
//! machine, without and with a gate, and compares the results.
//!
//! Everything is real: a site that uses CPU time, people and a crawler with their own loopback addresses, and
//! `tollgate gate` as a separate process, with only its backend configured. The load and the site are in the crate
//! `tollgate-storm`.
#![expect(clippy::print_stdout, reason = "its answer is for the person at the terminal")]

mod half;
mod picture;
mod screen;
mod summary;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use tollgate_storm::crowd::Origin;
use tollgate_storm::plan::{Phases, Plan};
use tollgate_storm::{cpu, site};

use crate::output::CommandError;
use screen::Screen;

/// A fixed seed, so that every run has the same visitors.
const SEED: u64 = 20;

/// Options of the demo.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoOptions {
    /// How long each half lasts, in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(4..=600))]
    seconds: u64,
    /// Serves the site (the demo starts this by itself)
    #[arg(long, hide = true, requires = "core")]
    site: Option<SocketAddr>,
    /// The core on which the site is served
    #[arg(long, hide = true)]
    core: Option<usize>,
}

/// Runs both halves and prints the difference.
pub(crate) fn run(arguments: &DemoOptions) -> Result<(), CommandError> {
    let done = match (arguments.site, arguments.core) {
        (Some(listen), Some(core)) => serve_site(listen, core),
        _ => show(arguments),
    };
    done.map_err(|error| CommandError::failed(format!("tollgate demo: {error}")))
}

/// The process of the site: serves it on one core until it is killed.
fn serve_site(listen: SocketAddr, core: usize) -> io::Result<()> {
    cpu::pin(core)?;
    site::serve(&TcpListener::bind(listen)?, site::Settings::default())
}

fn show(arguments: &DemoOptions) -> io::Result<()> {
    let phases = phases(Duration::from_secs(arguments.seconds));
    let plan = Plan::new(SEED, phases, Origin::Network);
    let site_core = leave_a_core_to_the_site()?;
    println!("{}", summary::introduction(phases));
    let mut screen = Screen::new();
    let without = half::play("Without Tollgate", false, &plan, site_core, &mut screen)?;
    let with = half::play("With Tollgate", true, &plan, site_core, &mut screen)?;
    println!("{}", summary::side_by_side(&without, &with));
    Ok(())
}

/// The phases of a half: 25 % of the time without the crawler for comparison, 60 % with it, and 15 % for the recovery
/// of the site.
fn phases(half: Duration) -> Phases {
    let calm = half / 4;
    let recovery = half * 3 / 20;
    Phases { calm, storm: half - calm - recovery, recovery }
}

/// Pins this thread, and thereby all processes that it starts, to the first core. Returns the last core, to which the
/// site pins itself. With a single core, both share it.
fn leave_a_core_to_the_site() -> io::Result<usize> {
    let cores = cpu::cores()?;
    let (Some(&first), Some(&last)) = (cores.first(), cores.last()) else {
        return Err(io::Error::other("this process has no CPU core to run on"));
    };
    cpu::pin(first)?;
    Ok(last)
}
