//! `tollgate replay` on logs as servers write them: under overload, through syslog, out of order, without durations.

use serde_json::Value;

use crate::program::tollgate;
use crate::replay::{Files, with_input};

const BEGIN_S: u64 = 1_794_441_600; // 2026-11-12 00:00:00 UTC

/// A simulated request.
#[derive(Clone)]
struct Job {
    start_ms: u64,
    client: String,
    agent: &'static str,
    path: &'static str,
    cost_ms: u64,
    left_ms: f64,
}

/// The order in which the simulated backend works.
#[derive(Clone, Copy, PartialEq)]
enum Service {
    /// All requests at once, as an operating system shares a core among processes.
    InTurns,
    /// One request after the other, as one worker does.
    OneAfterTheOther,
}

/// The pages that the aggressive crawler requests.
#[derive(Clone, Copy)]
struct Crawl {
    path: &'static str,
    cost_ms_min: u64,
}

/// People request these too.
const SEARCHES: Crawl = Crawl { path: "/search", cost_ms_min: 60 };
/// Only the crawler requests these.
const ARCHIVES: Crawl = Crawl { path: "/archive", cost_ms_min: 240 };

/// A log of a backend with `cores`, the true cost of its requests in milliseconds, and the part of the crawler.
struct Overloaded {
    lines: String,
    cost_ms: u64,
    crawler_cost_ms: u64,
    durations_ms: u64,
}

/// Two calm minutes, two minutes with an aggressive crawler in 203.0.113.0/24, and a calm minute. People and a polite
/// crawler are there all the time.
fn overloaded(service: Service, cores: f64, crawl: Crawl) -> Overloaded {
    let mut dice = 0x5eed_u64;
    let mut roll = move |sides: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % sides
    };
    let mut jobs: Vec<Job> = Vec::new();
    let mut log = Overloaded { lines: String::new(), cost_ms: 0, crawler_cost_ms: 0, durations_ms: 0 };
    let mut crawlers_idle: Vec<u64> = (0..60).collect();
    for now_ms in 0..300_000u64 {
        let mut begin = |client: String, agent, path, cost_ms: u64| {
            jobs.push(Job { start_ms: now_ms, client, agent, path, cost_ms, left_ms: cost_ms as f64 });
        };
        if roll(200) == 0 {
            let client = format!("198.51.{}.{}", roll(200), roll(250));
            match roll(10) {
                0 => begin(client, "Firefox", "/search", 60 + roll(120)),
                _ => begin(client, "Firefox", "/page", 15 + roll(30)),
            }
        }
        if now_ms % 1000 == 0 {
            begin("192.0.2.77".to_string(), "PoliteBot (+https://polite.example/)", "/page", 15 + roll(30));
        }
        if (120_000..240_000).contains(&now_ms) {
            while let Some(host) = crawlers_idle.pop() {
                begin(format!("203.0.113.{}", 1 + host), "Mozilla/5.0", crawl.path, crawl.cost_ms_min + roll(120));
            }
        }
        let work_ms = cores.min(jobs.len() as f64);
        match service {
            Service::InTurns => {
                let each_ms = work_ms / jobs.len().max(1) as f64;
                jobs.iter_mut().for_each(|job| job.left_ms -= each_ms);
            }
            Service::OneAfterTheOther => jobs.iter_mut().take(cores as usize).for_each(|job| job.left_ms -= 1.0),
        }
        let (done, rest): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.left_ms <= 0.0);
        jobs = rest;
        for job in done {
            let end_ms = now_ms + 1;
            let took_ms = end_ms - job.start_ms;
            let second = BEGIN_S + end_ms / 1000;
            let (minute, second) = (second / 60 % 60, second % 60);
            log.lines += &format!(
                "{} - - [12/Nov/2026:00:{minute:02}:{second:02} +0000] \"GET {} HTTP/1.1\" 200 900 \"-\" \"{}\" {}.{:03}\n",
                job.client,
                job.path,
                job.agent,
                took_ms / 1000,
                took_ms % 1000
            );
            log.cost_ms += job.cost_ms;
            log.durations_ms += took_ms;
            if job.client.starts_with("203.0.113.") {
                log.crawler_cost_ms += job.cost_ms;
                crawlers_idle.push(job.client.rsplit('.').next().unwrap().parse::<u64>().unwrap() - 1);
            }
        }
    }
    log
}

