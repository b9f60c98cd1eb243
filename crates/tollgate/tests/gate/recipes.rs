//! The configurations of docs/recipes.md, and the stated effect of each.

use std::io::{BufReader, Write};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::client::connect_from;
use crate::support::crowd::{Crowd, SERVICE, slow_backend};
use crate::support::{Backend, Gate, Response, eventually, read_response, roundtrip};

const PAGE: &str = include_str!("../../../../docs/recipes.md");
const README: &str = include_str!("../../../../README.md");

/// The heading and the configuration of each recipe.
pub(crate) fn recipes() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGE.split("\n## ").skip(1).map(|section| {
        let (heading, rest) = section.split_once('\n').unwrap();
        let mut configs = rest.split("```toml\n").skip(1).map(|block| block.split_once("```").unwrap().0);
        let config = configs.next().unwrap_or_else(|| panic!("{heading} has no configuration"));
        assert_eq!(configs.next(), None, "{heading} has two configurations");
        (heading, config)
    })
}

/// A gate with the configuration of a recipe, and this backend.
fn gate(heading: &str, backend: &Backend) -> Gate {
    Gate::start(&config(heading, backend))
}

/// The configuration of a recipe with this backend, and with local addresses in place of the examples.
pub(crate) fn config(heading: &str, backend: &Backend) -> String {
    let (_, config) = recipes().find(|recipe| recipe.0 == heading).unwrap();
    pasted(config, backend)
}

/// The first configuration of README.md.
pub(crate) fn readme_config(backend: &Backend) -> String {
    let (_, rest) = README.split_once("```toml\n").expect("README.md has a configuration");
    pasted(rest.split_once("```").unwrap().0, backend)
}

fn pasted(config: &str, backend: &Backend) -> String {
    config.replace("http://127.0.0.1:8080", &backend.url()).replace("203.0.113.", "127.113.0.")
}

/// A gate with the configuration of a recipe and one request in flight, so that the others wait.
fn narrow_gate(heading: &str, backend: &Backend) -> Gate {
    Gate::start(&config(heading, backend).replace("[gate]\n", "[gate]\ncores = 1\nin_flight = 1\n"))
}

fn ask(gate: &Gate, from: [u8; 4], request: &str) -> Response {
    let stream = connect_from(IpAddr::from(from), gate.address);
    roundtrip(stream, format!("{request} HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n").as_bytes())
}

/// A request line with one more field.
fn with(line: &str, field: &str) -> String {
    format!("{line} HTTP/1.1\r\n{field}\r\nHost: site\r\nConnection: close\r\n\r\n")
}

#[test]
fn every_recipe_is_tested() {
    let headings: Vec<_> = recipes().map(|recipe| recipe.0).collect();
    let tested = [
        "Crawlers",
        "Login",
        "API quota",
        "Websocket fleet",
        "Office behind one address",
        "More for logged-in users",
        "Logged-in users, checkouts and health checks",
        "API keys behind a CDN",
    ];
    assert_eq!(headings, tested);
}

#[test]
fn crawlers_get_their_share_and_people_are_not_delayed() {
    for config in [config, |_: &str, backend: &Backend| readme_config(backend)] {
        // An expensive page with 50 ms of CPU time.
        let crawled = std::sync::Arc::new(AtomicUsize::new(0));
        let counted = crawled.clone();
        let backend = Backend::answering(move |request, stream| {
            if request.field("user-agent") == Some("ExampleBot/1.0") {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(50));
            stream.write_all(b"HTTP/1.1 200 OK\r\nServer-Timing: cpu;dur=50\r\nContent-Length: 2\r\n\r\nok")
        });
        let gate = Gate::start(&config("Crawlers", &backend));
        let (stop, started) = (AtomicBool::new(false), Instant::now());
        let slowest = std::thread::scope(|scope| {
            for crawler in 0..8 {
                let (gate, stop) = (&gate, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let stream = connect_from([127, 60, crawler, 1].into(), gate.address);
                        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                        roundtrip(stream, with("GET /expensive", "User-Agent: ExampleBot/1.0").as_bytes());
                    }
                });
            }
            std::thread::sleep(Duration::from_secs(2));
            let slowest = slowest_page_of_people(&gate);
            stop.store(true, Ordering::Relaxed);
            slowest
        });
        let (spent, secs) = (crawled.load(Ordering::Relaxed) as f64 * 0.05, started.elapsed().as_secs_f64());
        let cores = std::thread::available_parallelism().unwrap().get() as f64;
        let fair = 10.0 + 0.10 * cores * secs;
        // Eight requests may be in flight when the credit is used up.
        assert!(spent >= 8.0 && spent <= fair + 8.0 * 0.05, "{spent} CPU-seconds in {secs} s, of {fair}");
        assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    }
}

