//! Tests that the script and the core, which implement the same limits, agree on any sequence of events.
//!
//! The core runs on its own record, and the script on a real server with a clock that the test controls. A
//! decision is derived from the states that the script stored, so one wrong digit in a state shows in the
//! next decision.

use std::time::Instant;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use redis::{Connection, Value};
use tollgate_core::band::Band;
use tollgate_core::class::Class;
use tollgate_core::decide::{Claim, decide};
use tollgate_core::decision::Decision;
use tollgate_core::escalation::{Escalation, Multiplier};
use tollgate_core::limit::{Bucket, Budget, Charge, InFlight, Limit, Rate, Window};
use tollgate_core::record::{PlainRecord, Record};
use tollgate_core::rule::{Mode, Rule, Situation};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use super::answer::{Reply, ReplyError};
use super::rule::{Operation, SharedRule, WORK_LIFE, Work};
use super::script::{Errand, Script};

use tollgate_test_support::redis_server::RedisServer;

/// The start of the controlled clock: in 2026, so that numbers have realistic sizes.
const START_US: u64 = 1_794_700_000_123_457;

/// The interval at which requests in flight are renewed, as in the store.
const RENEW_EVERY: Span = Span::from_secs(20);
/// The maximum time for which a state is kept beyond its need, or beyond twice that: one second plus
/// rounding.
const KEPT_LONGER: Span = Span::from_millis(1_003);
/// The minimum time beyond its need at which a state keeps its expiry.
const KEPT_LONGER_MIN: Span = Span::from_millis(500);

/// The script on a clock that the test controls. Expiries use the server's clock, so everything is kept a
/// thousand times as long; a stall of some seconds while the test's clock stands still must not expire a
/// state.
const CLOCK: &str = r"
local time = redis.call('LRANGE', 'clock', 0, -1)
local server = redis
local redis = { pcall = server.pcall, call = function(...)
  local words = { ... }
  if words[1] == 'SET' then words[5] = words[5] .. '000' end
  return server.call(unpack(words))
end }
";
/// The factor by which [`CLOCK`] extends expiries.
const KEPT_TIMES: u32 = 1_000;

/// A server with a clock that the test controls.
struct TestStore {
    _server: RedisServer,
    connection: Connection,
    script: Script,
}

impl TestStore {
    fn start() -> Self {
        let server = RedisServer::start(&[]);
        let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        let script = Script::with_clock(CLOCK);
        script.load().exec(&mut connection).unwrap();
        Self { _server: server, connection, script }
    }

    fn call(&mut self, errands: &[Errand], now: Moment) -> Value {
        self.call_all(&[errands], now)
    }

    fn call_all(&mut self, requests: &[&[Errand]], now: Moment) -> Value {
        self.call_by(requests, now, None)
    }

    fn call_by(&mut self, requests: &[&[Errand]], now: Moment, deadline_us: Option<u64>) -> Value {
        let micros = now.as_nanos() / 1_000;
        redis::pipe()
            .del("clock")
            .ignore()
            .rpush("clock", &[micros / 1_000_000, micros % 1_000_000])
            .ignore()
            .add_command(self.script.call(requests.iter().copied(), deadline_us))
            .query::<[Value; 1]>(&mut self.connection)
            .unwrap()
            .into_iter()
            .next()
            .unwrap()
    }
}

/// The rules of one key, in the core's records and in the store.
struct Both<'store> {
    store: &'store mut TestStore,
    rules: Vec<SharedRule>,
    records: Vec<PlainRecord>,
    started: Moment,
    renewed: Moment,
    /// The requests in flight, with their charges.
    in_flight: Vec<(Work, Toll, Vec<Option<Charge>>)>,
    requests: u64,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(Toll, Band),
    /// A request in flight, by its index modulo their number, was not forwarded.
    Refund(usize),
    /// The oldest request in flight has ended with this CPU time.
    Settle(Span),
}

