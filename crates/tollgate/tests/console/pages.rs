//! The pages of the console, as operators use them.

use serde_json::json;

use crate::axe;
use crate::browser::{Browser, ENTER, TAB};
use crate::support::{Gate, ask, eventually};

pub(crate) const HOSTILE: &str = "<script>alert(1)</script>";
const CONFIG: &str = "trusted_proxies = [\"127.0.0.1\"]\n\
    [[rule]]\nname = \"api\"\nclass = \"header:x-api-key\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n\
    [watch]\nflag_threshold = 3\naccount_class = \"header:x-api-key\"\n";

/// A gate that has refused a client often enough for a flag.
pub(crate) fn gate() -> Gate {
    let gate = Gate::start(CONFIG);
    for _ in 0..5 {
        gate.request("/page", &[("X-Forwarded-For", "203.0.113.7"), ("X-Api-Key", HOSTILE), ("User-Agent", "crawler")]);
    }
    eventually("a flag", || gate.json("/api/v1/status")["watch"]["flags"] == 1);
    gate
}

/// Opens a page and waits for its data.
pub(crate) fn open(browser: &Browser, gate: &Gate, (name, heading): (&str, &str)) {
    browser.go(&format!("http://{}/#/{name}", gate.admin));
    browser.shows(heading);
}

const OVERVIEW: (&str, &str) = ("", "Overview");
pub(crate) const FLAGS: (&str, &str) = ("flags", "Flags");
pub(crate) const EXPLAIN: (&str, &str) = ("explain", "Explain");
pub(crate) const SETTINGS: (&str, &str) = ("settings", "Settings");
pub(crate) const KEY: (&str, &str) = ("key?class=header%3Ax-api-key&key=%3Cscript%3Ealert(1)%3C%2Fscript%3E", HOSTILE);
pub(crate) const PAGES: [(&str, &str); 7] =
    [OVERVIEW, ("spenders", "Spenders"), ("episodes", "Episodes"), FLAGS, EXPLAIN, SETTINGS, KEY];

#[test]
fn these_are_all_pages() {
    let script = include_str!("../../console/console.js");
    let list = script.split_once("const PAGES = {").unwrap().1.split_once("};").unwrap().0;
    let written = list.split(',').map(|one| one.split(':').next().unwrap().trim().trim_matches('"'));
    let visited = PAGES.map(|(name, _)| name.split('?').next().unwrap());
    assert_eq!(written.collect::<Vec<_>>(), visited);
    let menu = include_str!("../../console/index.html").matches("data-page=").count();
    assert_eq!(menu, PAGES.len() - 1, "the page of a key is not in the menu");
}

#[test]
fn values_are_updated_as_they_change() {
    let (gate, browser) = (gate(), Browser::open(1280, 1000));
    open(&browser, &gate, OVERVIEW);
    browser.part_says("#band", "normal");
    browser.part_says("main td", "header:x-api-key");
    let refused = "document.querySelector('td[data-label=Refused]')?.textContent";
    browser.finds(refused, &json!("4"));
    gate.request("/page", &[("X-Api-Key", HOSTILE)]);
    browser.finds(refused, &json!("5"));
    browser.finds("document.querySelectorAll('svg.chart').length", &json!(4));
}

#[test]
fn a_name_that_is_a_script_is_text_on_every_page() {
    let (gate, browser) = (gate(), Browser::open(1280, 1000));
    for page in PAGES {
        open(&browser, &gate, page);
        assert_eq!(browser.run("return document.querySelectorAll('body script').length"), 0, "{page:?}");
    }
    open(&browser, &gate, FLAGS);
    browser.part_says("main td.key", HOSTILE);
    open(&browser, &gate, ("episodes", "Episodes"));
    browser.part_says("main td.key", HOSTILE);
    browser.click("td.key a");
    browser.shows(HOSTILE);
    browser.says("class header:x-api-key");
    assert_eq!(browser.run("return document.querySelectorAll('body script').length"), 0);
}

