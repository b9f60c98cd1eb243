//! Rules and stores for the tests.

use core::time::Duration;
use std::sync::Arc;

use tollgate_core::band::Band;
use tollgate_core::class::Class;
use tollgate_core::decide::{Claim, decide};
use tollgate_core::limit::{Bucket, Budget, InFlight, Limit, Rate, Window};
use tollgate_core::record::PlainRecord;
use tollgate_core::rule::{Rule, Situation};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::shared::{Address, AskedRule, Options, SharedRule, Store, StoreTicket, Unanswered};

/// Serializes tests that measure time or use the whole machine.
pub(crate) static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

pub(crate) const DAY: Span = Span::from_secs(86_400);
/// The cost of every request, for budgets.
pub(crate) const TOLL: Toll = Toll::of_cpu(Span::from_millis(10));
pub(crate) const SITUATION: Situation = Situation { now: Moment::MAX, started: Moment::ZERO, band: Band::Normal };

/// Options with deadlines so long that only the store decides.
pub(crate) const PATIENT: Options =
    Options { deadline: Duration::from_secs(30), wait: Duration::from_secs(30), waiting_max: 8_192, connections: 2 };

pub(crate) fn rule(name: &str, limit: Limit) -> Rule {
    Rule::new(name, Class::parse("ip/32").unwrap(), limit)
}

/// Limits of about `size` that do not refill within a test, by name.
pub(crate) const LIMITS: [&str; 7] = ["budget", "rate", "drip-1", "drip-2", "drip-5", "window", "in-flight"];

pub(crate) fn limit(name: &str, size: u32) -> Limit {
    match name {
        "budget" => Limit::Budget(Budget::new(1, Span::from_millis(10 * u64::from(size))).unwrap()),
        "rate" => Limit::Rate(Rate::new(1, DAY, u64::from(size)).unwrap()),
        "drip-1" => Limit::Bucket(Bucket::new(size, 1, DAY).unwrap()),
        "drip-2" => Limit::Bucket(Bucket::new(size, 2, DAY).unwrap()),
        "drip-5" => Limit::Bucket(Bucket::new(size, 5, DAY).unwrap()),
        "window" => Limit::Window(Window::new(size, DAY, None).unwrap()),
        "in-flight" => Limit::InFlight(InFlight::new(size).unwrap()),
        other => panic!("no limit is called {other}"),
    }
}

/// The number of concurrent requests that the core itself admits.
pub(crate) fn room(rule: &Rule) -> usize {
    let mut record = PlainRecord::new(rule.words());
    let situation = Situation { now: Moment::from_millis(1_000_000), ..SITUATION };
    (0..10_000)
        .take_while(|_| {
            let mut claims = [Claim::new(0, rule, record.clone())];
            let decision = decide(&mut claims, TOLL, &situation);
            let [claim] = claims;
            record = claim.record;
            !decision.verdict.is_refusal()
        })
        .count()
}

pub(crate) fn shared(rule: Rule) -> Arc<SharedRule> {
    Arc::new(SharedRule::new("test:", "default", rule).unwrap())
}

pub(crate) fn open(url: &str, options: Options) -> Store {
    Store::open(Address::parse(url, None).unwrap(), options)
}

/// Asks once. Returns the ticket if the request was admitted.
pub(crate) async fn ask(store: &Store, rules: &[(&Arc<SharedRule>, &[u8])]) -> Result<Option<StoreTicket>, Unanswered> {
    let asked = rules.iter().enumerate().map(|(place, (rule, key))| AskedRule::new(place, rule, key)).collect();
    let (answer, ticket) = store.decide(asked, TOLL, &SITUATION).await?;
    Ok((!answer.decision.verdict.is_refusal()).then_some(ticket))
}

/// Longer than any test on a busy machine with stalls.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < LONG, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
