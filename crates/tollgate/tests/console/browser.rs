//! A browser, driven through a small part of WebDriver.
//!
//! A page changes while it is tested: it loads, and the gate sends an event every second. Therefore every check waits
//! until its condition holds, and an element that was replaced between lookup and click is looked up again.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{ask_for, eventually};

/// One browser at a time: several at once are slower than one after the other.
static TURN: Mutex<()> = Mutex::new(());

/// The key of an element in WebDriver.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
pub(crate) const ENTER: &str = "\u{E007}";
pub(crate) const TAB: &str = "\u{E004}";
/// A browser on a busy machine needs many times its usual time to start.
const STEP_MAX: Duration = Duration::from_secs(120);
/// The maximum number of attempts to start a browser.
const STARTS_MAX: usize = 3;

/// The maximum number of attempts to start a driver.
const DRIVERS_MAX: usize = 10;

/// A driver and its address. It needs the same port for IPv4 and IPv6 and exits if the one for IPv6 is in use; then
/// the result is `None`.
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
    // Drains the pipe, so that the driver does not block on it.
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
    /// Starts a browser with this window size.
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

    /// The response of WebDriver, or its error.
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

    /// Waits until the page has this address.
    pub(crate) fn is_at(&self, end: &str) {
        let at = || self.tried("GET", "/url", &Value::Null).is_ok_and(|url| url.as_str().unwrap().ends_with(end));
        eventually(&format!("an address that ends with {end}"), at);
    }

    /// The return value of a script.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.call("POST", "/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// The value that a script passes to its callback, which is its last argument.
    pub(crate) fn run_async(&self, script: &str) -> Value {
        self.call("POST", "/execute/async", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression has this value. Between two pages there may be no page.
    pub(crate) fn finds(&self, expression: &str, wanted: &Value) {
        let script = json!({ "script": format!("return {expression}"), "args": [] });
        let mut found = Err(String::new());
        let is_so = || {
            found = self.tried("POST", "/execute/sync", &script);
            found.as_ref() == Ok(wanted)
        };
        eventually(&format!("{expression} is {wanted}"), is_so);
    }

    /// Waits until the page visibly contains this text.
    pub(crate) fn says(&self, text: &str) {
        self.part_says("body", text);
    }

    /// Waits until a part of the page contains this text.
    pub(crate) fn part_says(&self, css: &str, text: &str) {
        let parts = format!("[...document.querySelectorAll({})]", json!(css));
        self.finds(&format!("{parts}.some((part) => part.innerText.includes({}))", json!(text)), &json!(true));
    }

    /// Waits until the console shows the page with this heading and its data: the menu alone contains the names of
    /// all pages.
    pub(crate) fn shows(&self, heading: &str) {
        let now = "[document.querySelector('main h1')?.textContent, document.querySelector('main').ariaBusy]";
        self.finds(now, &json!([heading, null]));
    }

    /// Waits until the element with this id has the focus.
    pub(crate) fn focus_is_on(&self, id: &str) {
        self.finds("document.activeElement?.id", &json!(id));
    }

    /// Applies an action to the first matching element, with retries.
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

    /// Replaces the content of a field.
    pub(crate) fn fill(&self, css: &str, text: &str) {
        self.with(css, "clear", &json!({}));
        self.with(css, "value", &json!({ "text": text }));
        self.finds(&format!("document.querySelector({})?.value", json!(css)), &json!(text));
    }

    /// Presses keys in the element that has the focus.
    pub(crate) fn press(&self, keys: &str) {
        let pressed = keys.chars().flat_map(|key| {
            let key = key.to_string();
            [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })]
        });
        let actions = json!({ "actions": [{ "type": "key", "id": "keys", "actions": pressed.collect::<Vec<_>>() }] });
        self.call("POST", "/actions", &actions);
    }

    /// Sends a command of the browser's own DevTools protocol.
    fn tell(&self, command: &str, parameters: &Value) {
        self.call("POST", "/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }));
    }

    /// Emulates a phone with this screen size, because windows have a larger minimum width.
    pub(crate) fn be_a_phone(&self, width: u32, height: u32) {
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 2, "mobile": true });
        self.tell("Emulation.setDeviceMetricsOverride", &screen);
        self.finds("window.innerWidth", &json!(width));
    }

    /// Emulates a light or dark system theme.
    pub(crate) fn prefer(&self, scheme: &str) {
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.tell("Emulation.setEmulatedMedia", &media);
        self.finds(&format!("matchMedia('(prefers-color-scheme: {scheme})').matches"), &json!(true));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Otherwise the driver ends, but not the browser that it started.
        if !self.session.is_empty() {
            let _ = self.tried("DELETE", "", &json!({}));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
