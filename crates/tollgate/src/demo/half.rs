//! One half of the demo: a new site, a gate in front of it or none, and the storm (the load of people and a crawler).
//! Site and gate are processes of this binary; the storm runs on a thread, and this module shows its progress.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tollgate_storm::child::{Child, free_address};
use tollgate_storm::counters::Reading;
use tollgate_storm::plan::Plan;
use tollgate_storm::tally::Tally;
use tollgate_storm::target::Target;
use tollgate_storm::{site, storm};

use super::picture::{StormSample, StormSnapshot};
use super::screen::Screen;
use super::summary::HalfResult;

/// The pause between two updates, in which counters are read and the screen is redrawn.
const TICK: Duration = Duration::from_millis(250);

/// Runs the storm, with a gate or without, and draws it on `screen` under `title`. The site runs on the CPU core
/// `site_core`, apart from the gate and the load if the machine has several cores.
pub(super) fn play(
    title: &str,
    has_gate: bool,
    plan: &Plan,
    site_core: usize,
    screen: &mut Screen,
) -> io::Result<HalfResult> {
    let site = free_address()?;
    let _site = start(&["demo", "--site", &site.to_string(), "--core", &site_core.to_string()], site)?;
    let (target, _gate) = if has_gate { start_gate(site)? } else { (site, None) };
    let start = Instant::now();
    let tally = Arc::new(Tally::default());
    let load = thread::spawn({
        let (plan, tally) = (Arc::new(plan.clone()), Arc::clone(&tally));
        move || play_storm(plan, target, start, tally)
    });
    let samples = show_progress(title, site, plan, &tally, start, screen)?;
    load.join().map_err(|_| io::Error::other("the thread of the load panicked"))??;
    Ok(HalfResult::of(plan, &tally.views(), &crawled_reading(&samples, plan)))
}

/// Starts this binary with these arguments, and waits until it accepts connections on `address`.
fn start(args: &[&str], address: SocketAddr) -> io::Result<Child> {
    Child::start(&std::env::current_exe()?, args, address)
}

/// Starts a gate in front of the site. Returns its address and its process.
fn start_gate(site: SocketAddr) -> io::Result<(SocketAddr, Option<Child>)> {
    let listen = free_address()?;
    let (backend, listen_at) = (format!("http://{site}"), listen.to_string());
    // Any free port for the admin address. With port 0, the gate has no directory for its state, which nobody needs.
    let child = start(&["gate", "--backend", &backend, "--listen", &listen_at, "--admin", "127.0.0.1:0"], listen)?;
    Ok((listen, Some(child)))
}

/// Sends the requests of the plan to `target` until the plan ends. Page views that are unfinished then are not in
/// `tally`, and count as not served.
fn play_storm(plan: Arc<Plan>, target: SocketAddr, start: Instant, tally: Arc<Tally>) -> io::Result<()> {
    let target = Arc::new(Target::new(target));
    let end = tokio::time::Instant::from_std(start + plan.phases.end_at());
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let _ = tokio::time::timeout_at(end, storm::play(plan, target, start, tally)).await;
    });
    Ok(())
}

/// Reads the counters of the site and draws the screen, again and again until the plan ends. Returns the samples.
fn show_progress(
    title: &str,
    site: SocketAddr,
    plan: &Plan,
    tally: &Tally,
    start: Instant,
    screen: &mut Screen,
) -> io::Result<Vec<StormSample>> {
    let mut samples = Vec::new();
    screen.begin();
    while start.elapsed() < plan.phases.end_at() {
        let reading = site::read_counters(site)?;
        let sample = StormSample { at: start.elapsed(), reading, crawled: tally.crawled().answered };
        samples.push(sample);
        let picture = StormSnapshot::of(plan, &tally.views(), &samples);
        screen.show(title, plan.phases, &picture);
        thread::sleep(TICK);
    }
    Ok(samples)
}

/// The change of the site's counters while the crawler was active, from the samples nearest to its arrival and
/// departure; zero without samples.
fn crawled_reading(samples: &[StormSample], plan: &Plan) -> Reading {
    let nearest = |moment: Duration| samples.iter().min_by_key(|sample| sample.at.abs_diff(moment));
    match (nearest(plan.phases.storm_at()), nearest(plan.phases.recovery_at())) {
        (Some(before), Some(after)) => after.reading.since(&before.reading),
        _ => Reading::default(),
    }
}
