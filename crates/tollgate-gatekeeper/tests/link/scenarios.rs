//! A limiter with a link, and a master that the test controls.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tollgate_core::band::Band;
use tollgate_core::class::Class;
use tollgate_core::decision::Verdict;
use tollgate_core::limit::{Limit, Rate};
use tollgate_core::request::Request;
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::time::Span;
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::hash::Seed;
use tollgate_gatekeeper::limiter::{Limiter, Plan};
use tollgate_gatekeeper::link::{Endpoint, Link, LinkSettings, LinkedRule, MasterReport, MasterSettings};
use tollgate_wire::smockron;

use crate::peer::{Master, PATIENCE};

/// The timeout until the buffers between a link and a master are full.
const OVERRUN_MAX: Duration = Duration::from_secs(120);

struct From(IpAddr);

impl Request for From {
    fn client(&self) -> Option<IpAddr> {
        Some(self.0)
    }
    fn method(&self) -> &[u8] {
        b"GET"
    }
    fn target(&self) -> &[u8] {
        b"/"
    }
}

/// Ten per second with a burst of `burst`; held for up to five seconds.
struct Gate {
    limiter: Arc<Limiter>,
    link: Link,
    clock: Clock,
}

impl Gate {
    fn linked_to([accounting, control]: [SocketAddr; 2], burst: u64) -> Self {
        let endpoint = |address: SocketAddr| Endpoint::parse(&address.to_string()).unwrap();
        let clock = Clock::start();
        let settings = LinkSettings {
            masters: vec![MasterSettings {
                accounting: endpoint(accounting),
                control: endpoint(control),
                key: None,
                rules: vec![LinkedRule { rule: "each".into(), domain: "default".into() }],
            }],
            refusals_sampled: Some(1),
            identifiers_max: 1000,
            keys: None,
            log_info: false,
        };
        let link = Link::start(settings, clock.clone()).unwrap();
        let rule = Rule {
            name: "each".into(),
            when: Default::default(),
            unless: Vec::new(),
            class: Class::parse("ip/32").unwrap(),
            limit: Limit::Rate(Rate::new(10, Span::from_secs(1), burst).unwrap()),
            escalation: None,
            warmup: None,
            hold_max: Span::from_secs(5),
            mode: Mode::Enforce,
        };
        let plan = Plan { rules: vec![(rule, 1 << 16)], started: clock.now(), seed: Seed::random(), names_max: 16 };
        let mut limiter = Limiter::new(plan).unwrap();
        limiter.report_to(&link.relay);
        let limiter = Arc::new(limiter);
        let known = Arc::downgrade(&limiter);
        link.begin(Box::new(move |rule, identifier, instruction, now| {
            if let Some(limiter) = known.upgrade() {
                assert!(limiter.obey(rule, identifier, instruction, now));
            }
        }));
        Self { limiter, link, clock }
    }

    /// The wait of a request of this client; an error for a refusal.
    fn ask(&self, client: &str) -> Result<Span, Span> {
        let (request, now) = (From(client.parse().unwrap()), self.clock.now());
        let (decision, mut ticket) = self.limiter.decide(&request, Toll::ONE, Band::Normal, now);
        self.limiter.report(&request, &decision, &mut ticket, now);
        self.limiter.settle(ticket, Toll::ONE, now);
        match decision.verdict {
            Verdict::Admit => Ok(Span::ZERO),
            Verdict::Hold(until) => Ok(until.since(now)),
            verdict => Err(verdict.retry_after(now)),
        }
    }

    fn report(&self) -> MasterReport {
        self.link.masters().next().unwrap().1
    }

    fn until(&self, what: &str, is_so: impl Fn(MasterReport) -> bool) -> MasterReport {
        let end = Instant::now() + PATIENCE;
        while !is_so(self.report()) {
            assert!(Instant::now() < end, "{what}: {:?}", self.report());
            std::thread::sleep(Duration::from_millis(5));
        }
        self.report()
    }

    /// Sends requests of different clients until the link drops reports that a master does not read. Returns
    /// their number.
    fn overrun(&self) -> u64 {
        let (begin, mut asked) = (Instant::now(), 0_u32);
        while self.report().reports_dropped_behind == 0 {
            assert!(begin.elapsed() < OVERRUN_MAX, "what cannot be sent is not dropped: {:?}", self.report());
            for _ in 0..1000 {
                let asks = Instant::now();
                let _ = self.ask(&IpAddr::from(asked.to_be_bytes()).to_string());
                // The machine may be busy; a wait for the master would never end.
                assert!(asks.elapsed() < Duration::from_secs(10), "{:?}", asks.elapsed());
                asked += 1;
            }
        }
        u64::from(asked)
    }

