//! A master that is killed repeatedly.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::gate::{Gate, PATIENCE, RULE};
use crate::together::{bound, link};
use tollgate_test_support::master::Master;

#[test]
fn fault_36_ten_kills_of_the_master_in_a_minute_fail_no_request_and_refill_nothing() {
    const KILLS: u32 = 10;
    const APART: Duration = Duration::from_secs(6);
    let mut master = Master::start_with("killed-often", RULE);
    let gates = [(); 2].map(|()| Gate::start(&format!("{RULE}{}", link(&master))));
    gates.iter().for_each(|gate| gate.until_linked(master.accounting));
    let stop = AtomicBool::new(false);
    let begin = Instant::now();
    let mut longest_away = Duration::ZERO;
    let admitted: u32 = std::thread::scope(|scope| {
        let load = gates.each_ref().map(|gate| {
            let (stop, mut client) = (&stop, gate.client());
            scope.spawn(move || {
                let mut admitted = 0;
                while !stop.load(Ordering::Relaxed) {
                    match client.get("greedy").0 {
                        200 => admitted += 1,
                        429 => std::thread::sleep(Duration::from_millis(2)),
                        status => panic!("a request failed with {status}"),
                    }
                }
                admitted
            })
        });
        for kill in 1..=KILLS {
            std::thread::sleep((APART * kill).saturating_sub(begin.elapsed()));
            let killed = Instant::now();
            master.kill_and_restart();
            // A new master knows no gates: once it counts both, it has received messages from both.
            while master.metric("tollgate_master_gates", 0) < 2 {
                assert!(killed.elapsed() < PATIENCE, "the gates do not find the new master");
                std::thread::sleep(Duration::from_millis(50));
            }
            longest_away = longest_away.max(killed.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
        load.map(|load| load.join().unwrap()).into_iter().sum()
    });
    let seconds = begin.elapsed().as_secs_f64();
    // While the master is down, and for one transit time afterwards, each gate alone admits ten requests per second.
    // The excess is paid back, so it does not accumulate over kills. Full buckets after each kill would add a
    // hundred.
    let most = bound(2.0, seconds, longest_away.as_secs_f64() + 1.0);
    assert!(f64::from(admitted) <= most, "{admitted} of at most {most:.1} in {seconds:.1} s");
    assert!(f64::from(admitted) >= 10.0 * seconds * 0.7, "{admitted} in {seconds:.1} s");
}
