//! Rules at the gate: holds, refusals and their responses.

use std::io::{BufReader, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Backend, Gate, eventually, read_response, roundtrip};

fn gate(backend: &Backend, rules: &str) -> Gate {
    Gate::start(&config(backend, rules))
}

fn config(backend: &Backend, rules: &str) -> String {
    format!("[gate]\nworkers = 1\nbackend = \"{}\"\n{rules}", backend.url())
}

const BUCKET: &str = "[[rule]]\nname = 'api'\nclass = 'ip/32'\nbucket = { size = 2, drip = 1, every = '1s' }\n";

/// The rules have another order after the reload.
#[test]
fn a_response_after_a_reload_has_no_headers_of_the_new_rules() {
    let (answers, waits) = std::sync::mpsc::channel::<()>();
    let waits = std::sync::Mutex::new(waits);
    let backend = Backend::answering(move |request, stream| {
        if request.path() == "/slow" {
            waits.lock().unwrap().recv().unwrap();
        }
        crate::support::backend::respond(stream, "ok")
    });
    let gate = gate(&backend, BUCKET);
    let mut stream = gate.connect();
    stream.write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("it is at the backend", || backend.count() == 1);
    gate.rewrite(&config(
        &backend,
        &format!("[[rule]]\nname = 'new'\nclass = 'ip/32'\nrate = {{ rate = '9/s', burst = 9 }}\n{BUCKET}"),
    ));
    gate.signal("HUP");
    gate.logged("settings reloaded");
    answers.send(()).unwrap();
    let response = read_response(&mut BufReader::new(stream)).unwrap();
    assert_eq!((response.status, response.field("ratelimit-policy")), (200, None));
    assert!(gate.get("/").field("ratelimit-policy").is_some());
}

#[test]
fn a_client_over_its_limit_is_refused_with_retry_after() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend, BUCKET);
    assert_eq!([gate.get("/").status, gate.get("/").status], [200, 200]);
    let refused = gate.get("/");
    assert_eq!(refused.status, 429);
    assert_eq!(refused.field("content-type"), Some("application/problem+json"));
    let problem: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["violated-policies"], serde_json::json!(["api"]));
    assert_eq!(refused.field("ratelimit-policy"), Some("\"api\";q=2;w=2"));
    assert_eq!(refused.field("ratelimit"), Some("\"api\";r=0;t=1"));
    assert_eq!(refused.field("x-ratelimit-remaining"), Some("0"));
    let reset: f64 = refused.field("x-ratelimit-reset").unwrap().parse().unwrap();
    assert!(reset > 0.0 && reset <= 1.0, "{reset}");
    let wait: u64 = refused.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=2).contains(&wait), "one second plus jitter: {wait}");
    assert_eq!(backend.requests().len(), 2);
    std::thread::sleep(Duration::from_secs(wait));
    assert_eq!(gate.get("/").status, 200);
}

/// One client may use a quarter of the free room.
#[test]
fn one_client_cannot_use_all_of_the_room_for_held_requests() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'calm'\nclass = 'header:x-user'\nrate = { rate = '1/s', burst = 1 }\nhold = '30s'\n";
    let gate = gate(&backend, &format!("hold = {{ max = '30s', total = 8 }}\n{rule}"));
    let send = |user: &str| {
        let mut stream = gate.connect();
        write!(stream, "GET / HTTP/1.1\r\nHost: a\r\nX-User: {user}\r\nConnection: close\r\n\r\n").unwrap();
        stream
    };
    let answer = |stream: std::net::TcpStream| read_response(&mut BufReader::new(stream)).unwrap();
    assert_eq!(answer(send("a")).status, 200);
    let held: Vec<_> = (0..2).map(|_| send("a")).collect();
    eventually("two are held", || gate.metric("tollgate_requests_held") == 2);
    let refused = answer(send("a"));
    assert_eq!(refused.status, 429);
    let wait: u64 = refused.field("retry-after").unwrap().parse().unwrap();
    assert!((2..=4).contains(&wait), "after the held requests: {wait}");
    assert_eq!(answer(send("b")).status, 200);
    let other = send("b");
    eventually("another client's is held", || gate.metric("tollgate_requests_held") == 3);
    // Disconnected clients free their room, and their requests are not forwarded.
    drop(held);
    eventually("requests of disconnected clients are not held", || gate.metric("tollgate_requests_held") == 1);
    assert_eq!(answer(other).status, 200);
    eventually("nobody is held", || gate.metric("tollgate_requests_held") == 0);
    assert_eq!(backend.requests().len(), 3);
}

