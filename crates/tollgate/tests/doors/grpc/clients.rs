//! grpcio with Envoy's own definitions asks the door.

use std::process::Command;

use super::{CONFIG, LIMITS, start_with, tools};

fn run(scenario: &str, config: &str) {
    let folder_token = config.contains("token_file");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("limits.yaml"), LIMITS).unwrap();
    std::fs::write(folder.path().join("token"), "a-token-of-the-test\n").unwrap();
    assert_eq!(folder_token, matches!(scenario, "token" | "watches" | "evicted"));
    let mut doors = crate::support::Doors::start_in(folder, config);
    let door = doors.door("grpc").to_string();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doors/grpc/client.py");
    let output = Command::new(tools().join("bin/python")).args([script, scenario, &door]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn grpcio_gets_statuses_in_order_with_limits_and_headers() {
    run("statuses", CONFIG);
}

#[test]
fn grpcio_adds_checks_and_returns_hits_and_overrides_limits() {
    run("hits", CONFIG);
}

#[test]
fn health_and_reflection_are_answered_and_the_descriptions_are_those_of_envoy() {
    run("reflection", CONFIG);
}

#[test]
fn a_token_is_asked_for_except_by_health_checks() {
    run("token", &CONFIG.replace("[doors]", "[doors]\ntoken_file = 'FOLDER/token'"));
}

#[test]
fn a_connection_has_at_most_four_health_watches() {
    run("watches", &CONFIG.replace("[doors]", "[doors]\ntoken_file = 'FOLDER/token'"));
}

#[test]
fn health_calls_do_not_displace_a_connection_with_a_token() {
    run("evicted", &CONFIG.replace("[doors]", "[doors]\ntoken_file = 'FOLDER/token'\nconnections = 16"));
}

#[test]
fn quota_assignments_divide_a_limit_between_streams_and_charge_reports() {
    run("quotas", CONFIG);
}

#[test]
fn a_door_that_drains_ends_its_calls_and_streams() {
    let mut doors = start_with(LIMITS, CONFIG);
    let door = doors.door("grpc").to_string();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doors/grpc/client.py");
    let mut command = Command::new(tools().join("bin/python"));
    let mut client = command.args([script, "drain", &door]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut lines = std::io::BufReader::new(client.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut lines, &mut line).unwrap();
    assert_eq!(line, "open\n");
    doors.signal("TERM");
    assert_eq!(doors.wait(), Some(0));
    assert!(client.wait().unwrap().success());
}
