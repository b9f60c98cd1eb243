//! The storm benchmark, for some seconds, against a gate.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate_storm::crowd::Origin;
use tollgate_storm::page::{Cost, Costs};
use tollgate_storm::plan::{Phases, Plan};
use tollgate_storm::results::{Results, StormParameters};
use tollgate_storm::tally::Tally;
use tollgate_storm::target::{Identity, Target};
use tollgate_storm::{site, storm};

use crate::support::Gate;

/// Pages sleep instead of computing, so that other tests on this machine do not change the outcome.
#[test]
fn people_are_served_in_a_storm_from_many_networks_named_by_a_proxy() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let sleep = |millis| Cost::sleep(Duration::from_millis(millis));
    let costs = Costs { article: sleep(5), archive: sleep(100), asset: sleep(1) };
    std::thread::spawn(move || site::serve(&listener, site::Settings { workers: 8, costs, server_timing: false }));
    let gate = Gate::start(&format!(
        "[gate]\nworkers = 2\nbackend = \"http://{address}\"\ntrusted_proxies = [\"loopback\"]\nin_flight = 8\n"
    ));
    let second = Duration::from_secs(1);
    let phases = Phases { calm: second, storm: second * 4, recovery: second };
    let mut plan = Plan::new(1, phases, Origin::Networks(20));
    plan.crawler_connections = 60;
    let plan = Arc::new(plan);
    let target = Target { identity: Identity::XForwardedFor, ..Target::new(gate.address) };
    let tally = Arc::new(Tally::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(storm::play(plan.clone(), Arc::new(target), Instant::now(), tally.clone()));
    let parameters = StormParameters {
        target: format!("http://{}", gate.address),
        seed: 1,
        identity: "x-forwarded-for".into(),
        networks: 20,
        connections: 60,
        round_trip_ms: 20.0,
        patience_s: 5.0,
        calm_s: 1.0,
        storm_s: 4.0,
        recovery_s: 1.0,
    };
    let results = Results::new("gate", parameters, &plan, &tally, &[]);
    let storm = results.phase("storm").unwrap();
    assert!(storm.people.views >= 10 && storm.office.views >= 8, "{}", results.table());
    assert_eq!(
        (storm.people.served, storm.office.served),
        (storm.people.views, storm.office.views),
        "{}",
        results.table()
    );
    assert!(storm.crawler.answered > 50, "the rest is for the crawler: {}", results.table());
}
