//! The backends, the servers that the gate protects: selection, health and connections.
//!
//! A request selects a backend twice: [`Backends::pick`] when it enters the queue of a backend, and
//! [`Backends::choose`] when it is sent, because the picked backend may be down by then. A backend that is down gets
//! one request as a probe after a backoff (see [`health`]).

pub(crate) mod connect;
pub(crate) mod h1;
pub(crate) mod h2;
pub(crate) mod health;
pub(crate) mod pool;
pub(crate) mod sites;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tollgate_core::queue::Request;

use crate::gate::decide::queue::Queue;
use crate::settings::BackendUrl;
use health::{FailedRequest, Health};

/// One backend, for all workers.
pub(crate) struct Backend {
    /// Its unique id.
    pub(crate) id: u64,
    pub(crate) url: BackendUrl,
    /// Host and port, for requests without a host.
    pub(crate) authority: String,
    /// Its queue, with its learned prices and limit.
    pub(crate) queue: Arc<Queue>,
    in_flight: AtomicU32,
    health: parking_lot::Mutex<Health>,
    /// Whether a failure is counted in `health`. Every request reads it, without the lock.
    ailing: AtomicBool,
    /// The zero of the times in `health`.
    began: Instant,
}

/// Estimated times below this, in nanoseconds, count as equal: 8 ms.
const ALIKE_NS: u64 = 8_000_000;
/// One request in this many goes to the backend with the smallest load instead of the fastest one.
const EXPLORE_EVERY: usize = 16;

/// The backends of one site.
pub(crate) struct Backends {
    all: Vec<Arc<Backend>>,
    /// The number of selections; it rotates the order of the backends.
    turn: AtomicUsize,
}

/// One request in flight at a backend, until it is dropped.
pub(crate) struct BackendSlot {
    pub(crate) backend: Arc<Backend>,
    /// The id of the probe ([`Health::probe`]), if this request is one.
    probe: Option<Duration>,
}

/// No backend is up; the next attempt may succeed after this time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllDown(pub(crate) Duration);

impl Backends {
    pub(crate) fn new(all: Vec<Arc<Backend>>) -> Self {
        Self { all, turn: AtomicUsize::new(0) }
    }

    /// The backend in whose queue a request waits: of those that are up, the one with the shortest estimated time to
    /// the response. Among backends whose times differ by less than a factor of two, the load relative to the in-flight
    /// limit decides, and equals take turns. For one request in [`EXPLORE_EVERY`] the load decides first, so that a
    /// slow backend is measured again.
    pub(crate) fn pick(&self, request: Request) -> Option<&Arc<Backend>> {
        if let [one] = &self.all[..] {
            return Some(one);
        }
        let count = self.all.len();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let explores = turn.is_multiple_of(EXPLORE_EVERY);
        let least = |is_usable: &dyn Fn(&Backend) -> bool| {
            let in_turn = (0..count).map(|step| &self.all[turn.wrapping_add(step) % count]);
            in_turn.filter(|backend| is_usable(backend)).min_by_key(|backend| {
                let (time, load) = backend.queue.quote(request);
                let octave = u64::from((time.as_nanos() / ALIKE_NS + 1).ilog2());
                if explores { (load, octave) } else { (octave, load) }
            })
        };
        least(&|backend| backend.is_up().is_ok()).or_else(|| least(&Backend::is_reachable)).or(self.all.first())
    }

    /// The picked backend, if it is up and not the one to avoid. Otherwise the one with the fewest requests in flight,
    /// of those that are up. Equals take turns. If none is up, a reachable one gets the request: it may fail, but
    /// without a backend the request fails for certain. `avoid`: the id of a backend that has just failed.
    /// `is_complete`: the whole request has arrived.
    pub(crate) fn choose(
        &self,
        picked: Option<&Arc<Backend>>,
        avoid: Option<u64>,
        is_complete: bool,
    ) -> Result<BackendSlot, AllDown> {
        // Without backends, this site was removed while the request waited for the one that was picked.
        let is_here =
            |picked: &&Arc<Backend>| self.all.is_empty() || self.all.iter().any(|known| known.id == picked.id);
        if let Some(backend) = picked.filter(is_here).filter(|picked| Some(picked.id) != avoid)
            && backend.is_up().is_ok()
            && let Some(probe) = backend.admit(is_complete)
        {
            return Ok(BackendSlot::at(backend, probe));
        }
        let last_resort = |down| {
            let reachable = self.all.iter().filter(|backend| Some(backend.id) != avoid && backend.is_reachable());
            let least = reachable.min_by_key(|backend| backend.in_flight()).ok_or(down)?;
            Ok(BackendSlot::at(least, None))
        };
        self.choose_among(avoid, |backend| backend.admit(is_complete)).or_else(last_resort)
    }