    /// Waits until a report would be received.
    fn until_heard(&self) {
        self.until("the link is not up", |report| report.accounting_up && report.control_up);
        // The master's subscription is in transit.
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

#[test]
fn an_original_master_gets_one_smockron_message_per_request() {
    let master = Master::open();
    let gate = Gate::linked_to(master.addresses(), 3);
    let (mut accounting, _control) = (master.hear(), master.speak(3));
    gate.until_heard();
    for _ in 0..64 {
        let _ = gate.ask("203.0.113.7");
    }
    let mut heard = Vec::new();
    while heard.len() < 64 {
        heard.extend(accounting.messages());
    }
    let statuses = |word: &[u8]| heard.iter().filter(|frames| frames[1] == word).count();
    assert_eq!((statuses(b"ACCEPTED"), statuses(b"DELAYED"), statuses(b"REJECTED")), (3, 50, 11));
    for frames in &heard {
        assert_eq!((frames[0].as_slice(), frames[2].as_slice()), (&b"default\0"[..], &b"203.0.113.7"[..]));
        let received: u64 = std::str::from_utf8(&frames[3]).unwrap().parse().unwrap();
        assert!(received.abs_diff(wall_ms()) < 5000);
        assert_eq!(frames[4].is_empty(), frames[1] != b"DELAYED");
    }
}

#[test]
fn a_client_that_an_original_master_delays_is_held_in_intervals() {
    let master = Master::open();
    let gate = Gate::linked_to(master.addresses(), 3);
    let mut control = master.speak(3);
    assert!(control.topics.contains(&b"default\0".to_vec()), "{:?}", control.topics);
    let until = wall_ms() + 2000;
    control.say(&[b"default\0", b"DELAY_UNTIL", b"203.0.113.7", until.to_string().as_bytes()]);
    gate.until("the order is not carried out", |report| report.orders == 1);
    let waits: Vec<_> = (0..5).map(|_| gate.ask("203.0.113.7").unwrap()).collect();
    let expected = Span::from_millis(until.saturating_sub(wall_ms()));
    assert!(waits[0] <= expected + Span::from_millis(5) && waits[0] + Span::from_millis(500) > expected, "{waits:?}");
    for pair in waits.windows(2) {
        let apart = pair[1].as_nanos().abs_diff(pair[0].as_nanos() + 100_000_000);
        assert!(apart < 20_000_000, "{waits:?}");
    }
    assert_eq!(gate.ask("203.0.113.8"), Ok(Span::ZERO), "a neighbour is not delayed");
}

#[test]
fn fault_37_nothing_is_kept_for_an_unreachable_master() {
    let master = Master::open();
    let addresses = master.addresses();
    drop(master);
    let gate = Gate::linked_to(addresses, 1000);
    (0..500).for_each(|_| assert!(gate.ask("203.0.113.7").is_ok()));
    let report = gate.until("what is not heard is dropped", |report| report.reports_dropped_away >= 500);
    assert_eq!(report.reports_sent, 0);
    let master = Master::open_at(addresses);
    let mut accounting = master.hear();
    gate.until("no connection", |report| report.accounting_up);
    assert!(accounting.is_quiet(Duration::from_millis(1500)), "an outage is charged afterwards");
    gate.ask("203.0.113.7").unwrap();
    assert_eq!(accounting.messages().len(), 1);
}

#[test]
fn a_link_reconnects_to_its_master() {
    let master = Master::open();
    let addresses = master.addresses();
    let gate = Gate::linked_to(addresses, 1000);
    let talks = (master.hear(), master.speak(3));
    gate.until_heard();
    drop((talks, master));
    gate.until("the loss is not noticed", |report| !report.accounting_up && !report.control_up);
    let master = Master::open_at(addresses);
    let (mut accounting, mut control) = (master.hear(), master.speak(3));
    gate.until_heard();
    gate.ask("203.0.113.7").unwrap();
    assert_eq!(accounting.messages()[0][1], b"ACCEPTED");
    let until = (wall_ms() + 60_000).to_string();
    control.say(&[b"default\0", b"DELAY_UNTIL", b"203.0.113.7", until.as_bytes()]);
    gate.until("no order", |report| report.orders == 1);
    assert!(gate.ask("203.0.113.7").is_err());
}

#[test]
fn fault_34_invalid_orders_are_counted_and_blocks_are_capped() {
    let master = Master::open();
    let gate = Gate::linked_to(master.addresses(), 10);
    let mut control = master.speak(3);
    let (late, long) = ((wall_ms() + 60_000).to_string(), vec![b'x'; 60_000]);
    let late = late.as_bytes();
    let nonsense: [&[&[u8]]; 9] = [
        &[b"default\0", b"DELAY_UNTIL", b"203.0.113.7", b"0"],
        &[b"default\0", b"DELAY_UNTIL", b"203.0.113.7", b"-1"],
        &[b"default\0", b"DELAY_UNTIL", b"203.0.113.7", b"tomorrow"],
        &[b"default\0", b"DELAY_UNTIL", b"", late],
        &[b"default\0", b"DELAY_UNTIL", &long, late],
        &[b"default\0", b"DELAY_UNTIL", b"203.0.113.7"],
        &[b"default\0", b"DELAY_UNTIL", b"203.0.113.7", late, b"more"],
        &[b"default\0", b"DELETE", b"203.0.113.7", late],
        &[b"def\0ault\0", b"DELAY_UNTIL", b"203.0.113.7", late],
    ];
    nonsense.iter().for_each(|frames| control.say(frames));
    // Another domain: no error, and ignored by this gate.
    control.say(&[b"elsewhere\0", b"DELAY_UNTIL", b"203.0.113.7", late]);
    let report = gate.until("faults are not counted", |report| report.order_faults == 9);
    assert_eq!(report.orders, 0);
    assert_eq!(gate.ask("203.0.113.7"), Ok(Span::ZERO));
    // The year 9999.
    control.say(&[b"default\0", b"DELAY_UNTIL", b"203.0.113.7", b"253402300799000"]);
    gate.until("no order", |report| report.orders == 1);
    let wait = gate.ask("203.0.113.7").unwrap_err();
    assert!(wait <= Span::from_secs(3600) && wait > Span::from_secs(3590), "{wait:?}");
}

#[test]
fn a_master_that_sends_garbage_is_disconnected_and_retried() {
    let master = Master::open();
    let gate = Gate::linked_to(master.addresses(), 10);
    let mut control = master.speak(3);
    // A frame of an exabyte.
    control.say_raw(&[2, 0x10, 0, 0, 0, 0, 0, 0, 0]);
    gate.until("it is not left", |report| report.failures >= 1);
    let mut control = master.speak(3);
    let until = (wall_ms() + 60_000).to_string();
    control.say(&[b"default\0", b"DELAY_UNTIL", b"203.0.113.7", until.as_bytes()]);
    gate.until("no order", |report| report.orders == 1);
}

#[test]
fn fault_40_a_master_that_does_not_read_delays_no_request() {
    let master = Master::open_narrow();
    let gate = Gate::linked_to(master.addresses(), 1_000_000);
    let (accounting, _control) = (master.hear(), master.speak(3));
    gate.until_heard();
    gate.overrun();
    drop(accounting);
}

#[test]
fn fault_37_unsent_reports_are_not_kept_for_the_next_master() {
    let master = Master::open_narrow();
    let gate = Gate::linked_to(master.addresses(), 1_000_000);
    let (accounting, _control) = (master.hear(), master.speak(3));
    gate.until_heard();
    let asked = gate.overrun();
    gate.until("not everything is carried on", |report| {
        let dropped = report.reports_dropped_behind + report.reports_dropped_away + gate.link.relay.dropped();
        report.reports_sent + dropped >= asked
    });
    drop(accounting);
    let mut accounting = master.hear();
    gate.until("no connection", |report| report.accounting_up);
    assert!(accounting.is_quiet(Duration::from_millis(1000)), "what waited for a master goes to the next");
}

#[test]
fn fault_37_nothing_is_sent_to_a_silent_tollgate_master() {
    let master = Master::open();
    let gate = Gate::linked_to(master.addresses(), 1000);
    let (mut accounting, mut control) = (master.hear(), master.speak(3));
    gate.until_heard();
    control.beacon(Instant::now());
    gate.until("a beacon is not heard", |report| report.heard);
    gate.until("silence is not noticed", |report| !report.heard);
    let sent = gate.report().reports_sent;
    gate.ask("203.0.113.7").unwrap();
    let report = gate.until("it is not dropped", |report| report.reports_dropped_away > 0);
    assert!(report.accounting_up, "the connection stands");
    assert_eq!(report.reports_sent, sent);
    assert!(accounting.is_quiet(Duration::from_millis(500)));
}

#[test]
fn fault_40_a_slow_tollgate_master_gets_the_latest_counts() {
    const CLIENTS: u64 = 500;
    let master = Master::open_narrow();
    let gate = Gate::linked_to(master.addresses(), 1_000_000);
    let (mut accounting, mut control) = (master.hear(), master.speak(3));
    gate.until_heard();
    let (stop, since) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                control.beacon(since);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let _stop = Stop(&stop);
        gate.until("a beacon is not heard", |report| report.heard);
        // Until the link has sent nothing for a while, although all clients sent again.
        let (mut asked, mut stuck) = (0, 0);
        while stuck < 20 {
            assert!(since.elapsed() < OVERRUN_MAX, "there is no end to what is sent: {:?}", gate.report());
            let sent = gate.report().reports_sent;
            (0..CLIENTS as u32).for_each(|client| {
                gate.ask(&IpAddr::from(client.to_be_bytes()).to_string()).unwrap();
            });
            asked += CLIENTS;
            stuck = if gate.report().reports_sent == sent { stuck + 1 } else { 0 };
        }
        let expected = asked - gate.link.relay.dropped();
        // The largest total of every count. A client without debt starts a new count.
        let mut totals: HashMap<(Vec<u8>, u64), u64> = HashMap::new();
        while totals.values().sum::<u64>() < expected {
            for frames in accounting.messages() {
                let frames: Vec<_> = frames.iter().map(Vec::as_slice).collect();
                let report = smockron::read_report(&frames).unwrap();
                let tally = report.tally.unwrap();
                let total = totals.entry((report.identifier.to_vec(), tally.serial)).or_default();
                *total = tally.total.count.max(*total);
            }
        }
        assert_eq!(totals.values().sum::<u64>(), expected);
        let report = gate.report();
        assert_eq!((report.reports_dropped_behind, report.reports_dropped_away), (0, 0));
    });
}

/// Stops a thread even if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
