//! One storm against one gate: site and gate started afresh, the plan played, the books read at the edges of the phases.

use crate::{
    machine::ScratchDir,
    peers::{Gate, Peer},
    scrape,
};
use serde::{Deserialize, Serialize};
use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tollgate_storm::{
    child::{Child, free_address},
    counters::Reading,
    plan::{Phases, Plan},
    site, storm,
    tally::{Crawled, Tally, View},
};

/// Where things run and what they are.
pub(crate) struct Bench {
    /// The core that is the site's alone.
    pub(crate) site_core: usize,
    /// The Tollgate under test.
    pub(crate) tollgate: PathBuf,
}

/// What one storm showed.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Every visit of people.
    pub(crate) views: Vec<View>,
    /// What the crawler got.
    pub(crate) crawled: Crawled,
    /// The site's books of the storm alone.
    pub(crate) storm: Reading,
    /// CPU time of the gate in the storm.
    pub(crate) gate_cpu: Duration,
    /// Tolls charged per CPU time truly burnt over the whole run, where the gate tells.
    pub(crate) tolls: Option<f64>,
    /// Tolls charged to each crowd in the storm alone, where the gate tells whom it charged.
    pub(crate) crowd_tolls: Option<[Duration; 3]>,
}

/// The books at one moment: the site's, the gate's CPU time, and what the gate charged each crowd.
struct Books {
    site: Reading,
    gate_cpu: Duration,
    tolls: Option<[Duration; 3]>,
}

/// Plays `plan` against `peer`.
pub(crate) fn run(bench: &Bench, peer: Peer, plan: Plan) -> io::Result<Outcome> {
    let dir = ScratchDir::new()?;
    let site_address = free_address()?;
    let _site = start_site(bench.site_core, site_address, peer.wants_server_timing())?;
    let gate = Arc::new(peer.start(site_address, dir.path(), &bench.tollgate)?);
    let (listen, phases, start) = (gate.listen, plan.phases, Instant::now());
    let watch = thread::spawn({
        let gate = Arc::clone(&gate);
        move || watch_the_storm(site_address, &gate, phases, start)
    });
    let tally = Arc::new(Tally::default());
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(storm::play(
        Arc::new(plan),
        listen,
        start,
        Arc::clone(&tally),
    ));
    let (before, after) = watch.join().map_err(|_| io::Error::other("the watch on the storm broke"))??;
    let tolls = match gate.admin {
        Some(admin) => settle(site_address, admin)?,
        None => None,
    };
    let views = std::mem::take(&mut *tally.views());
    let crowd_tolls =
        after.tolls.zip(before.tolls).map(|(after, before)| [0, 1, 2].map(|at| after[at].saturating_sub(before[at])));
    let (storm, gate_cpu) = (after.site.since(&before.site), after.gate_cpu.saturating_sub(before.gate_cpu));
    Ok(Outcome { views, crawled: tally.crawled(), storm, gate_cpu, tolls, crowd_tolls })
}

fn start_site(core: usize, listen: SocketAddr, server_timing: bool) -> io::Result<Child> {
    let program = std::env::current_exe()?;
    let (core, listen_at) = (core.to_string(), listen.to_string());
    let mut args = vec!["site", "--core", &core, "--listen", &listen_at];
    if server_timing {
        args.push("--server-timing");
    }
    Child::start(&program, args, listen)
}

/// Reads the books when the crawler comes and when it leaves. In a thread of its own: a site in a storm may take its time to
/// answer, and the load must not wait for it.
fn watch_the_storm(site: SocketAddr, gate: &Gate, phases: Phases, start: Instant) -> io::Result<(Books, Books)> {
    let read = || {
        let tolls = gate.admin.and_then(scrape::crowd_tolls);
        let gate_cpu = gate.child.as_ref().map_or(Duration::ZERO, Child::cpu_time);
        Ok::<Books, io::Error>(Books { site: site::read_counters(site)?, gate_cpu, tolls })
    };
    thread::sleep((start + phases.storm_at()).saturating_duration_since(Instant::now()));
    let before = read()?;
    thread::sleep((start + phases.recovery_at()).saturating_duration_since(Instant::now()));
    Ok((before, read()?))
}

/// Tolls per CPU time, once both are complete.
fn settle(site: SocketAddr, admin: SocketAddr) -> io::Result<Option<f64>> {
    let burnt: Duration = wait_until_idle(site)?.cpu.iter().sum();
    Ok(scrape::tolls(admin).map(|charged| charged.as_secs_f64() / burnt.as_secs_f64()))
}

/// The books once the site has worked off what was left behind.
fn wait_until_idle(site: SocketAddr) -> io::Result<Reading> {
    let begin = Instant::now();
    let mut last = site::read_counters(site)?;
    loop {
        thread::sleep(Duration::from_millis(500));
        let now = site::read_counters(site)?;
        if now.cpu == last.cpu || begin.elapsed() > Duration::from_secs(60) {
            return Ok(now);
        }
        last = now;
    }
}
