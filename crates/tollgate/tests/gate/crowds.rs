//! One client that looks like many, and many that look like one.

use std::io::{BufReader, Write};
use std::net::{Ipv6Addr, TcpStream};
use std::time::Duration;

use crate::support::backend::respond;
use crate::support::client::connect_from;
use crate::support::http2::{connect, request, run, send};
use crate::support::{Backend, Gate, Response, read_response};

fn gate(backend: &Backend, rest: &str) -> Gate {
    Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"{}\"\n{rest}", backend.url()))
}

/// A trusted proxy that sends requests of several clients over one connection.
struct Proxy {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Proxy {
    const TRUSTED: &str = "trusted_proxies = \"127.0.0.1\"\n";

    fn new(gate: &Gate) -> Self {
        let stream = gate.connect();
        let reader = BufReader::new(stream.try_clone().unwrap());
        Self { stream, reader }
    }

    /// The response to a request of this client with this user agent.
    fn ask(&mut self, client: &str, agent: &str, path: &str) -> Response {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\nUser-Agent: {agent}\r\n\r\n");
        self.stream.write_all(request.as_bytes()).unwrap();
        read_response(&mut self.reader).unwrap()
    }
}

#[test]
fn fault_17_streams_of_one_connection_count_as_requests_of_their_key_and_as_requests_in_flight() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(300));
        respond(stream, "ok")
    });
    let rules = "h2c = true\nin_flight = 100\n\
                 [[rule]]\nname = 'at-once'\nwhen = { path = '/at-once' }\nclass = 'ip/32'\nin_flight = 4\n\
                 [[rule]]\nname = 'in-all'\nwhen = { path = '/in-all' }\nclass = 'ip/32'\n\
                 window = { max = 7, per = '900s' }\n";
    let gate = gate(&backend, rules);
    let served = |path: &'static str, streams: usize| {
        let address = gate.address;
        run(async move {
            let sender = connect(address).await;
            let asks: Vec<_> = (0..streams)
                .map(|_| {
                    let mut sender = sender.clone();
                    tokio::spawn(async move { send(&mut sender, request("GET", path).body(()).unwrap(), b"").await })
                })
                .collect();
            let mut served = 0;
            for ask in asks {
                match ask.await.unwrap().unwrap().head.status.as_u16() {
                    200 => served += 1,
                    status => assert_eq!(status, 429),
                }
            }
            served
        })
    };
    assert_eq!(served("/at-once", 100), 4);
    assert_eq!(served("/in-all", 1000), 7);
    assert_eq!(gate.metric("tollgate_requests_total"), 1100);
    assert_eq!(gate.metric("tollgate_connections_accepted_total"), 2);
}

#[test]
fn fault_21_addresses_of_one_ipv6_network_are_one_key_whatever_their_number() {
    let backend = Backend::saying("ok");
    // The path selects the rule: /64, then /56, then /48.
    let rule = |name: &str, class: &str| {
        format!(
            "[[rule]]\nname = '{name}'\nwhen = {{ path = '/{name}' }}\nclass = '{class}'\n\
             window = {{ max = 3, per = '900s' }}\n"
        )
    };
    let rules = [rule("address", "ip/32"), rule("network", "ip/24"), rule("block", "ip/16")].concat();
    let gate = gate(&backend, &format!("{}{rules}", Proxy::TRUSTED));
    let mut proxy = Proxy::new(&gate);
    let before_kb = gate.rss_kb();
    let prefix = 0x2001_0db8_0001_0000_u128 << 64;
    for (path, varied_bits, others) in
        [("/address", 64, 1u128 << 64), ("/network", 72, 1 << 72), ("/block", 80, 1 << 80)]
    {
        let mut admitted = 0;
        for number in 0..10_000_u128 {
            // Spread over all bits outside of the key.
            let address = Ipv6Addr::from_bits(prefix | (number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060) % others));
            assert!(u128::from(address) >> varied_bits == prefix >> varied_bits);
            admitted += u32::from(proxy.ask(&address.to_string(), "x", path).status == 200);
        }
        assert_eq!(admitted, 3, "{path}");
        let neighbour = Ipv6Addr::from_bits(prefix + others);
        assert_eq!(proxy.ask(&neighbour.to_string(), "x", path).status, 200, "{neighbour} is somebody else");
    }
    // The tables have a fixed size, but their memory becomes resident only when it is used.
    let grown_kb = gate.rss_kb().saturating_sub(before_kb);
    assert!(grown_kb < 24 * 1024, "grew by {grown_kb} kB");
}