fn within(actual: f64, expect: f64, part: f64) -> bool {
    (actual - expect).abs() <= expect * part
}

fn replay_json(arguments: &[&str]) -> Value {
    let run = tollgate([&["replay", "--json"], arguments].concat());
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

/// The durations of an overloaded backend are many times the costs of its requests, and victims wait as long as the
/// crawler.
#[test]
fn a_log_of_an_overloaded_backend_is_priced_by_the_requests_in_flight() {
    let files = Files::new("overloaded");
    for (service, cores) in [
        (Service::InTurns, 1.0),
        (Service::InTurns, 4.0),
        (Service::OneAfterTheOther, 1.0),
        (Service::OneAfterTheOther, 3.0),
    ] {
        let log = overloaded(service, cores, SEARCHES);
        assert!(log.durations_ms > 8 * log.cost_ms, "{} {}", log.durations_ms, log.cost_ms);
        let file = files.write("access.log", &log.lines);
        let json = replay_json(&[&file]);
        let context = format!("{cores} cores, in turns: {}: {}", service == Service::InTurns, json["pricing"]);
        assert_eq!(json["pricing"]["source"], "in-flight-shares", "{context}");
        // The wait in a calm line depends on more than the number of requests, so the estimate is less exact there.
        let tolerance = if service == Service::InTurns { 0.2 } else { 0.3 };
        assert!(within(json["pricing"]["cores"].as_f64().unwrap(), cores, tolerance), "{context}");
        let cost_ms = json["cost_ms"].as_f64().unwrap();
        assert!(within(cost_ms, log.cost_ms as f64, 0.2), "{cost_ms} instead of {}: {context}", log.cost_ms);
        let suggestion = &json["suggestion"];
        assert_eq!(suggestion["outliers"].as_array().map(Vec::len), Some(1), "{suggestion}");
        assert_eq!(suggestion["outliers"][0]["key"], "203.0.113.0/24", "{context}");
        let spent_ms = suggestion["outliers"][0]["spent"].as_f64().unwrap();
        assert!(within(spent_ms, log.crawler_cost_ms as f64, tolerance), "{spent_ms} {}", log.crawler_cost_ms);

        let config = files.write("rules.toml", suggestion["toml"].as_str().unwrap());
        let throttled = &replay_json(&["--config", &config, &file])["throttled"];
        assert_eq!(throttled.as_array().unwrap().len(), 1, "{throttled}");
        assert_eq!(throttled[0]["key"], "203.0.113.0/24");
    }
}

/// Crawlers request pages that nobody else does, so no calm request shows their cost.
#[test]
fn pages_that_only_a_crawler_requested_are_charged_the_work_that_others_leave() {
    let files = Files::new("unknown-route");
    for (service, cores) in [(Service::InTurns, 1.0), (Service::InTurns, 4.0), (Service::OneAfterTheOther, 1.0)] {
        let log = overloaded(service, cores, ARCHIVES);
        let json = replay_json(&[&files.write("access.log", &log.lines)]);
        let context = format!("{cores} cores, in turns: {}: {}", service == Service::InTurns, json["pricing"]);
        assert_eq!(json["pricing"]["source"], "in-flight-shares", "{context}");
        assert!(within(json["pricing"]["cores"].as_f64().unwrap(), cores, 0.2), "{context}");
        let cost_ms = json["cost_ms"].as_f64().unwrap();
        assert!(within(cost_ms, log.cost_ms as f64, 0.2), "{cost_ms} instead of {}: {context}", log.cost_ms);
        let outlier = &json["suggestion"]["outliers"][0];
        assert_eq!(outlier["key"], "203.0.113.0/24", "{context}");
        let spent_ms = outlier["spent"].as_f64().unwrap();
        assert!(within(spent_ms, log.crawler_cost_ms as f64, 0.2), "{spent_ms} of {}: {context}", log.crawler_cost_ms);
    }
}

#[test]
fn stated_cores_replace_the_estimate() {
    let files = Files::new("stated");
    let log = overloaded(Service::InTurns, 1.0, SEARCHES);
    let file = files.write("access.log", &log.lines);
    let json = replay_json(&["--cores", "1", &file]);
    assert_eq!(
        (&json["pricing"]["cores"], &json["pricing"]["cores_estimated"]),
        (&Value::from(1.0), &Value::from(false))
    );
    assert!(within(json["cost_ms"].as_f64().unwrap(), log.cost_ms as f64, 0.1));
    let page = tollgate(["replay", &file]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains("because requests waited for each other"), "{page}");
    for wrong in ["0", "-1", "NaN", "inf", "x", ""] {
        assert_eq!(tollgate(["replay", "--cores", wrong, &file]).code, Some(2), "{wrong}");
    }
}

#[test]
fn an_input_that_can_be_read_once_gives_the_same_result() {
    let log = overloaded(Service::InTurns, 1.0, SEARCHES);
    let files = Files::new("once");
    let file = files.write("access.log", &log.lines);
    let mut named = replay_json(&[&file]);
    let run = with_input(&["replay", "--json", "-"], log.lines.as_bytes());
    let mut piped: Value = serde_json::from_str(&run.stdout).unwrap();
    for json in [&mut named, &mut piped] {
        json["file"] = Value::Null;
    }
    assert_eq!(named, piped);
}

#[test]
fn lines_of_syslog_are_read() {
    let message = r#"203.0.113.7 - - [12/Nov/2026:00:00:01 +0000] "GET / HTTP/1.1" 200 5 "-" "x" 0.001"#;
    let files = Files::new("syslog");
    let file = files.write("syslog", format!("Nov 12 00:00:01 web1 nginx: {message}\n").repeat(3));
    let json = replay_json(&[&file]);
    assert_eq!((&json["requests"], &json["oddities"]["named_clients"]), (&Value::from(3), &Value::from(0)));
    assert_eq!(json["talkers"][0]["heaviest"][0]["key"], "203.0.113.7");
    // A header without a program looks like the message.
    let file =
        files.write("odd", "Nov 12 00:00:01 web1 app some [12/Nov/2026:00:00:01 +0000] \"GET / HTTP/1.1\" 200 5\n");
    let run = tollgate(["replay", "--format", "combined", &file]);
    assert_eq!(run.code, Some(1));
    assert!(run.stdout.contains("line 1, column 17: expected host and program of a syslog header"), "{}", run.stdout);
}

/// A line of a gate's own log has the time of the request's arrival and is written at the end of the response.
#[test]
fn lines_out_of_order_are_sorted_and_the_number_is_shown() {
    let files = Files::new("unordered");
    let rules = "[[rule]]\nname = \"api\"\nclass = \"ip/32\"\nbucket = { size = 1, drip = 1, every = \"1s\" }\n";
    let config = files.write("rules.toml", rules);
    let line = |second: u64| {
        format!(
            "203.0.113.7 - - [12/Nov/2026:00:00:{second:02} +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"x\" rt=0.001 cost=0.001\n"
        )
    };
    let sorted: String = (0..30).map(line).collect();
    let unordered: String =
        [3u64, 0, 4, 1, 2].into_iter().flat_map(|first| (0..6).map(move |row| first + 5 * row)).map(line).collect();
    let (sorted, unordered) = (files.write("sorted.log", sorted), files.write("unordered.log", unordered));
    let json = replay_json(&["--config", &config, &unordered]);
    assert_eq!(json["decisions"], replay_json(&["--config", &config, &sorted])["decisions"]);
    assert_eq!(json["decisions"]["refused"], 0);
    assert!(json["oddities"]["sorted"].as_u64().unwrap() > 10, "{}", json["oddities"]);
    assert_eq!(
        (&json["oddities"]["out_of_order"], &json["pricing"]["source"]),
        (&Value::from(0), &Value::from("measured"))
    );
    let page = tollgate(["replay", "--config", &config, &unordered]).stdout;
    assert!(page.contains("out of order, sorted by time"), "{page}");
    let decisions = tollgate(["replay", "--config", &config, "--decisions", &unordered]);
    assert!(decisions.stderr.contains("out of order, sorted by time"), "{}", decisions.stderr);
    let times: Vec<u64> = decisions
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["at_ms"].as_u64().unwrap())
        .collect();
    assert!(times.is_sorted(), "{times:?}");
}

