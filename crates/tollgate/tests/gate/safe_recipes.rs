//! No recipe refuses or holds people on a site without overload.
//!
//! The people are the hardest common case: an office behind one address, with one browser version. For a rule with an
//! address or the user agent as its class, they are one client.

use std::io::{BufReader, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

use crate::recipes;
use crate::support::client::connect_from;
use crate::support::{Backend, Gate, read_response};

/// Stands for the heading of the first rule of README.md.
const README: &str = "README.md";
/// In place of the heading of a recipe: the rules that the replay page begins with.
const EXAMPLE: &str = "examples/site.toml";
const PEOPLE: usize = 15;
const PAGES: usize = 320;
/// Assets of a page, one for each connection that a browser opens.
const ASSETS: usize = 6;
/// Time between two pages of one person. All pages take 10 s, during which the site uses less than two cores.
const THINK: Duration = Duration::from_millis(420);
const CHROME: &str =
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36";
/// A phone by the manufacturer Cubot.
const CUBOT: &str = "Mozilla/5.0 (Linux; Android 11; CUBOT_NOTE_20) AppleWebKit/537.36 (KHTML, like Gecko) \
                     Chrome/142.0.0.0 Mobile Safari/537.36";

/// A site that reports 60 ms of CPU time for pages and 0.5 ms for assets.
fn site() -> Backend {
    Backend::answering(|request, stream| {
        let is_page = request.path().starts_with("/page/");
        // The gate ignores reports that exceed the duration of the request.
        std::thread::sleep(Duration::from_millis(if is_page { 60 } else { 1 }));
        let cpu = if is_page { "60" } else { "0.5" };
        let head = format!("HTTP/1.1 200 OK\r\nServer-Timing: cpu;dur={cpu}\r\nContent-Length: 2\r\n\r\nok");
        stream.write_all(head.as_bytes())
    })
}

/// One person's browser.
struct Browser<'a> {
    connections: Vec<(TcpStream, BufReader<TcpStream>)>,
    cookie: String,
    refused: &'a Mutex<Vec<String>>,
}

impl<'a> Browser<'a> {
    fn new(gate: &Gate, from: [u8; 4], person: usize, refused: &'a Mutex<Vec<String>>) -> Self {
        let connect = |_| {
            let stream = connect_from(IpAddr::from(from), gate.address);
            stream.set_nodelay(true).unwrap();
            (stream.try_clone().unwrap(), BufReader::new(stream))
        };
        // Most people only send GET.
        let cookie = if person.is_multiple_of(5) { format!("Cookie: session={person}\r\n") } else { String::new() };
        Self { connections: (0..ASSETS).map(connect).collect(), cookie, refused }
    }

    /// Sends all requests concurrently, each on its own connection.
    fn load(&mut self, requests: &[String]) {
        let cookie = &self.cookie;
        for ((stream, _), line) in self.connections.iter_mut().zip(requests) {
            let head =
                format!("{line} HTTP/1.1\r\nHost: site\r\nUser-Agent: {CHROME}\r\n{cookie}Content-Length: 0\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
        }
        for ((_, reader), line) in self.connections.iter_mut().zip(requests) {
            let response = read_response(reader).expect("a response");
            if response.status != 200 {
                self.refused.lock().unwrap().push(format!("{line}: {} {}", response.status, response.text()));
            }
        }
    }

    fn browse(&mut self, person: usize) {
        // One mistyped password.
        self.load(&["POST /login".into()]);
        self.load(&["POST /login".into()]);
        for page in (person..PAGES).step_by(PEOPLE) {
            self.load(&[format!("GET /page/{page}")]);
            let mut assets: Vec<_> = (0..ASSETS).map(|asset| format!("GET /assets/{asset}.css")).collect();
            if page.is_multiple_of(4) {
                assets[0] = "GET /api/cart".into();
            }
            self.load(&assets);
            std::thread::sleep(THINK);
        }
    }
}

/// The requests of an office with another status than 200, and the rules that have held requests.
fn throttled_of_an_office(config: &str, site: &Backend) -> Vec<String> {
    let gate = Gate::start(config);
    let refused = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for person in 0..PEOPLE {
            let (gate, refused) = (&gate, &refused);
            scope.spawn(move || Browser::new(gate, [127, 44, 0, 1], person, refused).browse(person));
        }
    });
    let pages = site.requests().iter().filter(|request| request.path().starts_with("/page/")).count();
    let mut refused = refused.into_inner().unwrap();
    assert_eq!(pages + refused.iter().filter(|line| line.contains("/page/")).count(), PAGES);
    let metrics = gate.admin("/metrics").text();
    let decisions = metrics.lines().filter(|line| line.starts_with("tollgate_rule_decisions_total{"));
    let holds = decisions.filter(|line| line.contains("verdict=\"held\"") && !line.ends_with(" 0"));
    refused.extend(holds.map(str::to_owned));
    refused
}

/// The example with a tenth of its bursts, because this office browses for ten seconds instead of minutes.
fn example_config(site: &Backend) -> String {
    let config = include_str!("../../../../examples/site.toml").replace("http://127.0.0.1:8080", &site.url());
    config.replace("burst = \"30s\"", "burst = \"3s\"").replace("burst = \"60s\"", "burst = \"6s\"")
}

#[test]
fn no_recipe_refuses_or_holds_an_office_with_one_browser_version() {
    let config = |heading: &str, site: &Backend| match heading {
        README => recipes::readme_config(site),
        EXAMPLE => example_config(site),
        recipe => recipes::config(recipe, site),
    };
    let headings: Vec<_> = recipes::recipes().map(|(heading, _)| heading).chain([README, EXAMPLE]).collect();
    // Four at a time: all at once would overload a small machine, and sequential runs take a minute.
    for some in headings.chunks(4) {
        std::thread::scope(|scope| {
            for heading in some {
                scope.spawn(move || {
                    let site = site();
                    let throttled = throttled_of_an_office(&config(heading, &site), &site);
                    assert!(throttled.is_empty(), "{heading} throttled {}: {:?}", throttled.len(), throttled.last());
                });
            }
        });
    }
}

#[test]
fn a_rule_for_crawlers_matches_crawlers_and_no_phone_whose_name_ends_in_bot() {
    let is_matched = |agent: &str, gate: &Gate| {
        let mut stream = gate.connect();
        write!(stream, "GET / HTTP/1.1\r\nHost: site\r\nUser-Agent: {agent}\r\nConnection: close\r\n\r\n").unwrap();
        read_response(&mut BufReader::new(stream)).unwrap().field("ratelimit-policy").is_some()
    };
    let site = site();
    for config in [recipes::readme_config(&site), recipes::config("Crawlers", &site)] {
        let gate = Gate::start(&config);
        for agent in [
            "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
            "Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; GPTBot/1.2; +https://openai.com/gptbot)",
            "Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; ClaudeBot/1.0; +claudebot@anthropic.com)",
            "Mozilla/5.0 (compatible; PetalBot;+https://webmaster.petalsearch.com/site/petalbot)",
            "Mozilla/5.0 (Linux; Android 5.0) AppleWebKit/537.36 (KHTML, like Gecko) Mobile Safari/537.36 (compatible; \
             Bytespider; spider-feedback@bytedance.com)",
            "meta-externalagent/1.1 (+https://developers.facebook.com/docs/sharing/webmasters/crawler)",
        ] {
            assert!(is_matched(agent, &gate), "{agent}");
        }
        assert!(!is_matched(CHROME, &gate) && !is_matched(CUBOT, &gate));
    }
}
