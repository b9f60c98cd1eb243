//! Rules that look at flags: the operator's choice of what one leads to.

use serde_json::json;

use crate::support::{Gate, ask, eventually};

/// Who is flagged gets one request an hour by a rule for the flagged, others as many as they like.
const STRICTER: &str = "[watch]\naccount_class = \"header:x-api-key\"\nstate_dir = \"FOLDER/state\"\n\
    [[rule]]\nname = \"flagged\"\nwhen = { flagged = true }\nclass = \"header:x-api-key\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n";
/// Who is flagged is left alone by the rule for all: somebody else looks at it.
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
fn a_rule_for_the_flagged_is_for_nobody_else_and_ends_with_the_flag() {
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
    // The flag is known before the first request after a start.
    flag(&gate, "k3");
    let again = Gate::start_in(gate.kill(), STRICTER);
    assert_eq!(statuses(&again, "k3", 2), [200, 429]);
    assert_eq!(statuses(&again, "k1", 2), [200, 200]);
}

#[test]
fn a_rule_may_leave_the_flagged_alone() {
    let gate = Gate::start(SPARED);
    assert_eq!(statuses(&gate, "k1", 2), [200, 429]);
    flag(&gate, "k1");
    assert_eq!(statuses(&gate, "k1", 2), [200, 200]);
    assert_eq!(statuses(&gate, "k2", 2), [200, 429]);
    clear(&gate, "k1");
    assert_eq!(statuses(&gate, "k1", 1), [429]);
}

/// What a gate's own refusals lead to, without anybody's report, for a key that is no text.
#[test]
fn an_account_that_the_gate_itself_has_flagged_is_seen_by_rules() {
    let rules = "[watch]\naccount_class = \"header:x-api-key\"\nflag_threshold = 3\n\
        [[rule]]\nname = \"all\"\nclass = \"header:x-api-key\"\nstatus = 429\nbucket = { size = 1, drip = 1, every = \"1h\" }\n\
        [[rule]]\nname = \"flagged\"\nwhen = { flagged = true }\nclass = \"ip/32\"\nstatus = 403\nrate = { rate = \"1/h\", burst = 1 }\nhold = \"0s\"\n";
    let gate = Gate::start(rules);
    let key = "k\u{e9}y";
    assert_eq!(statuses(&gate, key, 4), [200, 429, 429, 429]);
    eventually("a flag", || gate.json("/api/v1/flags")["total"] == 1);
    // The rule for all refuses, so nothing is charged anywhere; of two that refuse, the one with the longer wait is told.
    let explained = gate.post("/api/v1/explain", &json!({ "client": "127.0.0.1", "headers": { "x-api-key": key } }));
    assert_eq!(explained.json()["rules"].as_array().unwrap().len(), 2);
}

/// However it is written, it is the class of the rule.
#[test]
fn an_account_class_flags_whom_a_rule_of_that_class_refuses_however_it_is_written() {
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
fn a_gate_whose_refusals_flag_nobody_says_so_when_it_starts() {
    let rule =
        "[watch]\n[[rule]]\nname = \"all\"\nclass = \"ip/32\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n";
    Gate::start(rule).logged("no rule has the class `user`");
}

/// Names that share their first 255 bytes are two accounts, whoever reports them.
#[test]
fn accounts_with_long_names_do_not_share_a_flag() {
    let gate = Gate::start(STRICTER);
    let [one, other] = ["1", "2"].map(|last| format!("{}{last}", "k".repeat(300)));
    flag(&gate, &one);
    assert_eq!(statuses(&gate, &one, 2), [200, 429]);
    assert_eq!(statuses(&gate, &other, 2), [200, 200]);
    let flags = gate.json("/api/v1/flags");
    let shown = flags["flags"][0]["account"].as_str().unwrap();
    assert_eq!((shown.len(), statuses(&gate, shown, 2)), (255, vec![200, 200]), "a cut name is nobody's own name");
    clear(&gate, &shown.replace('~', "%7E"));
    assert_eq!(statuses(&gate, &one, 2), [200, 200]);
}
