//! A continuous load of requests, each decided by the store or not at all.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tokio::task::JoinHandle;
use tollgate_gatekeeper::shared::{Options, SharedRule, Store, Unanswered};

use crate::fixtures::*;

/// The default options of a gate.
pub(crate) const DEADLINE: Duration = Duration::from_millis(5);
const TASKS: usize = 20;
const PAUSE: Duration = Duration::from_millis(4);

/// The results of the requests.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) answered: usize,
    pub(crate) unanswered: HashMap<Unanswered, usize>,
    times: Vec<Duration>,
    lags: Vec<Duration>,
}

impl Report {
    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered.values().sum()
    }

    /// Checks that no request waits longer than the deadline, plus the measured lag of this machine with a
    /// large margin, because a busy machine may stall at any time. With `TOLLGATE_TEST_STRICT`, which needs
    /// an idle machine, the margin is 1 ms.
    pub(crate) fn assert_in_time(&self) {
        let (time, lag) = (p99(&self.times), p99(&self.lags));
        let is_strict = std::env::var_os("TOLLGATE_TEST_STRICT").is_some();
        let longest = self.lags.iter().max().copied().unwrap_or_default();
        let grace = if is_strict { Duration::from_millis(1) + lag } else { Duration::from_millis(200) + 10 * longest };
        let allowed = DEADLINE + grace;
        if is_strict {
            eprintln!("p99 {time:?} of {} requests, of which {lag:?} is this machine's lag", self.times.len());
        }
        assert!(time <= allowed, "p99 {time:?} is over {allowed:?}, of which {lag:?} is this machine's lag");
    }

    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        for (why, count) in other.unanswered {
            *self.unanswered.entry(why).or_default() += count;
        }
        self.times.extend(other.times);
        self.lags.extend(other.lags);
    }
}

fn p99(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted.get(sorted.len() * 99 / 100).copied().unwrap_or_default()
}

/// Requests that continue until they are stopped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Report>>,
}

impl Load {
    pub(crate) fn start(store: &Store, rule: &Arc<SharedRule>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks: Vec<_> = (0..TASKS)
            .map(|task| tokio::spawn(requests(store.clone(), Arc::clone(rule), task, Arc::clone(&stop))))
            .collect();
        tasks.push(tokio::spawn(lag(Arc::clone(&stop))));
        Self { stop, tasks }
    }

    pub(crate) async fn stop(self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        let mut report = Report::default();
        for task in self.tasks {
            report.add(task.await.expect("a request never fails"));
        }
        report
    }

    /// The results of requests in the next `span`.
    pub(crate) async fn during(store: &Store, rule: &Arc<SharedRule>, span: Duration) -> Report {
        let load = Self::start(store, rule);
        tokio::time::sleep(span).await;
        load.stop().await
    }
}

async fn requests(store: Store, rule: Arc<SharedRule>, task: usize, stop: Arc<AtomicBool>) -> Report {
    let mut report = Report::default();
    let mut key = task;
    while !stop.load(Ordering::Relaxed) {
        key += TASKS;
        let start = Instant::now();
        match ask(&store, &[(&rule, key.to_string().as_bytes())]).await {
            Ok(_) => report.answered += 1,
            Err(why) => *report.unanswered.entry(why).or_default() += 1,
        }
        report.times.push(start.elapsed());
        tokio::time::sleep(PAUSE).await;
    }
    report
}

/// The lag of this machine without any load.
async fn lag(stop: Arc<AtomicBool>) -> Report {
    let mut report = Report::default();
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        tokio::time::sleep(DEADLINE).await;
        report.lags.push(start.elapsed().saturating_sub(DEADLINE));
    }
    report
}

/// A store with the default deadline, once it answers.
pub(crate) async fn open_by_default(url: &str) -> (Store, Arc<SharedRule>) {
    open_with(url, DEADLINE).await
}

/// A store with this deadline, once it answers.
pub(crate) async fn open_with(url: &str, deadline: Duration) -> (Store, Arc<SharedRule>) {
    let store = open(url, Options { deadline, ..Options::default() });
    let rule = shared(rule("load", limit("drip-1", 1_000)));
    answers(&store, &rule).await;
    (store, rule)
}

/// Waits until several requests in a row are answered.
pub(crate) async fn answers(store: &Store, rule: &Arc<SharedRule>) {
    let start = Instant::now();
    let mut in_a_row = 0;
    while in_a_row < 20 {
        assert!(
            start.elapsed() < LONG,
            "the store does not answer: {:?}, {:?}",
            store.health().connect_error(),
            store.counts()
        );
        in_a_row = if ask(store, &[(rule, b"probe")]).await.is_ok() { in_a_row + 1 } else { 0 };
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