#[test]
fn lines_that_are_hours_late_are_counted_and_keep_their_place() {
    let files = Files::new("late");
    let line = |hour: u64| {
        format!("203.0.113.7 - - [12/Nov/2026:{hour:02}:00:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"x\"\n")
    };
    let file = files.write("joined.log", [5, 6, 1, 2].map(line).concat());
    let json = replay_json(&[&file]);
    assert_eq!((&json["oddities"]["sorted"], &json["oddities"]["out_of_order"]), (&Value::from(0), &Value::from(2)));
    let page = tollgate(["replay", &file]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains("sort it by time first"), "{page}");
}

#[test]
fn times_over_several_days_have_dates() {
    let files = Files::new("days");
    let rules = "[[rule]]\nname = \"api\"\nclass = \"ip/32\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n";
    let config = files.write("rules.toml", rules);
    let lines: String = (12..15)
        .flat_map(|day| [0, 1].map(|second| (day, second)))
        .map(|(day, second)| {
            format!("203.0.113.7 - - [{day}/Nov/2026:10:00:0{second} +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"x\"\n")
        })
        .collect();
    let file = files.write("access.log", lines);
    let page = tollgate(["replay", "--config", &config, &file]).stdout;
    assert!(page.contains("2026-11-12 10:00 to 2026-11-14 10:00 UTC"), "{page}");
    assert!(page.contains("11-12 to 11-14") && page.contains("╵11-13"), "{page}");
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
}

