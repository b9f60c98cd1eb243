use super::*;
use crate::prediction::Expected;
use crate::time::Moment;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// `0x1_02_03` is address 3 of network 2 of block 1.
fn client(address: u32) -> Client {
    let key = |level: u64, prefix: u32| (level << 32 | u64::from(prefix)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    Client { address: key(1, address), network: key(2, address >> 8), block: key(3, address >> 16) }
}

fn ms(millis: u64) -> Span {
    Span::from_millis(millis)
}

/// A backend with one place for those who are ahead and `limit` for the others.
struct Backend {
    queue: FairQueue,
    in_flight: Vec<(u32, Pass)>,
    serves: u32,
    limit: u32,
    waiting: BTreeMap<Ticket, u32>,
    now: Moment,
}

impl Backend {
    fn new(settings: Settings, limit: u32) -> Self {
        let queue = FairQueue::new(settings, Moment::ZERO);
        Self { queue, in_flight: Vec::new(), serves: limit, limit, waiting: BTreeMap::new(), now: Moment::ZERO }
    }

    fn places(&self) -> Places {
        let ahead = self.in_flight.iter().filter(|(_, pass)| pass.ahead).count() as u32;
        let in_flight = Load::of(self.in_flight.len() as u32);
        let mut costs = Costs::default();
        self.in_flight.iter().for_each(|(_, pass)| costs.add(pass.reserved));
        let (serves, limit) = (Load::of(self.serves), Load::of(self.limit));
        Places { in_flight, ahead, costs, open: Load::ONE, serves, limit }
    }

    fn arrive(&mut self, address: u32, reserve: Span) -> Arrival {
        let arrival = self.queue.arrive(client(address), reserve.into(), self.places(), self.now);
        match arrival {
            Arrival::Goes(pass) => self.in_flight.push((address, pass)),
            Arrival::Waits(ticket) => {
                assert_eq!(self.waiting.insert(ticket, address), None);
            }
            Arrival::Displaces(ticket, other, _) => {
                assert!(self.waiting.remove(&other).is_some());
                self.waiting.insert(ticket, address);
            }
            Arrival::KeyFull(_) | Arrival::Full(_) => {}
        }
        arrival
    }

    /// The oldest request at the backend is done after `toll`; returns whose went next.
    fn done(&mut self, toll: Span) -> Vec<u32> {
        self.now = self.now + toll;
        if !self.in_flight.is_empty() {
            let (address, pass) = self.in_flight.remove(0);
            self.queue.settle(client(address), pass, toll);
        }
        let mut went = Vec::new();
        while let Some((ticket, pass)) = self.queue.dispatch(self.places(), self.now) {
            let address = self.waiting.remove(&ticket).expect("a request is dispatched once");
            self.in_flight.push((address, pass));
            went.push(address);
        }
        went
    }

    /// Keeps `addresses` backlogged for `rounds` requests of `toll`; returns how many of each went.
    fn race(&mut self, addresses: &[u32], rounds: usize, toll: impl Fn(u32) -> Span) -> BTreeMap<u32, usize> {
        let mut went = BTreeMap::new();
        for _ in 0..rounds {
            for &address in addresses {
                while self.waiting.values().filter(|other| **other == address).count() < 2 {
                    match self.arrive(address, toll(address)) {
                        Arrival::Goes(_) => *went.entry(address).or_insert(0) += 1,
                        Arrival::Waits(_) | Arrival::Displaces(..) => {}
                        Arrival::KeyFull(_) | Arrival::Full(_) => break,
                    }
                }
            }
            let next = self.in_flight.first().map_or(Span::ZERO, |(address, _)| toll(*address));
            for address in self.done(next) {
                *went.entry(address).or_insert(0) += 1;
            }
        }
        went
    }
}

#[test]
fn a_light_client_goes_at_once_while_a_heavy_one_waits() {
    let mut backend = Backend::new(Settings::default(), 8);
    backend.race(&[0x1_01_01], 100, |_| ms(300));
    assert!(matches!(backend.arrive(0x1_01_01, ms(300)), Arrival::Waits(_)));
    assert!(matches!(backend.arrive(0x7_01_01, ms(20)), Arrival::Goes(Pass { ahead: false, .. })));
    // And while the light one is at work, the heavy one yields.
    backend.in_flight.remove(0);
    assert_eq!(backend.queue.dispatch(backend.places(), backend.now), None);
}

#[test]
fn a_dear_request_waits_for_a_core_where_a_light_one_goes_at_once() {
    let mut backend = Backend { serves: 1, ..Backend::new(Settings::default(), 4) };
    backend.arrive(0x1_01_01, ms(300));
    assert!(matches!(backend.arrive(0x2_01_01, ms(300)), Arrival::Waits(_)), "sharing a core, both would be late");
    assert!(matches!(backend.arrive(0x3_01_01, ms(20)), Arrival::Goes(_)), "although another stands in line");
    assert!(matches!(backend.arrive(0x4_01_01, ms(20)), Arrival::Goes(_)));
    assert!(matches!(backend.arrive(0x5_01_01, ms(20)), Arrival::Goes(_)));
    assert!(matches!(backend.arrive(0x6_01_01, ms(20)), Arrival::Waits(_)), "not without end");
    backend.in_flight.swap(0, 3);
    assert_eq!(backend.done(ms(20)), [0x6_01_01], "the light one first, though it came later");
    backend.in_flight.retain(|(_, pass)| !pass.light);
    assert_eq!(backend.done(ms(300)), [0x2_01_01]);
}

#[test]
fn a_request_that_may_be_light_for_all_that_is_known_is_not_held_back() {
    let mut backend = Backend { serves: 1, ..Backend::new(Settings::default(), 4) };
    backend.arrive(0x1_01_01, ms(300));
    let unsure = Expected { reserve: ms(300), least: Span::ZERO };
    let arrival = backend.queue.arrive(client(0x2_01_01), unsure, backend.places(), backend.now);
    assert!(matches!(arrival, Arrival::Goes(_)));
}

/// An office among crawlers from everywhere: by address it is one of sixty-five.
#[test]
fn light_requests_of_those_ahead_have_half_of_what_there_is() {
    let mut backend = Backend { serves: 1, ..Backend::new(Settings::default(), 4) };
    let office = 0x99_01_01;
    let mut everybody: Vec<u32> = (0..64).map(|block| (0x100 + block) << 16 | 0x0101).collect();
    everybody.push(office);
    let toll = |address: u32| if address == office { ms(20) } else { ms(300) };
    backend.race(&everybody, 1000, toll);
    let went = backend.race(&everybody, 2000, toll);
    let office_ms = went[&office] * 20;
    let others_ms = went.iter().filter(|(address, _)| **address != office).map(|(_, count)| count * 300).sum::<usize>();
    let share = office_ms as f64 / (office_ms + others_ms) as f64;
    assert!((0.45..0.55).contains(&share), "{share:.3}");
}

#[test]
fn a_heavy_client_gets_everything_that_nobody_else_wants() {
    let mut backend = Backend::new(Settings::default(), 8);
    let went = backend.race(&[0x1_01_01], 1000, |_| ms(300));
    assert!(went[&0x1_01_01] > 990, "it was held although the backend was idle");
}

#[test]
fn who_yields_is_not_starved() {
    let mut backend = Backend::new(Settings::default(), 8);
    backend.race(&[0x1_01_01], 100, |_| ms(300));
    backend.in_flight.clear();
    // Sleepers of light clients fill the open place without end.
    for sleeper in 0..3 {
        backend.in_flight.push((0x70_01_01 + sleeper, Pass::default()));
    }
    assert_eq!(backend.queue.dispatch(backend.places(), backend.now), None);
    let later = backend.now + YIELD_MAX;
    assert!(backend.queue.dispatch(backend.places(), later).is_some_and(|(_, pass)| pass.ahead));
    assert_eq!(backend.queue.dispatch(Places { ahead: 1, ..backend.places() }, later), None, "but one at a time");
}

#[test]
fn the_newest_request_of_a_key_goes_first() {
    let mut backend = Backend::new(Settings::default(), 1);
    backend.arrive(0x1_01_01, ms(1));
    let tickets: Vec<_> = (0..3)
        .filter_map(|_| match backend.queue.arrive(client(0x1_01_01), ms(1).into(), backend.places(), backend.now) {
            Arrival::Waits(ticket) => Some(ticket),
            _ => None,
        })
        .collect();
    let empty = Places { in_flight: Load::ZERO, ..backend.places() };
    for expect in tickets.iter().rev() {
        assert_eq!(backend.queue.dispatch(empty, backend.now).map(|(ticket, _)| ticket), Some(*expect));
    }
}

#[test]
fn sixty_four_addresses_of_a_network_weigh_as_much_as_two_and_a_half() {
    let mut backend = Backend::new(Settings::default(), 1);
    let mut addresses: Vec<u32> = (0..64).map(|host| 0x1_01_00 + host).collect();
    addresses.push(0x7_01_01);
    let went = backend.race(&addresses, 4000, |_| ms(100));
    let lone = went[&0x7_01_01] as f64;
    let others = went.values().sum::<usize>() as f64 - lone;
    assert!((2.3..2.7).contains(&(others / lone)), "{others} against {lone}");
}

#[test]
fn a_wrong_prediction_is_made_good() {
    let mut backend = Backend::new(Settings::default(), 1);
    let (honest, lucky) = (0x1_01_01, 0x2_01_01);
    let mut cpu = BTreeMap::new();
    for _ in 0..4000 {
        for address in [honest, lucky] {
            while backend.waiting.values().filter(|other| **other == address).count() < 2 {
                // What the second sends is thought to cost next to nothing.
                let Arrival::Waits(_) = backend.arrive(address, if address == lucky { ms(1) } else { ms(100) }) else {
                    break;
                };
            }
        }
        if let Some((address, _)) = backend.in_flight.first() {
            *cpu.entry(*address).or_insert(0u32) += 1;
        }
        backend.done(ms(100));
    }
    assert!(cpu[&honest].abs_diff(cpu[&lucky]) <= 10, "{cpu:?}");
}

#[test]
fn calm_is_a_fresh_start_for_everybody() {
    let mut backend = Backend::new(Settings::default(), 8);
    backend.race(&[0x1_01_01], 100, |_| ms(300));
    let tickets: Vec<_> = backend.waiting.keys().copied().collect();
    assert!(tickets.into_iter().all(|ticket| backend.queue.leave(ticket)));
    backend.waiting.clear();
    while !backend.in_flight.is_empty() {
        backend.done(ms(300));
    }
    assert!(backend.queue.is_calm());
    backend.now = backend.now + Span::from_secs(2);
    backend.arrive(0x7_01_01, ms(20));
    assert!(matches!(backend.arrive(0x1_01_01, ms(20)), Arrival::Goes(Pass { ahead: false, .. })));
}

#[test]
fn those_turned_away_are_given_turns_one_after_another() {
    let mut backend = Backend::new(Settings { per_key: 2, ..Settings::default() }, 8);
    backend.race(&[0x1_01_01], 50, |_| ms(300));
    let waits: Vec<_> = (0..6)
        .filter_map(|_| match backend.arrive(0x1_01_01, ms(300)) {
            Arrival::KeyFull(turned) => Some(turned.retry_after),
            _ => None,
        })
        .collect();
    assert!(waits.len() >= 3, "{waits:?}");
    for pair in waits.windows(2) {
        // Alone on the backend its requests take 300 ms each.
        let apart = Moment::ZERO + pair[1];
        assert_eq!(apart.since(Moment::ZERO + pair[0]).as_millis_ceil().abs_diff(300), 0, "{waits:?}");
    }
}

#[test]
fn a_light_newcomer_displaces_the_heaviest_when_the_queue_is_full() {
    let mut backend = Backend::new(Settings { total: 4, ..Settings::default() }, 2);
    backend.race(&[0x1_01_01, 0x2_01_01], 200, |address| ms(u64::from(address >> 16) * 100));
    while backend.waiting.len() < 4 {
        backend.arrive(0x2_01_01, ms(200));
    }
    while backend.in_flight.len() < 2 {
        backend.in_flight.push((0x9_01_01, Pass::default()));
    }
    let arrival = backend.arrive(0x7_01_01, ms(20));
    assert!(matches!(arrival, Arrival::Displaces(..)), "{arrival:?}");
    assert!(matches!(backend.arrive(0x2_01_01, ms(200)), Arrival::Full(_)));
}

#[test]
fn an_office_may_have_more_waiting_than_a_crawler() {
    let mut backend = Backend::new(Settings::default(), 2);
    backend.arrive(0x9_01_01, ms(20));
    backend.arrive(0x9_01_02, ms(20));
    let office =
        (0..180).filter(|_| matches!(backend.arrive(0x5_01_01, Span::from_nanos(MS / 2)), Arrival::Waits(_))).count();
    assert_eq!(office, 180, "thirty users with six connections each are within the share of one address");
    let crawler = (0..180).filter(|_| matches!(backend.arrive(0x6_01_01, ms(300)), Arrival::Waits(_))).count();
    assert_eq!(crawler, 16);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Start-time fair queuing's bound: two keys that always have something waiting are never further apart than one request of each.
    #[test]
    fn backlogged_keys_are_never_further_apart_than_a_request_of_each(
        costs in prop::collection::vec(100u64..400, 2..6),
        rounds in 50usize..300,
    ) {
        let mut backend = Backend::new(Settings::default(), 1);
        let addresses: Vec<u32> = (0..costs.len() as u32).map(|index| (index + 1) << 16 | 0x0101).collect();
        let toll = |address: u32| ms(costs[(address >> 16) as usize - 1]);
        // Everybody spends what it has saved up.
        backend.race(&addresses, 600, toll);
        let went = backend.race(&addresses, rounds, toll);
        let service = |address: &u32| went.get(address).copied().unwrap_or(0) as u64 * toll(*address).as_nanos();
        for a in &addresses {
            for b in &addresses {
                let bound = 2 * (toll(*a).as_nanos() + toll(*b).as_nanos());
                prop_assert!(service(a).abs_diff(service(b)) <= bound, "{went:?} of {costs:?}");
            }
        }
    }

    #[test]
    fn nothing_is_lost_and_every_bound_holds(
        steps in prop::collection::vec((0u8..10, 0u32..12, 1u64..400), 1..400),
        total in 1usize..20,
        per_key in 1usize..6,
    ) {
        let mut backend = Backend::new(Settings { total, per_key, keys: 16, ..Settings::default() }, 3);
        for (what, who, millis) in steps {
            let address = ((who / 4) << 16) | ((who % 4 / 2) << 8) | (who % 2);
            match what {
                0..6 => {
                    let before = backend.waiting.values().filter(|other| **other == address).count();
                    if let Arrival::KeyFull(_) = backend.arrive(address, ms(millis)) {
                        prop_assert!(before >= per_key);
                    }
                }
                6..9 => {
                    backend.done(ms(millis));
                }
                _ => {
                    let nth = millis as usize % backend.waiting.len().max(1);
                    if let Some(ticket) = backend.waiting.keys().nth(nth).copied() {
                        backend.waiting.remove(&ticket);
                        prop_assert!(backend.queue.leave(ticket));
                        prop_assert!(!backend.queue.leave(ticket), "a ticket is used once");
                    }
                }
            }
            prop_assert_eq!(backend.queue.waiting(), backend.waiting.len());
            prop_assert!(backend.queue.waiting() <= total);
            prop_assert!(backend.in_flight.len() <= 3);
            // Work-conserving: an idle backend and a waiting request do not go together.
            prop_assert!(!backend.in_flight.is_empty() || backend.queue.waiting() == 0 || what == 9);
        }
        while backend.queue.waiting() > 0 {
            prop_assert!(!backend.in_flight.is_empty() || !backend.done(ms(1)).is_empty());
            backend.done(ms(1));
        }
        prop_assert!(backend.waiting.is_empty());
    }

    #[test]
    fn time_that_goes_backwards_or_stops_does_no_harm(steps in prop::collection::vec((any::<bool>(), 0u32..6, 0u64..100_000), 1..200)) {
        let mut backend = Backend::new(Settings::default(), 2);
        for (arrives, who, at) in steps {
            backend.now = Moment::from_millis(at);
            if arrives {
                backend.arrive(who << 16, ms(50));
            } else {
                backend.done(Span::ZERO);
            }
            prop_assert_eq!(backend.queue.waiting(), backend.waiting.len());
        }
    }
}
