//! What passed in calm, counted without threads getting in each other's way.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// As many as threads are likely to count at once.
pub(super) const STRIPES: usize = 16;

/// Counts of all threads, each on a line of memory of its own.
pub(super) struct Counts {
    stripes: [Stripe; STRIPES],
}

#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    went: AtomicU64,
    toll_ns: AtomicU64,
}

thread_local! {
    static STRIPE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES
    };
}

/// The stripe of this thread.
pub(super) fn own_stripe() -> usize {
    STRIPE.with(|stripe| *stripe)
}

impl Counts {
    pub(super) fn new() -> Self {
        Self { stripes: Default::default() }
    }

    /// A request went at once.
    pub(super) fn went(&self) {
        self.own().went.fetch_add(1, Ordering::Relaxed);
    }

    /// A request has cost so much.
    pub(super) fn cost(&self, toll_ns: u64) {
        self.own().toll_ns.fetch_add(toll_ns, Ordering::Relaxed);
    }

    /// How many went at once since the last call.
    pub(super) fn take_went(&self) -> u64 {
        self.stripes.iter().map(|stripe| stripe.went.swap(0, Ordering::Relaxed)).sum()
    }

    /// What requests have cost, in nanoseconds.
    pub(super) fn toll_ns(&self) -> u64 {
        self.stripes.iter().map(|stripe| stripe.toll_ns.load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }

    fn own(&self) -> &Stripe {
        &self.stripes[own_stripe()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_threads_count_is_one_sum() {
        let counts = Counts::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| (counts.went(), counts.cost(3)).1));
            }
        });
        assert_eq!((counts.take_went(), counts.take_went(), counts.toll_ns()), (4000, 0, 12_000));
    }
}
