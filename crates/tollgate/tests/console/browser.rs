//! A browser: the few words of WebDriver that are needed.
//!
//! A page changes while it is looked at: it loads, and the gate tells it something every second. So nothing here asks once and believes the
//! answer. What has to be so is waited for, and an element that was written again between being found and being clicked is found again.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{ask_for, eventually};

/// One browser at a time: several at once are slower than one after the other.
static TURN: Mutex<()> = Mutex::new(());

/// How WebDriver calls an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
pub(crate) const ENTER: &str = "\u{E007}";
pub(crate) const TAB: &str = "\u{E004}";
/// A browser that starts on a machine with other work takes many times what it takes alone.
const STEP_MAX: Duration = Duration::from_secs(120);
/// How often a browser may fail to start.
const STARTS_MAX: usize = 3;

/// How often a driver may fail to start.
const DRIVERS_MAX: usize = 10;

/// A driver and where it listens. It takes one port for IPv4 and IPv6, and ends at once if somebody else has the one for IPv6: then there is none.
fn start_driver() -> Option<(Child, SocketAddr)> {
    let mut driver = Command::new("chromedriver")
        .arg("--port=0")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("chromedriver is there: ./test installs it");
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
    let port_in = |line: String| line.split("successfully on port ").nth(1)?.trim_end_matches('.').parse::<u16>().ok();
    let Some(port) = lines.find_map(port_in) else {
        let _ = driver.kill();
        let _ = driver.wait();
        return None;
    };
    // What else it says must not fill the pipe.
    std::thread::spawn(move || lines.for_each(drop));
    Some((driver, ([127, 0, 0, 1], port).into()))
}

/// A browser with one window. Ends with the test.
pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    _turn: MutexGuard<'static, ()>,
}

