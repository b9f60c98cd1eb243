//! The cost of the fair queue: one event pair (arrive, done) behind a mutex with 1 to 16 threads, and one
//! dispatch with many waiting requests.
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tollgate_core::queue::{Arrival, Client, Event, Queue, Request, RouteKey, Settings};
use tollgate_core::time::{Moment, Span};
use tollgate_core::virtual_clock::Cores;

const ROUNDS: usize = 15;
const THREADS: [usize; 4] = [1, 2, 4, 16];
const WAITING: [usize; 3] = [100, 1_000, 10_000];
/// Event pairs per thread and round.
const PAIRS: u64 = 100_000;
/// Dispatches per round.
const DISPATCHES: usize = 20_000;

fn main() {
    println!("one request (arrive, done), {ROUNDS} rounds, medians\n");
    println!("| threads | ns per request | of that under the lock |\n|---|---|---|");
    for threads in THREADS {
        let rounds: Vec<(f64, f64)> = (0..ROUNDS).map(|_| pairs(threads)).collect();
        let all = median(rounds.iter().map(|round| round.0));
        let locked = median(rounds.iter().map(|round| round.1));
        println!("| {threads} | {all:.0} | {locked:.0} |");
    }
    println!("\none dispatch (done, poll, arrive) with so many waiting\n");
    println!("| waiting | clients | ns per dispatch |\n|---|---|---|");
    for waiting in WAITING {
        for clients in [1, 100, 5_000] {
            let nanos = median((0..ROUNDS).map(|_| dispatches(waiting, clients)));
            println!("| {waiting} | {clients} | {nanos:.0} |");
        }
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn request(client: u64, route: u64) -> Request {
    let hash = |level: u64, value: u64| (level << 60 | value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let client = Client {
        block: hash(1, client >> 16),
        network: hash(2, client >> 8),
        address: hash(3, client),
        tenant: hash(4, client),
    };
    Request {
        client,
        route: RouteKey { route: hash(5, route), parent: hash(6, route / 8) },
        weight_milli: 1000,
        bytes: 1000,
    }
}

/// Nanoseconds per request of each thread, and those spent with the lock held.
fn pairs(threads: usize) -> (f64, f64) {
    let start = Instant::now();
    let now = || Moment::from_nanos(start.elapsed().as_nanos() as u64);
    let settings = Settings { cores: Cores::whole(64), in_flight: Some(4096), ..Settings::default() };
    let queue = Mutex::new(Queue::new(settings, now()));
    let spent: Vec<(Duration, Duration)> = std::thread::scope(|scope| {
        let worker = |thread: u64| {
            let (queue, now) = (&queue, &now);
            move || {
                let (began, mut locked) = (Instant::now(), Duration::ZERO);
                for pair in 0..PAIRS {
                    let mut guard = queue.lock().unwrap_or_else(|poison| poison.into_inner());
                    let since = Instant::now();
                    let arrival = guard.arrive(request(thread * PAIRS + pair % 1000, pair % 50), now());
                    let _ = black_box(guard.poll(now()));
                    locked += since.elapsed();
                    drop(guard);
                    let Arrival::Go(ticket) = arrival else { continue };
                    let mut guard = queue.lock().unwrap_or_else(|poison| poison.into_inner());
                    let since = Instant::now();
                    let toll = guard.so_far(ticket, now());
                    guard.done(ticket, toll, true, now());
                    let _ = black_box(guard.poll(now()));
                    locked += since.elapsed();
                }
                (began.elapsed(), locked)
            }
        };
        let handles: Vec<_> = (0..threads as u64).map(|thread| scope.spawn(worker(thread))).collect();
        handles.into_iter().filter_map(|handle| handle.join().ok()).collect()
    });
    let per_request = |sum: Duration| sum.as_nanos() as f64 / (threads as u64 * PAIRS) as f64;
    (per_request(spent.iter().map(|spent| spent.0).sum()), per_request(spent.iter().map(|spent| spent.1).sum()))
}

/// Nanoseconds per dispatch while this many requests of this many clients wait.
fn dispatches(waiting: usize, clients: u64) -> f64 {
    let mut now = Moment::from_millis(1);
    let hold_max = Span::from_secs(1_000_000);
    let settings = Settings { in_flight: Some(8), hold_max, memory: u64::MAX, ..Settings::default() };
    let mut queue = Queue::new(settings, now);
    let mut in_flight = std::collections::VecDeque::new();
    let mut next = 0u64;
    while queue.waiting() < waiting {
        next += 1;
        if let Arrival::Go(ticket) = queue.arrive(request(next * 257 % (clients * 257), next % 50), now) {
            in_flight.push_back(ticket);
        }
    }
    let began = Instant::now();
    for _ in 0..DISPATCHES {
        now = now + Span::from_nanos(500_000);
        let Some(ticket) = in_flight.pop_front() else { break };
        queue.done(ticket, Span::from_millis(4), true, now);
        while let Some(event) = queue.poll(now) {
            if let Event::Go(ticket) = event {
                in_flight.push_back(ticket);
            }
        }
        next += 1;
        let _ = black_box(queue.arrive(request(next * 257 % (clients * 257), next % 50), now));
    }
    began.elapsed().as_nanos() as f64 / DISPATCHES as f64
}