#[test]
fn a_browser_gets_a_page_that_reloads_itself() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend, BUCKET);
    let ask = || {
        let request = "GET / HTTP/1.1\r\nHost: a\r\nAccept: text/html,*/*\r\nConnection: close\r\n\r\n";
        roundtrip(gate.connect(), request.as_bytes())
    };
    ask();
    ask();
    let page = ask();
    assert_eq!((page.status, page.field("content-type")), (429, Some("text/html; charset=utf-8")));
    assert!(page.text().contains("http-equiv=\"refresh\""), "{}", page.text());
}

#[test]
fn admitted_responses_carry_limit_headers_unless_the_rule_disables_them() {
    let backend = Backend::saying("ok");
    let open = gate(&backend, BUCKET);
    let answer = open.get("/");
    assert_eq!(
        (answer.field("ratelimit"), answer.field("x-ratelimit-remaining")),
        (Some("\"api\";r=1;t=1"), Some("1"))
    );
    assert_eq!(answer.field("x-ratelimit-reset"), None);
    let silent = gate(&backend, &format!("{BUCKET}headers = false\n"));
    assert_eq!(silent.get("/").field("ratelimit"), None);
}

#[test]
fn a_short_wait_is_held_and_a_long_one_refused() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'calm'\nclass = 'ip/32'\nrate = { rate = '2/s', burst = 1 }\nhold = '600ms'\n";
    let gate = gate(&backend, rule);
    assert_eq!(gate.get("/").status, 200);
    let began = Instant::now();
    assert_eq!(gate.get("/").status, 200);
    assert!(began.elapsed() >= Duration::from_millis(400), "held until its moment: {:?}", began.elapsed());
    // Of two concurrent requests, one is held for half a second; the other would wait for a whole one.
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..2).map(|_| scope.spawn(|| gate.get("/").status)).collect();
        tries.into_iter().map(|status| status.join().unwrap()).collect()
    });
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
}

#[test]
fn a_client_that_disconnects_while_held_is_refunded() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'calm'\nclass = 'ip/32'\nrate = { rate = '1 per 3s', burst = 1 }\n";
    let gate = gate(&backend, rule);
    assert_eq!(gate.get("/").status, 200);
    let mut stream = gate.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("it is held", || gate.metric("tollgate_requests_held") == 1);
    drop(stream);
    eventually("its place is free", || gate.metric("tollgate_requests_held") == 0);
    let began = Instant::now();
    assert_eq!(gate.get("/").status, 200);
    assert!(began.elapsed() < Duration::from_millis(3_500), "a request that was not forwarded is not charged");
    assert_eq!(backend.requests().len(), 2);
}

#[test]
fn the_request_of_a_client_that_disconnects_while_queued_is_not_forwarded() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(600));
        crate::support::backend::respond(stream, "ok")
    });
    let gate = Gate::with(&backend, "in_flight = 1");
    let mut streams: Vec<_> = (0..3).map(|_| gate.connect()).collect();
    for (number, stream) in streams.iter_mut().enumerate() {
        let request = format!("GET /{number} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        eventually("it is taken", || gate.metric("tollgate_requests_total") == number as u64 + 1);
    }
    eventually("two wait", || gate.metric("tollgate_requests_waiting") == 2);
    drop(streams.remove(1));
    eventually("its place is free", || gate.metric("tollgate_requests_waiting") == 1);
    for stream in streams {
        assert_eq!(read_response(&mut BufReader::new(stream)).unwrap().status, 200);
    }
    let paths: Vec<_> = backend.requests().iter().map(|request| request.path().to_owned()).collect();
    assert_eq!(paths, ["/0", "/2"]);
}

