//! Shared decisions with leases: the gate takes a part of each bucket from Redis in advance, so that most decisions
//! need no call.

use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use tollgate_core::band::Band;
use tollgate_core::request::Request;
use tollgate_core::rule::Rule;
use tollgate_core::time::Moment;
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::hash::Seed;
use tollgate_gatekeeper::limiter::Plan;
use tollgate_gatekeeper::shared::{Options, Share, SharedLimiter, SharedPlan, Store};
use tollgate_gatekeeper::table::table_bytes_for;

use crate::server::Server;
use crate::{Allowance, Failure, ROUND, rule};

const CALLERS: u32 = 1_000;
const SIZE: u32 = 10_000;
/// The part of a bucket that is leased at a time, in millionths: a tenth.
const LEASE: u32 = 100_000;
const TASKS: u32 = 16;

struct Caller(u32);

impl Request for Caller {
    fn client(&self) -> Option<IpAddr> {
        Some(Ipv4Addr::from(0x0a00_0000 + self.0).into())
    }

    fn method(&self) -> &[u8] {
        b"GET"
    }

    fn target(&self) -> &[u8] {
        b"/"
    }
}

/// Decisions per second of a gate that leases slices.
pub(crate) async fn rate(server: &Server) -> Result<f64, Failure> {
    let rule = Rule { name: "leased".into(), ..rule(Allowance { size: SIZE, drip: SIZE }) };
    let bytes = table_bytes_for(&rule, CALLERS as usize);
    let plan = Plan { rules: vec![(rule, bytes)], started: Moment::ZERO, seed: Seed::random(), names_max: 16 };
    let plan = SharedPlan {
        plan,
        shares: &[Some(Share { lease_millionths: Some(LEASE), ..Share::default() })],
        prefix: "bench:",
        domain: "default",
    };
    let patient = Options { deadline: Duration::from_secs(5), ..Options::default() };
    let gate = Arc::new(SharedLimiter::new(plan, Store::open(server.address(), patient), Clock::start())?);
    let end = Instant::now() + ROUND;
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move {
                let (mut caller, mut decided) = (task, 0_u64);
                while Instant::now() < end {
                    // Yields, because a slice is used up without waiting.
                    tokio::task::yield_now().await;
                    for _ in 0..100 {
                        caller = (caller + 7) % CALLERS;
                        let (_, ticket) = gate.decide(&Caller(caller), Toll::ONE, Band::Normal).await;
                        gate.settle(ticket, Toll::ONE);
                        decided += 1;
                    }
                }
                decided
            })
        })
        .collect();
    let mut decided = 0;
    for task in tasks {
        decided += task.await?;
    }
    Ok(decided as f64 / ROUND.as_secs_f64())
}
