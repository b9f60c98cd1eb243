//! The peers of a gate, and a master, in the console.

use serde_json::json;

use crate::axe;
use crate::browser::Browser;
use crate::support::{Gate, eventually};
use tollgate_test_support::master::Master;
use tollgate_test_support::redis_server::RedisServer;

const BY_MASTER: &str =
    "[[rule]]\nname = \"each\"\nclass = \"header:x-key\"\nrate = { rate = \"10/s\", burst = 10 }\nstate = \"master\"\n";
const BY_REDIS: &str = "[[rule]]\nname = \"shared\"\nclass = \"ip/32\"\nbucket = { size = 100000, drip = 100000, every = \"1s\" }\nstate = \"redis\"\n";

/// A cell in the row of a peer.
fn cell(with: &str, label: &str) -> String {
    let row = format!(
        "[...document.querySelectorAll('main tr')]\n\
        .find((row) => row.querySelector('td[data-label=Peer]')?.textContent === {})",
        json!(with)
    );
    format!("({row}?.querySelector({})?.textContent ?? '')", json!(format!("td[data-label={}]", json!(label))))
}

#[test]
fn masters_and_redis_have_rows_that_show_an_outage() {
    let (master, redis) = (Master::start_with("console-rows", BY_MASTER), RedisServer::start(&[]));
    let gate = Gate::start(&format!(
        "{BY_MASTER}{BY_REDIS}[[link.master]]\naccounting = \"{}\"\ncontrol = \"{}\"\n\
        [redis]\nurl = \"redis://127.0.0.1:{}\"\ndeadline = \"1s\"\n",
        master.accounting,
        master.control,
        redis.port()
    ));
    let browser = Browser::open(1280, 1000);
    browser.go(&format!("http://{}/", gate.admin));
    browser.shows("Overview");
    for with in ["master", "Redis"] {
        browser.finds(&cell(with, "State"), &json!("up"));
    }
    browser.finds(&cell("master", "Address"), &json!(master.accounting.to_string()));
    let redis_row = || {
        gate.request("/", &[("X-Key", "somebody")]);
        let fleet = gate.json("/api/v1/status")["fleet"].clone();
        fleet.as_array().into_iter().flatten().find(|row| row["kind"] == "Redis").cloned().unwrap_or_default()
    };
    eventually("Redis has decided", || redis_row()["figures"]["decisions"].as_u64() > Some(0));
    browser.finds(&format!("/decisions [1-9]/.test({})", cell("Redis", "Counters")), &json!(true));
    axe::check(&browser, "fleet");

    redis.signal("KILL");
    // The gate notices with the next request.
    eventually("Redis is away", || redis_row()["up"] == false);
    browser.finds(&cell("Redis", "State"), &json!("down"));
    browser.finds(&cell("master", "State"), &json!("up"));

    browser.go(&format!("http://{}/", master.admin));
    browser.says("it shares the state of rules between gates");
    browser.finds(&cell("gates", "Details"), &json!("1 active in the last minute"));
    axe::check(&browser, "a master");
}
