//! The cost of requests: reported by backends, estimated by the virtual clock, or measured by the kernel.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::support::backend::respond;
use crate::support::client::connect_from;
use crate::support::{Backend, Gate, PATIENCE, eventually, read_response};

fn gate(backend: &Backend, rest: &str) -> Gate {
    Gate::start(&format!("[gate]\nworkers = 1\ncores = 1\nbackend = \"{}\"\n{rest}", backend.url()))
}

/// CPU time charged so far.
fn charged_ms(gate: &Gate) -> f64 {
    let text = gate.admin("/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix("tollgate_toll_seconds_total ")).unwrap();
    line.parse::<f64>().unwrap() * 1e3
}

/// A backend that takes 100 ms and reports the cost in the path.
fn saying_what_the_path_says() -> Backend {
    Backend::answering(|request, stream| {
        std::thread::sleep(Duration::from_millis(100));
        let cost = &request.path()[1..];
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer-Timing: db;dur=1, cpu;dur={cost}\r\n\r\nok");
        stream.write_all(head.as_bytes())
    })
}

#[test]
fn fault_28_an_invalid_cost_is_ignored_and_counted() {
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

/// Writes `cpu.stat` of a cgroup that uses a tenth of a core, as the kernel would.
fn a_tenth_of_a_core(folder: &std::path::Path, until: &AtomicBool) {
    let start = Instant::now();
    while !until.load(Ordering::Relaxed) && start.elapsed() < Duration::from_secs(60) {
        let (text, next) = (format!("usage_usec {}\n", start.elapsed().as_micros() / 10), folder.join("next"));
        // Renamed, so that a reader never sees a partial file.
        std::fs::write(&next, text).unwrap();
        std::fs::rename(&next, folder.join("cpu.stat")).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn with_a_cgroup_the_cpu_time_of_the_kernel_is_charged() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(200));
        respond(stream, "ok")
    });
    let (folder, done) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let kernel = scope.spawn(|| a_tenth_of_a_core(folder.path(), &done));
        let toll = format!("toll = {{ cgroup = '{}' }}\n", folder.path().display());
        let gate = gate(&backend, &toll);
        // The first request is charged before the first measurement.
        gate.get("/");
        let before = charged_ms(&gate);
        (0..10).for_each(|_| assert_eq!(gate.get("/").status, 200));
        let charged = charged_ms(&gate) - before;
        done.store(true, Ordering::Relaxed);
        assert!((80.0..500.0).contains(&charged), "{charged} ms of about 200: two seconds have passed");
        // Without the file, the virtual clock is used.
        kernel.join().unwrap();
        std::fs::remove_file(folder.path().join("cpu.stat")).unwrap();
        gate.logged("cpu.stat");
        // This request corrects the charges since the last measurement.
        gate.get("/");
        let before = charged_ms(&gate);
        assert_eq!(gate.get("/").status, 200);
        let charged = charged_ms(&gate) - before;
        assert!((150.0..1_000.0).contains(&charged), "{charged} ms of about 200");
    });
}

#[test]
fn the_cost_of_the_clients_of_each_rule_is_shown() {
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
fn the_cost_header_is_forwarded_with_keep() {
    let backend = saying_what_the_path_says();
    let gate = gate(&backend, "toll = { keep = true }\n");
    assert_eq!(gate.get("/3").field("server-timing"), Some("db;dur=1, cpu;dur=3"));
}

#[test]
fn a_client_that_disconnects_is_charged_the_reported_cost() {
    let has_left = Arc::new(AtomicBool::new(false));
    let may_answer = has_left.clone();
    let backend = Backend::answering(move |_, stream| {
        let began = Instant::now();
        while !may_answer.load(Ordering::Relaxed) && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer-Timing: cpu;dur=3\r\n\r\nok")
    });
    let gate = gate(&backend, "");
    let mut stream = gate.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("the request is at the backend", || backend.requests().len() == 1);
    drop(stream);
    // Time for the gate to notice, and longer than the cost that the backend reports.
    std::thread::sleep(Duration::from_millis(300));
    has_left.store(true, Ordering::Relaxed);
    eventually("the backend is done", || gate.metric("tollgate_requests_left_total") == 1);
    assert!((charged_ms(&gate) - 3.0).abs() < 0.1, "{} ms", charged_ms(&gate));
}

#[test]
fn fault_46_a_backend_that_is_slow_for_all_clients_puts_none_in_debt() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(600));
        respond(stream, "ok")
    });
    // By wall-clock time, each client would be in debt for seconds.
    let budget = "in_flight = 40\n[[rule]]\nname = 'each'\nclass = 'ip/32'\n\
                  budget = { share = 0.01, burst = '150ms' }\nhold = '0s'\n";
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
    // One core was busy for 600 ms in each of two rounds.
    let charged = charged_ms(&gate);
    assert!((1_000.0..1_900.0).contains(&charged), "{charged} ms");
}

/// A simulated core that requests share in time slices of 1 ms, and that records the time of each client.
#[derive(Default)]
struct Core {
    /// The next time slice to assign, and the current one.
    turns: Mutex<(u64, u64)>,
    next: Condvar,
    crawler_us: AtomicU64,
    people_us: AtomicU64,
}

impl Core {
    fn work(&self, turns: u32, done_us: &AtomicU64) {
        for _ in 0..turns {
            let mut held = self.turns.lock().unwrap();
            let own = held.0;
            held.0 += 1;
            drop(self.next.wait_while(held, |turns| turns.1 != own).unwrap());
            let started = Instant::now();
            std::thread::sleep(Duration::from_millis(1));
            done_us.fetch_add(started.elapsed().as_micros() as u64, Ordering::Relaxed);
            self.turns.lock().unwrap().1 += 1;
            self.next.notify_all();
        }
    }
}

