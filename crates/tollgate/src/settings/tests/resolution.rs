//! Valid files are converted to the settings that they describe.

use std::time::Duration;

use tollgate_core::class::Class;
use tollgate_core::condition::{Condition, Pattern};
use tollgate_core::escalation::{Escalation, Multiplier};
use tollgate_core::limit::{Bucket, Budget, InFlight, Limit, Rate, Window};
use tollgate_core::network::Network;
use tollgate_core::path::PathPattern;
use tollgate_core::queue::Shares;
use tollgate_core::rule::Mode;
use tollgate_core::time::Span;
use tollgate_core::virtual_clock::Cores;
use tollgate_gatekeeper::link::{LinkedRule, MasterSettings};

use super::*;

/// The only rule of a file with this body.
fn rule(body: &str) -> RuleSettings {
    let mut settings = read(&format!("[gate]\ncores = 4\n[[rule]]\nname = \"r\"\nclass = \"ip/32\"\n{body}"));
    assert_eq!(settings.domains[0].rules.len(), 1);
    settings.domains.remove(0).rules.remove(0)
}

fn secs(secs: u64) -> Span {
    Span::from_secs(secs)
}

#[test]
fn the_share_of_a_budget_is_a_share_of_all_backends_together() {
    let settings = read(
        "[gate]\ncores = 4\nbackend = [\"http://a\", \"http://b\"]\n\
         [[rule]]\nname = \"r\"\nclass = \"ip/32\"\nbudget = { share = 0.10, burst = \"30s\" }\n",
    );
    let limit = settings.domains[0].rules[0].rule.limit;
    assert_eq!(limit, Limit::Budget(Budget::new(800_000, secs(30)).unwrap()));
}

#[test]
fn every_limit_is_converted_to_a_limit_of_the_core() {
    let check = |body: &str, limit: Limit| assert_eq!(rule(body).rule.limit, limit, "{body}");
    let budget = |millionths| Limit::Budget(Budget::new(millionths, secs(30)).unwrap());
    check("budget = { share = 0.10, burst = \"30s\" }", budget(400_000));
    check("budget = { cores = 0.4, burst = \"30s\" }", budget(400_000));
    check("budget = { share = 0.000001, burst = \"30s\" }", budget(4));
    let rate = |count, period| Limit::Rate(Rate::new(count, period, 10).unwrap());
    check("rate = { rate = \"5/min\", burst = 10 }", rate(5, secs(60)));
    check("rate = { rate = \"0.5/s\", burst = 10 }", rate(1, secs(2)));
    let bucket = |drip, every| Limit::Bucket(Bucket::new(100, drip, every).unwrap());
    check("bucket = { size = 100, drip = 10, every = \"2s\" }", bucket(10, secs(2)));
    check("bucket = { size = 100 }", bucket(1, secs(1)));
    let window = |ceiling| Limit::Window(Window::new(5, secs(10), ceiling).unwrap());
    check("window = { max = 5, per = \"10s\", ceiling = 20 }", window(Some(20)));
    check("window = { max = 5, per = \"10s\" }", window(None));
    check("in_flight = 2", Limit::InFlight(InFlight::new(2).unwrap()));
    check("in_flight = { max = 2 }", Limit::InFlight(InFlight::new(2).unwrap()));
    let spacing = Limit::Rate(Rate::new(1, Span::from_millis(200), 1).unwrap());
    check("legacy = { min_interval = \"200ms\" }", spacing);
    check("bucket = { size = 100 }\nfactor = 0.5", Limit::Bucket(Bucket::new(200, 1, Span::from_millis(500)).unwrap()));
}

