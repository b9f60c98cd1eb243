//! What a run is like: the fleet, its network, its troubles and its clients, all drawn from the seed.

use crate::chance::Chance;

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const MILLI: u64 = 1_000_000;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) gates: usize,
    /// The longest way there and back.
    pub(crate) round_trip: u64,
    pub(crate) loss_permille: u64,
    pub(crate) double_permille: u64,
    /// How far each wall clock may be off.
    pub(crate) skew_ms: u64,
    /// Requests per second, and at once.
    pub(crate) rate: u64,
    pub(crate) burst: u64,
    /// How long a request may be held.
    pub(crate) hold_max: u64,
    /// The attacker's requests per second.
    pub(crate) offered: u64,
    /// Whether the attacker strikes everywhere at once and then pauses.
    pub(crate) in_waves: bool,
    pub(crate) length: u64,
    pub(crate) troubles: Vec<(u64, Trouble)>,
    /// Whether the master keeps its books in a file.
    pub(crate) durable: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
    /// A gate cannot reach the master for so long.
    Cut(usize, u64),
    KillGate(usize),
    /// The master is down for so long.
    KillMaster(u64),
}

impl Plan {
    /// A good network, ten a second, five at once, and an attacker that wants five times that.
    pub(crate) fn calm() -> Self {
        Self {
            gates: 2,
            round_trip: 0,
            loss_permille: 0,
            double_permille: 0,
            skew_ms: 0,
            rate: 10,
            burst: 5,
            hold_max: 0,
            offered: 50,
            in_waves: false,
            length: 10 * SECOND,
            troubles: Vec::new(),
            durable: false,
        }
    }

    pub(crate) fn draw(seed: u64) -> Self {
        let chance = &mut Chance::new(seed);
        let rate = chance.one_of(&[1, 10, 100]);
        let gates = chance.one_of(&[1, 2, 8, 32]);
        let length = chance.one_of(&[10, 20, 30]) * SECOND;
        Self {
            gates,
            round_trip: chance.one_of(&[0, 5, 50, 500]) * MILLI,
            loss_permille: chance.one_of(&[0, 100, 500]),
            double_permille: chance.one_of(&[0, 100]),
            skew_ms: chance.one_of(&[0, 5000]),
            rate,
            burst: chance.one_of(&[1, 5, 20]),
            hold_max: chance.one_of(&[0, SECOND, 5 * SECOND]),
            offered: (rate * chance.one_of(&[2, 5, 20])).min(400),
            in_waves: chance.permille(300),
            length,
            troubles: troubles(chance, gates, length),
            durable: chance.permille(500),
        }
    }
}

fn troubles(chance: &mut Chance, gates: usize, length: u64) -> Vec<(u64, Trouble)> {
    let mut troubles = Vec::new();
    for _ in 0..chance.one_of(&[0, 0, 1, 3]) {
        let when = chance.below(length);
        let gate = chance.below(gates as u64) as usize;
        let lasting = chance.one_of(&[200 * MILLI, SECOND, 5 * SECOND]);
        troubles.push((
            when,
            match chance.below(3) {
                0 => Trouble::Cut(gate, lasting),
                1 => Trouble::KillGate(gate),
                _ => Trouble::KillMaster(lasting),
            },
        ));
    }
    troubles
}