/// The longest response time of 20 pages, each requested by another person.
fn slowest_page_of_people(gate: &Gate) -> Duration {
    let mut slowest = Duration::ZERO;
    for person in 0..20 {
        let began = Instant::now();
        let stream = connect_from([127, 61, person, 1].into(), gate.address);
        let page = roundtrip(stream, with("GET /expensive", "User-Agent: Mozilla/5.0 Chrome/142.0.0.0").as_bytes());
        assert_eq!(page.status, 200);
        slowest = slowest.max(began.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
    slowest
}

#[test]
fn guesses_of_a_password_are_limited() {
    let backend = Backend::saying("ok");
    let gate = gate("Login", &backend);
    for _ in 0..40 {
        assert_eq!(ask(&gate, [127, 62, 0, 1], "POST /login").status, 200);
    }
    let refused = ask(&gate, [127, 62, 0, 1], "POST /login");
    let wait: u64 = refused.field("retry-after").unwrap().parse().unwrap();
    assert_eq!(refused.status, 429);
    assert!((11..=16).contains(&wait), "one in twelve seconds: {wait}");
    assert_eq!(ask(&gate, [127, 62, 0, 1], "GET /login").status, 200, "the form is not charged");
    // Other addresses of the network, until the limit of 120 is used up. Refused attempts did not count.
    for guess in 0..80 {
        assert_eq!(ask(&gate, [127, 62, 0, 2 + guess / 40], "POST /login").status, 200, "guess {guess}");
    }
    let (began, next) = (Instant::now(), ask(&gate, [127, 62, 0, 99], "POST /login"));
    assert!(next.status == 429 || began.elapsed() > Duration::from_millis(500), "the network is held or refused");
    assert_eq!(ask(&gate, [127, 62, 1, 1], "POST /login").status, 200, "another network does not");
}

#[test]
fn an_api_key_gets_its_documented_limit() {
    let backend = Backend::saying("ok");
    let gate = gate("API quota", &backend);
    let mut stream = gate.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut call = |key: &str| {
        stream.write_all(format!("GET /api/x HTTP/1.1\r\nHost: site\r\n{key}\r\n").as_bytes()).unwrap();
        read_response(&mut reader).unwrap()
    };
    let first = call("X-Api-Key: one\r\n");
    assert_eq!((first.status, first.field("x-ratelimit-remaining")), (200, Some("99")));
    assert_eq!(first.field("ratelimit-policy"), Some("\"api\";q=100;w=10"));
    let refused = (0..200).map(|_| call("X-Api-Key: one\r\n")).find(|answer| answer.status != 200).unwrap();
    assert_eq!(refused.status, 429);
    assert!((100..150).contains(&backend.requests().len()), "{} admitted", backend.requests().len());
    assert_eq!(call("X-Api-Key: two\r\n").status, 200, "another customer is not affected");
    let (began, anonymous) = (Instant::now(), (0..300).filter(|_| call("").status == 200).count());
    let drips = 20 * (began.elapsed().as_secs() as usize + 1);
    assert!((200..=200 + drips).contains(&anonymous), "{anonymous} without a key");
    let wait: u64 = refused.field("retry-after").unwrap().parse().unwrap();
    std::thread::sleep(Duration::from_secs(wait));
    assert_eq!(call("X-Api-Key: one\r\n").status, 200, "a client that honours Retry-After is admitted");
}

#[test]
fn a_fleet_reconnects_and_a_device_that_keeps_reconnecting_is_refused() {
    let backend = Backend::saying("ok");
    let gate = gate("Websocket fleet", &backend);
    let reconnect = |device: &str| {
        let fields = format!("Upgrade: websocket\r\nConnection: upgrade\r\nX-Device-Id: {device}");
        let request = format!("GET /ws HTTP/1.1\r\nHost: site\r\n{fields}\r\n\r\n");
        roundtrip(gate.connect(), request.as_bytes())
    };
    // After a start the fleet reconnects, some devices more than once.
    for device in 0..100 {
        for _ in 0..=device % 8 {
            assert_eq!(reconnect(&format!("device {device}")).status, 200, "device {device}");
        }
    }
    let tries: Vec<Response> = (0..30).map(|_| reconnect("broken")).collect();
    assert_eq!(tries.iter().filter(|answer| answer.status == 200).count(), 20, "the ceiling");
    let resets: Vec<f64> =
        tries[20..].iter().map(|answer| answer.field("x-ratelimit-reset").unwrap().parse().unwrap()).collect();
    assert!(resets[0] >= 0.9 && resets.is_sorted_by(|a, b| a >= b), "attempts do not extend it: {resets:?}");
    assert!(tries[20].field("retry-after").is_some());
    assert_eq!(reconnect("device 7").status, 200, "another device is not affected");
}

#[test]
fn an_office_gets_ten_times_the_share_of_a_crawler_and_divides_it_among_its_users() {
    let backend = slow_backend();
    let gate = narrow_gate("Office behind one address", &backend);
    let [busy, colleague, crawler] = [Crowd::default(), Crowd::default(), Crowd::default()];
    std::thread::scope(|scope| {
        for _ in 0..6 {
            busy.join(scope, &gate, [127, 113, 0, 7], "GET / HTTP/1.1\nCookie: session=busy");
            crawler.join(scope, &gate, [127, 9, 0, 1], "GET / HTTP/1.1");
        }
        colleague.join(scope, &gate, [127, 113, 0, 7], "GET / HTTP/1.1\nCookie: session=colleague");
        eventually("both users of the office have used their credit", || colleague.served() >= 30);
        let (busy_served, colleague_served, crawled) = (busy.served(), colleague.served(), crawler.served());
        assert!(busy_served <= 2 * colleague_served, "{busy_served} and {colleague_served} of one office");
        let office = busy_served + colleague_served;
        assert!((1..=office / 3).contains(&crawled), "{crawled} of the crawler, {office} of the office");
        [&busy, &colleague, &crawler].iter().for_each(|crowd| crowd.end());
    });
}

#[test]
fn logged_in_users_get_four_times_the_share_by_one_line() {
    let backend = slow_backend();
    let gate = narrow_gate("More for logged-in users", &backend);
    let [logged_in, anonymous] = [Crowd::default(), Crowd::default()];
    std::thread::scope(|scope| {
        for _ in 0..6 {
            logged_in.join(scope, &gate, [127, 93, 0, 1], "GET / HTTP/1.1\nCookie: session=me");
            anonymous.join(scope, &gate, [127, 94, 0, 1], "GET / HTTP/1.1");
        }
        eventually("both have used their credit", || anonymous.served() >= 20);
        let (more, less) = (logged_in.served(), anonymous.served());
        [&logged_in, &anonymous].iter().for_each(|crowd| crowd.end());
        assert!((3 * less..=6 * less).contains(&more), "{more} logged in, {less} not");
    });
}

#[test]
fn logged_in_users_get_more_checkouts_come_first_and_health_checks_do_not_wait() {
    let backend = slow_backend();
    let gate = narrow_gate("Logged-in users, checkouts and health checks", &backend);
    let [logged_in, anonymous, checkouts] = [Crowd::default(), Crowd::default(), Crowd::default()];
    std::thread::scope(|scope| {
        for _ in 0..6 {
            logged_in.join(scope, &gate, [127, 90, 0, 1], "GET /search HTTP/1.1\nCookie: session=me");
            anonymous.join(scope, &gate, [127, 91, 0, 1], "GET /search HTTP/1.1");
        }
        eventually("both have used their credit", || anonymous.served() >= 20);
        let (more, less) = (logged_in.served(), anonymous.served());
        assert!((3 * less..=6 * less).contains(&more), "{more} logged in, {less} not");
        let mut checks: Vec<Duration> = Vec::new();
        for _ in 0..5 {
            let began = Instant::now();
            assert_eq!(ask(&gate, [127, 113, 0, 9], "GET /healthz").status, 200);
            checks.push(began.elapsed());
        }
        checks.sort_unstable();
        assert!(checks[2] < SERVICE * 3, "{checks:?}");
        let before = anonymous.served();
        checkouts.join(scope, &gate, [127, 91, 0, 1], "POST /checkout/pay HTTP/1.1\nContent-Length: 0");
        eventually("ten checkouts", || checkouts.served() >= 10);
        let searches = anonymous.served() - before;
        assert!(searches <= 15, "{searches} searches of the same client");
        [&logged_in, &anonymous, &checkouts].iter().for_each(|crowd| crowd.end());
    });
}

#[test]
fn an_api_key_has_its_own_share_behind_the_address_of_a_cdn() {
    let backend = slow_backend();
    let gate = narrow_gate("API keys behind a CDN", &backend);
    let [busy, other, keyless] = [Crowd::default(), Crowd::default(), Crowd::default()];
    std::thread::scope(|scope| {
        for edge in 0..8 {
            busy.join(scope, &gate, [127, 92, edge, 1], "GET / HTTP/1.1\nX-Api-Key: busy");
        }
        other.join(scope, &gate, [127, 92, 0, 1], "GET / HTTP/1.1\nX-Api-Key: other");
        keyless.join(scope, &gate, [127, 92, 0, 1], "GET / HTTP/1.1");
        eventually("twenty of the other key", || other.served() >= 20);
        let (busy_served, keyless_served) = (busy.served(), keyless.served());
        assert!(busy_served <= 60, "{busy_served}");
        assert!((7..=60).contains(&keyless_served), "{keyless_served} without a key");
        [&busy, &other, &keyless].iter().for_each(|crowd| crowd.end());
    });
}