#[test]
fn a_refused_upgrade_has_retry_after() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'reconnect'\nwhen = { upgrade = 'websocket' }\nclass = 'header:x-device-id'\n\
                window = { max = 1, per = '10s', ceiling = 2 }\n\
                escalation = { backoff = '20s', backoff_max = '60s', levels = 3, release = '30s' }\n";
    let gate = gate(&backend, rule);
    let reconnect = |device: &str| {
        let request = format!(
            "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\nX-Device-Id: {device}\r\n\r\n"
        );
        roundtrip(gate.connect(), request.as_bytes())
    };
    assert_eq!(reconnect("one").status, 200);
    let refused = reconnect("one");
    assert_eq!(refused.status, 429);
    let problem: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#abnormal-usage-detected");
    let secs =
        |response: &crate::support::Response| response.field("x-ratelimit-reset").unwrap().parse::<f64>().unwrap();
    assert!((19.0..=20.0).contains(&secs(&refused)), "the backoff, which is longer than the window: {refused:?}");
    let again = reconnect("one");
    let problem_again: serde_json::Value = serde_json::from_slice(&again.body).unwrap();
    assert_eq!(problem_again["type"], problem["type"], "the first violation and the block that follows have one type");
    assert!(secs(&again) <= secs(&refused), "an attempt during the backoff does not extend it");
    assert_eq!(reconnect("two").status, 200, "another device is not affected");
}

#[test]
fn a_rule_in_observe_mode_admits_and_counts() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend, &format!("{BUCKET}mode = 'observe'\n"));
    for _ in 0..5 {
        assert_eq!(gate.get("/").status, 200);
    }
    let metrics = gate.admin("/metrics").text();
    let line = "tollgate_rule_decisions_total{rule=\"api\",class=\"ip/32\",verdict=\"would-refuse\"} 3";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn a_rule_may_choose_its_status() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend, &format!("{BUCKET}status = 503\n"));
    assert_eq!([gate.get("/").status, gate.get("/").status, gate.get("/").status], [200, 200, 503]);
}

#[test]
fn a_reload_keeps_the_state_of_rules_that_did_not_change() {
    let backend = Backend::saying("ok");
    let slow = BUCKET.replace("'1s'", "'100s'");
    let gate = gate(&backend, &slow);
    assert_eq!([gate.get("/").status, gate.get("/").status, gate.get("/").status], [200, 200, 429]);
    let other = slow.replace("api", "login").replace("class", "when = { path = '/login' }\nclass");
    gate.rewrite(&config(&backend, &format!("{slow}\n{other}")));
    gate.signal("HUP");
    gate.logged("settings reloaded");
    assert_eq!(gate.get("/").status, 429);
    gate.rewrite(&config(&backend, "[[rule]]\nname = 'broken'\n"));
    gate.signal("HUP");
    gate.logged("settings not reloaded");
    assert_eq!(gate.get("/").status, 429);
}

#[test]
fn a_python_client_that_honours_retry_after_is_admitted_on_its_first_retry() {
    // Python's own HTTP client, which only honours Retry-After.
    let client = r"
import sys, time, threading, http.client
def get(path='/'):
    connection = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=20)
    connection.request('GET', path)
    response = connection.getresponse()
    response.read()
    return response.status, response.getheader('Retry-After')
if 'in_flight' in sys.argv[2]:
    threading.Thread(target=get, args=('/slow',)).start()
    time.sleep(0.3)
for _ in range(100):
    status, wait = get()
    if status != 200:
        break
else:
    sys.exit('was never refused')
