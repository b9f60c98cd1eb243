//! `[[site]]`: conversion and errors.

use tollgate_core::limit::Limit;

use super::errors::check;
use super::*;

const SHOP: &str = "[[site]]\nhost = [\"shop.example\", \"*.shop.example\"]\nbackend = \"http://127.0.0.1:8081\"\n";
const BLOG: &str = "[[site]]\nhost = \"blog.shop.example\"\nbackend = \"http://127.0.0.1:8082\"\n";
const RULE: &str = "[[site.rule]]\nname = \"r\"\nclass = \"ip/32\"\nbudget = { share = 0.5, burst = \"1s\" }\n";

fn gate(text: &str) -> Gate {
    read(text).gate.unwrap()
}

#[test]
fn a_site_has_the_values_of_the_gate_unless_it_sets_its_own() {
    let all = "[gate]\ncores = 4\nin_flight = 9\nfairness = { \"ip/24\" = 0.3 }\nbackend = \"http://127.0.0.1:8080\"\n";
    let own = "cores = 2\nin_flight = \"auto\"\nfairness = { \"ip/32\" = 0.2 }\n";
    let gate = gate(&format!("{all}{SHOP}{own}{BLOG}"));
    let at = |port: u16| {
        let url = BackendUrl::parse(&format!("http://127.0.0.1:{port}")).unwrap();
        let gate = gate.at_backend(Some(&url));
        (gate.cores.as_milli(), gate.in_flight, gate.fairness.address_milli, gate.fairness.network_milli)
    };
    assert_eq!(at(8080), (4000, Some(9), 100, 300));
    assert_eq!(at(8081), (2000, None, 200, 300));
    assert_eq!(at(8082), (4000, Some(9), 100, 300));
    assert_eq!(gate.all_cores().as_milli(), 10_000);
    assert_eq!(
        gate.sites.iter().map(|site| site.name.as_str()).collect::<Vec<_>>(),
        ["shop.example", "blog.shop.example"]
    );
    assert_eq!(gate.site_of(b"blog.shop.example"), Some(1));
    assert_eq!(gate.site_of(b"a.shop.example"), Some(0));
    assert_eq!(gate.site_of(b"example"), None);
}

#[test]
fn sites_with_one_backend_count_its_cores_once() {
    let twice = BLOG.replace("8082", "8081");
    let gate = gate(&format!("[gate]\ncores = 4\n{SHOP}{twice}"));
    assert_eq!((gate.all_backends().len(), gate.all_cores().as_milli()), (1, 4000));
    assert_eq!(gate.sites_at(gate.all_backends()[0]), ["shop.example", "blog.shop.example"]);
}

#[test]
fn a_rule_of_a_site_is_named_after_it_and_has_a_share_of_its_cores() {
    let general = "[[rule]]\nname = \"r\"\nclass = \"ip/32\"\nbudget = { share = 0.5, burst = \"1s\" }\n";
    let settings = read(&format!("[gate]\ncores = 4\n{general}{SHOP}cores = 2\nname = \"shop\"\n{RULE}{BLOG}{RULE}"));
    // The time in which 60 CPU-seconds regenerate, in seconds.
    let regeneration_secs = |limit: &Limit| match limit {
        Limit::Budget(budget) => budget.time_of(tollgate_core::time::Span::from_secs(60)).as_nanos() / 1_000_000_000,
        _ => panic!("not a budget"),
    };
    let rules = &settings.domains[0].rules;
    let shown: Vec<_> = rules.iter().map(|one| (one.rule.name.as_str(), regeneration_secs(&one.rule.limit))).collect();
    // The shares are half of 6, 2 and 4 cores.
    assert_eq!(shown, [("r", 20), ("shop/r", 60), ("blog.shop.example/r", 30)]);
    assert!(rules[0].rule.when.site.is_none());
    let site = |index: usize| rules[index].rule.when.site.clone().unwrap();
    assert!(site(1).contains(b"a.shop.example") && !site(1).contains(b"blog.shop.example"));
    assert!(site(2).contains(b"blog.shop.example") && !site(2).contains(b"shop.example"));
}