#[test]
fn a_log_without_durations_says_so_and_offers_an_estimate() {
    let files = Files::new("undated");
    let line = |client: &str, path: &str, minute: usize, second: usize| {
        format!(
            "{client} - - [12/Nov/2026:00:{minute:02}:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 900 \"-\" \"x\"\n"
        )
    };
    let mut lines = String::new();
    for tick in 0..300 {
        let (minute, second) = (tick / 60, tick % 60);
        lines += &line("198.51.100.1", "/logo.png", minute, second).repeat(20);
        lines += &line("192.0.2.1", "/", minute, second);
        lines += &line("203.0.113.7", "/search?q=x", minute, second).repeat(10);
    }
    let file = files.write("access.log", lines);
    let page = tollgate(["replay", &file]).stdout;
    for says in ["budgets have no effect", "--estimate", "log_format timed", "$request_time", "%D"] {
        assert!(page.contains(says), "{says}: {page}");
    }
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    let json = replay_json(&[&file]);
    assert_eq!((&json["cost_ms"], &json["pricing"]["source"]), (&Value::Null, &Value::from("none")));
    assert_eq!(json["suggestion"]["budget"], false);

    let json = replay_json(&["--estimate", &file]);
    assert_eq!(json["pricing"]["source"], "rough-estimate");
    assert_eq!(json["talkers"][0]["heaviest"][0]["key"], "203.0.113.7", "a search costs more than a picture");
    assert_eq!(json["suggestion"]["budget"], true);
    assert!(tollgate(["replay", "--estimate", &file]).stdout.contains("rough estimates"));
}

#[test]
fn the_report_is_one_page_without_scripts_or_resources_and_escapes_every_name() {
    let files = Files::new("report");
    let report = files.0.join("report.html");
    let report_path = report.to_str().unwrap();
    let run = tollgate(["replay", "--config", "examples/site.toml", "--html", report_path, "examples/access.log.gz"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    let html = std::fs::read_to_string(&report).unwrap();
    for says in
        ["GreedyBot/2.1", "100.64.31.7", "Requests over time", "Load of the backend", "<svg", "2026-11-12", "</html>"]
    {
        assert!(html.contains(says), "{says}");
    }
    for forbidden in ["<script", "src=", "href=", "url(", "@import", "http://www"] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }

    let hostile = r#"{"at_ms": 0, "client": "<script>alert(1)</script>", "path": "/\"><img src=x onerror=alert(1)>", "cost_ms": 9000, "headers": {"user-agent": "</style><script>alert('bot')</script>&amp;\u0007\u202e"}}"#;
    let trace = files.write("<b>.jsonl", format!("{hostile}\n").repeat(200));
    let run = tollgate(["replay", "--config", "examples/site.toml", "--html", report_path, &trace]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let html = std::fs::read_to_string(&report).unwrap();
    assert!(html.contains("&lt;script&gt;alert(1)") && html.contains("&amp;amp;"), "{html}");
    for forbidden in ["<script", "<img", "<b>", "\u{7}", "\u{202e}"] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
    assert_eq!(html.matches("</style>").count(), 1);

    let run = tollgate(["replay", "--html", "/nonexistent/report.html", &trace]);
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("/nonexistent/report.html"), "{}", run.stderr);
}
