//! The lock guard on the state of the watch.
//!
//! The holder of the lock may be blocked on the disk, and so is any thread that waits for the lock. The thread of the
//! admin address must not block, because it also handles signals and the watchdog of systemd. Therefore the guard
//! publishes a snapshot of the status whenever it is dropped, which is read without the lock; a reload leaves its
//! settings for the next holder; and all other work runs on blocking threads ([`Watch::run_blocking`]).

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use tollgate_core::time::Span;
use tollgate_core::watch::WatchSettings;

use super::{JournaledState, Watch};

/// If the lock was not released for this long, the disk is reported as hung.
pub(super) const HUNG_AFTER: Span = Span::from_secs(10);

/// Lock guard on the state; publishes a snapshot of the status when dropped.
pub(super) struct StateGuard<'a> {
    watch: &'a Watch,
    journaled: MutexGuard<'a, JournaledState>,
}

impl Watch {
    /// Runs `work` on a thread that may block on the disk. Returns `None` if it panicked, which the panic hook has
    /// logged.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Option<T> {
        let watch = self.clone();
        tokio::task::spawn_blocking(move || work(&watch)).await.ok()
    }

    /// Locks the state, and applies the settings of a reload. May block on the disk.
    pub(super) fn lock(&self) -> StateGuard<'_> {
        let mut journaled = self.state.lock();
        if let Some(flagging) = self.flagging.swap(None) {
            let WatchSettings { flag_threshold, flag_window, account_class, .. } = &*flagging;
            let core = &mut journaled.state.core;
            let has_other_accounts = core.settings().account_class != *account_class;
            core.set_flagging(*flag_threshold, *flag_window, account_class);
            // The counts of another account class must not return from the journal.
            journaled.has_unwritten |= self.state_dir.is_some() && has_other_accounts;
        }
        StateGuard { watch: self, journaled }
    }
}

impl Deref for StateGuard<'_> {
    type Target = JournaledState;

    fn deref(&self) -> &JournaledState {
        &self.journaled
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut JournaledState {
        &mut self.journaled
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        self.watch.unlocked_at.store(self.watch.calendar.now().as_nanos(), Ordering::Relaxed);
        let status = self.journaled.status(self.watch.state_dir.is_some());
        if **self.watch.status.load() != status {
            self.watch.status.store(Arc::new(status));
        }
    }
}

/// A thread that holds the lock as if blocked on the disk, for tests.
#[cfg(test)]
pub(crate) struct BlockedDisk {
    release: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

#[cfg(test)]
impl BlockedDisk {
    /// The lock is held when this returns.
    pub(crate) fn begin(watch: Arc<Watch>) -> Self {
        let ((holds, is_held), (release, is_over)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            let _kept = watch.lock();
            holds.send(()).unwrap();
            // The thread also ends by itself, so that a failing test does not hang.
            let _ = is_over.recv_timeout(std::time::Duration::from_secs(20));
        });
        is_held.recv().unwrap();
        Self { release, thread }
    }

    /// Releases the lock.
    pub(crate) fn end(self) {
        self.release.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use tollgate_gatekeeper::clock::Clock;

    use super::super::{Calendar, Entry, Persistence, watch_metrics};
    use super::*;

    #[test]
    fn status_metrics_and_reloads_do_not_wait_for_a_blocked_disk() {
        let folder = tempfile::tempdir().unwrap();
        let (clock, hand) = Clock::by_hand();
        let (home, calendar) = (Persistence::Directory(folder.path().to_path_buf()), Calendar::new(clock));
        let watch =
            Arc::new(Watch::new(WatchSettings::default(), home, Arc::default(), Arc::default(), calendar, false));
        assert!(watch.status().flags == 0 && watch.status().is_persisted);
        watch.report("r1", &[Entry { class: "user".into(), key: "u1".into(), count: 1000 }]).unwrap();
        let mut registry = Registry::default();
        registry.register_collector(watch_metrics(watch.clone()));

        let blocked = BlockedDisk::begin(watch.clone());
        let begin = Instant::now();
        let status = watch.status();
        assert_eq!((status.flags, status.is_persisted), (1, true));
        let length = std::fs::metadata(folder.path().join("watch.journal")).unwrap().len();
        assert_eq!(status.journal_bytes, Some(length));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert!(text.contains("tollgate_watch_flags 1\n"), "{text}");
        watch.set_flagging(WatchSettings { account_class: "header:x-key".into(), ..WatchSettings::default() });
        hand.advance(HUNG_AFTER + Span::from_millis(1));
        assert!(!watch.status().is_persisted, "the disk has been blocked for too long");
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());

        blocked.end();
        assert_eq!(watch.account_class(), "header:x-key");
        assert!(!watch.status().is_persisted, "counts of the former account class are still on disk");
        watch.tick();
        assert!(watch.status().is_persisted);
    }
}
