//! Several sites behind one gate.

use std::io::{BufReader, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::backend::respond;
use crate::support::http2::{read_answer, run};
use crate::support::{Backend, Gate, PATIENCE, Response, binary, eventually, read_response, roundtrip};
use crate::tls::{certificate, shake_hands, write};

/// Requests a path of a host on a new connection.
fn get(gate: &Gate, host: &str, path: &str) -> Response {
    send(gate, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
}

fn send(gate: &Gate, request: &str) -> Response {
    roundtrip(gate.connect(), request.as_bytes())
}

/// The settings of a site with this name, host and backend.
fn site(name: &str, host: &str, backend: &Backend) -> String {
    format!("[[site]]\nname = \"{name}\"\nhost = {host}\nbackend = \"{}\"\n", backend.url())
}

/// A rule that admits one request of each address.
const ONE_REQUEST: &str = "[[site.rule]]\nname = \"one\"\nclass = \"ip/32\"\nbucket = { size = 1, every = \"1h\" }\n";

/// Reloads the settings of `gate` and waits for the result.
fn reload(gate: &Gate, config: &str) {
    gate.rewrite(config);
    let before = gate.metric("tollgate_reloads_total");
    gate.signal("HUP");
    eventually("the file is read again", || gate.metric("tollgate_reloads_total") == before + 1);
}

/// The configuration of the guide, with the addresses of these backends.
fn config_of_guide(shop: [&Backend; 2], blog: &Backend) -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/several-sites.md");
    let text = std::fs::read_to_string(page).unwrap();
    let block = text.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let ports = [("8081", shop[0]), ("8082", shop[1]), ("8083", blog)];
    ports.iter().fold(block.to_owned(), |text, (port, backend)| {
        text.replace(&format!("http://127.0.0.1:{port}"), &backend.url())
    })
}

/// A gate with these settings and the certificates of the guide, which are returned as well.
fn gate_of_guide(config: &str) -> (Gate, [rcgen::CertifiedKey<rcgen::KeyPair>; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let certificates = [certificate(&["shop.example", "*.shop.example"]), certificate(&["blog.example"])];
    std::fs::create_dir(folder.path().join("tls")).unwrap();
    write(&folder.path().join("tls"), "shop", &certificates[0]);
    write(&folder.path().join("tls"), "blog", &certificates[1]);
    let file = folder.path().join("tollgate.toml");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(binary());
    command.arg("gate").arg("--config").arg(&file).args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    (Gate::spawn(command, folder), certificates)
}

/// The status and body of the response to a request over TLS, to the host `to` on a connection for `name`.
async fn ask(gate: &Gate, trusted: &rcgen::CertifiedKey<rcgen::KeyPair>, name: &str, to: &str) -> (String, String) {
    let stream = TcpStream::connect(gate.address).await.unwrap();
    let mut stream = shake_hands(stream, trusted.cert.der(), name, &["http/1.1"]).await.unwrap();
    let request = format!("POST /login HTTP/1.1\r\nHost: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head[9..12].to_owned(), body.to_owned())
}

#[test]
fn the_configuration_of_the_guide_serves_two_sites_with_their_own_certificates_backends_and_rules() {
    let (first, second, blog) = (Backend::saying("shop"), Backend::saying("shop"), Backend::saying("blog"));
    let (gate, [shop_key, blog_key]) = gate_of_guide(&config_of_guide([&first, &second], &blog));
    let answer = |status: &str, body: &str| (status.to_owned(), body.to_owned());
    run(async {
        // Each certificate is the only one that its client trusts, so a handshake succeeds with the right one only.
        assert_eq!(ask(&gate, &shop_key, "shop.example", "shop.example").await, answer("200", "shop"));
        assert_eq!(ask(&gate, &shop_key, "www.shop.example", "WWW.Shop.Example.:443").await, answer("200", "shop"));
        assert_eq!(ask(&gate, &blog_key, "blog.example", "blog.example").await, answer("200", "blog"));
        // On a connection for the blog, a request for the shop gets the shop's backend and is charged to its rule.
        assert_eq!(ask(&gate, &blog_key, "blog.example", "shop.example").await, answer("200", "shop"));
        for name in ["blog.example", "shop.example"] {
            let key = if name == "blog.example" { &blog_key } else { &shop_key };
            let (status, body) = ask(&gate, key, name, "shop.example").await;
            assert!(status == "429" && body.contains("shop/login"), "{name}: {status} {body}");
        }
        assert_eq!(ask(&gate, &shop_key, "shop.example", "blog.example").await, answer("200", "blog"));
        // The same on one HTTP/2 connection.
        let stream = TcpStream::connect(gate.address).await.unwrap();
        let stream = shake_hands(stream, blog_key.cert.der(), "blog.example", &["h2"]).await.unwrap();
        let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        for (host, expected) in [("blog.example", 200), ("shop.example", 429), ("other.example", 421)] {
            let request = http::Request::post(format!("https://{host}/login")).body(()).unwrap();
            let response = sender.send_request(request, true).unwrap().0.await.unwrap();
            assert_eq!(read_answer(response).await.unwrap().head.status, expected, "{host}");
        }
    });
    assert!(first.count() + second.count() == 3 && blog.count() == 3);
    assert_eq!(gate.metric("tollgate_requests_misdirected_total"), 1);
}

#[test]
fn the_guide_shows_what_check_prints() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/several-sites.md")).unwrap();
    let block =
        |kind: &str| page.split(&format!("```{kind}\n")).nth(1).unwrap().split("```").next().unwrap().to_owned();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tollgate.toml"), block("toml")).unwrap();
    std::fs::create_dir(folder.path().join("tls")).unwrap();
    for file in ["shop.pem", "shop.key", "blog.pem", "blog.key"] {
        // It only has to exist: without it, a note would say so.
        std::fs::write(folder.path().join("tls").join(file), "").unwrap();
    }
    let check = Command::new(binary()).args(["check", "tollgate.toml"]).current_dir(folder.path()).output().unwrap();
    assert_eq!(String::from_utf8(check.stdout).unwrap(), block("text"));
}

#[test]
fn the_most_specific_host_selects_the_site_in_every_spelling() {
    let (exact, below, deep, other) =
        (Backend::saying("exact"), Backend::saying("below"), Backend::saying("deep"), Backend::saying("other"));
    let sites = [
        site("below", "[\"*.a.example\", \"192.0.2.1\", \"[2001:db8::1]\"]", &below),
        site("exact", "\"www.a.example\"", &exact),
        site("deep", "\"*.b.a.example\"", &deep),
    ];
    let gate = Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"{}\"\n{}", other.url(), sites.concat()));
    for (host, expected) in [
        ("www.a.example", "exact"),
        ("WWW.A.EXAMPLE.:8080", "exact"),
        ("x.a.example", "below"),
        ("www.www.a.example", "below"),
        ("b.a.example:80", "below"),
        ("www.b.a.example", "deep"),
        ("192.0.2.1:8080", "below"),
        ("[2001:db8::1]:80", "below"),
        ("a.example", "other"),
        ("xa.example", "other"),
        ("localhost", "other"),
    ] {
        assert_eq!(get(&gate, host, "/").text(), expected, "{host}");
        let absolute = format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert_eq!(send(&gate, &absolute).text(), expected, "{host} in the target");
    }
    assert_eq!(send(&gate, "GET / HTTP/1.0\r\n\r\n").text(), "other", "without a host");
    let seen = exact.requests();
    assert_eq!(seen[2].field("host"), Some("WWW.A.EXAMPLE.:8080"), "the backend gets the host as it was sent");
}

