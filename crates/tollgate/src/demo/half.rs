//! One half of the demo: a fresh site, a gate or none, and the storm.

use super::{
    picture::{Picture, Sample},
    screen::Screen,
    summary::Figures,
};
use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tollgate_storm::{
    child::{Child, free_address},
    counters::Reading,
    plan::Plan,
    site, storm,
    tally::{Tally, View},
};

const TICK: Duration = Duration::from_millis(250);

/// What a half showed.
pub(super) struct Half {
    plan: Plan,
    views: Vec<View>,
    /// The site's books of the storm alone.
    storm: Reading,
}

impl Half {
    /// Plays the storm and shows it on `screen` as it goes.
    pub(super) fn play(
        title: &str,
        gated: bool,
        plan: &Plan,
        site_core: usize,
        screen: &mut Screen,
    ) -> io::Result<Self> {
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
        let storm = storm_of(&samples, plan);
        let views = std::mem::take(&mut *tally.views());
        Ok(Self { plan: plan.clone(), views, storm })
    }

    /// The half in a few figures.
    pub(super) fn figures(&self) -> Figures {
        Figures::of(&self.plan, &self.views, &self.storm)
    }
}

fn start(args: &[&str], address: SocketAddr) -> io::Result<Child> {
    Child::start(&std::env::current_exe()?, args, address)
}

fn start_gate(site: SocketAddr) -> io::Result<(SocketAddr, Option<Child>)> {
    let listen = free_address()?;
    let (backend, listen_at) = (format!("http://{site}"), listen.to_string());
    // Its operators are wherever the system likes: nobody asks for them, and nothing is kept of a gate that does not come back.
    let child = start(&["gate", "--backend", &backend, "--listen", &listen_at, "--admin", "127.0.0.1:0"], listen)?;
    Ok((listen, Some(child)))
}

/// Plays until the end of the plan; who still waits then has not been served.
fn play_storm(plan: Arc<Plan>, target: SocketAddr, start: Instant, tally: Arc<Tally>) -> io::Result<()> {
    let end = tokio::time::Instant::from_std(start + plan.phases.end_at());
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let _ = tokio::time::timeout_at(end, storm::play(plan, target, start, tally)).await;
    });
    Ok(())
}

/// Draws a picture at every tick until the half is over. Gives back what was sampled.
fn watch(
    title: &str,
    site: SocketAddr,
    plan: &Plan,
    tally: &Tally,
    start: Instant,
    screen: &mut Screen,
) -> io::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    screen.begin();
    while start.elapsed() < plan.phases.end_at() {
        let reading = site::read_counters(site)?;
        let sample = Sample { at: start.elapsed(), reading, crawled: tally.crawled().answered };
        samples.push(sample);
        let picture = Picture::of(plan, &tally.views(), &samples);
        screen.show(title, plan.phases, &picture);
        thread::sleep(TICK);
    }
    Ok(samples)
}

/// What the books gained between the samples nearest to the crawler's coming and leaving.
fn storm_of(samples: &[Sample], plan: &Plan) -> Reading {
    let nearest = |moment: Duration| samples.iter().min_by_key(|sample| sample.at.abs_diff(moment));
    match (nearest(plan.phases.storm_at()), nearest(plan.phases.recovery_at())) {
        (Some(before), Some(after)) => after.reading.since(&before.reading),
        _ => Reading::default(),
    }
}
