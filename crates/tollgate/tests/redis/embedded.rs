//! A service with the library and a gate share one limit.

use std::net::IpAddr;
use std::time::Duration;

use tollgate_core::band::Band;
use tollgate_core::request::Request;
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::shared::{Address, Options, SharedLimiter, Store};
use tollgate_gatekeeper::{Limiter, bucket};

use crate::load::among_others;
use crate::shared::{connected, gate};
use crate::support::Backend;
use tollgate_test_support::redis_server::RedisServer;

/// A request with an address and nothing else.
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

#[test]
fn a_service_with_the_library_and_a_gate_share_one_limit() {
    let _among_others = among_others();
    let (backend, server) = (Backend::saying("ok"), RedisServer::start(&[]));
    let rule = "[[rule]]\nname = 'per-client'\nclass = 'ip/32'\nstate = 'redis'\nbucket = { size = 5, drip = 1, every = '1h' }\n";
    let gate = gate(&backend, &server, rule);
    connected(&gate);
    assert_eq!([gate.get("/").status, gate.get("/").status], [200, 200]);

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let admitted = runtime.block_on(async {
        let plan = Limiter::builder()
            .rule(bucket(5, 1, Duration::from_secs(3600)).by("ip/32").named("per-client"))
            .plan()
            .unwrap();
        let patient = Options { deadline: Duration::from_secs(60), ..Options::default() };
        let store = Store::open(Address::parse(&server.url(), None).unwrap(), patient);
        let limiter = SharedLimiter::with_gates(plan, store, Clock::start()).unwrap();
        limiter.store().connected().await;
        let mut admitted = 0;
        for _ in 0..5 {
            let (decision, ticket) = limiter.decide(&From([127, 0, 0, 1].into()), Toll::ONE, Band::Normal).await;
            admitted += u32::from(!decision.verdict.is_refusal());
            limiter.settle(ticket, Toll::ONE);
        }
        admitted
    });
    assert_eq!(admitted, 3, "two of five were taken through the gate");
    assert_eq!(gate.get("/").status, 429);
}
