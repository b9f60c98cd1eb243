//! Decisions, settlements and refunds do not allocate.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::IpAddr;

use tollgate_core::band::Band;
use tollgate_core::class::Class;
use tollgate_core::condition::Condition;
use tollgate_core::limit::{Bucket, Budget, InFlight, Limit, Rate, Window};
use tollgate_core::request::Request;
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::hash::Seed;
use tollgate_gatekeeper::limiter::{Limiter, Plan};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all calls are passed to the system's allocator and counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

struct Visitor(u32);

impl Request for Visitor {
    fn client(&self) -> Option<IpAddr> {
        Some(IpAddr::from(self.0.to_be_bytes()))
    }

    fn method(&self) -> &[u8] {
        b"GET"
    }

    fn target(&self) -> &[u8] {
        b"/articles/4711?page=2"
    }

    fn host(&self) -> Option<&[u8]> {
        Some(b"example.org")
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        match name {
            "user-agent" => Some(b"a browser with a name that is rather long, so that it does not fit in a few words"),
            "cookie" => Some(b"a=b; sid=0123456789abcdef"),
            _ => None,
        }
    }
}

#[test]
fn a_decision_and_its_end_allocate_nothing() {
    let limits = [
        ("ip/32", Limit::Rate(Rate::new(5, Span::from_secs(1), 5).unwrap())),
        ("ip/24", Limit::Bucket(Bucket::new(100, 10, Span::from_secs(1)).unwrap())),
        ("user-agent", Limit::Budget(Budget::new(100_000, Span::from_secs(30)).unwrap())),
        ("cookie:sid", Limit::Window(Window::new(50, Span::from_secs(1), Some(60)).unwrap())),
        ("method+path", Limit::InFlight(InFlight::new(100_000).unwrap())),
    ];
    let rules = limits.map(|(class, limit)| Rule {
        name: class.into(),
        when: Condition::default(),
        unless: Vec::new(),
        class: Class::parse(class).unwrap(),
        limit,
        escalation: None,
        warmup: None,
        hold_max: Span::from_millis(100),
        mode: Mode::Enforce,
    });
    let plan = Plan {
        rules: rules.map(|rule| (rule, 64 << 10)).to_vec(),
        started: Moment::ZERO,
        seed: Seed::random(),
        names_max: 64,
    };
    let limiter = Limiter::new(plan).unwrap();
    let clock = Clock::start();
    let toll = Toll::of_cpu(Span::from_millis(3));
    let before = ALLOCATIONS.get();
    let mut refused = 0;
    for number in 0..20_000_u32 {
        let visitor = Visitor(number % 3_000);
        let (decision, ticket) = limiter.decide(&visitor, toll, Band::Normal, clock.now());
        refused += u32::from(decision.verdict.is_refusal());
        if number % 3 == 0 {
            limiter.refund(ticket, clock.now());
        } else {
            limiter.settle(ticket, toll, clock.now());
        }
        let (_, ticket) = limiter.decide_key(0, &number.to_le_bytes(), toll, Band::Normal, || clock.now()).unwrap();
        limiter.settle(ticket, toll, clock.now());
        limiter.explain(&visitor, toll, Band::Normal, clock.now());
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(refused > 0 && refused < 20_000, "{refused} refused: both ways are to be tried");
}
