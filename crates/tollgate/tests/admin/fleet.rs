//! Peers of a gate in the status: a real master and a real Redis.

use serde_json::Value;

use crate::support::{Gate, ask, eventually};
use tollgate_test_support::master::Master;
use tollgate_test_support::redis_server::RedisServer;

const BY_MASTER: &str =
    "[[rule]]\nname = \"each\"\nclass = \"header:x-key\"\nrate = { rate = \"10/s\", burst = 10 }\nstate = \"master\"\n";
const BY_REDIS: &str = "[[rule]]\nname = \"shared\"\nclass = \"ip/32\"\nbucket = { size = 100000, drip = 100000, every = \"1s\" }\nstate = \"redis\"\n";

/// The row of this kind.
fn row(status: &Value, kind: &str) -> Value {
    status["fleet"].as_array().into_iter().flatten().find(|row| row["kind"] == kind).cloned().unwrap_or_default()
}

#[test]
fn the_status_shows_masters_and_redis_with_their_state() {
    let (master, redis) = (Master::start_with("rows", BY_MASTER), RedisServer::start(&["--requirepass", "s3cret"]));
    let gate = Gate::start(&format!(
        "{BY_MASTER}{BY_REDIS}[[link.master]]\naccounting = \"{}\"\ncontrol = \"{}\"\n\
        [redis]\nurl = \"redis://:s3cret@127.0.0.1:{}\"\ndeadline = \"1s\"\n",
        master.accounting,
        master.control,
        redis.port()
    ));
    let status = || {
        gate.request("/", &[("X-Key", "somebody")]);
        gate.json("/api/v1/status")
    };
    let figure = |row: &Value, name: &str| row["figures"][name].as_u64().unwrap_or_default();
    eventually("both are connected and used", || {
        let status = status();
        let (master, redis) = (row(&status, "master"), row(&status, "Redis"));
        let is_up = |row: &Value| row["up"] == true && row["state"] == "connected";
        is_up(&master) && is_up(&redis) && figure(&master, "reports_sent") > 0 && figure(&redis, "decisions") > 0
    });
    let now = status();
    assert_eq!(row(&now, "master")["name"], master.accounting.to_string());
    assert_eq!(row(&now, "Redis")["name"], format!("redis://127.0.0.1:{}", redis.port()));
    assert!(row(&now, "Redis")["lag_ms"].as_f64().is_some_and(|lag| lag > 0.0), "{now}");
    assert!(!now.to_string().contains("s3cret"));

    let of_master = || ask(master.admin, "GET", "/api/v1/status", &[], "").json();
    eventually("the master sees the gate", || {
        let gates = row(&of_master(), "gates");
        gates["up"] == true && gates["state"] == "1 active in the last minute" && figure(&gates, "listening") > 0
    });
    assert_eq!(of_master()["role"], "master");

    redis.signal("KILL");
    eventually("Redis is down, and the gate decides alone", || {
        let row = row(&status(), "Redis");
        row["up"] == false && row["state"].as_str().unwrap().starts_with("away") && figure(&row, "fallbacks") > 0
    });
}
