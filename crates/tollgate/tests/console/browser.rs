//! A browser: the few words of WebDriver that are needed.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::support::{ask, eventually};

/// One browser at a time: several at once are slower than one after the other.
static TURN: Mutex<()> = Mutex::new(());

/// How WebDriver calls an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
pub(crate) const ENTER: &str = "\u{E007}";
pub(crate) const TAB: &str = "\u{E004}";

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
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver is there: ./test installs it");
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
        let port_in =
            |line: String| line.split("successfully on port ").nth(1)?.trim_end_matches('.').parse::<u16>().ok();
        let port = lines.find_map(port_in);
        let address = ([127, 0, 0, 1], port.expect("chromedriver says where it listens")).into();
        // What else it says must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let mut browser = Self { driver, address, session: String::new(), _turn: turn };
        let size = format!("--window-size={width},{height}");
        let options =
            json!({ "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", size] });
        let wanted =
            json!({ "capabilities": { "alwaysMatch": { "browserName": "chrome", "goog:chromeOptions": options } } });
        browser.session = browser.call("POST", "", &wanted)["sessionId"].as_str().unwrap().to_owned();
        browser
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let path =
            if self.session.is_empty() { "/session".to_owned() } else { format!("/session/{}{path}", self.session) };
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let answer = ask(self.address, method, &path, &[("Content-Type", "application/json; charset=utf-8")], &body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()["value"].clone()
    }

    pub(crate) fn go(&self, url: &str) {
        self.call("POST", "/url", &json!({ "url": url }));
    }

    pub(crate) fn url(&self) -> String {
        self.call("GET", "/url", &Value::Null).as_str().unwrap().to_owned()
    }

    /// What a script returns.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.call("POST", "/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// What a script calls back with; the last of its arguments is what to call.
    pub(crate) fn run_async(&self, script: &str) -> Value {
        self.call("POST", "/execute/async", &json!({ "script": script, "args": [] }))
    }

    /// All text of the page that a person sees.
    pub(crate) fn text(&self) -> String {
        self.run("return document.body.innerText").as_str().unwrap().to_owned()
    }

    /// Waits until the page says this.
    pub(crate) fn says(&self, text: &str) {
        eventually(&format!("the page says {text:?}"), || self.text().contains(text));
    }

    fn element(&self, css: &str) -> String {
        let mut found = Value::Null;
        eventually(css, || {
            found = self.run(&format!("return document.querySelector({})", json!(css)));
            found.is_object()
        });
        found[ELEMENT].as_str().unwrap().to_owned()
    }

    pub(crate) fn click(&self, css: &str) {
        let element = self.element(css);
        self.call("POST", &format!("/element/{element}/click"), &json!({}));
    }

    /// Types into a field, in the place of what is there.
    pub(crate) fn fill(&self, css: &str, text: &str) {
        let element = self.element(css);
        self.call("POST", &format!("/element/{element}/clear"), &json!({}));
        self.call("POST", &format!("/element/{element}/value"), &json!({ "text": text }));
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

    pub(crate) fn resize(&self, width: u32, height: u32) {
        self.call("POST", "/window/rect", &json!({ "width": width, "height": height }));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.call("DELETE", "", &json!({}));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
