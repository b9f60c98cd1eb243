//! Accessibility of all pages and of everything that opens on them: axe-core, in light and dark themes and on a
//! phone.

use std::process::Command;

use serde_json::json;

use crate::axe;
use crate::browser::{Browser, ENTER};
use crate::pages::{EXPLAIN, FLAGS, HOSTILE, KEY, PAGES, SETTINGS, gate, open};
use crate::support::{Gate, ask, eventually};

const SCHEMES: [&str; 2] = ["light", "dark"];

#[test]
fn every_page_is_accessible_in_light_and_dark_themes() {
    let (gate, browser) = (gate(), Browser::open(1280, 1000));
    for theme in SCHEMES {
        for page in PAGES {
            open(&browser, &gate, page);
            let set = browser.run("return document.documentElement.dataset.theme || 'light'");
            if set != theme {
                browser.click("#theme");
                browser.finds("document.documentElement.dataset.theme", &json!(theme));
            }
            axe::check(&browser, &format!("{page:?} {theme}"));
        }
    }
}

/// A gate with a cleared flag and a failed reload.
fn eventful_gate() -> Gate {
    let gate = gate();
    let report = json!({ "id": "r1", "entries": [{ "class": "header:x-api-key", "key": "ann", "rejected": 5 }] });
    assert_eq!(gate.post("/api/v1/rejections", &report).status, 202);
    let note = json!({ "name": "Bob", "note": "a load test of ours" }).to_string();
    assert_eq!(ask(gate.admin, "DELETE", "/api/v1/flags/ann", &[], &note).status, 200);
    std::fs::write(gate.path().join("tollgate.toml"), "[gate]\nnonsense = 1\n").unwrap();
    let hang_up = Command::new("kill").arg("-HUP").arg(gate.id().to_string()).status().unwrap();
    assert!(hang_up.success());
    eventually("the reload is refused", || gate.json("/api/v1/status")["reload"]["ok"] == json!(false));
    gate
}

/// Opens all elements that are initially closed.
fn everything_that_opens(browser: &Browser, gate: &Gate, look: impl Fn(&str)) {
    open(browser, gate, FLAGS);
    browser.click("td.actions button");
    browser.part_says("dialog h1", "Clear this flag");
    look("clearing a flag");
    browser.click("dialog .buttons button[type=button]");
    browser.finds("document.querySelector('dialog')", &json!(null));
    browser.click(".tabs button");
    browser.part_says("main td", "a load test of ours");
    look("flags that were cleared");

    open(browser, gate, KEY);
    browser.part_says("main td.key", "api");
    browser.click(".bar button:nth-of-type(2)");
    browser.part_says("dialog h1", "Exempt this key");
    look("exempting a key");
    browser.fill("#note-text", "a migration");
    browser.click("dialog button[type=submit]");
    browser.says("Exempt from these rules until");
    look("an exempt key");

    open(browser, gate, EXPLAIN);
    browser.fill("#client", "203.0.113.7");
    browser.fill("#headers", &format!("x-api-key: {HOSTILE}"));
    browser.click("button[type=submit]");
    browser.part_says("#verdict", "It would");
    look("an answer");
    browser.fill("#client", "nonsense");
    browser.click("button[type=submit]");
    browser.part_says(".wrong", "`client` must be an IP address");
    look("a question that is wrong");

    open(browser, gate, SETTINGS);
    browser.part_says(".wrong", "nonsense");
    look("a reload that was refused");
}

#[test]
fn everything_that_opens_on_a_page_is_accessible() {
    let (gate, browser) = (eventful_gate(), Browser::open(1280, 1000));
    for scheme in SCHEMES {
        browser.prefer(scheme);
        everything_that_opens(&browser, &gate, |what| {
            let preferred = browser.run("return matchMedia('(prefers-color-scheme: dark)').matches");
            assert_eq!(preferred, scheme == "dark", "{what}");
            axe::check(&browser, &format!("{what}, {scheme}"));
        });
    }
}