#[test]
fn without_a_backend_for_other_hosts_they_are_answered_with_421() {
    let shop = Backend::saying("shop");
    let config = format!("{}[gate]\nworkers = 1\n", site("shop", "\"shop.example\"", &shop));
    let gate = Gate::start(&config);
    let mut stream = gate.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut ask = |host: &str, fields: &str| {
        stream.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n").as_bytes()).unwrap();
        read_response(&mut reader).unwrap()
    };
    let problem = ask("other.example", "");
    assert_eq!((problem.status, problem.field("content-type")), (421, Some("application/problem+json")));
    assert!(problem.text().contains("no site with this host"), "{}", problem.text());
    assert_eq!(problem.field("retry-after"), None, "waiting does not help");
    let page = ask("other.example", "Accept: text/html\r\n");
    assert_eq!((page.status, page.field("content-type")), (421, Some("text/html; charset=utf-8")));
    assert!(page.text().contains("There is no site with this name here."), "{}", page.text());
    assert_eq!(ask("shop.example", "").text(), "shop", "the connection is kept");
    assert_eq!(shop.count(), 1);
    assert_eq!(gate.metric("tollgate_requests_misdirected_total"), 2);
}

#[test]
fn a_rule_of_a_site_counts_its_own_requests_and_a_general_rule_those_of_all() {
    let (shop, blog) = (Backend::saying("shop"), Backend::saying("blog"));
    let general = "[[rule]]\nname = \"all\"\nclass = \"ip/32\"\nbucket = { size = 4, every = \"1h\" }\n";
    let sites = format!(
        "{}{ONE_REQUEST}{}{ONE_REQUEST}{}",
        site("shop", "\"*.example\"", &shop),
        site("blog", "\"blog.example\"", &blog),
        site("wiki", "\"wiki.example\"", &blog),
    );
    let gate = Gate::start(&format!("[gate]\nworkers = 1\n{sites}{general}"));
    let statuses = |hosts: &[&str]| hosts.iter().map(|host| get(&gate, host, "/").status).collect::<Vec<_>>();
    assert_eq!(statuses(&["a.example", "b.example", "blog.example", "BLOG.example."]), [200, 429, 200, 429]);
    let refused = get(&gate, "blog.example", "/").text();
    assert!(refused.contains("\"violated-policies\":[\"blog/one\"]"), "{refused}");
    // The wiki has no rule of its own, and the blog's backend has no rules.
    assert_eq!(statuses(&["wiki.example", "wiki.example", "wiki.example"]), [200, 200, 429]);
    let metrics = gate.admin("/metrics").text();
    let count = |rule: &str| {
        let labels = format!("{{rule=\"{rule}\",class=\"ip/32\",verdict=\"refused\"}} ");
        let line =
            metrics.lines().find(|line| line.contains(&labels)).unwrap_or_else(|| panic!("no {rule}: {metrics}"));
        line.rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(["shop/one", "blog/one", "all"].map(count), ["1", "2", "1"]);
}

#[test]
fn a_site_with_a_slow_backend_does_not_delay_another_site() {
    let slow = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(200));
        respond(stream, "slow")
    });
    let fast = Backend::saying("fast");
    let gate = Gate::start(&format!(
        "[gate]\nworkers = 1\n{}in_flight = 1\n{}",
        site("slow", "\"slow.example\"", &slow),
        site("fast", "\"fast.example\"", &fast)
    ));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut stream = gate.connect();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let began = Instant::now();
                while !is_over.load(Ordering::Relaxed) && began.elapsed() < PATIENCE {
                    stream.write_all(b"GET / HTTP/1.1\r\nHost: slow.example\r\n\r\n").unwrap();
                    read_response(&mut reader).unwrap();
                }
            });
        }
        let waiting = |site: &str| {
            let text = gate.admin("/metrics").text();
            let line = text.lines().find(|line| {
                line.starts_with("tollgate_backend_waiting{") && line.contains(&format!("site=\"{site}\""))
            });
            line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap()
        };
        eventually("requests wait for the slow site", || waiting("slow") >= 12);
        let mut longest = Duration::ZERO;
        for _ in 0..50 {
            let began = Instant::now();
            assert_eq!(get(&gate, "fast.example", "/").text(), "fast");
            longest = longest.max(began.elapsed());
        }
        assert_eq!(waiting("fast"), 0);
        let still = waiting("slow");
        is_over.store(true, Ordering::Relaxed);
        // A request of the slow site waits for 12 others, at least 2.4 s.
        assert!(still >= 12 && longest < Duration::from_millis(600), "{still} waited, longest {longest:?}");
    });
}

