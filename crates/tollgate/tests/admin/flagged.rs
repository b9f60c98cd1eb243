//! Rules with `flagged`: operators choose the effect of a flag.

use serde_json::json;

use crate::support::{Gate, ask, eventually};

/// Flagged accounts have one request per hour; others have no limit.
const STRICTER: &str = "[watch]\naccount_class = \"header:x-api-key\"\nstate_dir = \"FOLDER/state\"\n\
    [[rule]]\nname = \"flagged\"\nwhen = { flagged = true }\nclass = \"header:x-api-key\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n";
/// The rule does not apply to flagged accounts.
const SPARED: &str = "[watch]\naccount_class = \"header:x-api-key\"\n\
    [[rule]]\nname = \"all\"\nunless = { flagged = true }\nclass = \"header:x-api-key\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n";

fn flag(gate: &Gate, account: &str) {
    let entry = json!({ "class": "header:x-api-key", "key": account, "rejected": 1000 });
    let id = format!("{:?}", std::time::Instant::now());
    assert_eq!(gate.post("/api/v1/rejections", &json!({ "id": id, "entries": [entry] })).status, 202);
}

fn clear(gate: &Gate, account: &str) {
    let note = json!({ "note": "seen" }).to_string();
    assert_eq!(ask(gate.admin, "DELETE", &format!("/api/v1/flags/{account}"), &[], &note).status, 200);
}

fn statuses(gate: &Gate, account: &str, count: usize) -> Vec<u16> {
    (0..count).map(|_| gate.request("/", &[("X-Api-Key", account)]).status).collect()
}

#[test]
fn a_rule_for_flagged_accounts_applies_only_while_they_are_flagged() {
    let gate = Gate::start(STRICTER);
    assert_eq!(statuses(&gate, "k1", 3), [200, 200, 200]);
    flag(&gate, "k1");
    assert_eq!(statuses(&gate, "k1", 3), [200, 429, 429]);
    assert_eq!(statuses(&gate, "k2", 3), [200, 200, 200]);
    assert_eq!(gate.request("/", &[]).status, 200, "who has no account is not flagged");
    let explained = |account: &str| {
        let question = json!({ "client": "127.0.0.1", "path": "/", "headers": { "X-Api-Key": account } });
        gate.post("/api/v1/explain", &question).json()["rule"].clone()
    };
    assert_eq!((explained("k1"), explained("k2")), (json!("flagged"), json!(null)));
    clear(&gate, "k1");
    assert_eq!(statuses(&gate, "k1", 3), [200, 200, 200]);
    // The flag is in force before the first request after a restart.
    flag(&gate, "k3");
    let again = Gate::start_in(gate.kill(), STRICTER);
    assert_eq!(statuses(&again, "k3", 2), [200, 429]);
    assert_eq!(statuses(&again, "k1", 2), [200, 200]);
}

#[test]
fn a_rule_may_exclude_flagged_accounts() {
    let gate = Gate::start(SPARED);
    assert_eq!(statuses(&gate, "k1", 2), [200, 429]);
    flag(&gate, "k1");
    assert_eq!(statuses(&gate, "k1", 2), [200, 200]);
    assert_eq!(statuses(&gate, "k2", 2), [200, 429]);
    clear(&gate, "k1");
    assert_eq!(statuses(&gate, "k1", 1), [429]);
}

/// Refusals of the gate itself lead to a flag without a report, for a key that is not text.
#[test]
fn rules_see_an_account_that_the_gate_itself_flagged() {
    let rules = "[watch]\naccount_class = \"header:x-api-key\"\nflag_threshold = 3\n\
        [[rule]]\nname = \"all\"\nclass = \"header:x-api-key\"\nstatus = 429\nbucket = { size = 1, drip = 1, every = \"1h\" }\n\
        [[rule]]\nname = \"flagged\"\nwhen = { flagged = true }\nclass = \"ip/32\"\nstatus = 403\nrate = { rate = \"1/h\", burst = 1 }\nhold = \"0s\"\n";
    let gate = Gate::start(rules);
    let key = "k\u{e9}y";
    assert_eq!(statuses(&gate, key, 4), [200, 429, 429, 429]);
    eventually("a flag", || gate.json("/api/v1/flags")["total"] == 1);
    // The first rule refuses, so nothing is charged; of two refusals, the one with the longer wait is reported.
    let explained = gate.post("/api/v1/explain", &json!({ "client": "127.0.0.1", "headers": { "x-api-key": key } }));
    assert_eq!(explained.json()["rules"].as_array().unwrap().len(), 2);
}

#[test]
fn refusals_of_a_rule_lead_to_flags_whatever_the_spelling_of_its_class() {
    for (rule, account) in [("header:x-api-key", "header:X-Api-Key"), ("method+path", "method + path")] {
        let gate = Gate::start(&format!(
            "[watch]\naccount_class = \"{account}\"\nflag_threshold = 2\n\
            [[rule]]\nname = \"all\"\nclass = \"{rule}\"\nbucket = {{ size = 1, drip = 1, every = \"1h\" }}\n"
        ));
        assert_eq!(statuses(&gate, "k1", 3), [200, 429, 429]);
        eventually("a flag", || gate.json("/api/v1/flags")["total"] == 1);
    }
}

#[test]
fn a_gate_whose_refusals_cannot_lead_to_flags_logs_it_at_startup() {
    let rule =
        "[watch]\n[[rule]]\nname = \"all\"\nclass = \"ip/32\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n";
    Gate::start(rule).logged("no rule has the class `user`");
}

/// Keys that share their first 255 bytes are different accounts.
#[test]
fn accounts_with_long_names_do_not_share_a_flag() {
    let gate = Gate::start(STRICTER);
    let [one, other] = ["1", "2"].map(|last| format!("{}{last}", "k".repeat(300)));
    flag(&gate, &one);
    assert_eq!(statuses(&gate, &one, 2), [200, 429]);
    assert_eq!(statuses(&gate, &other, 2), [200, 200]);
    let flags = gate.json("/api/v1/flags");
    let shown = flags["flags"][0]["account"].as_str().unwrap();
    assert_eq!((shown.len(), statuses(&gate, shown, 2)), (255, vec![200, 200]), "a truncated key is not the account");
    clear(&gate, &shown.replace('~', "%7E"));
    assert_eq!(statuses(&gate, &one, 2), [200, 200]);
}

/// A client may send several `Cookie` lines, and a backend reads all of them.
#[test]
fn a_second_cookie_line_does_not_hide_a_flagged_account() {
    // The rule itself does not use the cookie.
    let settings = STRICTER.replacen("header:x-api-key", "cookie:account", 1).replacen("header:x-api-key", "ip/32", 1);
    let gate = Gate::start(&settings);
    let entry = json!({ "class": "cookie:account", "key": "a1", "rejected": 1000 });
    assert_eq!(gate.post("/api/v1/rejections", &json!({ "id": "one", "entries": [entry] })).status, 202);
    let status = |cookies: &[&str]| {
        let lines: Vec<_> = cookies.iter().map(|cookies| ("Cookie", *cookies)).collect();
        gate.request("/", &lines).status
    };
    assert_eq!([status(&["account=a1"]), status(&["account=a1"])], [200, 429]);
    assert_eq!(status(&["theme=dark", "account=a1"]), 429);
    assert_eq!(status(&["theme=dark", "account=a2"]), 200);
}
