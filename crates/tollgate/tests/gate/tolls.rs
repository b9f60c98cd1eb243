//! What requests cost, as backends say it and as the clock does.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::backend::respond;
use crate::support::client::connect_from;
use crate::support::{Backend, Gate, eventually, read_response};

fn gate(backend: &Backend, rest: &str) -> Gate {
    Gate::start(&format!("[gate]\nworkers = 1\ncores = 1\nbackend = \"{}\"\n{rest}", backend.url()))
}

/// CPU time charged so far.
fn charged_ms(gate: &Gate) -> f64 {
    let text = gate.admin("/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix("tollgate_toll_seconds_total ")).unwrap();
    line.parse::<f64>().unwrap() * 1e3
}

/// A backend that takes 100 ms and says that it took what the path says.
fn saying_what_the_path_says() -> Backend {
    Backend::answering(|request, stream| {
        std::thread::sleep(Duration::from_millis(100));
        let cost = &request.path()[1..];
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer-Timing: db;dur=1, cpu;dur={cost}\r\n\r\nok");
        stream.write_all(head.as_bytes())
    })
}

#[test]
fn fault_28_a_cost_that_is_nonsense_is_not_believed_and_is_counted() {
    let backend = saying_what_the_path_says();
    let gate = gate(&backend, "");
    let ask = |path: &str| {
        let before = charged_ms(&gate);
        let answer = gate.get(path);
        assert_eq!((answer.status, answer.field("server-timing")), (200, Some("db;dur=1")), "{path}");
        charged_ms(&gate) - before
    };
    for (count, nonsense) in ["NaN", "-5", "1e300", "abc", "inf", "", "99999"].into_iter().enumerate() {
        let charged = ask(&format!("/{nonsense}"));
        assert!((80.0..1_000.0).contains(&charged), "{nonsense}: {charged} ms instead of about 100");
        assert_eq!(gate.metric("tollgate_toll_reports_ignored_total"), count as u64 + 1, "{nonsense}");
    }
    let charged = ask("/12.5");
    assert!((12.4..12.6).contains(&charged), "{charged} ms");
    assert_eq!(gate.metric("tollgate_toll_reports_ignored_total"), 7);
}

/// Keeps the account of a control group that uses a tenth of a core, as the kernel would.
fn a_tenth_of_a_core(folder: &std::path::Path, until: &std::sync::atomic::AtomicBool) {
    let start = std::time::Instant::now();
    while !until.load(std::sync::atomic::Ordering::Relaxed) && start.elapsed() < Duration::from_secs(60) {
        let (text, next) = (format!("usage_usec {}\n", start.elapsed().as_micros() / 10), folder.join("next"));
        // Nobody reads half of it.
        std::fs::write(&next, text).unwrap();
        std::fs::rename(&next, folder.join("cpu.stat")).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_the_kernel_counts_is_charged_where_a_control_group_is_named() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(200));
        respond(stream, "ok")
    });
    let (folder, done) = (tempfile::tempdir().unwrap(), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| a_tenth_of_a_core(folder.path(), &done));
        let toll = format!("toll = {{ cgroup = '{}' }}\n", folder.path().display());
        let mut gate = gate(&backend, &toll);
        // The first is priced before anything was measured.
        gate.get("/");
        let before = charged_ms(&gate);
        (0..10).for_each(|_| assert_eq!(gate.get("/").status, 200));
        let charged = charged_ms(&gate) - before;
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!((80.0..500.0).contains(&charged), "{charged} ms of about 200: two seconds have passed");
        // And without the file it goes on.
        std::fs::remove_file(folder.path().join("cpu.stat")).unwrap();
        gate.logged("cpu.stat");
        // What was charged beyond the last measurement is made good first.
        gate.get("/");
        let before = charged_ms(&gate);
        assert_eq!(gate.get("/").status, 200);
        let charged = charged_ms(&gate) - before;
        assert!((150.0..1_000.0).contains(&charged), "{charged} ms of about 200");
    });
}

#[test]
fn what_the_clients_of_each_rule_have_cost_is_shown() {
    let backend = saying_what_the_path_says();
    let rules = "[[rule]]\nname = 'keys'\nclass = 'header:x-key'\nbudget = { share = 0.5, burst = '30s' }\n\
                 [[rule]]\nname = 'other'\nclass = 'header:x-other'\nbudget = { share = 0.5, burst = '30s' }\n";
    let gate = gate(&backend, rules);
    for (name, cost) in [("x-key", 30), ("x-key", 20), ("x-nobody", 10)] {
        let request = format!("GET /{cost} HTTP/1.1\r\nHost: a\r\n{name}: 1\r\nConnection: close\r\n\r\n");
        let mut stream = gate.connect();
        stream.write_all(request.as_bytes()).unwrap();
        assert_eq!(read_response(&mut BufReader::new(stream)).unwrap().status, 200);
    }
    let text = gate.admin("/metrics").text();
    let shown = |rule: &str| {
        let line =
            text.lines().find(|line| line.starts_with("tollgate_rule_toll_seconds_total{") && line.contains(rule));
        line.and_then(|line| line.rsplit(' ').next()).unwrap().parse::<f64>().unwrap()
    };
    assert!((0.0499..0.0501).contains(&shown("keys")), "{text}");
    assert_eq!(shown("other"), 0.0);
    for name in ["tollgate_wait_seconds", "tollgate_request_toll_seconds", "tollgate_backend_seconds"] {
        assert!(text.contains(&format!("{name}_count 3")), "{name}: {text}");
    }
    assert!(text.contains("tollgate_request_toll_seconds_bucket{le=\"0.008192\"} 0"), "{text}");
    assert!(text.contains("tollgate_request_toll_seconds_bucket{le=\"0.016384\"} 1"), "{text}");
}

#[test]
fn what_a_backend_says_stays_for_the_client_where_that_is_wanted() {
    let backend = saying_what_the_path_says();
    let gate = gate(&backend, "toll = { keep = true }\n");
    assert_eq!(gate.get("/3").field("server-timing"), Some("db;dur=1, cpu;dur=3"));
}

#[test]
fn fault_46_a_backend_that_is_slow_for_everybody_makes_nobody_guilty() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(600));
        respond(stream, "ok")
    });
    // By the clock on the wall each of them is in debt for seconds.
    let budget = "in_flight = 40\n[[rule]]\nname = 'each'\nclass = 'ip/32'\nbudget = { share = 0.01, burst = '150ms' }\nhold = '0s'\n";
    let gate = gate(&backend, budget);
    for round in 0..2 {
        let mut crowd: Vec<TcpStream> =
            (0..20).map(|number| connect_from([127, 46, number, 1].into(), gate.address)).collect();
        for stream in &mut crowd {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        }
        for stream in &crowd {
            assert_eq!(read_response(&mut BufReader::new(stream)).unwrap().status, 200, "round {round}");
        }
        eventually("all is settled", || gate.metric("tollgate_requests_at_backend") == 0);
    }
    // One core was busy for two times 600 ms, whoever had to wait for it.
    let charged = charged_ms(&gate);
    assert!((1_000.0..1_900.0).contains(&charged), "{charged} ms");
}