time.sleep(int(wait))
status, _ = get()
sys.exit(0 if status == 200 else f'was told {wait} s and then got {status}')
";
    let limits = [
        "bucket = { size = 2, drip = 1, every = '1s' }",
        "bucket = { size = 4, drip = 2, every = '1s' }",
        "rate = { rate = '1/s', burst = 2 }\nhold = '0s'",
        "window = { max = 2, per = '1s' }",
        "window = { max = 2, per = '1s' }\nescalation = { backoff = '2s', backoff_max = '9s', levels = 3, release = \
         '9s' }",
        "legacy = { max = 5, duration = '1s', min_interval = '900ms' }",
        "budget = { cores = 0.05, burst = '200ms' }\nhold = '0s'",
        "in_flight = 1",
    ];
    let python = ["python3", "python"].into_iter().find(|name| Command::new(name).arg("-V").output().is_ok());
    let python = python.expect("python3 is missing: install it (Debian: apt-get install python3)");
    std::thread::scope(|scope| {
        for limit in limits {
            scope.spawn(move || {
                let backend = Backend::answering(|request, stream| {
                    std::thread::sleep(Duration::from_millis(if request.path() == "/slow" { 900 } else { 30 }));
                    stream.write_all(b"HTTP/1.1 200 OK\r\nServer-Timing: cpu;dur=30\r\nContent-Length: 2\r\n\r\nok")
                });
                let rule = format!("in_flight = 100\n[[rule]]\nname = 'api'\nclass = 'ip/32'\n{limit}\n");
                let gate = gate(&backend, &rule);
                let port = gate.address.port().to_string();
                let ran = Command::new(python).args(["-c", client, &port, limit]).output().unwrap();
                assert!(ran.status.success(), "{limit}: {}", String::from_utf8_lossy(&ran.stderr));
            });
        }
    });
}

/// Each held request of one key is released at its own time.
#[test]
fn held_requests_are_released_in_order_of_arrival() {
    for limit in ["rate = { rate = '10/s', burst = 1 }", "rate = { rate = '40/s', burst = 1 }"] {
        let backend = Backend::saying("ok");
        let gate = gate(&backend, &format!("[[rule]]\nname = 'calm'\nclass = 'ip/32'\n{limit}\n"));
        let mut clients = Vec::new();
        for number in 0..12 {
            let mut stream = gate.connect();
            stream.write_all(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
            eventually("the gate has it", || {
                gate.metric("tollgate_requests_total") == number + 1
                    || gate.metric("tollgate_requests_held") + backend.count() as u64 > number
            });
            clients.push(stream);
        }
        for client in clients {
            assert_eq!(read_response(&mut BufReader::new(client)).unwrap().status, 200);
        }
        let order: Vec<_> = backend.requests().iter().map(|request| request.path().to_owned()).collect();
        assert_eq!(order, (0..12).map(|number| format!("/{number}")).collect::<Vec<_>>(), "{limit}");
    }
}

/// A request that a rule would hold is refused if the room is used up.
#[test]
fn a_hold_without_free_room_counts_as_a_refusal() {
    let backend = Backend::saying("ok");
    let hold = "hold = { total = 2 }\n";
    let config = format!(
        "[gate]\nworkers = 1\n{hold}backend = '{}'\n[[rule]]\nname = 'calm'\nclass = 'ip/32'\n\
         rate = {{ rate = '2/s', burst = 1 }}\n",
        backend.url()
    );
    let gate = Gate::start(&config);
    assert_eq!(gate.get("/").status, 200);
    let clients: Vec<_> = (0..6)
        .map(|_| {
            let mut stream = gate.connect();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            stream
        })
        .collect();
    let statuses: Vec<_> =
        clients.into_iter().map(|client| read_response(&mut BufReader::new(client)).unwrap().status).collect();
    let refused = statuses.iter().filter(|status| **status == 429).count() as u64;
    assert!(refused >= 3, "{statuses:?}");
    let metrics = gate.admin("/metrics").text();
    let count = |verdict: &str| {
        let line = metrics.lines().find(|line| line.contains("tollgate_rule_decisions") && line.contains(verdict));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap()
    };
    assert_eq!((count("\"held\""), count("\"refused\"")), (6 - refused, refused), "{statuses:?}");
}