#[test]
fn a_reload_adds_changes_and_removes_sites_without_dropping_a_request() {
    let (old, new, added) = (Backend::saying("old"), Backend::saying("new"), Backend::saying("added"));
    let slow = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(300));
        respond(stream, "slow")
    });
    let [shop, removed] = [site("shop", "\"shop.example\"", &old), site("gone", "\"gone.example\"", &slow)];
    let gate = Gate::start(&format!("[gate]\nworkers = 1\n{shop}{ONE_REQUEST}{removed}in_flight = 1\n"));
    assert_eq!(get(&gate, "shop.example", "/").text(), "old");
    assert_eq!(get(&gate, "added.example", "/").status, 421);
    let (is_over, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        // One request is in flight and three wait at the site that is removed.
        let waiting: Vec<_> = (0..4).map(|_| scope.spawn(|| get(&gate, "gone.example", "/"))).collect();
        eventually("the requests are there", || slow.count() == 1 && gate.metric("tollgate_requests_waiting") == 3);
        let [changed, one_more] = [site("shop", "\"shop.example\"", &new), site("added", "\"added.example\"", &added)];
        let config = format!("[gate]\nworkers = 1\n{changed}{ONE_REQUEST}{one_more}");
        reload(&gate, &config);
        let answers: Vec<_> = waiting.into_iter().map(|one| one.join().unwrap()).collect();
        assert!(answers.iter().all(|answer| answer.text() == "slow"), "{answers:?}");
        assert_eq!(get(&gate, "gone.example", "/").status, 421);
        assert_eq!(get(&gate, "added.example", "/").text(), "added");
        assert_eq!(get(&gate, "shop.example", "/").status, 429, "the rule keeps its state");
        // Requests go on while the file is reloaded again and again.
        let steady = scope.spawn(|| {
            let mut stream = gate.connect();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let began = Instant::now();
            while !is_over.load(Ordering::Relaxed) && began.elapsed() < PATIENCE {
                stream.write_all(b"GET / HTTP/1.1\r\nHost: added.example\r\n\r\n").unwrap();
                assert_eq!(read_response(&mut reader).unwrap().text(), "added");
                served.fetch_add(1, Ordering::Relaxed);
            }
        });
        for round in 0..6 {
            let extra = site("extra", "\"extra.example\"", &new);
            reload(&gate, &format!("{config}{}", if round % 2 == 0 { extra.as_str() } else { "" }));
        }
        is_over.store(true, Ordering::Relaxed);
        steady.join().unwrap();
        assert!(served.load(Ordering::Relaxed) > 6);
    });
    assert_eq!(get(&gate, "extra.example", "/").status, 421);
}