impl<'store> Both<'store> {
    fn new(store: &'store mut TestStore, rules: &[Rule], started: Moment) -> Self {
        redis::cmd("FLUSHALL").exec(&mut store.connection).unwrap();
        Self {
            store,
            rules: rules
                .iter()
                .enumerate()
                .map(|(place, rule)| SharedRule::new("test:", &place.to_string(), rule.clone()).unwrap())
                .collect(),
            records: rules.iter().map(|rule| PlainRecord::new(rule.words())).collect(),
            started,
            renewed: started,
            in_flight: Vec::new(),
            requests: 0,
        }
    }

    /// Lets time pass; the gate regularly renews its requests in flight.
    fn pass(&mut self, to: Moment) {
        while to.since(self.renewed) > RENEW_EVERY {
            self.renewed = self.renewed + RENEW_EVERY;
            for (work, toll, charged) in self.in_flight.clone() {
                self.after((work, toll), &charged, self.renewed, |rule, _, _| {
                    matches!(rule.limit, Limit::InFlight(_)).then_some((Operation::Charge, toll))
                });
            }
        }
    }

    fn step(&mut self, step: Step, now: Moment, name: &str) {
        match step {
            Step::Ask(toll, band) => {
                let situation = Situation { now, started: self.started, band };
                let work = Work::new(u64::MAX - (self.requests << 12));
                self.requests += 1;
                let (expected, charged) = self.ask_core(toll, &situation);
                assert_eq!(self.ask_store(toll, work, &situation), expected, "{name}, at {now:?}");
                if charged.iter().any(Option::is_some) {
                    self.in_flight.push((work, toll, charged));
                }
            }
            Step::Refund(which) if !self.in_flight.is_empty() => {
                let (work, toll, charged) = self.in_flight.remove(which % self.in_flight.len());
                self.after((work, toll), &charged, now, |rule, record, charged| {
                    rule.limit.refund(record, toll, charged, now);
                    Some((Operation::Refund, toll))
                });
            }
            Step::Settle(cpu) if !self.in_flight.is_empty() => {
                let (work, toll, charged) = self.in_flight.remove(0);
                let actual = Toll { cpu, ..toll };
                self.after((work, toll), &charged, now, |rule, record, charged| {
                    rule.limit.settle(record, toll, actual, charged, now);
                    SharedRule::settlement(rule, toll, actual)
                });
            }
            Step::Refund(_) | Step::Settle(_) => {}
        }
    }

    fn ask_core(&mut self, toll: Toll, situation: &Situation) -> (Decision, Vec<Option<Charge>>) {
        let mut claims: Vec<_> = self
            .rules
            .iter()
            .zip(&self.records)
            .enumerate()
            .map(|(place, (rule, record))| Claim::new(place, rule.rule(), record.clone()))
            .collect();
        let decision = decide(&mut claims, toll, situation);
        let charged = claims.iter().map(|claim| claim.mark.map(|mark| Charge { at: situation.now, mark })).collect();
        self.records = claims.into_iter().map(|claim| claim.record).collect();
        (decision, charged)
    }

    fn ask_store(&mut self, toll: Toll, work: Work, situation: &Situation) -> Decision {
        let errands: Vec<_> = self
            .rules
            .iter()
            .map(|rule| Errand { slot: rule.slot(b"key"), claim: rule.claim(Operation::Decide, toll, work, situation) })
            .collect();
        let reply =
            Reply::parse(self.store.call(&errands, situation.now), core::iter::once(errands.len())).remove(0).unwrap();
        let rules: Vec<_> = self.rules.iter().map(SharedRule::rule).enumerate().collect();
        let (answer, _) = reply.answer(&rules, toll, situation).unwrap();
        assert_eq!(answer.now, situation.now);
        answer.decision
    }

    /// The time until which the store keeps each rule's state, for states that contain it.
    fn kept(&mut self) -> Vec<Option<Moment>> {
        let connection = &mut self.store.connection;
        let kept = |rule: &SharedRule| {
            let state: Vec<u8> = redis::cmd("GET").arg(rule.slot(b"key")).query(connection).unwrap();
            let is_log = matches!(rule.rule().limit, Limit::Window(_) | Limit::InFlight(_));
            let (_, micros) = state.split_last_chunk::<8>()?;
            (!is_log).then(|| Moment::from_nanos(f64::from_le_bytes(*micros) as u64 * 1_000))
        };
        self.rules.iter().map(kept).collect()
    }