/// Names in a report may contain characters that no header has.
#[test]
fn a_name_that_drives_terminals_is_text_too() {
    let (gate, browser) = (gate(), Browser::open(1280, 1000));
    let name = "\u{1b}[31mred\r\n<img src=x onerror=alert(1)>";
    let report = json!({ "id": "r1", "entries": [{ "class": "header:x-api-key", "key": name, "rejected": 5 }] });
    assert_eq!(gate.post("/api/v1/rejections", &report).json()["flagged"], json!([name]));
    for page in [FLAGS, ("episodes", "Episodes")] {
        open(&browser, &gate, page);
        let cells = "[...document.querySelectorAll('main td.key')].map((cell) => cell.textContent)";
        browser.finds(&format!("{cells}.includes({})", json!(name)), &json!(true));
        assert_eq!(browser.run("return document.querySelectorAll('main img').length"), 0, "{page:?}");
    }
}

#[test]
fn the_page_of_flags_has_the_threshold_and_the_window() {
    let (gate, browser) = (gate(), Browser::open(1280, 1000));
    open(&browser, &gate, FLAGS);
    browser.says("Threshold: 3 refusals of one account within 10 min");
}

/// ratewatch's view without a flagger: the most recent episode first, and a caption instead of a threshold.
#[test]
fn without_flags_the_console_shows_episodes_and_why_nobody_is_flagged() {
    let (gate, browser) = (Gate::start("[watch]\nflags = false\n"), Browser::open(1280, 1000));
    // The one with the most refusals is the oldest.
    for (key, rejected) in [("oldest", 5000), ("older", 5), ("newest", 1)] {
        let report = json!({ "id": key, "entries": [{ "class": "user", "key": key, "rejected": rejected }] });
        assert_eq!(gate.post("/api/v1/rejections", &report).status, 202);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    open(&browser, &gate, ("episodes", "Episodes"));
    let keys = "[...document.querySelectorAll('main td.key')].map((cell) => cell.textContent).join()";
    browser.finds(keys, &json!("newest,older,oldest"));
    open(&browser, &gate, FLAGS);
    browser.says("Accounts are not flagged: [watch] has flags = false.");
    browser.part_says("main td", "No account is flagged.");
}

#[test]
fn a_flag_is_cleared_with_a_note_by_keyboard_alone() {
    let (gate, browser) = (gate(), Browser::open(1280, 1000));
    open(&browser, &gate, OVERVIEW);
    browser.press("4");
    browser.shows("Flags");
    browser.press("/");
    browser.focus_is_on("search");
    browser.press("script");
    browser.finds("document.activeElement.value", &json!("script"));
    browser.part_says("main td.key", HOSTILE);
    let focused = || browser.run("return document.activeElement.textContent");
    for _ in 0..10 {
        if focused() == "Clear\u{2026}" {
            break;
        }
        browser.press(TAB);
    }
    assert_eq!(focused(), "Clear\u{2026}");
    browser.press(ENTER);
    browser.part_says("dialog h1", "Clear this flag");
    browser.focus_is_on("note-text");
    browser.press("a load test of ours");
    browser.press(TAB);
    browser.press(TAB);
    browser.finds("document.activeElement.type", &json!("submit"));
    browser.press(ENTER);
    browser.part_says("main td", "No account matches.");
    let past = gate.json("/api/v1/flags?history=1")["flags"][0].clone();
    assert_eq!((&past["note"], &past["cleared_by"]), (&json!("a load test of ours"), &json!("operator")));
    browser.focus_is_on("search");
    browser.press(TAB);
    browser.press(ENTER);
    browser.part_says("main td", "a load test of ours");
}

#[test]
fn keys_pressed_before_the_page_is_loaded_are_not_lost() {
    let (gate, browser) = (gate(), Browser::open(1280, 1000));
    open(&browser, &gate, OVERVIEW);
    browser.press("4/script");
    browser.shows("Flags");
    browser.focus_is_on("search");
    browser.finds("document.activeElement.value", &json!("script"));
    browser.part_says("main td.key", HOSTILE);
}

#[test]
fn the_focus_stays_with_its_row_when_the_list_changes() {
    let (gate, browser) = (gate(), Browser::open(1280, 1000));
    open(&browser, &gate, FLAGS);
    browser.part_says("main td.key", HOSTILE);
    browser.run("document.querySelector('td.actions button').focus()");
    let focused = "document.activeElement.ariaLabel";
    let wanted = json!(format!("Clear the flag of {HOSTILE}"));
    browser.finds(focused, &wanted);
    for account in ["ann", "bob"] {
        for _ in 0..5 {
            gate.request("/page", &[("X-Api-Key", account)]);
        }
        browser.part_says("main td.key", account);
        browser.finds(focused, &wanted);
    }
    browser.finds("document.querySelector('tbody tr').contains(document.activeElement)", &json!(false));
    browser.press(ENTER);
    browser.part_says("dialog", HOSTILE);
}

#[test]
fn explain_shows_whether_a_request_would_pass_and_why() {
    let (gate, browser) = (gate(), Browser::open(1280, 1000));
    open(&browser, &gate, EXPLAIN);
    browser.fill("#client", "203.0.113.7");
    browser.fill("#headers", &format!("x-api-key: {HOSTILE}"));
    browser.click("button[type=submit]");
    browser.says("It would be refused by rule api: over-limit.");
    browser.fill("#headers", "x-api-key: somebody else");
    browser.click("button[type=submit]");
    browser.says("It would be admitted: within-limit.");
    browser.says("Recent refusals");
    browser.part_says("td[data-label=By]", "rule api");
    browser.fill("#client", "nonsense");
    browser.click("button[type=submit]");
    browser.says("`client` must be an IP address");
    browser.fill("#client", "");
    browser.click("button[type=submit]");
    browser.says("`client` is missing: set it to the address of the client");
}

#[test]
fn a_key_is_cleared_and_exempted_on_its_own_page() {
    let (gate, browser) = (gate(), Browser::open(1280, 1000));
    open(&browser, &gate, KEY);
    browser.part_says("td .pill", "refuse");
    browser.click(".bar button");
    browser.part_says("dialog h1", "Clear this key");
    browser.fill("#note-text", "they called");
    browser.click("dialog button[type=submit]");
    browser.part_says("td .pill", "admit");
    assert!(gate.json("/api/v1/audit")["changes"][0]["what"].as_str().unwrap().contains("they called"));
    browser.click(".bar button:nth-of-type(2)");
    browser.part_says("dialog h1", "Exempt this key");
    browser.fill("#note-text", "a migration");
    browser.click("dialog button[type=submit]");
    browser.says("Exempt from these rules until");
}

#[test]
fn an_error_message_stays_until_it_is_dismissed() {
    let (gate, browser) = (gate(), Browser::open(1280, 1000));
    open(&browser, &gate, FLAGS);
    browser.click("td.actions button");
    browser.part_says("dialog h1", "Clear this flag");
    browser.fill("#note-text", "somebody else was faster");
    let path = "/api/v1/flags/%3Cscript%3Ealert(1)%3C%2Fscript%3E";
    let note = json!({ "name": "ann", "note": "faster" }).to_string();
    let cleared = ask(gate.admin, "DELETE", path, &[("Content-Type", "application/json")], &note);
    assert_eq!(cleared.status, 200, "{}", cleared.body);
    browser.click("dialog button[type=submit]");
    browser.finds("document.querySelector('#trouble').hidden", &json!(false));
    // The list is updated with the next event, and the message stays.
    browser.part_says("main td", "No account is flagged.");
    browser.finds("document.querySelector('#trouble').hidden", &json!(false));
}

#[test]
fn the_console_asks_for_a_token_and_has_a_logout() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "the-right-token-for-this").unwrap();
    let gate = Gate::start_in(folder, "[admin]\ntoken_file = \"FOLDER/token\"\n");
    let browser = Browser::open(1000, 900);
    browser.go(&format!("http://{}/", gate.admin));
    browser.is_at("/login");
    browser.part_says("label", "Token");
    axe::check(&browser, "login");
    browser.fill("#token", "a wrong one");
    browser.press(ENTER);
    browser.says("Wrong token.");
    browser.fill("#token", "the-right-token-for-this");
    browser.fill("#name", "Ann");
    browser.press(ENTER);
    browser.shows("Overview");
    assert_eq!(browser.run("return document.cookie"), "", "no script can read the cookie");
    browser.part_says("#leave", "Log out");
    browser.click("#leave");
    browser.is_at("/login");
    browser.says("Your name");
    browser.go(&format!("http://{}/", gate.admin));
    browser.is_at("/login");
}