/// Requests the path repeatedly from this address until `stop` is set.
fn visit(gate: std::net::SocketAddr, from: [u8; 4], path: &str, pause: Duration, stop: &AtomicBool) {
    let mut stream = connect_from(from.into(), gate);
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
        assert!(read_response(&mut reader).is_some());
        std::thread::sleep(pause);
    }
}

/// By wall-clock time, people would be charged several times their cost, because of the crawler's concurrent requests.
#[test]
fn in_overload_every_client_is_charged_its_cost_within_a_fifth() {
    let core = Arc::new(Core::default());
    let worker = core.clone();
    let backend = Backend::answering(move |request, stream| {
        match request.path() {
            "/archive" => worker.work(60, &worker.crawler_us),
            _ => worker.work(12, &worker.people_us),
        }
        respond(stream, "ok")
    });
    let rule = |name: &str, client: &str| {
        format!(
            "[[rule]]\nname = '{name}'\nwhen = {{ client = '{client}' }}\nclass = 'ip/32'\n\
             budget = {{ cores = 64, burst = '1h' }}\n"
        )
    };
    let rules = rule("crawler", "127.51.0.0/16") + &rule("people", "127.52.0.0/16");
    let gate = gate(&backend, &rules);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| visit(gate.address, [127, 51, 0, 1], "/archive", Duration::ZERO, &stop));
        }
        for person in 1..5 {
            let stop = &stop;
            scope.spawn(move || visit(gate.address, [127, 52, person, 1], "/page", Duration::from_millis(70), stop));
        }
        eventually("both have had a good part", || {
            core.crawler_us.load(Ordering::Relaxed) > 2_000_000 && core.people_us.load(Ordering::Relaxed) > 1_500_000
        });
        stop.store(true, Ordering::Relaxed);
    });
    eventually("all is settled", || gate.metric("tollgate_requests_at_backend") == 0);
    let text = gate.admin("/metrics").text();
    let charged = |rule: &str| {
        let line =
            text.lines().find(|line| line.starts_with("tollgate_rule_toll_seconds_total{") && line.contains(rule));
        line.and_then(|line| line.rsplit(' ').next()).unwrap().parse::<f64>().unwrap()
    };
    let (crawler, people) = (charged("crawler"), charged("people"));
    let cost = [&core.crawler_us, &core.people_us].map(|us| us.load(Ordering::Relaxed) as f64 / 1e6);
    // The time between two slices belongs to no client, and a busy machine extends it, so shares of the total are
    // compared.
    for (name, charged, cost) in
        [("crawler", crawler, cost[0] / (cost[0] + cost[1])), ("people", people, cost[1] / (cost[0] + cost[1]))]
    {
        let ratio = charged / (crawler + people) / cost;
        assert!((0.8..1.2).contains(&ratio), "{name}: charged {ratio:.2} of its share");
    }
    let all = (crawler + people) / (cost[0] + cost[1]);
    assert!((0.9..1.6).contains(&all), "{all:.2} of the total cost was charged");
}

/// Sends a request on each of `count` connections, and returns the numbers of responses with 200 and with 429.
fn burst(gate: &Gate, count: usize, path: &str) -> (usize, usize) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let mut streams: Vec<_> = (0..count).map(|_| gate.connect()).collect();
    for stream in &mut streams {
        stream.write_all(request.as_bytes()).unwrap();
    }
    let statuses: Vec<u16> =
        streams.into_iter().filter_map(|stream| read_response(&mut BufReader::new(stream))).map(|r| r.status).collect();
    let of = |status: u16| statuses.iter().filter(|other| **other == status).count();
    (of(200), of(429))
}

/// A backend that takes 40 ms of CPU time per request, and almost none for paths that end in `cheap`.
fn expensive_or_cheap() -> Backend {
    Backend::answering(|request, stream| {
        let cpu = if request.path().ends_with("cheap") { 0 } else { 40 };
        std::thread::sleep(Duration::from_millis(cpu));
        let head = format!("HTTP/1.1 200 OK\r\nServer-Timing: cpu;dur={cpu}.1\r\nContent-Length: 2\r\n\r\nok");
        stream.write_all(head.as_bytes())
    })
}

const BUDGET: &str = "[[rule]]\nname = 'b'\nclass = 'ip/32'\nbudget = { cores = 0.01, burst = '200ms' }\nhold = '0s'\n";

#[test]
fn few_requests_of_unknown_cost_are_forwarded_at_once_under_a_budget() {
    let backend = expensive_or_cheap();
    let gate = Gate::with(&backend, &format!("cores = 1\n{BUDGET}"));
    let (served, refused) = burst(&gate, 40, "/page");
    assert!((1..=9).contains(&served) && served + refused == 40, "{served} {refused}");
    assert_eq!(backend.requests().len(), served);
}

#[test]
fn waiting_requests_of_a_key_in_debt_are_not_forwarded() {
    let backend = expensive_or_cheap();
    let gate = Gate::with(&backend, &format!("cores = 1\nin_flight = 1\n{BUDGET}"));
    for _ in 0..20 {
        assert_eq!(gate.get("/page?cheap").status, 200);
    }
    let (served, refused) = burst(&gate, 40, "/page?expensive");
    // Five requests use up the burst; one more is in flight when the fifth ends.
    assert!((5..=7).contains(&served) && served + refused == 40, "{served} {refused}");
    assert_eq!(backend.requests().len(), 20 + served);
}