impl Browser {
    /// A browser whose window has this size.
    pub(crate) fn open(width: u32, height: u32) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let (driver, address) = (0..DRIVERS_MAX)
            .find_map(|_| start_driver())
            .unwrap_or_else(|| panic!("chromedriver did not say where it listens, {DRIVERS_MAX} times"));
        let mut browser = Self { driver, address, session: String::new(), _turn: turn };
        browser.session = browser.session(&format!("--window-size={width},{height}"));
        browser.call("POST", "/timeouts", &json!({ "script": STEP_MAX.as_millis() as u64 }));
        browser
    }

    fn session(&self, size: &str) -> String {
        let options =
            json!({ "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", size] });
        let wanted =
            json!({ "capabilities": { "alwaysMatch": { "browserName": "chrome", "goog:chromeOptions": options } } });
        let mut faults = Vec::new();
        while faults.len() < STARTS_MAX {
            match self.tried("POST", "", &wanted) {
                Ok(session) => return session["sessionId"].as_str().unwrap().to_owned(),
                Err(fault) => faults.push(fault),
            }
        }
        panic!("no browser starts: {faults:#?}");
    }

    /// What WebDriver answers, or what it says is wrong.
    fn tried(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let path =
            if self.session.is_empty() { "/session".to_owned() } else { format!("/session/{}{path}", self.session) };
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let headers = [("Content-Type", "application/json; charset=utf-8")];
        let answer = ask_for(STEP_MAX, self.address, method, &path, &headers, &body);
        if answer.status == 200 { Ok(answer.json()["value"].clone()) } else { Err(format!("{path}: {}", answer.body)) }
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        self.tried(method, path, body).unwrap_or_else(|fault| panic!("{fault}"))
    }

    pub(crate) fn go(&self, url: &str) {
        self.call("POST", "/url", &json!({ "url": url }));
    }

    /// Waits until this is the address of the page.
    pub(crate) fn is_at(&self, end: &str) {
        let at = || self.tried("GET", "/url", &Value::Null).is_ok_and(|url| url.as_str().unwrap().ends_with(end));
        eventually(&format!("an address that ends with {end}"), at);
    }

    /// What a script returns.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.call("POST", "/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// What a script calls back with; the last of its arguments is what to call.
    pub(crate) fn run_async(&self, script: &str) -> Value {
        self.call("POST", "/execute/async", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression has this value. There may be no page to ask, between two pages.
    pub(crate) fn finds(&self, expression: &str, wanted: &Value) {
        let script = json!({ "script": format!("return {expression}"), "args": [] });
        let mut found = Err(String::new());
        let is_so = || {
            found = self.tried("POST", "/execute/sync", &script);
            found.as_ref() == Ok(wanted)
        };
        eventually(&format!("{expression} is {wanted}"), is_so);
    }

    /// Waits until the page says this where a person sees it.
    pub(crate) fn says(&self, text: &str) {
        self.part_says("body", text);
    }

    /// Waits until a part of the page says this.
    pub(crate) fn part_says(&self, css: &str, text: &str) {
        let parts = format!("[...document.querySelectorAll({})]", json!(css));
        self.finds(&format!("{parts}.some((part) => part.innerText.includes({}))", json!(text)), &json!(true));
    }

    /// Waits until the console shows the page with this heading, with its figures: its menu names all pages, and says nothing.
    pub(crate) fn shows(&self, heading: &str) {
        let now = "[document.querySelector('main h1')?.textContent, document.querySelector('main').ariaBusy]";
        self.finds(now, &json!([heading, null]));
    }

    /// Waits until the focus is on what has this id.
    pub(crate) fn focus_is_on(&self, id: &str) {
        self.finds("document.activeElement?.id", &json!(id));
    }

    /// Does something with the first element that is found, once that works.
    fn with(&self, css: &str, verb: &str, body: &Value) {
        let mut fault = String::new();
        let script = json!({ "script": format!("return document.querySelector({})", json!(css)), "args": [] });
        let done = || {
            let found = self.tried("POST", "/execute/sync", &script).and_then(|found| {
                let id = found[ELEMENT].as_str().ok_or_else(|| format!("no {css}"))?.to_owned();
                self.tried("POST", &format!("/element/{id}/{verb}"), body)
            });
            fault = found.err().unwrap_or_default();
            fault.is_empty()
        };
        eventually(&format!("{verb} {css}"), done);
    }

    pub(crate) fn click(&self, css: &str) {
        self.with(css, "click", &json!({}));
    }

    /// Types into a field, in the place of what is there.
    pub(crate) fn fill(&self, css: &str, text: &str) {
        self.with(css, "clear", &json!({}));
        self.with(css, "value", &json!({ "text": text }));
        self.finds(&format!("document.querySelector({})?.value", json!(css)), &json!(text));
    }

    /// Presses keys, wherever the focus is.
    pub(crate) fn press(&self, keys: &str) {
        let pressed = keys.chars().flat_map(|key| {
            let key = key.to_string();
            [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })]
        });
        let actions = json!({ "actions": [{ "type": "key", "id": "keys", "actions": pressed.collect::<Vec<_>>() }] });
        self.call("POST", "/actions", &actions);
    }

    /// Tells the browser itself something, in the protocol of its own tools.
    fn tell(&self, command: &str, parameters: &Value) {
        self.call("POST", "/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }));
    }

    /// Makes it the browser of a telephone, with a screen of this size: no window is as narrow as those are.
    pub(crate) fn be_a_phone(&self, width: u32, height: u32) {
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 2, "mobile": true });
        self.tell("Emulation.setDeviceMetricsOverride", &screen);
        self.finds("window.innerWidth", &json!(width));
    }

    /// Whether its system is light or dark.
    pub(crate) fn prefer(&self, scheme: &str) {
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.tell("Emulation.setEmulatedMedia", &media);
        self.finds(&format!("matchMedia('(prefers-color-scheme: {scheme})').matches"), &json!(true));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Without this the driver ends, and the browser that it started does not.
        if !self.session.is_empty() {
            let _ = self.tried("DELETE", "", &json!({}));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