    /// The best backend that `admit` ([`Backend::admit`]) permits. A backend that is due for a probe does not permit a
    /// request if another one became the probe first.
    fn choose_among(
        &self,
        avoid: Option<u64>,
        admit: impl Fn(&Backend) -> Option<Option<Duration>>,
    ) -> Result<BackendSlot, AllDown> {
        let mut lost = Vec::new();
        loop {
            let backend = self.best(avoid, &lost)?;
            if let Some(probe) = admit(backend) {
                return Ok(BackendSlot::at(backend, probe));
            }
            lost.push(backend.id);
        }
    }

    /// Of the backends that are up, the one with the fewest requests in flight. `lost`: the ids of those that did not
    /// permit the request.
    fn best(&self, avoid: Option<u64>, lost: &[u64]) -> Result<&Arc<Backend>, AllDown> {
        let count = self.all.len();
        let turn = if count > 1 { self.turn.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let is_avoided = |id: u64| (avoid == Some(id) && count > 1) || lost.contains(&id);
        let in_turn = (0..count).map(|step| &self.all[turn.wrapping_add(step) % count]);
        let candidates = in_turn.filter(|backend| !is_avoided(backend.id));
        let up = candidates.clone().filter(|backend| backend.is_up().is_ok());
        let wait = || candidates.filter_map(|backend| backend.is_up().err()).min().unwrap_or(health::BACKOFF_MIN);
        up.min_by_key(|backend| backend.in_flight()).ok_or_else(|| AllDown(wait()))
    }

    /// Whether another backend than this one is up.
    fn has_other(&self, id: u64) -> bool {
        self.all.iter().any(|backend| backend.id != id && backend.is_up().is_ok())
    }

    /// Whether a request would be sent to any of them.
    pub(crate) fn can_serve(&self) -> bool {
        self.all.iter().any(|backend| backend.is_up().is_ok() || backend.is_reachable())
    }

    /// Updates the health of a backend that failed to respond to the request `asked`.
    pub(crate) fn answer_failed(&self, backend: &Backend, why: &str, asked: FailedRequest) {
        let has_other = self.has_other(backend.id);
        let out = backend.with_health(|health, now| health.answer_failed(asked, has_other, now));
        backend.log_outage(out, why);
    }

    /// The number of backends.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

impl BackendSlot {
    fn at(backend: &Arc<Backend>, probe: Option<Duration>) -> Self {
        backend.in_flight.fetch_add(1, Ordering::Relaxed);
        Self { backend: backend.clone(), probe }
    }

    /// Whether it is the probe of a backend that was down.
    pub(crate) fn is_probe(&self) -> bool {
        self.probe.is_some()
    }
}

impl Drop for BackendSlot {
    fn drop(&mut self) {
        self.backend.in_flight.fetch_sub(1, Ordering::Relaxed);
        if let Some(probe) = self.probe {
            self.backend.with_health(|health, now| health.abandon(probe, now));
        }
    }
}

impl Backend {
    fn new(url: &BackendUrl, queue: Arc<Queue>) -> Arc<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            url: url.clone(),
            authority: url.authority(),
            queue,
            in_flight: AtomicU32::new(0),
            health: parking_lot::Mutex::default(),
            ailing: false.into(),
            began: Instant::now(),
        })
    }

    /// A connection was made.
    pub(crate) fn connected(&self) {
        self.recover(Health::connected);
    }

    /// The backend responded.
    pub(crate) fn succeeded(&self) {
        self.recover(Health::succeeded);
    }

    /// Updates the health after a success. `act` returns whether the backend was down until now.
    fn recover(&self, act: fn(&mut Health) -> bool) {
        if self.if_ailing(|health, _| act(health)) == Some(true) {
            tracing::info!(backend = %self.url, "backend is up again");
        }
    }

    /// No connection could be made.
    pub(crate) fn connect_failed(&self, why: &str) {
        let out = self.with_health(Health::connect_failed);
        self.log_outage(out, why);
    }

    /// Records the result of an active check. The error is the reason of a failure.
    pub(crate) fn checked(&self, result: Result<(), &str>) {
        if result.is_ok() && !self.ailing.load(Ordering::Relaxed) {
            return;
        }
        match self.with_health(|health, _| health.checked(result.is_ok())) {
            Some(true) => tracing::info!(backend = %self.url, "backend is up again"),
            Some(false) => {
                let why = result.err().unwrap_or_default();
                tracing::warn!(backend = %self.url, why, "backend is down: its health check fails");
            }
            None => {}
        }
    }

    /// Logs that the backend is down, if there is a backoff.
    fn log_outage(&self, backoff: Option<Duration>, why: &str) {
        if let Some(backoff) = backoff {
            tracing::warn!(backend = %self.url, backoff_ms = backoff.as_millis() as u64, why, "backend is down");
        }
    }

    /// The number of requests in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Whether requests go to this backend, or else for how long none do.
    pub(crate) fn is_up(&self) -> Result<(), Duration> {
        self.if_ailing(|health, now| health.is_up(now)).unwrap_or(Ok(()))
    }

    /// Whether it accepts connections, as far as is known.
    pub(crate) fn is_reachable(&self) -> bool {
        self.if_ailing(|health, _| health.is_reachable()).unwrap_or(true)
    }

    /// Whether a request may go to this backend: `None` if not, `Some(Some(id))` if it is the probe `id`, `Some(None)`
    /// if it is an ordinary request.
    fn admit(&self, is_complete: bool) -> Option<Option<Duration>> {
        self.if_ailing(|health, now| health.admit(is_complete, now).then(|| health.probe())).unwrap_or(Some(None))
    }

    /// The result of `act` on the health; none, without taking the lock, if no failure is counted.
    fn if_ailing<T>(&self, act: impl FnOnce(&mut Health, Duration) -> T) -> Option<T> {
        self.ailing.load(Ordering::Relaxed).then(|| self.with_health(act))
    }

    /// The result of `act` on the health and the current time.
    fn with_health<T>(&self, act: impl FnOnce(&mut Health, Duration) -> T) -> T {
        let mut health = self.health.lock();
        let outcome = act(&mut health, self.began.elapsed());
        self.ailing.store(!health.is_good(), Ordering::Relaxed);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use tollgate_gatekeeper::clock::Clock;

    use super::*;
    use crate::gate::decide::queue::Queues;
    use crate::settings::Gate as Settings;

    fn backends(count: u16) -> Backends {
        let url = |port| BackendUrl::parse(&format!("http://127.0.0.1:{port}")).unwrap();
        let queues = Queues::new(&Settings::default(), Clock::start());
        Backends::new((1..=count).map(url).map(|url| Backend::new(&url, queues.of(&url))).collect())
    }

    #[test]
    fn a_request_that_is_not_the_probe_goes_to_another_backend() {
        let backends = backends(3);
        let all: Vec<u64> = backends.all.iter().map(|backend| backend.id).collect();
        for up in &all {
            let slot = backends.choose_among(None, |backend| (backend.id == *up).then_some(None)).unwrap();
            assert_eq!(slot.backend.id, *up);
        }
        assert!(backends.choose_among(None, |_| None).is_err());
    }

    #[test]
    fn the_next_request_is_a_probe_when_the_client_of_one_has_left() {
        let backends = backends(1);
        let backend = backends.all[0].clone();
        (0..3).for_each(|_| backend.connect_failed("test"));
        assert!(backends.choose(None, None, true).is_err());
        // Time passes.
        backend.with_health(|health, now| *health = std::mem::take(health).due(now));
        let probe = backends.choose(None, None, true).unwrap();
        assert!(backends.choose(None, None, true).is_err(), "one is enough");
        drop(probe);
        let probe = backends.choose(None, None, true).unwrap();
        backend.succeeded();
        drop(probe);
        assert!(backends.choose(None, None, true).is_ok() && !backend.ailing.load(Ordering::Relaxed));
    }

    fn fail_answers(backends: &Backends, backend: &Backend) {
        for number in 0..10 {
            let client = [192, 0, 2, number].into();
            backends.answer_failed(backend, "test", FailedRequest { route: number.into(), client });
        }
    }

    #[test]
    fn the_last_backend_is_taken_out_by_connection_failures_alone() {
        let backends = backends(2);
        for backend in backends.all.iter() {
            fail_answers(&backends, backend);
        }
        let up: Vec<bool> = backends.all.iter().map(|backend| backend.is_up().is_ok()).collect();
        assert_eq!(up, [false, true]);
        let chosen = |backends: &Backends| backends.choose(None, None, true).map(|slot| slot.backend.id).ok();
        assert_eq!(chosen(&backends), Some(backends.all[1].id));
        (0..3).for_each(|_| backends.all[1].connect_failed("test"));
        assert_eq!(chosen(&backends), Some(backends.all[0].id), "the only one that can be connected to");
        assert!(backends.can_serve());
        (0..3).for_each(|_| backends.all[0].connect_failed("test"));
        assert_eq!(chosen(&backends), None);
        assert!(!backends.can_serve());
    }

    #[test]
    fn a_backend_whose_checks_fail_is_used_only_if_there_is_no_other() {
        let backends = backends(2);
        (0..2).for_each(|_| backends.all[0].checked(Err("status 500")));
        for _ in 0..10 {
            assert_eq!(backends.choose(None, None, true).unwrap().backend.id, backends.all[1].id);
        }
        (0..2).for_each(|_| backends.all[1].checked(Err("status 500")));
        assert!(backends.choose(None, None, true).is_ok());
        backends.all[0].checked(Ok(()));
        assert_eq!(backends.choose(None, None, true).unwrap().backend.id, backends.all[0].id);
    }
}