#[test]
fn the_login_and_read_only_pages_are_accessible() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("operator"), "the-token-of-an-operator").unwrap();
    std::fs::write(folder.path().join("viewer"), "the-token-of-a-viewer").unwrap();
    let gate = Gate::start_in(
        folder,
        "[[rule]]\nname = \"api\"\nclass = \"header:x-api-key\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n\
        [watch]\nflag_threshold = 3\naccount_class = \"header:x-api-key\"\n\
        [admin]\ntoken_file = \"FOLDER/operator\"\nviewer_token_file = \"FOLDER/viewer\"\n",
    );
    for _ in 0..5 {
        gate.request("/page", &[("X-Api-Key", HOSTILE)]);
    }
    let browser = Browser::open(1280, 1000);
    browser.go(&format!("http://{}/", gate.admin));
    for scheme in SCHEMES {
        browser.prefer(scheme);
        browser.is_at("/login");
        browser.part_says("label", "Token");
        axe::check(&browser, &format!("login, {scheme}"));
        browser.fill("#token", "a wrong one");
        browser.press(ENTER);
        browser.says("Wrong token.");
        axe::check(&browser, &format!("a login that failed, {scheme}"));
        browser.go(&format!("http://{}/login", gate.admin));
    }
    browser.fill("#token", "the-token-of-a-viewer");
    browser.press(ENTER);
    browser.shows("Overview");
    for page in PAGES {
        open(&browser, &gate, page);
        axe::check(&browser, &format!("{page:?} of a viewer"));
    }
    open(&browser, &gate, FLAGS);
    browser.part_says("main td.key", HOSTILE);
    assert_eq!(browser.run("return document.querySelectorAll('td.actions button').length"), 0);
    open(&browser, &gate, KEY);
    browser.part_says("td .pill", "refuse");
    assert_eq!(browser.run("return document.querySelector('main .bar').hidden"), true);
}

/// Elements that are wider than the screen or beyond its edge, including those that scroll, because phone users do
/// not notice that.
const BEYOND: &str = "const wide = document.documentElement.clientWidth;\n\
    const seen = (one) => one.checkVisibility() && !one.closest('.visually-hidden, .skip, table.stacks thead');\n\
    const beyond = [...document.querySelectorAll('body *')].filter(seen).filter((one) => {\n\
      const { left, right } = one.getBoundingClientRect();\n\
      const scrolls = !(one instanceof SVGElement) && getComputedStyle(one).overflowX !== 'visible' && one.scrollWidth > one.clientWidth + 1;\n\
      return left < -1 || right > wide + 1 || scrolls;\n\
    });\n\
    return [wide, document.documentElement.scrollWidth, beyond.map((one) => one.outerHTML.slice(0, 200))]";

#[test]
fn every_page_fits_on_a_phone() {
    let (gate, browser) = (eventful_gate(), Browser::open(1000, 900));
    browser.go(&format!("http://{}/", gate.admin));
    let fits = |what: &str, width: u32| {
        let found = browser.run(BEYOND);
        assert_eq!(found, json!([width, width, []]), "{what} on {width} pixels");
    };
    for width in [390, 360] {
        browser.be_a_phone(width, 780);
        for page in PAGES {
            open(&browser, &gate, page);
            fits(page.1, width);
            if width == 360 {
                axe::check(&browser, &format!("{page:?} on a phone"));
            }
        }
    }
    everything_that_opens(&browser, &gate, |what| fits(what, 360));
    // The menu shows the number of flags beside the name of the page.
    let many = (0..1200)
        .map(|number| json!({ "class": "header:x-api-key", "key": format!("account-{number}"), "rejected": 5 }));
    let report = json!({ "id": "many", "entries": many.collect::<Vec<_>>() });
    assert_eq!(gate.post("/api/v1/rejections", &report).status, 202);
    browser.finds("document.querySelector('#flag-count').textContent.length >= 4", &json!(true));
    for width in [390, 360] {
        browser.be_a_phone(width, 780);
        fits("many flags", width);
    }
}
