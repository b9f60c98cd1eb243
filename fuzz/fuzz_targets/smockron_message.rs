//! Any frames to gates and masters: no panic, and bounded state. Valid words are among the frames, so that
//! more than the first is parsed.
#![no_main]

use std::collections::hash_map::RandomState;

use libfuzzer_sys::fuzz_target;
use tollgate_core::fleet::{Domain, Gate, GateSettings, Master, MasterSettings, Usage, ClockReading};
use tollgate_core::limit::{Budget, Limit, Rate};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_wire::smockron;

const WALL_MS: u64 = 1_794_704_482_860;
const IDENTIFIERS_MAX: usize = 16;

/// A frame: a valid word with a suffix, or these bytes.
fn frame(word: u8, rest: &[u8]) -> Vec<u8> {
    let words: [&[u8]; 14] = [
        b"",
        b"default\0",
        b"ACCEPTED",
        b"DELAYED",
        b"REJECTED",
        b"DELAY_UNTIL",
        b"1794704482860",
        b"client",
        b"\0tollgate\0",
        b"tollgate1",
        b"DELAY",
        b"BEACON",
        b"PARDON",
        b"\0tollgate\0default\0",
    ];
    [words[usize::from(word) % words.len()], rest].concat()
}

fn master(now: Moment) -> Master<RandomState> {
    let rate = Limit::Rate(Rate::new(10, Span::from_secs(1), 5).expect("a rate"));
    let budget = Limit::Budget(Budget::new(100_000, Span::from_secs(1)).expect("a budget"));
    let settings = MasterSettings {
        domains: vec![Domain { name: (*b"default").into(), limits: vec![rate, budget] }],
        identifiers_max: IDENTIFIERS_MAX,
        gates_max: 4,
        lag_max: Span::from_secs(10),
        beacon_every: Span::from_secs(1),
        delay_max: Span::from_secs(3600),
    };
    Master::new(settings, 7, RandomState::new(), now)
}

fn gate() -> Gate<RandomState> {
    let settings = GateSettings {
        domains: [(*b"default").into()].into(),
        identifiers_max: IDENTIFIERS_MAX,
        repeat_every: Span::from_secs(1),
        silence_max: Span::from_secs(2),
        delay_max: Span::from_secs(3600),
        log_info: true,
    };
    Gate::new(settings, 9, RandomState::new())
}

fuzz_target!(|messages: Vec<(u16, Vec<(u8, Vec<u8>)>)>| {
    let mut passed_ms = 0;
    let at = |ms: u64| ClockReading { now: Moment::from_millis(1_000_000 + ms), wall_ms: WALL_MS + ms };
    let (mut master, mut gate) = (master(at(0).now), gate());
    for (ms, frames) in messages {
        passed_ms += u64::from(ms);
        let reading = at(passed_ms);
        let frames: Vec<_> = frames.iter().map(|(word, rest)| frame(*word, rest)).collect();
        let frames: Vec<_> = frames.iter().map(Vec::as_slice).collect();
        if let Ok(report) = smockron::read_report(&frames) {
            smockron::put_report(&mut Vec::new(), &report);
            master.handle_report(&report, reading);
            let identifier = report.identifier;
            let usage = Usage {
                domain: 0,
                identifier,
                held_until: None,
                toll: Toll::ONE,
                clear: reading.now + Span::from_millis(u64::from(ms)),
                note: report.note,
            };
            gate.handle_usage(&usage, reading.now);
        }
        if let Ok(order) = smockron::read_order(&frames) {
            smockron::put_order(&mut Vec::new(), &order);
            gate.handle_order(&order, reading);
        }
        while let Some(notice) = master.poll_notice(reading.now) {
            smockron::put_order(&mut Vec::new(), &notice.own());
        }
        // A master must also handle the gate's reports about any orders.
        while let Some(report) = gate.poll_report(reading) {
            smockron::put_report(&mut Vec::new(), &report);
            master.handle_report(&report, reading);
        }
        assert!(master.identifiers() <= IDENTIFIERS_MAX && gate.identifiers() <= IDENTIFIERS_MAX);
    }
});
