//! What is known, while somebody has it in hand.
//!
//! Whoever has it may be waiting for a disk, and whoever wants it next waits for them. The thread that serves operators must not: it also hears signals
//! and tells systemd that the process is alive. So how things stand is published whenever somebody is done and read without waiting, what a reload
//! brings is left for whoever is next, and everything else is done aside, on a thread that may wait.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use tollgate_core::time::Span;

use super::{Kept, Watch};

/// A disk that takes longer than this hangs.
pub(super) const HANGS_AFTER: Span = Span::from_secs(10);

/// What is known, in the hand of one. How things stand is published when they are done.
pub(super) struct Held<'a> {
    watch: &'a Watch,
    kept: MutexGuard<'a, Kept>,
}

/// When to flag whom.
pub(super) struct Flagging {
    pub(super) threshold: u64,
    pub(super) window: Span,
    pub(super) account_class: Box<str>,
}

impl Watch {
    /// Does something where waiting for a disk, or for somebody who waits for one, holds up nobody else. None if it panicked, which was said then.
    pub(crate) async fn aside<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Option<T> {
        let watch = self.clone();
        tokio::task::spawn_blocking(move || work(&watch)).await.ok()
    }

    /// Takes what is known in hand. This may wait for a disk.
    pub(super) fn kept(&self) -> Held<'_> {
        let mut kept = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flagging) = self.flagging.swap(None) {
            let Flagging { threshold, window, account_class } = &*flagging;
            // What was counted of other accounts is not to come back from disk.
            kept.behind |= self.state_dir.is_some() && *kept.state.account_class() != **account_class;
            kept.state.set_flagging(*threshold, *window, account_class);
        }
        Held { watch: self, kept }
    }
}

impl Deref for Held<'_> {
    type Target = Kept;

    fn deref(&self) -> &Kept {
        &self.kept
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Kept {
        &mut self.kept
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.watch.done_at.store(self.watch.calendar.now().as_nanos(), Ordering::Relaxed);
        let standing = self.kept.standing(self.watch.state_dir.is_some());
        if **self.watch.standing.load() != standing {
            self.watch.standing.store(Arc::new(standing));
        }
    }
}

/// Somebody who has what is known in hand and waits for a disk, for tests.
#[cfg(test)]
pub(crate) struct Hanging {
    let_go: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

#[cfg(test)]
impl Hanging {
    /// Has it in hand when this returns.
    pub(crate) fn begin(watch: Arc<Watch>) -> Self {
        let ((holds, is_held), (let_go, is_over)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            let _kept = watch.kept();
            holds.send(()).unwrap();
            // It ends by itself too: a test that fails is not to hang.
            let _ = is_over.recv_timeout(std::time::Duration::from_secs(20));
        });
        is_held.recv().unwrap();
        Self { let_go, thread }
    }

    /// The disk is there again.
    pub(crate) fn end(self) {
        self.let_go.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use tollgate_core::watch::WatchSettings;
    use tollgate_gatekeeper::clock::Clock;

    use super::super::{Calendar, Entry, Home, WatchMetrics};
    use super::*;

    #[test]
    fn how_things_stand_is_said_and_a_reload_goes_on_while_somebody_waits_for_a_disk() {
        let folder = tempfile::tempdir().unwrap();
        let (clock, hand) = Clock::by_hand();
        let (home, calendar) = (Home::Directory(folder.path().to_path_buf()), Calendar::new(clock));
        let watch = Arc::new(Watch::new(WatchSettings::default(), home, Arc::default(), calendar));
        assert!(watch.standing().flags == 0 && watch.standing().is_kept);
        watch.report("r1", &[Entry { class: "user".into(), key: "u1".into(), count: 1000 }]).unwrap();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(WatchMetrics(watch.clone())));

        let hanging = Hanging::begin(watch.clone());
        let begin = Instant::now();
        let standing = watch.standing();
        assert_eq!((standing.flags, standing.is_kept), (1, true));
        let length = std::fs::metadata(folder.path().join("watch.journal")).unwrap().len();
        assert_eq!(standing.journal_bytes, Some(length));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert!(text.contains("tollgate_watch_flags 1\n"), "{text}");
        watch.set_flagging(1000, Span::from_secs(600), "header:x-key");
        hand.advance(HANGS_AFTER + Span::from_millis(1));
        assert!(!watch.standing().is_kept, "nothing has been written for long");
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());

        hanging.end();
        assert_eq!(watch.account_class(), "header:x-key");
        assert!(!watch.standing().is_kept, "what was counted of other accounts is on disk");
        watch.tick();
        assert!(watch.standing().is_kept);
    }
}
