//! In-flight limits and prices across reloads and restarts.

use std::io::{BufReader, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::backend::respond;
use crate::support::client::connect_from;
use crate::support::{Backend, Gate, PATIENCE, eventually, read_response};

/// The initial in-flight limit.
const START: u64 = 8;

/// An I/O-bound backend, which serves any number of requests concurrently.
fn sleeping() -> Backend {
    Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(30));
        respond(stream, "ok")
    })
}

fn config(backends: &[&Backend], state_dir: &Path) -> String {
    let urls: Vec<_> = backends.iter().map(|backend| format!("\"{}\"", backend.url())).collect();
    format!("[gate]\nworkers = 1\ncores = 1\nbackend = [{}]\nstate_dir = '{}'\n", urls.join(", "), state_dir.display())
}

/// Sends requests on 40 connections until the limit has grown.
fn teach(gate: &Gate) -> u64 {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for client in 0..40u8 {
            let done = &done;
            scope.spawn(move || {
                let mut stream = connect_from([127, 0, 0, 10 + client].into(), gate.address);
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while !done.load(Ordering::Relaxed) {
                    let path = ["/", "/page", "/search"][usize::from(client % 3)];
                    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
                    assert_eq!(read_response(&mut reader).unwrap().status, 200);
                }
            });
        }
        let start = Instant::now();
        while shown_limits(gate)[0] <= 2 * START && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(100));
        }
        done.store(true, Ordering::Relaxed);
    });
    let limits = limits(gate);
    assert!(limits[0] > START, "{limits:?}");
    limits[0]
}

/// The in-flight limit of each backend, after all requests are settled, which is shortly after their responses.
fn limits(gate: &Gate) -> Vec<u64> {
    let mut limits = Vec::new();
    eventually("status and metrics agree", || {
        limits = shown_limits(gate);
        gate.metric("tollgate_in_flight_max") == limits.iter().sum::<u64>()
    });
    limits
}

fn shown_limits(gate: &Gate) -> Vec<u64> {
    let status: serde_json::Value = serde_json::from_str(&gate.admin("/api/v1/status").text()).unwrap();
    status["backends"]
        .as_array()
        .unwrap()
        .iter()
        .map(|backend| {
            assert!(backend["cores"].as_f64().unwrap() > 0.0 && backend["waiting"].is_u64(), "{backend}");
            backend["in_flight_max"].as_u64().unwrap()
        })
        .collect()
}

#[test]
fn a_restart_keeps_learned_limits_and_prices() {
    let (backend, folder) = (sleeping(), tempfile::tempdir().unwrap());
    let state_dir = folder.path().join("state");
    let gate = Gate::start(&config(&[&backend], &state_dir));
    assert_eq!(limits(&gate), [START]);
    let learned = teach(&gate);
    let log = gate.end();
    assert!(log.iter().all(|line| !line.contains("cannot write") && !line.contains("ERROR")), "{log:?}");
    let gate = Gate::start(&config(&[&backend], &state_dir));
    let line: serde_json::Value = serde_json::from_str(&gate.logged("restored what was learned")).unwrap();
    assert_eq!(line["backends"], 1, "{line}");
    // Three paths and their parent.
    assert_eq!(line["prices"], 4, "{line}");
    // The limit of the first gate may have been a trial of twice the learned value.
    assert!(limits(&gate)[0] >= learned / 2 && limits(&gate)[0] > START, "{:?} after {learned}", limits(&gate));
    drop(gate);
    // Another backend starts without learned values.
    let other = sleeping();
    let gate = Gate::start(&config(&[&other], &state_dir));
    assert_eq!(limits(&gate), [START]);
}

#[test]
fn a_reload_keeps_the_learned_values_of_unchanged_backends() {
    let (first, second, folder) = (sleeping(), sleeping(), tempfile::tempdir().unwrap());
    let gate = Gate::start(&config(&[&first], folder.path()));
    let learned = teach(&gate);
    let total = gate.metric("tollgate_requests_waited_total");
    gate.rewrite(&config(&[&first, &second], folder.path()));
    gate.signal("HUP");
    gate.logged("settings reloaded");
    assert_eq!(limits(&gate), [learned, START]);
    gate.rewrite(&config(&[&second], folder.path()));
    gate.signal("HUP");
    eventually("the first backend is gone", || limits(&gate) == [START]);
    assert_eq!(gate.metric("tollgate_requests_waited_total"), total, "counters never decrease");
}

#[test]
fn a_damaged_or_hostile_file_is_ignored_with_one_log_line() {
    let (backend, folder) = (sleeping(), tempfile::tempdir().unwrap());
    let (config, file) = (config(&[&backend], folder.path()), folder.path().join("gate.learned"));
    let gate = Gate::start(&config);
    teach(&gate);
    gate.end();
    let whole = std::fs::read(&file).unwrap();
    let flipped = |byte: usize| {
        let mut bytes = whole.clone();
        bytes[byte] ^= 0x10;
        bytes
    };
    for (number, contents) in [
        Vec::new(),
        whole[..whole.len() / 2].to_vec(),
        whole[..whole.len() - 1].to_vec(),
        flipped(17),
        flipped(30),
        flipped(whole.len() - 1),
        vec![0xFF; 9 << 20],
    ]
    .into_iter()
    .enumerate()
    {
        // The permissions of the file are kept.
        std::fs::write(&file, contents).unwrap();
        let gate = Gate::start(&config);
        assert_eq!((limits(&gate), gate.get("/").status), (vec![START], 200), "{number}");
        let log = gate.end();
        let ignored = log.iter().filter(|line| line.contains("ignoring what was learned")).count();
        assert!(ignored == 1 && log.iter().all(|line| !line.contains("ERROR")), "{number}: {log:?}");
        // The file is valid again.
        Gate::start(&config).logged("restored what was learned");
    }
}