/// A crawler with fifty addresses of one network is fifty small rows by address, and one row by network.
#[test]
fn spenders_and_the_doctor_open_on_the_class_where_the_load_is() {
    let gate = Gate::start("trusted_proxies = [\"127.0.0.1\"]\ncores = 0.05\n");
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..200_000u32 {
                let client = match number % 10 {
                    0 => format!("203.0.{}.7", number / 10 % 20),
                    _ => format!("198.51.100.{}", number % 50),
                };
                gate.request("/page", &[("X-Forwarded-For", &client), ("User-Agent", "x")]);
                if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
            }
        });
        eventually("load", || gate.json("/api/v1/buckets?class=auto")["class"] == "ip/24");
        let browser = Browser::open(1280, 1000);
        open(&browser, &gate, ("spenders", "Spenders"));
        browser.finds("document.querySelector('.tabs [aria-pressed=true]')?.textContent", &json!("ip/24"));
        browser.part_says("main td.key", "198.51.100.0/24");
        browser.click("details.help summary");
        browser.part_says("details.help dd", "one large row under ip/24");
        let doctor = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["doctor", "--once", "--admin", &format!("http://{}", gate.admin)])
            .output()
            .unwrap();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        let table = String::from_utf8(doctor.stdout).unwrap();
        assert!(table.starts_with("Class: ip/24\n"), "{table}");
    });
    assert_eq!(gate.json("/api/v1/buckets")["class"], "ip/32", "without a class it is as before");
}