#[test]
fn a_legacy_limit_of_both_kinds_is_two_rules_of_one_name() {
    let settings = read(EVERYTHING);
    let old: Vec<_> = settings.domains[0].rules.iter().filter(|rule| rule.rule.name == "old-clients").collect();
    assert_eq!(old.len(), 2);
    assert!(matches!(old[0].rule.limit, Limit::Bucket(_)));
    assert_eq!(old[1].rule.limit, Limit::Rate(Rate::new(1, Span::from_millis(200), 1).unwrap()));
    assert!(old.iter().all(|rule| rule.rule.mode == Mode::Observe && !rule.headers));
}

/// Sharkey's own tests send `max` requests at once, with a `minInterval` beside it.
#[test]
fn a_legacy_limit_may_ignore_its_interval_as_sharkey_does() {
    let legacy = |more: &str| {
        let body = format!("legacy = {{ max = 10, duration = \"5s\", min_interval = \"1s\"{more} }}");
        let mut settings = read(&format!("[[rule]]\nname = \"r\"\nclass = \"ip/32\"\n{body}"));
        settings.domains.remove(0).rules.into_iter().map(|rule| rule.rule.limit).collect::<Vec<_>>()
    };
    let bucket = Limit::Bucket(Bucket::new(10, 2, secs(1)).unwrap());
    let spacing = Limit::Rate(Rate::new(1, secs(1), 1).unwrap());
    assert_eq!(legacy(""), [bucket, spacing]);
    assert_eq!(legacy(", enforce_interval = false"), [bucket]);
}

#[test]
fn a_rule_and_a_priority_take_a_list_of_exceptions() {
    let unless = "unless = [{ client = '10.0.0.0/8' }, {}, { path = ['/api/*', '*.zip'] }]";
    let priority = format!("[[priority]]\nname = 'p'\nweight = 2\n{unless}\n");
    let rule = format!("[[rule]]\nname = 'r'\nclass = 'ip/32'\nin_flight = 2\n{unless}\n");
    let settings = read(&format!("[gate]\n{rule}{priority}"));
    let unless = &settings.domains[0].rules[0].rule.unless;
    assert_eq!(
        (unless.len(), unless[0].clients.len(), unless[1].paths.len()),
        (2, 1, 2),
        "an empty table exempts nobody"
    );
    assert_eq!(settings.domains[0].priorities[0].conditions().count(), 3);
}

#[test]
fn everything_beside_the_limit_is_kept() {
    let settings = read(EVERYTHING);
    let rules = settings.rules("default").unwrap();
    let login = &rules[1];
    let when =
        Condition { methods: vec!["POST".into()], paths: vec![PathPattern::new("/login")], ..Condition::default() };
    assert_eq!(login.rule.when, when);
    let unless = Condition { clients: vec![Network::parse("10.0.0.0/8").unwrap()], ..Condition::default() };
    assert_eq!(login.rule.unless, [unless]);
    assert_eq!(login.rule.class, Class::parse("ip/32").unwrap());
    assert_eq!((login.state, login.status, login.headers), (StateLocation::Local, None, true));
    assert_eq!(rules[2].state, StateLocation::Redis);
    let reconnect = &rules[3].rule;
    assert_eq!(reconnect.when.upgrades, vec![Pattern::ignoring_case("websocket")]);
    let multiplier = |thousandths| Multiplier::new(thousandths).unwrap();
    let bands = (multiplier(2000), multiplier(4000));
    assert_eq!(reconnect.escalation, Some(Escalation::new((secs(1), secs(60)), 10, secs(30), bands).unwrap()));
    assert_eq!(reconnect.warmup, Some(secs(30)));
    assert_eq!(rules[4].status, Some(503));
    let uploads = &settings.rules("uploads").unwrap()[0];
    assert_eq!((uploads.rule.name.as_str(), uploads.state), ("per-client", StateLocation::Master));
    assert_eq!(settings.rules("nobody"), None);
}