#[test]
fn a_class_may_have_prefix_lengths_for_ipv4_and_for_ipv6() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'wide'\nclass = 'ip/20,52'\nwindow = { max = 1, per = '900s' }\n";
    let gate = gate(&backend, &format!("{}{rule}", Proxy::TRUSTED));
    let mut proxy = Proxy::new(&gate);
    for (client, status) in [
        ("198.51.0.1", 200),
        ("198.51.15.255", 429),
        ("198.51.16.1", 200),
        ("2001:db8:1:0::1", 200),
        ("2001:db8:1:0fff:ffff::9", 429),
        ("2001:db8:1:1000::1", 200),
        ("2001:db8:1:1fff::1", 429),
        ("2001:db8:2::1", 200),
    ] {
        assert_eq!(proxy.ask(client, "x", "/").status, status, "{client}");
    }
}

#[test]
fn fault_25_an_office_behind_one_address_is_not_refused() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(2));
        respond(stream, "ok")
    });
    let gate = gate(&backend, "");
    // Thirty people, each with a browser that opens six connections for a page and its assets. Together they need less
    // than the capacity of the backend.
    std::thread::scope(|scope| {
        for person in 0..30 {
            let gate = &gate;
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(person * 33));
                let mut browser: Vec<TcpStream> =
                    (0..6).map(|_| connect_from([127, 30, 30, 30].into(), gate.address)).collect();
                for page in 0..3 {
                    for stream in &mut browser {
                        stream.write_all(b"GET /page HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                    }
                    for stream in &browser {
                        let response = read_response(&mut BufReader::new(stream)).unwrap();
                        assert_eq!(response.status, 200, "page {page}: {}", response.text());
                    }
                    std::thread::sleep(Duration::from_secs(1));
                }
            });
        }
    });
    assert_eq!(gate.metric("tollgate_requests_refused_total"), 0);
}

#[test]
fn fault_26_a_crawler_with_many_addresses_is_limited_by_a_common_property() {
    let backend = Backend::saying("ok");
    let rule = |name: &str, class: &str, unless: &str| {
        format!(
            "[[rule]]\nname = '{name}'\nwhen = {{ path = '/{name}/*' }}\n{unless}class = '{class}'\n\
             bucket = {{ size = 20, drip = 1, every = '900s' }}\n"
        )
    };
    let rules = [
        rule("spread-over-a-network", "ip/24", ""),
        rule("many-agents", "ip/32", ""),
        rule("one-agent", "user-agent", ""),
        rule("one-address-each", "path", "unless = { header = { cookie = 'known=*' } }\n"),
    ];
    let gate = gate(&backend, &format!("{}{}", Proxy::TRUSTED, rules.concat()));
    let mut proxy = Proxy::new(&gate);
    let mut crawl = |path: &str, disguise: &dyn Fn(u32) -> (String, String)| {
        let admitted = (0..200).filter(|number| {
            let (client, agent) = disguise(*number);
            proxy.ask(&client, &agent, &format!("{path}/{number}")).status == 200
        });
        let admitted = admitted.count();
        // A person at another address, with another browser.
        (admitted, proxy.ask("198.51.100.7", "Browser", &format!("{path}/7")).status)
    };
    let network = |number: u32| (format!("203.0.113.{}", number % 250), format!("agent {number}"));
    assert_eq!(crawl("/spread-over-a-network", &network), (20, 200));
    let agents = |number: u32| ("203.0.113.9".to_owned(), format!("agent {number}"));
    assert_eq!(crawl("/many-agents", &agents), (20, 200));
    let addresses = |number: u32| (format!("10.{}.{number}.1", number % 7), "crawler".to_owned());
    assert_eq!(crawl("/one-agent", &addresses), (20, 200));
    // The only common property is the path: the remaining defence is a limit on the path, with an exception for known
    // clients.
    let nothing = |number: u32| (format!("10.{number}.1.1"), format!("agent {number}"));
    assert_eq!(crawl("/one-address-each", &nothing), (20, 429));
    let known = b"GET /one-address-each/7 HTTP/1.1\r\nHost: a\r\nCookie: known=me\r\nConnection: close\r\n\r\n";
    assert_eq!(crate::support::roundtrip(gate.connect(), known).status, 200);
}