    /// Checks that states written since `begun` are kept until they are clear, and not for much longer.
    ///
    /// The server's own clock hardly advances. A state that is overwritten in place is therefore checked by
    /// the expiry that it contains, and that is compared with the server's when the state is written with an
    /// expiry.
    fn assert_kept(&mut self, before: &[(PlainRecord, Option<Moment>)], now: Moment, begun: Instant) {
        let kept = self.kept();
        for (((rule, record), before), kept) in self.rules.iter().zip(&self.records).zip(before).zip(kept) {
            if *record == before.0 {
                continue;
            }
            let life_ms: i64 = redis::cmd("PTTL").arg(rule.slot(b"key")).query(&mut self.store.connection).unwrap();
            assert_ne!(life_ms, -1, "it never expires");
            let life = Span::from_millis(u64::try_from(life_ms).unwrap_or(0) / u64::from(KEPT_TIMES));
            let passed = Span::from(begun.elapsed() / KEPT_TIMES);
            // A request in flight expires when its gate does not renew it; other states when they are clear.
            let mut idle = record.clone();
            let is_at_work = matches!(rule.rule().limit, Limit::InFlight(_)) && record.aux() > 0;
            if is_at_work {
                idle.set_aux(0);
            }
            let owed = rule.rule().clear_at(&idle).since(now);
            let most = if is_at_work { owed.max(WORK_LIFE) } else { owed };
            assert!(life + passed >= owed, "{life:?} of {owed:?} after {passed:?}: {:?}", rule.rule());
            let Some(said) = kept.map(|kept| kept.since(now)) else {
                assert!(life <= most + KEPT_LONGER, "{life:?} for {most:?}: {:?}", rule.rule());
                continue;
            };
            if kept == before.1 {
                assert!(said >= owed + KEPT_LONGER_MIN, "{said:?} of {owed:?}: {:?}", rule.rule());
            } else {
                assert!(said <= most.times(2) + KEPT_LONGER, "{said:?} for {most:?}: {:?}", rule.rule());
                assert!(life <= said && said <= life + passed + Span::from_millis(1), "{life:?} of {said:?}");
            }
        }
    }

    fn after(
        &mut self,
        (work, reserved): (Work, Toll),
        charged: &[Option<Charge>],
        now: Moment,
        mut apply: impl FnMut(&Rule, &mut PlainRecord, Charge) -> Option<(Operation, Toll)>,
    ) {
        let situation = Situation { now, started: self.started, band: Band::Normal };
        let mut errands = Vec::new();
        for ((rule, record), charged) in self.rules.iter().zip(&mut self.records).zip(charged) {
            let Some(charged) = *charged else { continue };
            let Some((operation, toll)) = apply(rule.rule(), record, charged) else { continue };
            let claim = match operation {
                Operation::Refund | Operation::Surplus => rule.refund_claim(operation, (toll, reserved), work, charged),
                _ => rule.claim(operation, toll, work, &situation),
            };
            errands.push(Errand { slot: rule.slot(b"key"), claim });
        }
        self.store.call(&errands, now);
    }
}

fn rule(limit: Limit) -> Rule {
    Rule::new("rule", Class::parse("ip/32").unwrap(), limit)
}