#[test]
fn the_errors_of_sites_name_the_correction() {
    check("[[site]]\nname = \"a\"\n", &[("1:1", "`host`"), ("1:1", "`backend`")]);
    for (host, words) in [
        ("\"shop.example:443\"", "without a port"),
        ("\"www.*.example\"", "is not a host"),
        ("\"http://shop.example\"", "is not a host"),
        ("\"*\"", "is not a host"),
        ("[]", "a site needs a host"),
    ] {
        check(&format!("[[site]]\nhost = {host}\nbackend = \"http://a\"\n"), &[("2:8", words)]);
    }
    check("[[site]]\nhost = \"a\"\nbackend = []\n", &[("3:11", "a site needs a backend")]);
    check(
        &format!("{SHOP}[[site]]\nhost = [\"a\", \"SHOP.example.\"]\nbackend = \"http://a\"\n"),
        &[("5:14", "`shop.example` is a host of a site already")],
    );
    check(&format!("{SHOP}name = \"x\"\n{BLOG}name = \"x\"\n"), &[("8:8", "another site has the name `x`")]);
    check(&format!("{SHOP}name = \"blog.shop.example\"\n{BLOG}"), &[("6:8", "write another `name`")]);
    check(&format!("{SHOP}{RULE}{RULE}"), &[("9:8", "another rule of this domain has this name")]);
    check(&format!("{SHOP}fairness = {{ \"ip/32\" = 2 }}\n"), &[("4:24", "at most 1")]);
    check(&format!("{SHOP}fairness = {{ by = \"cookie:sid\" }}\n"), &[("4:14", "unknown key `by`")]);
    check(
        &format!("{SHOP}cores = 2\n{}cores = 3\n", BLOG.replace("8082", "8081")),
        &[("7:11", "a backend has one queue")],
    );
    let alone = "[gate]\nbackend = \"http://127.0.0.1:8081\"\n";
    check(&format!("{alone}{SHOP}in_flight = 3\n"), &[("5:11", "a backend has one queue")]);
    // The rules of a wrong site are checked too.
    check(
        "[[site]]\nhost = \"a b\"\nbackend = \"http://a\"\n[[site.rule]]\nname = \"r\"\nclass = \"x\"\nin_flight = 1\n",
        &[("2:8", "is not a host"), ("6:9", "unknown class")],
    );
}

#[test]
fn once_one_site_has_a_certificate_all_need_one() {
    let tls = "[site.tls]\ncert = \"a.pem\"\nkey = \"a.key\"\n";
    check(&format!("{SHOP}{tls}{BLOG}"), &[("7:1", "this site has no certificate")]);
    assert_eq!(errors(&format!("{SHOP}{tls}{BLOG}{tls}")), [""; 0]);
    let gate = gate(&format!("[gate]\ntls = {{ cert = \"g.pem\", key = \"g.key\" }}\n{SHOP}{tls}{BLOG}"));
    let files: Vec<_> = gate.all_tls().map(|files| files.chain.display().to_string()).collect();
    assert_eq!(files, ["g.pem", "a.pem"]);
}

#[test]
fn sites_and_their_hosts_have_a_bound() {
    let sites = |count: usize| {
        let site = |number| format!("[[site]]\nhost = \"s{number}.example\"\nbackend = \"http://127.0.0.1:80\"\n");
        (0..count).map(site).collect::<String>()
    };
    assert_eq!(errors(&sites(64)), [""; 0]);
    check(&sites(65), &[("193:1", "too many sites: write at most 64")]);
    let hosts: Vec<_> = (0..65).map(|number| format!("\"h{number}\"")).collect();
    let site = format!("[[site]]\nhost = [{}]\nbackend = \"http://a\"\n", hosts.join(", "));
    check(&site, &[("2:8", "too many hosts: write at most 64")]);
}
