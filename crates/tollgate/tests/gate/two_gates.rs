//! Two gates in front of one backend, as docs/two-gates.md describes them.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate_storm::crowd::Origin;
use tollgate_storm::page::{Cost, Costs};
use tollgate_storm::plan::{Phases, Plan};
use tollgate_storm::results::{PhaseResults, Results, StormParameters};
use tollgate_storm::tally::Tally;
use tollgate_storm::target::{Identity, Target};
use tollgate_storm::{site, storm};

use crate::support::{Gate, binary};

/// The configuration of the page, in front of this backend and behind a proxy on this machine.
fn config(backend: &str) -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/two-gates.md");
    let text = std::fs::read_to_string(page).unwrap();
    let block = text.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let config = block.replace("http://10.0.0.10:8080", backend).replace("\"10.0.0.1\"", "\"loopback\"");
    assert!(config.contains(backend) && config.contains("loopback"), "{config}");
    config
}

/// The results of a storm of people and a crawler against one gate.
async fn storm_at(gate: &Gate, seed: u64, phases: Phases) -> Results {
    let mut plan = Plan::new(seed, phases, Origin::Network);
    plan.crawler_connections = 32;
    let (plan, tally) = (Arc::new(plan), Arc::new(Tally::default()));
    let target = Target { identity: Identity::XForwardedFor, ..Target::new(gate.address) };
    storm::play(plan.clone(), Arc::new(target), Instant::now(), tally.clone()).await;
    let parameters = StormParameters {
        target: format!("http://{}", gate.address),
        seed,
        identity: "x-forwarded-for".into(),
        networks: 1,
        connections: 32,
        round_trip_ms: 20.0,
        patience_s: 5.0,
        calm_s: phases.calm.as_secs_f64(),
        storm_s: phases.storm.as_secs_f64(),
        recovery_s: phases.recovery.as_secs_f64(),
    };
    Results::new("gate", parameters, &plan, &tally, &[])
}

/// The backend serves four requests at once, as one with four cores. Its pages sleep instead of computing, so that
/// other tests on this machine do not change the outcome.
#[test]
fn people_are_served_by_two_gates_while_a_crawler_uses_both() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let backend = format!("http://{}", listener.local_addr().unwrap());
    let sleep = |millis| Cost::sleep(Duration::from_millis(millis));
    let costs = Costs { article: sleep(10), archive: sleep(150), asset: sleep(1) };
    std::thread::spawn(move || site::serve(&listener, site::Settings { workers: 4, costs, server_timing: false }));
    let gates = [Gate::start(&config(&backend)), Gate::start(&config(&backend))];
    let second = Duration::from_secs(1);
    let phases = Phases { calm: second * 2, storm: second * 8, recovery: second };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, other) =
        runtime.block_on(async { tokio::join!(storm_at(&gates[0], 1, phases), storm_at(&gates[1], 2, phases)) });
    let tables = || format!("{}\n{}", first.table(), other.table());
    let storms: [&PhaseResults; 2] = [&first, &other].map(|results| results.phase("storm").unwrap());
    // The office waits for the requests that the other gate has sent, and is then charged for that time.
    for (crowd, percent) in [(storms.map(|storm| &storm.people), 97), (storms.map(|storm| &storm.office), 60)] {
        let views: u64 = crowd.iter().map(|one| one.views).sum();
        let served: u64 = crowd.iter().map(|one| one.served).sum();
        assert!(views >= 40 && served * 100 >= views * percent, "{served} of {views}\n{}", tables());
    }
    // Without gates, a page waits for 64 requests of the crawler, four at once: 2.4 s.
    assert!(storms.iter().all(|storm| storm.people.page_ms.p50 < 1000.0), "{}", tables());
    // Each gate gives the crawler what people do not use. Together that is most of 4 x 8 s of the backend.
    let crawled: [u64; 2] = storms.map(|storm| storm.crawler.answered);
    assert!(crawled.iter().all(|answered| *answered > 40) && crawled.iter().sum::<u64>() > 120, "{}", tables());
}

#[test]
fn the_configurations_of_the_page_are_valid_together() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/two-gates.md")).unwrap();
    let blocks: Vec<_> = text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.toml");
    std::fs::write(&file, blocks.concat()).unwrap();
    let check = std::process::Command::new(binary()).arg("check").arg(&file).output().unwrap();
    assert!(blocks.len() == 2 && check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}
