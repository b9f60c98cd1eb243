//! Who passed in calm and is still at work.
//!
//! In calm nobody is charged, so nobody is written down behind the lock. But calm ends, and then whoever has a hundred long requests at the
//! backend must be in debt before the first of them is done. So each request that passes in calm signs here, where the one who holds the
//! lock can read it: a few stores on lines of memory that are its thread's own.
//!
//! There are as many places as there are; a request that finds none is charged when it is done.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::time::Span;
use tollgate_core::virtual_clock::Load;

use super::counts::{STRIPES, own_stripe};

/// Requests that can be signed for by one thread.
const PLACES: usize = 512;
const WORDS: usize = PLACES / 64;
/// Nothing that a clock shows.
const NOBODY: u64 = u64::MAX;

/// The requests of all threads that passed in calm.
pub(super) struct Roll {
    stripes: Box<[Stripe]>,
}

#[repr(align(128))]
struct Stripe {
    /// A bit for each line that is taken.
    taken: [AtomicU64; WORDS],
    lines: Box<[Line]>,
}

/// A request that passed in calm.
struct Line {
    /// The client's address, as one of IPv6.
    address: [AtomicU64; 2],
    load: AtomicU64,
    /// What the virtual clock showed when it began; [`NOBODY`] until the rest is written.
    since: AtomicU64,
    /// What it has been charged, in nanoseconds. Changed only with the lock held.
    charged: AtomicU64,
}

/// Where a request has signed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signature {
    stripe: u16,
    line: u16,
}

impl Roll {
    pub(super) fn new() -> Self {
        Self { stripes: (0..STRIPES).map(|_| Stripe::new()).collect() }
    }

    /// A request begins, if there is a line for it.
    pub(super) fn sign(&self, address: IpAddr, load: Load, since: u64) -> Option<Signature> {
        let stripe = own_stripe();
        let line = self.stripes[stripe].sign(address, load, since)?;
        Some(Signature { stripe: stripe as u16, line: line as u16 })
    }

    /// A request is done. What it has been charged so far.
    pub(super) fn strike(&self, signature: Signature) -> Span {
        let stripe = &self.stripes[usize::from(signature.stripe)];
        let line = usize::from(signature.line);
        stripe.lines[line].since.store(NOBODY, Ordering::Relaxed);
        let charged = stripe.lines[line].charged.load(Ordering::Relaxed);
        stripe.taken[line / 64].fetch_and(!(1 << (line % 64)), Ordering::Release);
        Span::from_nanos(charged)
    }

    /// Charges everybody for what is beyond what was charged before, when the virtual clock shows `shows`. With the lock held.
    pub(super) fn charge(&self, shows: u64, mut charge: impl FnMut(IpAddr, Span, Span)) {
        for stripe in &self.stripes {
            for (index, word) in stripe.taken.iter().enumerate() {
                let mut taken = word.load(Ordering::Relaxed);
                while taken != 0 {
                    stripe.lines[index * 64 + taken.trailing_zeros() as usize].charge(shows, &mut charge);
                    taken &= taken - 1;
                }
            }
        }
    }
}

impl Stripe {
    fn new() -> Self {
        Self { taken: Default::default(), lines: (0..PLACES).map(|_| Line::new()).collect() }
    }

    fn sign(&self, address: IpAddr, load: Load, since: u64) -> Option<usize> {
        let (index, word) = self.taken.iter().enumerate().find(|(_, word)| word.load(Ordering::Relaxed) != u64::MAX)?;
        let bit = word.load(Ordering::Relaxed).trailing_ones().min(63);
        // If there are so many threads that two share a stripe, both may find this bit; then the second goes without.
        if word.fetch_or(1 << bit, Ordering::Acquire) >> bit & 1 != 0 {
            return None;
        }
        let at = index * 64 + bit as usize;
        self.lines[at].write(address, load, since);
        Some(at)
    }
}

impl Line {
    fn new() -> Self {
        let [high, low, load, charged] = [0; 4].map(AtomicU64::new);
        Self { address: [high, low], load, since: AtomicU64::new(NOBODY), charged }
    }

    fn write(&self, address: IpAddr, load: Load, since: u64) {
        let bits = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        self.address[0].store((bits >> 64) as u64, Ordering::Relaxed);
        self.address[1].store(bits as u64, Ordering::Relaxed);
        self.load.store(load.as_256ths(), Ordering::Relaxed);
        self.charged.store(0, Ordering::Relaxed);
        self.since.store(since, Ordering::Release);
    }

    fn charge(&self, shows: u64, charge: &mut impl FnMut(IpAddr, Span, Span)) {
        let since = self.since.load(Ordering::Acquire);
        let [high, low] = [0, 1].map(|half: usize| self.address[half].load(Ordering::Relaxed));
        let address = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).to_canonical();
        let passed = u128::from(shows.saturating_sub(since));
        let taken = passed * u128::from(self.load.load(Ordering::Relaxed)) / u128::from(Load::ONE.as_256ths());
        let so_far = u64::try_from(taken).unwrap_or(u64::MAX);
        let charged = self.charged.load(Ordering::Relaxed);
        if so_far > charged {
            charge(address, Span::from_nanos(charged), Span::from_nanos(so_far));
            self.charged.store(so_far, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const CLIENT: [&str; 2] = ["203.0.113.7", "2001:db8::7"];

    #[test]
    fn who_signed_is_charged_as_the_clock_goes_on_and_who_struck_it_is_not() {
        let roll = Roll::new();
        let [worker, sleeper] = [(CLIENT[0], Load::ONE), (CLIENT[1], Load::from_256ths(64))]
            .map(|(client, load)| roll.sign(client.parse().unwrap(), load, 1000).unwrap());
        let charged = |shows| {
            let mut heard = BTreeSet::new();
            roll.charge(shows, |client, from, to| {
                assert!(heard.insert((client.to_string(), from.as_nanos(), to.as_nanos())));
            });
            heard
        };
        let is = |client: &str, from, to| (client.to_owned(), from, to);
        assert_eq!(charged(1000), BTreeSet::new());
        assert_eq!(charged(1400), [is(CLIENT[0], 0, 400), is(CLIENT[1], 0, 100)].into());
        assert_eq!(charged(1800), [is(CLIENT[0], 400, 800), is(CLIENT[1], 100, 200)].into());
        assert_eq!(roll.strike(worker), Span::from_nanos(800));
        assert_eq!(charged(2200), [is(CLIENT[1], 200, 300)].into());
        assert_eq!(roll.strike(sleeper), Span::from_nanos(300));
        assert_eq!(charged(9000), BTreeSet::new());
    }

    #[test]
    fn there_are_as_many_lines_as_there_are_and_one_that_is_struck_is_free_again() {
        let (roll, client) = (Roll::new(), CLIENT[0].parse().unwrap());
        let all: Vec<_> = (0..PLACES).map(|_| roll.sign(client, Load::ONE, 0).unwrap()).collect();
        assert!(roll.sign(client, Load::ONE, 0).is_none());
        assert_eq!(roll.strike(all[77]), Span::ZERO);
        assert_eq!(roll.sign(client, Load::ONE, 0).unwrap().line, all[77].line);
    }
}