#[test]
fn the_overview_shows_a_notice_with_the_setting_to_write() {
    let (gate, browser) = (Gate::start(""), Browser::open(1280, 1000));
    for number in 0..40 {
        gate.request("/page", &[("X-Forwarded-For", &format!("203.0.113.{number}"))]);
    }
    open(&browser, &gate, OVERVIEW);
    browser.part_says(".notice pre", "trusted_proxies = [\"loopback\"]");
    axe::check(&browser, "a notice");
    let file = gate.path().join("tollgate.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}nonsense = 1\n")).unwrap();
    assert!(std::process::Command::new("kill").args(["-HUP", &gate.id().to_string()]).status().unwrap().success());
    browser.part_says(".notice p", "Settings not reloaded: ");
}

#[test]
fn the_overview_of_a_gate_that_observes_has_the_numbers_of_each_client() {
    let gate = Gate::start(
        "mode = \"observe\"\ntrusted_proxies = [\"127.0.0.1\"]\n\
         [[rule]]\nname = \"few\"\nclass = \"ip/32\"\nwindow = { max = 2, per = \"1h\" }\n",
    );
    for _ in 0..5 {
        assert_eq!(gate.request("/page", &[("X-Forwarded-For", "203.0.113.7")]).status, 200);
    }
    let browser = Browser::open(1280, 1000);
    open(&browser, &gate, OVERVIEW);
    browser.says("Observe mode: of 5 requests the gate would have held 0 (0 %) and refused 3 (60 %): 203.0.113.7/32 (0 held, 3 refused).");
}
