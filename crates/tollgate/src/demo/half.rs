//! One half of the demo: a new site, a gate or none, and the storm.

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

const TICK: Duration = Duration::from_millis(250);

/// Runs the storm, with a gate or without, and draws it on `screen`.
pub(super) fn play(
    title: &str,
    gated: bool,
    plan: &Plan,
    site_core: usize,
    screen: &mut Screen,
) -> io::Result<HalfResult> {
    let site = free_address()?;
    let _site = start(&["demo", "--site", &site.to_string(), "--core", &site_core.to_string()], site)?;
    let (gate, _gate) = if gated { start_gate(site)? } else { (site, None) };
    let start = Instant::now();
    let tally = Arc::new(Tally::default());
    let load = thread::spawn({
        let (plan, tally) = (Arc::new(plan.clone()), Arc::clone(&tally));
        move || play_storm(plan, gate, start, tally)
    });
    let samples = watch(title, site, plan, &tally, start, screen)?;
    load.join().map_err(|_| io::Error::other("the load broke"))??;
    Ok(HalfResult::of(plan, &tally.views(), &storm_of(&samples, plan)))
}

fn start(args: &[&str], address: SocketAddr) -> io::Result<Child> {
    Child::start(&std::env::current_exe()?, args, address)
}

fn start_gate(site: SocketAddr) -> io::Result<(SocketAddr, Option<Child>)> {
    let listen = free_address()?;
    let (backend, listen_at) = (format!("http://{site}"), listen.to_string());
    // The admin address uses a free port. Nothing is kept, because this gate is not started again.
    let child = start(&["gate", "--backend", &backend, "--listen", &listen_at, "--admin", "127.0.0.1:0"], listen)?;
    Ok((listen, Some(child)))
}

/// Runs until the end of the plan. Requests that still wait then have not been served.
fn play_storm(plan: Arc<Plan>, target: SocketAddr, start: Instant, tally: Arc<Tally>) -> io::Result<()> {
    let target = Arc::new(Target::new(target));
    let end = tokio::time::Instant::from_std(start + plan.phases.end_at());
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let _ = tokio::time::timeout_at(end, storm::play(plan, target, start, tally)).await;
    });
    Ok(())
}

/// Draws at every tick until the half ends. Returns the samples.
fn watch(
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

/// The difference of the accounts between the samples nearest to the crawler's arrival and departure.
fn storm_of(samples: &[StormSample], plan: &Plan) -> Reading {
    let nearest = |moment: Duration| samples.iter().min_by_key(|sample| sample.at.abs_diff(moment));
    match (nearest(plan.phases.storm_at()), nearest(plan.phases.recovery_at())) {
        (Some(before), Some(after)) => after.reading.since(&before.reading),
        _ => Reading::default(),
    }
}
