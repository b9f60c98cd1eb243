//! How many requests at once keep a backend busy, found by watching it.
//!
//! Fewer leave it idle. More do not make it faster: they only share it, so every request takes longer, and the order in which
//! the gate would have served them is lost. For a backend that computes the right number is its cores; for one that sleeps on
//! databases it is hundreds; one with sixteen workers of its own has sixteen. And a setting is wrong after the next deployment.
//!
//! Two numbers are looked for, because two kinds of clients ask for them. Clients that are ahead of their share are to keep the backend
//! busy and no more ([`Concurrency::open`]); whether more of them at once get more done is asked of their own requests. Clients behind
//! their share are not to wait at all ([`Concurrency::limit`]), as long as the backend does not drown.
//!
//! Requests are not counted but weighed ([`Times::load`]): in a backend where some compute and others sleep, a hundred sleepers do not
//! stand in the way of one that computes.

mod knee;
mod response;

use crate::fairness::Waits;
use crate::time::Moment;
use crate::virtual_clock::{Cores, Load, Stay};
use knee::{Knee, Usual};
use response::{Follows, Response};

/// What a request that sleeps counts for.
const SLEEPS: Load = Load::from_256ths(4);

/// How long the requests of a route take, and whether they compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    usual: Usual,
    response: Response,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    /// Not known to be one of the others.
    #[default]
    Unknown,
    /// Its times follow the crowd.
    Computes,
    /// Its times do not, while those of others do.
    Sleeps,
}

impl Times {
    /// What a request of this route counts for.
    pub const fn load(&self) -> Load {
        match self.kind {
            Kind::Sleeps => SLEEPS,
            Kind::Unknown | Kind::Computes => Load::ONE,
        }
    }
}

/// How much at once.
#[derive(Clone, Debug)]
pub struct Concurrency {
    ahead: Knee,
    behind: Knee,
    /// What the backend is said to have.
    cores: Cores,
    max: Load,
}

impl Concurrency {
    /// Begins with what the backend's cores can do, and never goes beyond `max`.
    pub fn new(cores: Cores, max: u32) -> Self {
        let knee = Knee::new(Load::of(cores.as_milli().div_ceil(1000)), Load::of(max));
        Self { ahead: knee.clone(), behind: knee, cores, max: Load::of(max) }
    }

    /// How many cores the backend has, as far as is known: what it is said to have, or fewer if fewer requests at once are all that it
    /// serves. A gate takes its own machine's cores for the backend's; prices would be too high by as much as that is wrong.
    pub fn cores(&self) -> Cores {
        let found = self.ahead.found().min(self.behind.found()).max(Load::ONE).as_256ths() * 1000;
        let found = u32::try_from(found / Load::ONE.as_256ths()).unwrap_or(u32::MAX);
        self.cores.min(Cores::from_milli(found))
    }

    /// So much may be at the backend, whoever it is from.
    pub fn open(&self) -> Load {
        self.ahead.at_once()
    }

    /// So much may be at the backend if it is from clients behind their share.
    pub fn serves(&self) -> Load {
        self.behind.at_once()
    }

    /// So much may be there if it is also light beside the rest: a page must not wait until a crawler is done.
    pub fn limit(&self) -> Load {
        let twice = 2 * (self.behind.at_once().as_256ths() + Load::ONE.as_256ths());
        Load::from_256ths(twice).min(self.max)
    }

    /// Learns from a request that the backend is done with. `ahead` says that its client was ahead of its share.
    pub fn record(&mut self, route: &mut Times, stay: Stay, ahead: bool, waits: Waits, now: Moment) {
        let took = log2(stay.wall.as_nanos());
        let crowd = log2(stay.crowd.as_256ths());
        let surprises = route.usual.compare(took, crowd);
        if ahead || (route.kind == Kind::Computes && waits != Waits::Ahead) {
            self.ahead.record(&surprises, crowd, waits == Waits::Ahead, now);
        }
        // That a sleeper was not slowed down by others that compute says nothing about how many of those there can be.
        let witness = route.kind != Kind::Sleeps || stay.computing == Load::ZERO;
        if !ahead && witness {
            self.behind.record(&surprises, crowd, waits == Waits::Behind, now);
        }
        let room = log2(u64::from(self.cores().as_milli()) * Load::ONE.as_256ths() / 1000);
        if !ahead {
            route.response.add((log2(stay.computing.as_256ths()) - room).max(0), took);
            self.judge(route);
        }
    }

