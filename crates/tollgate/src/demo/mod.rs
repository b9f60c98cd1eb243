//! `tollgate demo`: the same storm twice on this machine, first without a gate and then with one.
//!
//! Everything is real: a site that burns CPU, people and a crawler with addresses of their own on loopback, and `tollgate
//! gate` as a process of its own, with nothing configured but its backend.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its answer is for the person at the terminal")]

mod half;
mod picture;
mod screen;
mod summary;

use half::Half;
use screen::Screen;
use std::{
    io,
    net::{SocketAddr, TcpListener},
    process::ExitCode,
    time::Duration,
};
use tollgate_storm::{
    cpu,
    crowd::Origin,
    plan::{Phases, Plan},
    site,
};

/// The same visitors every time: a demo that depended on luck would show luck.
const SEED: u64 = 20;

/// How long the demo takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
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

/// Plays both halves and shows the difference.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let done = match (arguments.site, arguments.core) {
        (Some(listen), Some(core)) => serve_site(listen, core),
        _ => show(arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tollgate demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve_site(listen: SocketAddr, core: usize) -> io::Result<()> {
    cpu::pin(core)?;
    site::serve(&TcpListener::bind(listen)?, site::Settings::default())
}

fn show(arguments: &Arguments) -> io::Result<()> {
    let phases = phases(Duration::from_secs(arguments.seconds));
    let plan = Plan::new(SEED, phases, Origin::Network);
    let site_core = leave_a_core_to_the_site()?;
    println!("{}", summary::introduction(phases));
    let mut screen = Screen::new();
    let without = Half::play("Without Tollgate", false, &plan, site_core, &mut screen)?;
    let with = Half::play("With Tollgate", true, &plan, site_core, &mut screen)?;
    println!("{}", summary::side_by_side(&without.figures(), &with.figures()));
    Ok(())
}

/// A quarter of calm to compare with, then the crawler, then a moment to see how the site gets over it.
fn phases(half: Duration) -> Phases {
    let calm = half / 4;
    let recovery = half * 3 / 20;
    Phases { calm, storm: half - calm - recovery, recovery }
}

/// The last core is the site's alone, and this thread with all that it starts keeps to the first. Where there is only one, it
/// has to do for both.
fn leave_a_core_to_the_site() -> io::Result<usize> {
    let cores = cpu::cores()?;
    let (Some(&first), Some(&last)) = (cores.first(), cores.last()) else {
        return Err(io::Error::other("this process may run on no core"));
    };
    cpu::pin(first)?;
    Ok(last)
}
