//! The cost of the tower layer per request: the same service with and without it, in turns. With the argument
//! `link`, the cost of the link to a master.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "the output is a table")]

mod link;

use core::convert::Infallible;
use core::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use http::{Request, Response};
use tollgate_core::class::Class;
use tollgate_core::limit::{Limit, Rate};
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::hash::Seed;
use tollgate_gatekeeper::limiter::Plan;
use tollgate_gatekeeper::tower::{Keeper, KeeperLayer};
use tower::{Layer, Service, service_fn};

const ROUNDS: usize = 9;
const REQUESTS: u32 = 500_000;
const CALLERS: u32 = 10_000;

/// One rule that admits every request (`per_second` is large) or almost none.
fn plan(per_second: u64) -> Plan {
    let rule = Rule {
        name: "each".into(),
        when: Default::default(),
        unless: Vec::new(),
        class: Class::parse("ip/32").unwrap(),
        limit: Limit::Rate(Rate::new(per_second, Span::from_secs(1), per_second).unwrap()),
        escalation: None,
        warmup: None,
        hold_max: Span::ZERO,
        mode: Mode::Enforce,
    };
    Plan { rules: vec![(rule, 1 << 22)], started: Moment::ZERO, seed: Seed::random(), names_max: 64 }
}

fn layer(per_second: u64) -> KeeperLayer {
    KeeperLayer::new(Keeper::new(plan(per_second)).unwrap())
}

/// A service that does nothing.
fn inner() -> impl Service<Request<()>, Response = Response<()>, Error = Infallible> + Clone {
    service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) })
}

/// Nanoseconds for each request.
async fn run<S>(mut service: S, requests: u32) -> f64
where
    S: Service<Request<()>, Response = Response<()>, Error = Infallible>,
{
    let begin = Instant::now();
    for number in 0..requests {
        let mut request = Request::new(());
        request.extensions_mut().insert(IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number % CALLERS)));
        core::future::poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
        core::hint::black_box(service.call(request).await.unwrap());
    }
    begin.elapsed().as_nanos() as f64 / f64::from(requests)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    if std::env::args().nth(1).as_deref() == Some("link") {
        return link::table(&runtime);
    }
    let inner = inner();
    let (open, quiet, closed) = (layer(1_000_000), layer(1_000_000).headers(false), layer(1));
    let mut figures: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        figures[0].push(runtime.block_on(run(inner.clone(), REQUESTS)));
        figures[1].push(runtime.block_on(run(quiet.layer(inner.clone()), REQUESTS)));
        figures[2].push(runtime.block_on(run(open.layer(inner.clone()), REQUESTS)));
        figures[3].push(runtime.block_on(run(closed.layer(inner.clone()), REQUESTS)));
    }
    let [bare, quiet, open, closed] = figures.map(median);
    println!("medians of {ROUNDS} rounds of {REQUESTS} requests of {CALLERS} callers, one thread\n");
    println!("| | ns a request | added |\n|---|---|---|");
    println!("| the service alone | {bare:.0} | |");
    for (name, figure) in [
        ("with the layer, admitted, no headers", quiet),
        ("with the layer, admitted, rate-limit headers", open),
        ("with the layer, refused", closed),
    ] {
        println!("| {name} | {figure:.0} | {:.0} |", figure - bare);
    }
}
