//! The time until a page shows its data, and its smoothness with thousands of active clients.
//!
//! The measurements are printed. The assertions only detect gross regressions, because this also runs unoptimised
//! beside other work. `bench/RESULTS.md` has the command for measurements.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::browser::Browser;
use crate::support::{Gate, PATIENCE, eventually};

const CALLERS: u32 = 10_000;
/// Requests sent before their responses are read.
const TOGETHER: u32 = 100;
/// The pause between two batches, which bounds the load on the gate.
const PAUSE: Duration = Duration::from_millis(20);
/// The pages, by address and heading.
const PAGES: [(&str, &str); 4] =
    [("", "Overview"), ("spenders", "Spenders"), ("episodes", "Episodes"), ("settings", "Settings")];
/// The number of times that each page is opened.
const OPENINGS: usize = 5;
/// The time for which a page is observed.
const WATCHED_MS: u32 = 4_000;

/// A proxy that sends requests of all clients in turn until it is dropped.
struct Crowd {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Crowd {
    fn start(gate: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(gate).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut first = 0;
            while !stopped.load(Ordering::Relaxed) {
                send(&mut stream, first);
                first = (first + TOGETHER) % CALLERS;
                // The first round runs at full speed.
                std::thread::sleep(PAUSE);
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Sends one batch of requests on a connection and reads the responses.
fn send(stream: &mut TcpStream, first: u32) {
    let mut requests = String::new();
    for caller in first..first + TOGETHER {
        let [_, a, b, c] = caller.to_be_bytes();
        requests += &format!(
            "GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 10.{a}.{b}.{c}\r\nUser-Agent: agent-{}\r\n\r\n",
            caller % 500
        );
    }
    stream.write_all(requests.as_bytes()).unwrap();
    let (mut answers, mut bytes) = (0, [0; 16384]);
    let mut text = Vec::new();
    while answers < TOGETHER as usize {
        let read = stream.read(&mut bytes).unwrap();
        assert!(read > 0, "the gate closed the connection");
        text.extend_from_slice(&bytes[..read]);
        answers = text.windows(7).filter(|window| window == b"\r\n\r\nyes").count();
    }
}

/// Times in milliseconds since the page was requested.
#[derive(Debug)]
#[expect(dead_code, reason = "printed, to see where the time goes")]
struct Opened {
    page: f64,
    script: f64,
    /// The first script of the page started.
    ran: f64,
    /// The last request of the page was sent, and its response arrived.
    asked: f64,
    answered: f64,
    shown: f64,
}

/// Opens a page as for the first time, but with the browser's cache.
fn open(browser: &Browser, gate: &Gate, page: &str, heading: &str) -> Opened {
    // An address that differs only in its fragment would not be loaded again.
    browser.go("about:blank");
    browser.go(&format!("http://{}/#/{page}", gate.admin));
    browser.shows(heading);
    browser.finds("performance.getEntriesByName('shown').length > 0", &json!(true));
    let times = browser.run(
        "const [page] = performance.getEntriesByType('navigation');\n\
        const [script] = performance.getEntriesByType('resource').filter((one) => one.name.endsWith('console.js'));\n\
        const shown = performance.getEntriesByName('shown')[0].startTime;\n\
        const asked = performance.getEntriesByType('resource').filter((one) => one.name.includes('/api/') && one.responseEnd > 0 && one.responseEnd <= shown);\n\
        const last = (of) => Math.max(0, ...asked.map(of));\n\
        return [page.responseEnd, script.responseEnd, page.domInteractive, last((one) => one.startTime), last((one) => one.responseEnd), shown]",
    );
    let at = |place: usize| times[place].as_f64().unwrap();
    Opened { page: at(0), script: at(1), ran: at(2), asked: at(3), answered: at(4), shown: at(5) }
}

#[test]
fn a_page_opens_soon_and_stays_smooth_with_ten_thousand_clients() {
    let gate = Gate::start("trusted_proxies = [\"127.0.0.1\"]\n");
    let _crowd = Crowd::start(gate.address);
    eventually("everybody has come", || {
        gate.json("/api/v1/status")["requests"]["total"].as_u64() >= Some(CALLERS.into())
    });
    let browser = Browser::open(1280, 1000);
    // The first page of a new browser is slow for reasons outside the console. This page is not part of the console
    // and loads none of its scripts.
    browser.go(&format!("http://{}/login", gate.admin));
    for (page, heading) in PAGES {
        let opened: Vec<_> = (0..OPENINGS).map(|_| open(&browser, &gate, page, heading)).collect();
        let mut shown: Vec<_> = opened.iter().map(|one| one.shown).collect();
        shown.sort_by(f64::total_cmp);
        let worst = shown[OPENINGS - 1];
        eprintln!("{heading}: figures after {:.0} ms, at worst {worst:.0} ms; {opened:.0?}", shown[OPENINGS / 2]);
        assert!(worst < 20_000.0, "{heading} after {worst} ms");
        let watched = browser.run_async(&format!(
            "const done = arguments[arguments.length - 1];\n\
            let tasks = 0; let longest = 0; let frames = 0; let worst = 0; let before = performance.now();\n\
            const end = before + {WATCHED_MS};\n\
            new PerformanceObserver((list) => list.getEntries().forEach((one) => {{ tasks += 1; longest = Math.max(longest, one.duration); }})).observe({{ type: 'longtask' }});\n\
            const frame = (now) => {{ frames += 1; worst = Math.max(worst, now - before); before = now; if (now < end) requestAnimationFrame(frame); else done({{ tasks, longest, frames, worst }}); }};\n\
            requestAnimationFrame(frame);"
        ));
        eprintln!("{heading}: {watched}");
        assert!(watched["longest"].as_f64().unwrap() < 5_000.0, "{heading}: {watched}");
    }
}
