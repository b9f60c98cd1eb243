//! The parameters of a run: fleet, network, faults and clients, all drawn from the seed.

use fastrand::Rng;

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const MILLI: u64 = 1_000_000;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) gates: usize,
    /// The longest round trip.
    pub(crate) round_trip: u64,
    pub(crate) loss_permille: u64,
    pub(crate) double_permille: u64,
    /// The largest error of a wall clock.
    pub(crate) skew_ms: u64,
    /// The limit: requests per second, and the burst.
    pub(crate) rate: u64,
    pub(crate) burst: u64,
    /// The longest hold.
    pub(crate) hold_max: u64,
    /// The attacker's requests per second.
    pub(crate) offered: u64,
    /// Whether the attacker sends to all gates at once and then pauses.
    pub(crate) in_waves: bool,
    pub(crate) length: u64,
    pub(crate) faults: Vec<(u64, Fault)>,
    /// Whether the master saves its state.
    pub(crate) durable: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// A gate cannot reach the master for this long.
    Cut(usize, u64),
    KillGate(usize),
    /// The master is down for this long.
    KillMaster(u64),
}

impl Plan {
    /// A reliable network, a limit of 10 per second with a burst of 5, and an attacker at five times that
    /// rate.
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
            faults: Vec::new(),
            durable: false,
        }
    }

    pub(crate) fn draw(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed);
        let rate = rng.choice([1, 10, 100]).unwrap();
        let gates = rng.choice([1, 2, 8, 32]).unwrap();
        let length = rng.choice([10, 20, 30]).unwrap() * SECOND;
        Self {
            gates,
            round_trip: rng.choice([0, 5, 50, 500]).unwrap() * MILLI,
            loss_permille: rng.choice([0, 100, 500]).unwrap(),
            double_permille: rng.choice([0, 100]).unwrap(),
            skew_ms: rng.choice([0, 5000]).unwrap(),
            rate,
            burst: rng.choice([1, 5, 20]).unwrap(),
            hold_max: rng.choice([0, SECOND, 5 * SECOND]).unwrap(),
            offered: (rate * rng.choice([2, 5, 20]).unwrap()).min(400),
            in_waves: rng.u64(..1000) < 300,
            length,
            faults: faults(rng, gates, length),
            durable: rng.u64(..1000) < 500,
        }
    }
}

fn faults(rng: &mut Rng, gates: usize, length: u64) -> Vec<(u64, Fault)> {
    let mut faults = Vec::new();
    for _ in 0..rng.choice([0, 0, 1, 3]).unwrap() {
        let when = rng.u64(..length);
        let gate = rng.u64(..gates as u64) as usize;
        let lasting = rng.choice([200 * MILLI, SECOND, 5 * SECOND]).unwrap();
        faults.push((
            when,
            match rng.u64(..3) {
                0 => Fault::Cut(gate, lasting),
                1 => Fault::KillGate(gate),
                _ => Fault::KillMaster(lasting),
            },
        ));
    }
    faults
}