#[test]
fn a_reload_changes_the_certificates_of_sites() {
    let (first, second, blog) = (Backend::saying("shop"), Backend::saying("shop"), Backend::saying("blog"));
    let config = config_of_guide([&first, &second], &blog);
    let (gate, [shop_key, blog_key]) = gate_of_guide(&config);
    let wiki_key = certificate(&["wiki.example"]);
    write(&gate.path().join("tls"), "wiki", &wiki_key);
    let works = |key: &rcgen::CertifiedKey<rcgen::KeyPair>, name: &str| {
        run(async {
            let stream = TcpStream::connect(gate.address).await.unwrap();
            shake_hands(stream, key.cert.der(), name, &[]).await.is_ok()
        })
    };
    assert!(works(&shop_key, "shop.example") && works(&blog_key, "blog.example") && !works(&wiki_key, "wiki.example"));
    let wiki = site("wiki", "\"wiki.example\"", &blog).replace("[[site]]", "[[site]]\nfairness = { \"ip/32\" = 0.25 }");
    let added = format!("{config}{wiki}[site.tls]\ncert = \"tls/wiki.pem\"\nkey = \"tls/wiki.key\"\n");
    reload(&gate, &added);
    assert!(works(&wiki_key, "wiki.example") && works(&shop_key, "a.shop.example") && works(&blog_key, "blog.example"));
    reload(&gate, &config);
    assert!(!works(&wiki_key, "wiki.example") && works(&shop_key, "shop.example"));
}

#[test]
fn explain_status_and_the_access_log_name_the_site() {
    let shop = Backend::saying("shop");
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let gate = Gate::start(&format!(
        "[gate]\nworkers = 1\naccess_log = {{ output = \"{}\", format = \"json\" }}\n{}{ONE_REQUEST}{}",
        log.display(),
        site("shop", "[\"shop.example\", \"*.shop.example\"]", &shop),
        site("blog", "\"blog.example\"", &shop),
    ));
    let statuses = ["a.shop.example", "shop.example", "x.example"].map(|host| get(&gate, host, "/").status);
    assert_eq!(statuses, [200, 429, 421]);
    let explain = |host: &str| {
        let body = format!("{{\"client\": \"127.0.0.1\", \"path\": \"/\", \"headers\": {{\"host\": \"{host}\"}}}}");
        let length = body.len();
        let request = format!(
            "POST /api/v1/explain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        let stream = std::net::TcpStream::connect(gate.admin).unwrap();
        serde_json::from_slice::<serde_json::Value>(&roundtrip(stream, request.as_bytes()).body).unwrap()
    };
    let [explained, other, none] = ["www.SHOP.example:80", "blog.example", "x.example"].map(explain);
    assert_eq!((&explained["site"], &explained["rule"]), (&"shop".into(), &"shop/one".into()));
    assert_eq!(
        (&other["site"], &other["decision"], other["rules"].as_array().unwrap().len()),
        (&"blog".into(), &"admit".into(), 0)
    );
    assert_eq!(none["site"], serde_json::Value::Null);
    let status: serde_json::Value = serde_json::from_slice(&gate.admin("/api/v1/status").body).unwrap();
    assert_eq!(status["backends"][0]["sites"], serde_json::json!(["shop", "blog"]));
    assert!(gate.admin("/metrics").text().contains(&format!("{{backend=\"{}\",site=\"shop,blog\"}}", shop.url())));
    drop(gate.end());
    let lines = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let shown: Vec<_> =
        lines.iter().map(|line| format!("{} {} {}", line["host"], line["rule"], line["reason"])).collect();
    assert!(shown[1].starts_with("\"shop.example\" \"shop/one\" "), "{shown:?}");
    assert_eq!(shown[2], "\"x.example\" null \"unknown-host\"");
}