fn limits() -> impl Strategy<Value = Limit> {
    let rates = prop_oneof![
        (1..5_u64).prop_map(|count| (count, Span::from_secs(86_400))),
        (1..2_000_u64).prop_map(|count| (count, Span::from_secs(1))),
        (1..1_000_u64).prop_map(|count| (count, Span::from_secs(60))),
        Just((999_999_937, Span::from_secs(1))),
        Just((1_000_000_000, Span::from_secs(1))),
    ];
    let every = prop_oneof![
        (1..5_000_000_u64).prop_map(|micros| Span::from_nanos(micros * 1_000)),
        Just(Span::from_secs(86_400))
    ];
    prop_oneof![
        (rates, 1..20_u64).prop_map(|((count, period), burst)| Limit::Rate(Rate::new(count, period, burst).unwrap())),
        (1..30_u32, prop_oneof![Just(1_u32), Just(2), Just(5), 1..40_u32], every)
            .prop_map(|(size, drip, every)| Limit::Bucket(Bucket::new(size, drip, every).unwrap())),
        (1..8_000_000_u32, 1..60_000_u64)
            .prop_map(|(millionths, burst)| Limit::Budget(Budget::new(millionths, Span::from_millis(burst)).unwrap())),
        (1..12_u32, 1..20_000_u64, proptest::option::of(0..10_u32)).prop_map(|(max, per, above)| {
            Limit::Window(Window::new(max, Span::from_millis(per), above.map(|above| max + above)).unwrap())
        }),
        (1..5_u32).prop_map(|max| Limit::InFlight(InFlight::new(max).unwrap())),
    ]
}

fn rules() -> impl Strategy<Value = Rule> {
    let escalations =
        (1..5_000_u64, 0..60_000_u64, 1..12_u8, 1..60_000_u64).prop_map(|(backoff, more, levels, release)| {
            let backoffs = (Span::from_millis(backoff), Span::from_millis(backoff + more));
            let multipliers = (Multiplier::new(1_500).unwrap(), Multiplier::new(4_000).unwrap());
            Escalation::new(backoffs, levels, Span::from_millis(release), multipliers).unwrap()
        });
    (
        limits(),
        proptest::option::of(escalations),
        prop_oneof![Just(0_u64), 0..5_000_000_000_u64],
        proptest::option::weighted(0.3, 1..30_000_u64),
        prop_oneof![4 => Just(Mode::Enforce), 1 => Just(Mode::Observe)],
    )
        .prop_map(|(limit, escalation, hold, warmup, mode)| Rule {
            escalation,
            hold_max: Span::from_nanos(hold),
            warmup: warmup.map(Span::from_millis),
            mode,
            ..rule(limit)
        })
}

/// Steps with the time since the previous one.
fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let gap_us = prop_oneof![
        4 => Just(0_u64),
        4 => 0..1_000_000_u64,
        2 => 0..10_000_000_u64,
        1 => 0..400_000_000_u64,
    ];
    let toll = (prop_oneof![8 => Just(1_u64), 1 => 0..5_u64], 0..3_000_000_000_u64)
        .prop_map(|(count, cpu)| Toll { count, cpu: Span::from_nanos(cpu) });
    let band = prop_oneof![Just(Band::Normal), Just(Band::Elevated), Just(Band::Critical)];
    let step = prop_oneof![
        6 => (toll, band).prop_map(|(toll, band)| Step::Ask(toll, band)),
        2 => (0..8_usize).prop_map(Step::Refund),
        1 => (0..3_000_000_000_u64).prop_map(|cpu| Step::Settle(Span::from_nanos(cpu))),
    ];
    prop::collection::vec((gap_us, step), 1..60)
}

