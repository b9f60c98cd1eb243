//! Every command and configuration of docs/start.md, run as it is written there.
//!
//! As in the tests of README.md, a gate gets free ports and the backend of the test, and the doctor its admin address.

use std::net::IpAddr;
use std::path::Path;

use crate::readme::{commands, output_of, tollgate};
use crate::support::client::connect_from;
use crate::support::{Backend, Gate, eventually, roundtrip};

const PAGE: &str = include_str!("../../../../docs/start.md");
const CHECK: &str = "tollgate check tollgate.toml";
const START: &str = "tollgate gate --config tollgate.toml";
const LIST: &str = "tollgate doctor --once";
const ONE_CLIENT: &str = "tollgate doctor --key 203.0.113.7";
const REPLAY: &str = "tollgate replay --config tollgate.toml access.log";
/// The address of the page, as one of this machine.
const CLIENT: [u8; 4] = [127, 113, 0, 7];

#[test]
fn every_command_is_run_by_a_test() {
    for command in commands(PAGE) {
        assert!([CHECK, START, LIST, ONE_CLIENT, REPLAY].contains(&&*command), "no test runs {command}");
    }
}

/// A gate with the configuration under this heading.
fn gate(heading: &str, backend: &Backend, change: impl Fn(String) -> String) -> Gate {
    let section = PAGE.split("\n## ").find(|section| section.starts_with(heading)).unwrap();
    let config = section.split_once("```toml\n").unwrap().1.split_once("```").unwrap().0;
    let folder = tempfile::tempdir().unwrap();
    let config = change(config.replace("http://127.0.0.1:8080", &backend.url()));
    std::fs::write(folder.path().join("tollgate.toml"), config).unwrap();
    let log = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/access.log.gz");
    std::fs::copy(log, folder.path().join("access.log")).unwrap();
    output_of(PAGE, CHECK, folder.path());
    let replayed = output_of(PAGE, REPLAY, folder.path());
    assert!(!config_has_rule(heading) || replayed.contains("100.64.31.7"), "the guesser of the log: {replayed}");
    let mut command = tollgate(PAGE, START, folder.path());
    command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    Gate::spawn(command, folder)
}

fn config_has_rule(heading: &str) -> bool {
    heading == "Write one safe rule"
}

/// Requests of the client, and their statuses.
fn login(gate: &Gate, times: usize) -> Vec<u16> {
    let request = b"POST /login HTTP/1.1\r\nHost: site\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    (0..times).map(|_| roundtrip(connect_from(IpAddr::from(CLIENT), gate.address), request).status).collect()
}

/// The output of a command that asks this gate.
fn doctor(line: &str, gate: &Gate) -> String {
    let mut command = tollgate(PAGE, line, Path::new("/"));
    let words: Vec<_> =
        command.get_args().map(|word| word.to_str().unwrap().replace("203.0.113.7", "127.113.0.7")).collect();
    command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(words).args(["--admin", &format!("http://{}", gate.admin)]).env_remove("TOLLGATE_TOKEN");
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

#[test]
fn observe_mode_shows_which_clients_would_have_been_throttled_and_a_reload_ends_it() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'few'\nclass = 'ip/32'\nwindow = { max = 2, per = '1h' }\n";
    let gate = gate("Watch before you act", &backend, |config| config + rule);
    assert_eq!(login(&gate, 5), [200; 5]);
    let summary = "observe mode: of 5 requests the gate would have held 0 (0.0 %), refused 3 (60.0 %): 127.113.0.7/32 (0 held, 3 refused)\n";
    eventually("the client is in the summary", || doctor(LIST, &gate).starts_with(summary));
    let config = std::fs::read_to_string(gate.path().join("tollgate.toml")).unwrap();
    gate.rewrite(&config.replace("mode    = \"observe\"\n", ""));
    gate.signal("HUP");
    gate.logged("settings reloaded");
    assert_eq!(login(&gate, 1), [429], "a rule keeps its state");
}

#[test]
fn a_client_that_was_refused_is_found_and_explained() {
    let backend = Backend::saying("ok");
    let gate = gate("Write one safe rule", &backend, |config| {
        config.lines().filter(|line| !line.starts_with("mode")).map(|line| format!("{line}\n")).collect()
    });
    let statuses = login(&gate, 42);
    // The 41st attempt waits for its turn, which is longer than a rate holds a request.
    assert_eq!((&statuses[..40], statuses[41]), (&[200; 40][..], 429));
    eventually("the client is in the list", || {
        let list = doctor(LIST, &gate);
        let row = list.lines().find(|line| line.contains("127.113.0.7/32")).unwrap_or_default().to_owned();
        row.split('|').nth(7).is_some_and(|refused| refused.trim() == "2")
    });
    let page = doctor(ONE_CLIENT, &gate);
    assert!(page.starts_with("127.113.0.7/32  ip/32\n\nlogin                refuse  over-limit "), "{page}");
    assert!(page.contains(" 2 x  rule login: over-limit, 41 of 40, retry after "), "{page}");
    for label in ["        requests  ", "         refused  ", "recent refusals, the latest first (UTC)\n"] {
        assert!(page.contains(label) && PAGE.contains(label), "{label:?} in {page}");
    }
}

#[test]
fn the_first_rule_only_counts_until_its_mode_is_removed() {
    let backend = Backend::saying("ok");
    let gate = gate("Write one safe rule", &backend, |config| config);
    assert!(login(&gate, 50).iter().all(|status| *status == 200));
    let verdicts = gate.end().into_iter().filter(|line| line.contains("\"would-refuse\"")).count();
    assert!(verdicts > 0, "the log has the clients that it would have refused");
}
