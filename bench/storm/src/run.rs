//! One storm against one gate: starts site and gate, plays the plan, and reads the counters at the edges of the
//! windows.

use crate::{course::Course, journal::Title, law, scrape};
use bench_storm::{machine::ScratchDir, peers::Gate, site_process};
use serde::{Deserialize, Serialize};
use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};
use tollgate_storm::{
    child::free_address,
    counters::Reading,
    plan::Phases,
    site, storm,
    tally::{Crawled, Tally, View},
    target::Target,
};

/// The cores and the program under test.
pub(crate) struct Bench {
    /// The core that only the site uses.
    pub(crate) site_core: usize,
    /// The Tollgate under test.
    pub(crate) tollgate: PathBuf,
}

/// The result of one storm.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Every page view of people.
    pub(crate) views: Vec<View>,
    /// The crawler's responses.
    pub(crate) crawled: Crawled,
    /// The site's counters while people and the crawler are there.
    pub(crate) storm: Reading,
    /// The site's counters in the first 5 s of that time, or of the time after a restart of the gate.
    #[serde(default)]
    pub(crate) first: Reading,
    /// The site's counters after those 5 s.
    #[serde(default)]
    pub(crate) later: Reading,
    /// CPU time of the gate in the storm.
    pub(crate) gate_cpu: Duration,
    /// Tolls charged per CPU time burnt over the whole run, if the gate reports tolls.
    pub(crate) tolls: Option<f64>,
    /// Tolls charged to each crowd in the storm, if the gate reports them.
    pub(crate) crowd_tolls: Option<[Duration; 3]>,
}

/// The counters at one moment: those of the site, the gate's CPU time, and the tolls of each crowd.
struct Books {
    site: Reading,
    gate_cpu: Duration,
    tolls: Option<[Duration; 3]>,
}

/// The counters at the edges of the windows.
struct Edges {
    meeting: Books,
    first: Reading,
    later: Reading,
    end: Books,
}

/// Plays the storm of this title.
pub(crate) fn run(bench: &Bench, title: &Title) -> io::Result<Outcome> {
    let dir = ScratchDir::new()?;
    let site_address = free_address()?;
    let (plan, course) = (title.plan(), title.course);
    let _site = site_process::start(site_address, bench.site_core, title.site_settings())?;
    let gate = title.peer.start(site_address, dir.path(), &bench.tollgate)?;
    let (listen, admin) = (gate.listen, gate.admin);
    let gate = Arc::new(Mutex::new(gate));
    let (phases, start) = (plan.phases, Instant::now() + title.idle());
    let watch = thread::spawn({
        let gate = Arc::clone(&gate);
        move || watch_the_storm(site_address, &gate, course, phases, start)
    });
    let tally = Arc::new(Tally::default());
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(storm::play(
        Arc::new(plan),
        Arc::new(Target::new(listen)),
        start,
        Arc::clone(&tally),
    ));
    let Edges { meeting, first, later, end } =
        watch.join().map_err(|_| io::Error::other("the thread that reads the counters failed"))??;
    let tolls = match admin {
        // A restarted gate has lost the tolls of its first run.
        Some(admin) if course != Course::Restart => settle(site_address, admin)?,
        _ => None,
    };
    let views = std::mem::take(&mut *tally.views());
    let crowd_tolls =
        end.tolls.zip(meeting.tolls).map(|(end, meeting)| [0, 1, 2].map(|at| end[at].saturating_sub(meeting[at])));
    Ok(Outcome {
        views,
        crawled: tally.crawled(),
        storm: end.site.since(&meeting.site),
        first: later.since(&first),
        later: end.site.since(&later),
        gate_cpu: end.gate_cpu.saturating_sub(meeting.gate_cpu),
        tolls,
        crowd_tolls: crowd_tolls.filter(|_| course != Course::Restart),
    })
}

fn lock(gate: &Mutex<Gate>) -> MutexGuard<'_, Gate> {
    gate.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the counters at the edges of the windows, and restarts the gate if that is the course. A thread of its own
/// does it: a busy site responds late, and the load must not wait for it.
fn watch_the_storm(
    site: SocketAddr,
    gate: &Mutex<Gate>,
    course: Course,
    phases: Phases,
    start: Instant,
) -> io::Result<Edges> {
    let read = |crashed: Duration| {
        let gate = lock(gate);
        let tolls = gate.admin.and_then(scrape::crowd_tolls);
        let gate_cpu = crashed + gate.cpu_time();
        Ok::<Books, io::Error>(Books { site: site::read_counters(site)?, gate_cpu, tolls })
    };
    let wait_until = |at: Duration| thread::sleep((start + at).saturating_duration_since(Instant::now()));
    wait_until(course.meeting_at(phases));
    let meeting = read(Duration::ZERO)?;
    let mut first_at = course.meeting_at(phases);
    let mut first = meeting.site;
    let mut crashed = Duration::ZERO;
    if let Some(restart_at) = course.restart_at(phases) {
        wait_until(restart_at);
        first_at = restart_at;
        first = site::read_counters(site)?;
        let mut gate = lock(gate);
        crashed = gate.cpu_time();
        gate.restart()?;
    }
    wait_until((first_at + law::FIRST).min(phases.recovery_at()));
    let later = site::read_counters(site)?;
    wait_until(phases.recovery_at());
    Ok(Edges { meeting, first, later, end: read(crashed)? })
}

/// Tolls per CPU time, once both are complete.
fn settle(site: SocketAddr, admin: SocketAddr) -> io::Result<Option<f64>> {
    let burnt: Duration = wait_until_idle(site)?.cpu.iter().sum();
    Ok(scrape::tolls(admin).map(|charged| charged.as_secs_f64() / burnt.as_secs_f64()))
}

/// The counters after the site has finished abandoned work.
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