/// Runs random rules and steps, the same at every run, and passes each step to `each` when it is due.
fn at_random(seed: u8, cases: u32, mut each: impl FnMut(&mut Both<'_>, Step, Moment)) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]));
    let (mut store, each) = (TestStore::start(), core::cell::RefCell::new(&mut each));
    let store = core::cell::RefCell::new(&mut store);
    runner
        .run(&(prop::collection::vec(rules(), 1..4), steps()), |(rules, steps)| {
            let mut now = Moment::from_nanos(START_US * 1_000);
            let mut store = store.borrow_mut();
            let mut both = Both::new(&mut store, &rules, now);
            for (gap_us, step) in steps {
                now = now + Span::from_nanos(gap_us * 1_000);
                both.pass(now);
                (each.borrow_mut())(&mut both, step, now);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_script_decides_as_the_core_does() {
    at_random(7, 300, |both, step, now| {
        both.step(step, now, "by chance");
    });
}

#[test]
fn a_state_outlives_its_debt_and_expires_soon_after() {
    at_random(13, 150, |both, step, now| {
        let before: Vec<_> = both.records.clone().into_iter().zip(both.kept()).collect();
        let begun = Instant::now();
        both.step(step, now, "by chance");
        both.assert_kept(&before, now, begun);
    });
}

/// Writing an expiry is expensive.
#[test]
fn a_sufficient_expiry_is_not_rewritten() {
    let mut store = TestStore::start();
    let now = Moment::from_nanos(START_US * 1_000);
    let bucket = rule(Limit::Bucket(Bucket::new(20, 1, Span::from_secs(1)).unwrap()));
    let mut both = Both::new(&mut store, core::slice::from_ref(&bucket), now);
    redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut both.store.connection).unwrap();
    for _ in 0..20 {
        both.step(Step::Ask(Toll::ONE, Band::Normal), now, "one after the other");
    }
    let info: String = redis::cmd("INFO").arg("commandstats").query(&mut store.connection).unwrap();
    let calls = |command: &str| {
        let rest = info.split_once(&format!("cmdstat_{command}:calls=")).map(|(_, rest)| rest);
        rest.and_then(|rest| rest.split_once(',')?.0.parse::<u32>().ok()).unwrap_or(0)
    };
    // The debt grows from 1 to 20 seconds, and the expiry doubles each time.
    assert_eq!((calls("set"), calls("setrange")), (4, 16), "{info}");
}

fn escalated(limit: Limit, backoff_ms: u64, release_ms: u64) -> Rule {
    let backoffs = (Span::from_millis(backoff_ms), Span::from_secs(60));
    let twice = Multiplier::new(2_000).unwrap();
    let escalation = Escalation::new(backoffs, 10, Span::from_millis(release_ms), (twice, twice)).unwrap();
    Rule { escalation: Some(escalation), ..rule(limit) }
}

/// One rule of each kind, with a small limit.
fn one_of_each() -> Vec<Rule> {
    let second = Span::from_secs(1);
    vec![
        rule(Limit::Budget(Budget::new(500_000, second).unwrap())),
        rule(Limit::Rate(Rate::new(3, second, 2).unwrap())),
        rule(Limit::Bucket(Bucket::new(5, 2, second).unwrap())),
        rule(Limit::Window(Window::new(3, second, Some(5)).unwrap())),
        rule(Limit::InFlight(InFlight::new(2).unwrap())),
    ]
}

/// Steps by their time in microseconds.
type Steps = Vec<(u64, Step)>;

/// Cases that random tests would rarely find.
fn cases() -> Vec<(&'static str, Rule, Steps)> {
    let ask = Step::Ask(Toll::of_cpu(Span::from_millis(900)), Band::Normal);
    let look = Step::Ask(Toll { count: 0, cpu: Span::ZERO }, Band::Normal);
    let second = Span::from_secs(1);
    let budget = Limit::Budget(Budget::new(500_000, second).unwrap());
    let thirds = Limit::Rate(Rate::new(3, second, 1).unwrap());
    let pair = Limit::Window(Window::new(2, second.times(10), None).unwrap());
    let mut cases = vec![
        // The second violation is 5 ms before the window has room, the one after the longest block long after it.
        (
            "a second violation whose own wait is short",
            escalated(pair, 1_000, 30_000),
            vec![
                (0, ask),
                (5_000, ask),
                (6_000, ask),
                (10_000_000, ask),
                (10_000_001, ask),
                (29_988_001, ask),
                (29_988_002, ask),
                (29_988_003, ask),
                (29_988_004, ask),
                (200_000_000, ask),
                (200_000_001, ask),
                (200_000_002, ask),
            ],
        ),
        ("a check alone violates nothing", escalated(budget, 1, 1_000), vec![(0, ask), (0, ask), (0, look), (0, ask)]),
        (
            "a block that ends within a microsecond",
            escalated(thirds, 1, 100),
            vec![(0, ask), (0, ask), (333_333, ask), (333_334, look), (433_333, ask), (433_333, ask), (433_333, ask)],
        ),
        (
            "a request that ends at twice its cost, and one that ends for free",
            rule(budget),
            vec![(0, ask), (0, Step::Settle(second)), (0, ask), (5, Step::Settle(Span::ZERO)), (9, ask), (9, ask)],
        ),
    ];
    for drip in [1, 2, 5] {
        let bucket = rule(Limit::Bucket(Bucket::new(7, drip, second).unwrap()));
        let hammering = (0..300).map(|step| (step * 33_000, ask)).collect();
        cases.push(("a bucket under continuous requests", bucket, hammering));
    }
    cases
}

#[test]
fn the_script_agrees_on_rare_cases() {
    let mut store = TestStore::start();
    for (name, rule, steps) in cases() {
        let start = Moment::from_nanos(START_US * 1_000);
        let mut both = Both::new(&mut store, core::slice::from_ref(&rule), start);
        for (at_us, step) in steps {
            both.step(step, start + Span::from_nanos(at_us * 1_000), name);
        }
    }
}

#[test]
fn a_clock_that_is_set_back_neither_blocks_nor_unblocks() {
    let mut store = TestStore::start();
    let (toll, late) = (Toll::of_cpu(Span::from_millis(900)), Moment::from_nanos(START_US * 1_000));
    let early = late.before(Span::from_secs(3_600));
    for rule in one_of_each().into_iter().chain([escalated(
        Limit::Rate(Rate::new(1, Span::from_secs(1), 1).unwrap()),
        5_000,
        1_000,
    )]) {
        let mut both = Both::new(&mut store, core::slice::from_ref(&rule), Moment::ZERO);
        let mut ask_at = |now: Moment, request: u64| {
            let situation = Situation { now, started: Moment::ZERO, band: Band::Normal };
            let decision = both.ask_store(toll, Work::new(request << 12), &situation);
            (decision.verdict.is_refusal(), decision.verdict.retry_after(now), decision.info)
        };
        let mut request = 0;
        while !ask_at(late, request).0 {
            request += 1;
        }
        let before = ask_at(late, request);
        assert_eq!(ask_at(early, request), before, "{:?}", rule.limit);
        assert_eq!(ask_at(early, request), before, "{:?}", rule.limit);
    }
}

#[test]
fn requests_in_one_call_are_decided_separately_in_order() {
    let mut store = TestStore::start();
    let now = Moment::from_nanos(START_US * 1_000);
    let situation = Situation { now, started: Moment::ZERO, band: Band::Normal };
    let bucket = Limit::Bucket(Bucket::new(1, 1, Span::from_secs(60)).unwrap());
    let rule = SharedRule::new("test:", "default", rule(bucket)).unwrap();
    let errand = |key: &str| Errand {
        slot: rule.slot(key.as_bytes()),
        claim: rule.claim(Operation::Decide, Toll::ONE, Work::new(0), &situation),
    };
    redis::cmd("RPUSH").arg(rule.slot(b"list")).arg("a").exec(&mut store.connection).unwrap();
    let requests: Vec<Vec<Errand>> = [
        // The first takes the quota, the second finds it used.
        &["a"][..],
        &["a"],
        &["b"],
        // A refusal by one rule charges nothing to the other.
        &["a", "c"],
        &["c"],
        // A foreign value affects only its own request, and charges nothing to the other rule.
        &["d", "list"],
        &["d"],
        &["list"],
        &["e"],
    ]
    .iter()
    .map(|keys| keys.iter().map(|key| errand(key)).collect())
    .collect();
    let requests: Vec<&[Errand]> = requests.iter().map(Vec::as_slice).collect();
    let value = store.call_all(&requests, now);
    let replies = Reply::parse(value, requests.iter().map(|request| request.len()));
    let is_admitted: Vec<_> =
        replies.iter().map(|reply| reply.as_ref().map(|reply| reply.is_admitted).map_err(|why| *why)).collect();
    let (foreign_second, foreign_first) = (Err(ReplyError::Foreign(1)), Err(ReplyError::Foreign(0)));
    assert_eq!(
        is_admitted,
        [Ok(true), Ok(false), Ok(true), Ok(false), Ok(true), foreign_second, Ok(true), foreign_first, Ok(true)]
    );
}

/// Its caller is gone, so nobody would refund the charge. Refunds have no deadline.
#[test]
fn a_call_after_its_deadline_decides_nothing() {
    let mut store = TestStore::start();
    let now = Moment::from_nanos(START_US * 1_000);
    let situation = Situation { now, started: Moment::ZERO, band: Band::Normal };
    let bucket = Limit::Bucket(Bucket::new(1, 1, Span::from_secs(60)).unwrap());
    let rule = SharedRule::new("test:", "default", rule(bucket)).unwrap();
    let errand = |operation| {
        [Errand { slot: rule.slot(b"key"), claim: rule.claim(operation, Toll::ONE, Work::new(0), &situation) }]
    };
    let mut outcomes = |operation, deadline_us| {
        let errands = errand(operation);
        let value = store.call_by(&[&errands, &errands], now, deadline_us);
        Reply::parse(value, [1, 1].into_iter())
            .into_iter()
            .map(|reply| reply.map(|reply| reply.is_admitted))
            .collect::<Vec<_>>()
    };
    let late = Err(ReplyError::Late(now));
    assert_eq!(outcomes(Operation::Decide, Some(START_US - 1)), [late, late]);
    assert_eq!(outcomes(Operation::Decide, Some(START_US)), [Ok(true), Ok(false)], "nothing was charged before");
    assert_eq!(outcomes(Operation::Forget, Some(START_US - 1)), [Ok(true), Ok(true)]);
    assert_eq!(outcomes(Operation::Decide, None), [Ok(true), Ok(false)]);
}

/// A request of a test: its rules and keys, the operation, and the count.
type TestRequest = (Vec<(usize, u8)>, Operation, u64);

fn test_requests() -> impl Strategy<Value = Vec<TestRequest>> {
    let operation = prop_oneof![
        6 => Just(Operation::Decide),
        1 => Just(Operation::Charge),
        1 => Just(Operation::Refund),
        1 => Just(Operation::Read),
        1 => Just(Operation::Forget),
    ];
    prop::collection::vec((prop::collection::vec((0..3_usize, 0..2_u8), 1..4), operation, 0..4_u64), 1..12)
}

#[test]
fn one_call_for_many_requests_equals_many_calls() {
    let mut store = TestStore::start();
    let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[11; 32]));
    let strategy = (prop::collection::vec(rules(), 3), prop::collection::vec(test_requests(), 1..4));
    let store = core::cell::RefCell::new(&mut store);
    runner
        .run(&strategy, |(rules, rounds)| {
            let mut store = store.borrow_mut();
            redis::cmd("FLUSHDB").exec(&mut store.connection).unwrap();
            let mut now = Moment::from_nanos(START_US * 1_000);
            let shared = ["one:", "each:"].map(|prefix| {
                let shared = rules.iter().map(|rule| SharedRule::new(prefix, "default", rule.clone()).unwrap());
                shared.collect::<Vec<_>>()
            });
            for test_requests in rounds {
                now = now + Span::from_millis(37);
                let situation = Situation { now, started: Moment::ZERO, band: Band::Normal };
                let [one, each] = shared.each_ref().map(|rules| {
                    let errand = |(rule, key): &(usize, u8), operation, count| Errand {
                        slot: rules[*rule].slot(&[*key]),
                        claim: rules[*rule].claim(
                            operation,
                            Toll { count, cpu: Span::from_millis(10 * count) },
                            Work::new(1 << 20),
                            &situation,
                        ),
                    };
                    let errands = |(asked, operation, count): &TestRequest| {
                        asked.iter().map(|asked| errand(asked, *operation, *count)).collect::<Vec<_>>()
                    };
                    test_requests.iter().map(errands).collect::<Vec<_>>()
                });
                let requests: Vec<&[Errand]> = one.iter().map(Vec::as_slice).collect();
                let together =
                    Reply::parse(store.call_all(&requests, now), requests.iter().map(|errands| errands.len()));
                let mut alone = Vec::new();
                for errands in &each {
                    alone.extend(Reply::parse(store.call(errands, now), [errands.len()].into_iter()));
                }
                prop_assert_eq!(together, alone);
            }
            Ok(())
        })
        .unwrap();
}