#[test]
fn conditions_accept_one_or_several_values_and_names_in_any_case() {
    let body = "in_flight = 1\nwhen = { method = [\"get\", \"HEAD\"], host = \"*.Example\", \
                header = { X-Kind = [\"b*\", \"c*\"] }, cookie = { Sid = \"*\" } }";
    let when = rule(body).rule.when;
    assert_eq!(when.methods, ["GET", "HEAD"]);
    assert_eq!(when.hosts, [Pattern::ignoring_case("*.Example")]);
    assert_eq!(when.headers, [("x-kind".to_string(), ["b*", "c*"].map(Pattern::ignoring_case).to_vec())]);
    assert_eq!(when.cookies, [("Sid".to_string(), vec![Pattern::new("*")])]);
}

#[test]
fn the_default_of_hold_depends_on_the_limit() {
    let check = |body: &str, hold: Span| assert_eq!(rule(body).rule.hold_max, hold, "{body}");
    check("budget = { share = 0.1, burst = \"30s\" }", secs(5));
    check("rate = { rate = \"1/s\", burst = 1 }", secs(5));
    check("bucket = { size = 1 }", Span::ZERO);
    check("window = { max = 1, per = \"1s\" }", Span::ZERO);
    check("in_flight = 1", Span::ZERO);
    check("bucket = { size = 1 }\nhold = \"10s\"", secs(10));
    check("rate = { rate = \"1/s\", burst = 1 }\nhold = \"0s\"", Span::ZERO);
    let short = read(
        "[gate]\nhold = { max = \"2s\" }\n\
         [[rule]]\nname = \"r\"\nclass = \"path\"\nrate = { rate = \"1/s\", burst = 1 }",
    );
    assert_eq!(short.domains[0].rules[0].rule.hold_max, secs(2));
}

#[test]
fn a_rule_may_depend_on_the_flag_of_an_account() {
    let rule = |line: &str| {
        format!("[[rule]]\nname = \"r\"\n{line}\nclass = \"ip/32\"\nrate = {{ rate = \"1/s\", burst = 1 }}\n")
    };
    let watch = "[watch]\naccount_class = \"header:x-api-key\"\n";
    let settings = read(&format!("{}{watch}", rule("when = { flagged = true }")));
    assert_eq!(settings.domains[0].rules[0].rule.when.flagged, Some(true));
    assert_eq!(settings.domains[0].account, Some(Class::parse("header:x-api-key").unwrap()));
    let settings = read(&format!("{}{watch}", rule("unless = { flagged = true, path = \"/a\" }")));
    assert_eq!(settings.domains[0].rules[0].rule.unless[0].flagged, Some(true));
    // Without such a rule, the account of a request is not determined.
    assert_eq!(read(&format!("{}{watch}", rule(""))).domains[0].account, None);
    assert_eq!(read("[watch]\nstate = \"redis\"\n[redis]\nurl = \"redis://h\"").watch.state, FlagState::Redis);
}

#[test]
fn a_priority_may_depend_on_the_flag_of_an_account() {
    let text = "[[priority]]\nname = \"flagged\"\nwhen = { flagged = true }\nweight = 0.1\n\
                [watch]\naccount_class = \"ip/32\"\n";
    let domain = &read(text).domains[0];
    assert_eq!(domain.account, Some(Class::parse("ip/32").unwrap()));
    assert_eq!(domain.priorities[0].precedence, Precedence::Weight(100));
}

#[test]
fn an_empty_text_means_the_defaults() {
    for text in ["", "\n", "# nothing\n", "\u{feff}"] {
        assert_eq!(read(text), Settings::default(), "{text:?}");
    }
    let Settings { gate, domains, master, link, doors, admin, watch, redis, graphite, telemetry } = Settings::default();
    assert_eq!((graphite, telemetry), (None, None));
    assert_eq!(
        domains,
        [Domain { name: "default".to_string(), rules: Vec::new(), priorities: Vec::new(), account: None }]
    );
    assert!(
        gate.is_none() && master.is_none() && link.is_none() && doors.is_none() && admin.is_none() && redis.is_none()
    );
    assert_eq!((watch.flag_threshold, watch.flag_window), (1000, secs(600)));
}

