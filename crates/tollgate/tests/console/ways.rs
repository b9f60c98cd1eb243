//! Links between pages: a name leads to its details, and pages without content are not offered.

use serde_json::json;

use crate::axe;
use crate::browser::Browser;
use crate::support::Gate;
use tollgate_test_support::master::Master;

const RULES: &str = "[[rule]]\nname = \"network\"\nclass = \"ip/24\"\nbucket = { size = 9, drip = 1, every = \"1h\" }\n\
    [[rule]]\nname = \"one\"\nclass = \"ip/32\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n";

#[test]
fn a_flag_links_to_its_account_and_a_key_to_an_explained_request() {
    let gate = Gate::start(RULES);
    let report = json!({ "id": "r1", "entries": [{ "class": "user", "key": "u 1\\xff", "rejected": 1234 }] });
    assert_eq!(gate.post("/api/v1/rejections", &report).status, 202);
    let browser = Browser::open(1280, 1000);
    browser.go(&format!("http://{}/#/flags", gate.admin));
    browser.shows("Flags");
    browser.click("td.key a");
    browser.shows("u 1\\xff");
    browser.says("1,234");
    browser.says("No rule depends on this key alone.");
    axe::check(&browser, "a reported key");

    assert_eq!([gate.request("/", &[]).status, gate.request("/", &[]).status], [200, 429]);
    browser.go(&format!("http://{}/#/key?class=ip/32&key=127.0.0.1/32", gate.admin));
    browser.shows("127.0.0.1/32");
    browser.finds(
        "[...document.querySelectorAll('td[data-label=Rule]')].map((cell) => cell.textContent).join()",
        &json!("network,one"),
    );
    browser.click("main a[href^='#/explain']");
    browser.shows("Explain");
    browser.finds("document.querySelector('#client').value", &json!("127.0.0.1"));
    browser.click("button[type=submit]");
    browser.says("It would be refused by rule one: over-limit.");
}

#[test]
fn changes_are_found_by_any_part_of_operator_and_change() {
    let gate = Gate::start(RULES);
    for (key, name) in [("203.0.113.7/32", "ann"), ("203.0.113.8/32", "bob")] {
        let exempt = json!({ "class": "ip/32", "key": key, "for_ms": 60_000, "name": name, "note": "a test" });
        assert_eq!(gate.post("/api/v1/key/exempt", &exempt).status, 200);
    }
    let browser = Browser::open(1280, 1000);
    browser.go(&format!("http://{}/#/settings", gate.admin));
    browser.shows("Settings");
    let found = "[...document.querySelectorAll('td[data-label=By]')].map((cell) => cell.textContent).join()";
    browser.finds(found, &json!("bob (no token is required),ann (no token is required)"));
    browser.fill("#search", "113.7/32");
    browser.finds(found, &json!("ann (no token is required)"));
}

#[test]
fn a_master_offers_no_pages_about_requests_that_it_does_not_serve() {
    let master = Master::start_with("console-menu", "");
    let browser = Browser::open(1280, 1000);
    browser.go(&format!("http://{}/", master.admin));
    browser.says("it shares the state of rules between gates");
    let pages = "[...document.querySelectorAll('#pages a')].filter((link) => link.checkVisibility())\n\
        .map((link) => link.dataset.page).join()";
    browser.finds(pages, &json!("overview,episodes,flags,settings"));
    browser.press("4");
    browser.shows("Settings");
}