    fn judge(&mut self, route: &mut Times) {
        let kind = match route.response.follows() {
            Follows::Yes => Kind::Computes,
            Follows::No => Kind::Sleeps,
            Follows::Unclear => return,
        };
        if (kind == Kind::Sleeps) != (route.kind == Kind::Sleeps) {
            // What counts for how much has changed, and with it what every number means.
            *route = Times::default();
            self.ahead.restart();
            self.behind.restart();
        }
        route.kind = kind;
    }
}

/// One octave, in logarithms to the base 2.
const OCTAVE: i32 = 1 << OCTAVE_BITS;
const OCTAVE_BITS: u32 = 12;
/// One request tells at most this much: a route's requests are not all alike.
const SURPRISE_MAX: i32 = 3 * OCTAVE;

/// The logarithm to the base 2, in parts of an [`OCTAVE`]; within a hundredth of one.
fn log2(value: u64) -> i32 {
    let value = value.max(1);
    let whole = value.ilog2();
    // The next bits are the fraction, nearly: it bulges by up to 0.086 above the straight line.
    let bits = (u128::from(value) << OCTAVE_BITS >> whole) as i32 - OCTAVE;
    let bulge = i64::from(bits) * i64::from(OCTAVE - bits) * 344 / 1000 / i64::from(OCTAVE);
    whole as i32 * OCTAVE + bits + bulge as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    #[test]
    fn the_logarithm_is_within_a_hundredth_of_an_octave() {
        for value in (1..100_000).chain([u64::MAX, 1 << 40, (1 << 40) + (1 << 39)]) {
            let exact = (value as f64).log2();
            assert!((f64::from(log2(value)) / f64::from(OCTAVE) - exact).abs() < 0.01, "{value}");
        }
        assert_eq!(log2(0), 0);
    }

    /// Ten requests at a time of which one computes: its times follow the others that compute, the sleepers' do not.
    #[test]
    fn sleepers_are_told_from_workers_and_count_for_little() {
        let mut concurrency = Concurrency::new(Cores::whole(1), 512);
        let (mut worker, mut sleeper) = (Times::default(), Times::default());
        for round in 0..2000u64 {
            let computing = 1 + round % 4;
            let stay = |wall_ms: u64| Stay {
                toll: Span::ZERO,
                wall: Span::from_millis(wall_ms),
                crowd: Load::from_256ths(256 * computing + 40),
                computing: Load::of(computing as u32),
            };
            let now = Moment::from_millis(round * 50);
            concurrency.record(&mut worker, stay(20 * computing + round % 7), false, Waits::Nobody, now);
            concurrency.record(&mut sleeper, stay(250 + round % 13), false, Waits::Nobody, now);
        }
        assert_eq!(worker.load(), Load::ONE);
        assert_eq!(sleeper.load(), SLEEPS);
    }

    #[test]
    fn cores_that_are_not_there_are_found_out_and_those_that_are_not_said_to_be_are_not() {
        for (said, has, found) in [(2, 1, 1), (4, 1, 1), (4, 2, 2), (2, 4, 2)] {
            let mut concurrency = Concurrency::new(Cores::whole(said), 512);
            let mut route = Times::default();
            for round in 0..2000u64 {
                let crowd = 1 + round * round % 5;
                let wall_ms = 20 * crowd.max(has) / has + round % 3;
                let stay = Stay {
                    toll: Span::ZERO,
                    wall: Span::from_millis(wall_ms),
                    crowd: Load::of(crowd as u32),
                    computing: Load::of(crowd as u32),
                };
                concurrency.record(&mut route, stay, false, Waits::Nobody, Moment::from_millis(round * 20));
            }
            assert_eq!(concurrency.cores(), Cores::whole(found), "said {said}, has {has}");
        }
    }

    #[test]
    fn those_behind_their_share_may_be_a_few_more() {
        let concurrency = Concurrency::new(Cores::whole(4), 512);
        assert_eq!((concurrency.open(), concurrency.limit()), (Load::of(4), Load::of(10)));
        let bounded = Concurrency::new(Cores::whole(4), 6);
        assert_eq!((bounded.open(), bounded.limit()), (Load::of(4), Load::of(6)));
    }
}