#[test]
fn an_empty_gate_is_the_default_gate() {
    let gate = read("[gate]").gate.unwrap();
    assert_eq!(gate, Gate::default());
    assert_eq!(gate.listen, ["127.0.0.1:8888".parse().unwrap()]);
    assert!(gate.backends.is_empty() && gate.tls.is_empty() && gate.in_flight.is_none());
    assert_eq!((gate.hold.max, gate.hold.total, gate.hold.memory), (secs(10), 16_384, 64 << 20));
    assert_eq!(gate.fairness.shares(), Shares { address_milli: 100, network_milli: 250, block_milli: 500 });
    assert_eq!(gate.timeouts.head, Duration::from_secs(10));
    assert_eq!(gate.bounds.head_bytes_max, 32 << 10);
}

#[test]
fn the_values_of_a_gate_are_kept() {
    let gate = read(
        "[gate]
        listen = [\"0.0.0.0:80\", \"[::1]:443\"]
        backend = \"h2c://site.example:81\"
        trusted_proxies = \"10.0.0.0/8\"
        proxy_protocol = true
        tls = { cert = \"a.pem\", key = \"a.key\" }
        cores = 1.5
        in_flight = 32
        workers = 3
        fairness = { \"ip/24\" = 0.3, by = \"header:X-Api-Key\", place = \"instead\" }
        bands = { elevated = \"50ms\", critical = \"1s\" }
        timeouts.drain = \"1min\"
        bounds.head = \"16KiB\"
        toll = { header = \"X-Cpu-Ms\", keep = true, cgroup = \"/sys/fs/cgroup/site\" }",
    )
    .gate
    .unwrap();
    assert_eq!(gate.listen.len(), 2);
    assert_eq!(gate.backends, [BackendUrl::parse("h2c://site.example:81").unwrap()]);
    assert!(gate.proxy_protocol && !gate.trusted_proxies.is_empty());
    assert_eq!(gate.tls, [CertificateFiles { chain: "a.pem".into(), key: "a.key".into() }]);
    assert_eq!((gate.cores, gate.in_flight, gate.workers), (Cores::from_milli(1500), Some(32), 3));
    assert_eq!(gate.fairness.shares(), Shares { address_milli: 100, network_milli: 300, block_milli: 500 });
    let class = Class::parse("header:x-api-key").unwrap();
    assert_eq!((gate.fairness.by, gate.fairness.place), (Some(class), UserPlace::Instead));
    assert_eq!(gate.bands.critical, secs(1));
    assert_eq!(gate.timeouts.drain, Duration::from_secs(60));
    assert_eq!(gate.bounds.head_bytes_max, 16 << 10);
    assert_eq!((gate.toll.header.as_str(), gate.toll.keep), ("x-cpu-ms", true));
}

#[test]
fn the_memory_is_divided_among_the_rules() {
    let text = |rules: usize| {
        let rule = |n| format!("[[rule]]\nname = \"{n}\"\nclass = \"path\"\nin_flight = 1\n");
        format!("[gate]\nmemory = \"64MiB\"\n{}", (0..rules).map(rule).collect::<String>())
    };
    for (rules, mebibytes) in [(1, 64), (2, 32), (3, 16), (4, 16), (5, 8)] {
        assert!(read(&text(rules)).domains[0].rules.iter().all(|rule| rule.memory_bytes == mebibytes << 20), "{rules}");
    }
    let shared: u64 =
        read(EVERYTHING).domains.iter().flat_map(|domain| &domain.rules).map(|rule| rule.memory_bytes).sum();
    assert_eq!(shared, 64 << 20, "eight tables, two of them for a legacy limit");
    assert_eq!(rule("in_flight = 1\nmemory = \"1MiB\"").memory_bytes, 1 << 20);
}

#[test]
fn a_rule_that_did_not_change_compares_equal_whatever_changed_around_it() {
    let before = read(EVERYTHING);
    let after = read(&EVERYTHING.replace("burst = 10 }", "burst = 11 }").replace("# ", "#  "));
    let same = |index: usize| before.domains[0].rules[index] == after.domains[0].rules[index];
    assert_eq!((0..7).map(same).collect::<Vec<_>>(), [true, false, true, true, true, true, true]);
}

const LINKED: &str = "\
    [[rule]]\nname = \"login\"\nclass = \"ip/32\"\nrate = { rate = \"1/s\", burst = 1 }\nstate = \"master\"\n\
    [[rule]]\nname = \"api\"\nclass = \"ip/24\"\nrate = { rate = \"1/s\", burst = 1 }\nstate = \"master\"\n\
    wire_domain = \"old\"\n";

/// The two addresses of each master, and the rules that it keeps.
fn masters(text: &str) -> Vec<(String, String, Vec<String>)> {
    let link = read(&format!("{LINKED}{text}")).link.unwrap().settings;
    let kept = |rule: &LinkedRule| format!("{} as {}", rule.rule, rule.domain);
    let one = |master: &MasterSettings| {
        (master.accounting.to_string(), master.control.to_string(), master.rules.iter().map(kept).collect())
    };
    link.masters.iter().map(one).collect()
}

#[test]
fn rules_go_to_the_master_that_keeps_their_domain() {
    let all = vec!["login as default/login".to_string(), "api as old".to_string()];
    let here = ("127.0.0.1:10004".to_string(), "127.0.0.1:10005".to_string(), all.clone());
    assert_eq!(masters("[[link.master]]"), std::slice::from_ref(&here));
    assert_eq!(masters("[master]"), [here], "a master in the same file is the gate's");
    let identifier =
        "[[rule]]\nname = 'who'\nclass = 'identifier'\nrate = { rate = '1/s', burst = 1 }\nstate = 'master'\n[master]";
    assert_eq!(masters(identifier)[0].2[2], "who as default");
    let elsewhere = "[[link.master]]\naccounting = \"tcp://m.example:99\"\ncontrol = \"n.example:7\"";
    assert_eq!(masters(elsewhere), [("m.example:99".to_string(), "n.example:7".to_string(), all)]);
    let sharded = "[[link.master]]\n[[link.master]]\naccounting = \"m:1\"\ndomains = [\"old\"]";
    let kept: Vec<_> =
        masters(sharded).into_iter().map(|(accounting, _, rules)| (accounting, rules.concat())).collect();
    let expected = [("m:1", "api as old"), ("127.0.0.1:10004", "login as default/login")];
    assert_eq!(kept, expected.map(|(accounting, rules)| (accounting.to_string(), rules.to_string())));
}

#[test]
fn relative_paths_are_relative_to_the_directory_of_the_file() {
    let text = "[gate]\nbackend = 'http://127.0.0.1:1'\nstate_dir = 'state'\ntls = { cert = 'a.pem', key = '/b.pem' }\n\
                access_log = { output = './access.log' }\n[admin]\ntoken_file = '../token'\n";
    let paths = |file: &str| {
        let settings = Settings::parse(file, text).unwrap();
        let (gate, admin) = (settings.gate.unwrap(), settings.admin.unwrap());
        let LogOutput::File(log) = gate.access_log.unwrap().output else { panic!("not a file") };
        let paths = [
            gate.state_dir.unwrap(),
            gate.tls[0].chain.clone(),
            gate.tls[0].key.clone(),
            log,
            admin.token_file.unwrap(),
        ];
        paths.map(|path| path.display().to_string())
    };
    let expected = ["/etc/x/state", "/etc/x/a.pem", "/b.pem", "/etc/x/./access.log", "/etc/x/../token"];
    assert_eq!(paths("/etc/x/tollgate.toml"), expected);
    assert_eq!(paths("tollgate.toml"), ["state", "a.pem", "/b.pem", "./access.log", "../token"]);
}
