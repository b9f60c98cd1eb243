//! Requests that several gates park and cancel do not allow more than the limit.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use tollgate_core::band::Band;
use tollgate_core::limit::{Limit, Rate};
use tollgate_core::time::Span;
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::shared::{Options, SharedTicket, StoreTicket};

use crate::fixtures::*;
use crate::law::{assert_within, laws};
use crate::limiter::{CALLER, leasing_gate};
use crate::redis_server::RedisServer;

const GATES: usize = 2;
const TASKS: usize = 4;
const LASTS: Duration = Duration::from_secs(6);

/// Requests are parked in the first half of this time, and cancelled and replaced in the second half.
const CYCLE: Duration = Duration::from_secs(3);

/// Admitted requests that are not forwarded.
struct Parked<T> {
    tickets: Vec<T>,
    start: Instant,
}

impl<T> Parked<T> {
    const fn new(start: Instant) -> Self {
        Self { tickets: Vec::new(), start }
    }

    fn is_parking(&self) -> bool {
        self.start.elapsed().as_millis() % CYCLE.as_millis() < CYCLE.as_millis() / 2
    }

    /// Keeps the ticket for later, or returns it for a request to forward.
    fn park(&mut self, ticket: T) -> Option<T> {
        if self.is_parking() {
            self.tickets.push(ticket);
            return None;
        }
        Some(ticket)
    }

    /// A ticket to cancel now.
    fn due(&mut self) -> Option<T> {
        if self.is_parking() { None } else { self.tickets.pop() }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarded_requests_stay_within_the_limit_with_late_refunds() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let laws = laws();
    let rules: Arc<Vec<_>> = Arc::new(laws.iter().map(|law| shared(rule(law.name, law.limit))).collect());
    let start = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..GATES {
        let store = open(&server.url(), Options { waiting_max: 10_000, ..PATIENT });
        for _ in 0..TASKS {
            let (store, rules) = (store.clone(), Arc::clone(&rules));
            tasks.push(tokio::spawn(async move {
                let mut parked: Vec<Parked<StoreTicket>> = rules.iter().map(|_| Parked::new(start)).collect();
                let mut forwarded = Vec::new();
                while start.elapsed() < LASTS {
                    for (which, (rule, parked)) in rules.iter().zip(&mut parked).enumerate() {
                        if let Some(ticket) = parked.due() {
                            ticket.refund();
                        }
                        let asked = start.elapsed().as_secs_f64();
                        let Some(ticket) = ask(&store, &[(rule, b"key")]).await.unwrap() else { continue };
                        if parked.park(ticket).is_some() {
                            forwarded.push((which, asked, start.elapsed().as_secs_f64()));
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(3)).await;
                }
                forwarded
            }));
        }
    }
    let mut forwarded = vec![Vec::new(); laws.len()];
    for task in tasks {
        for (which, asked, answered) in task.await.unwrap() {
            forwarded[which].push((asked, answered));
        }
    }
    for (law, forwarded) in laws.iter().zip(&mut forwarded) {
        assert!(forwarded.len() > 10, "{}", law.name);
        assert_within(forwarded, law.most, law.name);
    }
}

/// Slices are charged in advance, and their requests may be forwarded later by the lifetime of a slice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refunds_with_leases_exceed_the_limit_by_at_most_the_leases() {
    const SLICE: u64 = 4;
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let limit = Limit::Rate(Rate::new(10, Span::from_secs(1), 20).unwrap());
    let start = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..GATES {
        let limiter = Arc::new(leasing_gate(&server.url(), PATIENT, &[], &[rule("leased", limit)], Some(200_000)));
        for _ in 0..TASKS {
            let limiter = Arc::clone(&limiter);
            tasks.push(tokio::spawn(async move {
                let mut parked: Parked<SharedTicket> = Parked::new(start);
                let mut forwarded = Vec::new();
                while start.elapsed() < LASTS {
                    if let Some(ticket) = parked.due() {
                        limiter.refund(ticket);
                    }
                    let asked = start.elapsed().as_secs_f64();
                    let (decision, ticket) = limiter.decide(&CALLER, Toll::ONE, Band::Normal).await;
                    if decision.verdict.is_refusal() {
                        limiter.settle(ticket, Toll::ONE);
                    } else if let Some(ticket) = parked.park(ticket) {
                        limiter.settle(ticket, Toll::ONE);
                        forwarded.push((asked, start.elapsed().as_secs_f64()));
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                parked.tickets.into_iter().for_each(|ticket| limiter.settle(ticket, Toll::ONE));
                forwarded
            }));
        }
    }
    let mut forwarded = Vec::new();
    for task in tasks {
        forwarded.extend(task.await.unwrap());
    }
    assert!(forwarded.len() > 10);
    let leased = (GATES as u64 * SLICE) as f64;
    assert_within(&mut forwarded, |secs| 20.0 + secs * 10.0 + leased, "leased");
}
