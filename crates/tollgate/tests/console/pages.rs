//! The pages, as people use them.

use serde_json::json;

use crate::axe;
use crate::browser::{Browser, ENTER, TAB};
use crate::support::{Gate, eventually};

const HOSTILE: &str = "<script>alert(1)</script>";
const CONFIG: &str = "trusted_proxies = [\"127.0.0.1\"]\n\
    [[rule]]\nname = \"api\"\nclass = \"header:x-api-key\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n\
    [watch]\nflag_threshold = 3\naccount_class = \"header:x-api-key\"\n";

/// A gate that has refused somebody often enough.
fn gate() -> Gate {
    let gate = Gate::start(CONFIG);
    for _ in 0..5 {
        gate.request("/page", &[("X-Forwarded-For", "203.0.113.7"), ("X-Api-Key", HOSTILE), ("User-Agent", "crawler")]);
    }
    eventually("a flag", || gate.json("/api/v1/status")["watch"]["flags"] == 1);
    gate
}

fn page(gate: &Gate, name: &str) -> String {
    format!("http://{}/#/{name}", gate.admin)
}

const PAGES: [(&str, &str); 7] = [
    ("", "Overview"),
    ("spenders", "Spenders"),
    ("episodes", "Episodes"),
    ("flags", "Flags"),
    ("explain", "Explain"),
    ("settings", "Settings"),
    ("key?class=header%3Ax-api-key&key=%3Cscript%3Ealert(1)%3C%2Fscript%3E", "told apart by"),
];

#[test]
fn figures_are_told_as_they_change() {
    let (gate, browser) = (gate(), Browser::open(1280, 1000));
    browser.go(&page(&gate, ""));
    browser.says("normal");
    browser.says("header:x-api-key");
    let refused = || {
        browser
            .run("return [...document.querySelectorAll('td[data-label=Refused]')].map((cell) => cell.textContent)[0]")
    };
    eventually("the rule's count", || refused() == json!("4"));
    gate.request("/page", &[("X-Api-Key", HOSTILE)]);
    eventually("the next count, without a reload", || refused() == json!("5"));
    let charts = browser.run("return document.querySelectorAll('svg.chart').length");
    assert_eq!(charts, 4);
}

#[test]
fn a_name_that_is_a_script_is_text_on_every_page() {
    let (gate, browser) = (gate(), Browser::open(1280, 1000));
    for (name, heading) in PAGES {
        browser.go(&page(&gate, name));
        browser.says(heading);
    }
    browser.go(&page(&gate, "flags"));
    browser.says(HOSTILE);
    browser.go(&page(&gate, "episodes"));
    browser.says(HOSTILE);
    browser.click("td.key a");
    browser.says("told apart by header:x-api-key");
    browser.says(HOSTILE);
    assert_eq!(browser.run("return document.querySelectorAll('body script').length"), 0);
}

#[test]
fn a_flag_is_cleared_with_a_note_by_keyboard_alone() {
    let (gate, browser) = (gate(), Browser::open(1280, 1000));
    browser.go(&page(&gate, ""));
    browser.says("Overview");
    browser.press("4");
    browser.says(HOSTILE);
    browser.press("/");
    assert_eq!(browser.run("return document.activeElement.id"), "search");
    browser.press("script");
    browser.says(HOSTILE);
    let focused = || browser.run("return document.activeElement.textContent");
    for _ in 0..10 {
        if focused() == "Clear\u{2026}" {
            break;
        }
        browser.press(TAB);
    }
    browser.press(ENTER);
    browser.says("Clear this flag");
    assert_eq!(browser.run("return document.activeElement.id"), "note-text");
    browser.press("a load test of ours");
    browser.press(TAB);
    browser.press(TAB);
    browser.press(ENTER);
    browser.says("No account by that name.");
    let past = gate.json("/api/v1/flags?history=1")["flags"][0].clone();
    assert_eq!((&past["note"], &past["cleared_by"]), (&json!("a load test of ours"), &json!("operator")));
    browser.press(TAB);
    browser.click(".tabs button");
    browser.says("a load test of ours");
}

#[test]
fn explain_says_whether_a_request_would_pass_and_why() {
    let (gate, browser) = (gate(), Browser::open(1280, 1000));
    browser.go(&page(&gate, "explain"));
    browser.fill("#client", "203.0.113.7");
    browser.fill("#headers", &format!("x-api-key: {HOSTILE}"));
    browser.click("button[type=submit]");
    browser.says("It would be refused by rule api: over-limit.");
    browser.fill("#headers", "x-api-key: somebody else");
    browser.click("button[type=submit]");
    browser.says("It would pass: within-limit.");
    browser.fill("#client", "nonsense");
    browser.click("button[type=submit]");
    browser.says("`client` has to be an address");
}

#[test]
fn a_key_is_cleared_and_exempted_on_its_own_page() {
    let (gate, browser) = (gate(), Browser::open(1280, 1000));
    browser.go(&page(&gate, PAGES[6].0));
    browser.says("refuse");
    browser.click(".bar button");
    browser.fill("#note-text", "they called");
    browser.click("dialog button[type=submit]");
    browser.says("admit");
    assert!(gate.json("/api/v1/audit")["changes"][0]["what"].as_str().unwrap().contains("they called"));
    browser.click(".bar button:nth-of-type(2)");
    browser.says("For");
    browser.fill("#note-text", "a migration");
    browser.click("dialog button[type=submit]");
    browser.says("Exempt from these rules until");
}

#[test]
fn who_has_no_token_is_asked_for_one_and_who_has_can_leave() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "the-right-token-for-this").unwrap();
    let gate = Gate::start_in(folder, "[admin]\ntoken_file = \"FOLDER/token\"\n");
    let browser = Browser::open(1000, 900);
    browser.go(&format!("http://{}/", gate.admin));
    browser.says("Token");
    axe::check(&browser, "login");
    browser.fill("#token", "a wrong one");
    browser.press(ENTER);
    browser.says("That token is not known.");
    browser.fill("#token", "the-right-token-for-this");
    browser.fill("#name", "Ann");
    browser.press(ENTER);
    browser.says("Overview");
    assert_eq!(browser.run("return document.cookie"), "", "no script can read the cookie");
    browser.says("Log out");
    browser.click("#leave");
    browser.says("Your name");
    browser.go(&format!("http://{}/", gate.admin));
    assert!(browser.url().ends_with("/login"));
}

#[test]
fn every_page_can_be_used_by_everybody_in_light_and_in_dark() {
    let (gate, browser) = (gate(), Browser::open(1280, 1000));
    for theme in ["light", "dark"] {
        for (name, heading) in PAGES {
            browser.go(&page(&gate, name));
            browser.says(heading);
            let set = browser.run("return document.documentElement.dataset.theme || 'light'");
            if set != theme {
                browser.click("#theme");
            }
            axe::check(&browser, &format!("{name} {theme}"));
        }
    }
}

#[test]
fn every_page_fits_on_a_phone() {
    let (gate, browser) = (gate(), Browser::open(500, 900));
    browser.resize(500, 900);
    for (name, heading) in PAGES {
        browser.go(&page(&gate, name));
        browser.says(heading);
        let wide = browser.run("return [document.documentElement.scrollWidth, window.innerWidth]");
        assert!(wide[0].as_u64() <= wide[1].as_u64(), "{name}: {wide}");
    }
    axe::check(&browser, "phone");
}
