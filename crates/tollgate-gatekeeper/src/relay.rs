//! Where decisions drop what masters are to hear, without waiting for anything.
//!
//! A report must cost a request next to nothing, whether there is a master or not. So a decision writes what it did into a ring of fixed size
//! and goes on. When whoever carries it on does not keep up, the oldest goes, and is counted: what is new says more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use tollgate_core::time::{Moment, Span};

use crate::hash::KeyHash;
use crate::identifier::{Identifier, Name};

/// How much may be under way. At a hundred thousand requests a second that is a twelfth of a second.
const UNDER_WAY_MAX: usize = 8192;

/// Where decisions drop what masters are to hear. Cloning shares it.
#[derive(Clone)]
pub struct Relay(Arc<Inner>);

struct Inner {
    /// The rules that masters know of, by name; the place of each is what it is called below.
    rules: Box<[String]>,
    under_way: ArrayQueue<Word>,
    /// Places for long names that nobody needs now.
    spare: ArrayQueue<Box<Name>>,
    is_asleep: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
    displaced: AtomicU64,
    untold: AtomicU64,
    /// One of how many refusals is told; none are if absent.
    refusals_sampled: Option<u32>,
    refusals: AtomicU32,
    /// Whether what requests are about is told.
    log_info: bool,
}

/// Something that a decision did.
#[derive(Debug)]
pub(crate) struct Word {
    /// Which of the relay's rules.
    pub(crate) rule: u16,
    pub(crate) act: Act,
}

#[derive(Debug)]
pub(crate) enum Act {
    /// A request goes on, at once or later.
    Usage {
        hash: KeyHash,
        identifier: Identifier,
        count: u64,
        held_until: Option<Moment>,
        clear: Moment,
        /// What the request is about, where that is told.
        note: Option<Box<[u8]>>,
    },
    /// A request has ended, and this much CPU time is known to be its own.
    Settlement { hash: KeyHash, cpu: Span, clear: Moment },
    /// A request did not take place.
    Return { hash: KeyHash, count: u64, clear: Moment },
    /// A request was turned away.
    Refusal { identifier: Identifier },
}

impl core::fmt::Debug for Relay {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Relay").field("rules", &self.0.rules).finish_non_exhaustive()
    }
}

impl Relay {
    /// A relay for `rules`. `wake` is called when there is something to carry on after [`sleep`](Self::sleep).
    pub(crate) fn new(
        rules: Box<[String]>,
        refusals_sampled: Option<u32>,
        log_info: bool,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Inner {
            rules,
            under_way: ArrayQueue::new(UNDER_WAY_MAX),
            spare: ArrayQueue::new(UNDER_WAY_MAX),
            is_asleep: AtomicBool::new(false),
            wake: Box::new(wake),
            displaced: AtomicU64::new(0),
            untold: AtomicU64::new(0),
            refusals_sampled,
            refusals: AtomicU32::new(0),
            log_info,
        }))
    }

    /// What the rule of this name is called here, if masters are to hear of it.
    pub(crate) fn place(&self, rule: &str) -> Option<u16> {
        self.0.rules.iter().zip(0..).find(|(name, _)| *name == rule).map(|(_, place)| place)
    }

    pub(crate) fn tell(&self, word: Word) {
        if let Some(oldest) = self.0.under_way.force_push(word) {
            self.0.displaced.fetch_add(1, Ordering::Relaxed);
            self.put_back(oldest);
        }
        if self.0.is_asleep.load(Ordering::SeqCst) && self.0.is_asleep.swap(false, Ordering::SeqCst) {
            (self.0.wake)();
        }
    }

    /// A place for a long name.
    pub(crate) fn spare(&self) -> Box<Name> {
        self.0.spare.pop().unwrap_or_default()
    }

    /// A place for a long name is not needed any more.
    pub(crate) fn put_back_name(&self, name: Box<Name>) {
        // More than may be under way are not kept.
        let _ = self.0.spare.push(name);
    }

    /// A word is done with, and what it was written on can be used again: after the first few, nothing is allocated for a request.
    pub(crate) fn put_back(&self, word: Word) {
        if let Act::Usage { identifier: Identifier::Long(name), .. }
        | Act::Refusal { identifier: Identifier::Long(name) } = word.act
        {
            self.put_back_name(name);
        }
    }

    /// Whether this refusal is one of those that are told.
    pub(crate) fn samples_refusal(&self) -> bool {
        let Some(sampled) = self.0.refusals_sampled else { return false };
        self.0.refusals.fetch_add(1, Ordering::Relaxed).is_multiple_of(sampled)
    }

    /// Whether what requests are about is told.
    pub(crate) fn tells_about(&self) -> bool {
        self.0.log_info
    }

    /// Counts a request whose key is empty.
    pub(crate) fn leave_untold(&self) {
        self.0.untold.fetch_add(1, Ordering::Relaxed);
    }

    /// The next word to carry on.
    pub(crate) fn next(&self) -> Option<Word> {
        self.0.under_way.pop()
    }

    /// Asks to be woken for the next word. Says whether there is one already.
    pub(crate) fn sleep(&self) -> bool {
        self.0.is_asleep.store(true, Ordering::SeqCst);
        // Who came between looking and lying down did not see anybody asleep.
        !self.0.under_way.is_empty()
    }

    /// How many words were displaced by newer ones before anybody carried them on.
    pub fn displaced(&self) -> u64 {
        self.0.displaced.load(Ordering::Relaxed)
    }

    /// How many requests were not reported because their key is empty. Only this process enforces their rule.
    pub fn untold(&self) -> u64 {
        self.0.untold.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn refusal() -> Word {
        Word { rule: 0, act: Act::Refusal { identifier: Identifier::Long(Box::default()) } }
    }

    #[test]
    fn fault_40_the_oldest_goes_when_nobody_carries_on_and_is_counted() {
        let relay = Relay::new(Box::new(["r".to_string()]), None, false, || {});
        for number in 0..UNDER_WAY_MAX + 5 {
            relay.tell(Word { rule: number as u16, ..refusal() });
        }
        assert_eq!(relay.displaced(), 5);
        let left: Vec<_> = std::iter::from_fn(|| relay.next()).map(|word| usize::from(word.rule)).collect();
        assert!(left.into_iter().eq(5..UNDER_WAY_MAX + 5));
        assert_eq!(relay.0.spare.len(), 5, "what was displaced is written on again");
    }

    #[test]
    fn a_sleeper_is_woken_once_for_any_number_of_words() {
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        let relay = Relay::new(Box::new([]), None, false, move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        relay.tell(refusal());
        assert!(relay.sleep(), "what came before is not slept over");
        while relay.next().is_some() {}
        assert!(!relay.sleep());
        (0..10).for_each(|_| relay.tell(refusal()));
        assert_eq!(woken.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_word_is_small() {
        // One that has room for the longest name would be four times that, and every decision would fetch as much from another processor.
        assert!(size_of::<Word>() <= 88, "{}", size_of::<Word>());
    }

    #[test]
    fn one_refusal_in_so_many_is_told() {
        let relay = Relay::new(Box::new([]), Some(10), false, || {});
        assert_eq!((0..100).filter(|_| relay.samples_refusal()).count(), 10);
        assert!(!Relay::new(Box::new([]), None, false, || {}).samples_refusal());
    }
}
