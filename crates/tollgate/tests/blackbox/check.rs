//! `tollgate check`: exit code 0 with a line or two, or 2 with all errors.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::program::{Run, Scratch, root, tollgate};

fn check_file(name: &str, content: &[u8]) -> (Run, String) {
    let scratch = Scratch::new(name, content);
    let file = scratch.file.display().to_string();
    (tollgate(["check", &file]), file)
}

/// Asserts that the file has one error, at this place and with these words.
fn refused(name: &str, content: &[u8], place: &str, words: &str) {
    let (run, file) = check_file(name, content);
    let first = run.stderr.lines().next().unwrap_or_default();
    assert_eq!(run.code, Some(2), "{name}: {}", run.stderr);
    assert!(first.starts_with(&format!("{file}:{place}: ")) && first.contains(words), "{name}: {first}");
    assert!(run.stdout.is_empty());
}

#[test]
fn a_valid_file_prints_a_line_or_two() {
    let run = tollgate(["check", "examples/everything.toml"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    // Its account class is `user`, which no rule has. That is valid, and worth a note.
    let note = "note: no rule has the class `user`: only refusals reported by other programs lead to flags, unless `account_class` in [watch] is the class of a rule\n";
    let door = |door: &str| format!("door: {door}, and asks for no token, because it is a loopback address\n");
    let doors = door("http will be open on 127.0.0.1:8890") + &door("resp will be open on 127.0.0.1:6380");
    let sites = "site: shop serves shop.example, *.shop.example from http://127.0.0.1:8081, with 0 rules of its own\n\
                 site: requests for any other host go to http://127.0.0.1:8080\n";
    let observing = "note: 1 rule (`old-clients`) only observes: requests over the limit are counted and logged, but not held or refused\n";
    let token = match std::path::Path::new("/etc/tollgate/token").exists() {
        true => "",
        false => "note: /etc/tollgate/token does not exist on this machine: a gate does not start without it\n",
    };
    let first = "examples/everything.toml: ok, 8 rules in 2 domains\n";
    assert_eq!(run.stdout, [first, sites, &doors, observing, note, token].concat());
}

#[test]
fn a_note_says_if_refusals_cannot_lead_to_flags() {
    let rule = |class: &str| {
        format!("[[rule]]\nname = 'one'\nclass = '{class}'\nbucket = {{ size = 1, drip = 1, every = '1h' }}\n")
    };
    for (class, account, is_said) in [
        ("header:x-api-key", "header:X-Api-Key", false),
        ("header:x", "header:y", true),
        ("method+path", "method + path", false),
        ("ip/24", "user", true),
        ("ip/24", "ip/32", false),
    ] {
        let (run, _) =
            check_file("accounts", format!("[watch]\naccount_class = '{account}'\n{}", rule(class)).as_bytes());
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        assert_eq!(run.stdout.contains("note: no rule has the class"), is_said, "{class} {account}: {}", run.stdout);
    }
}

#[test]
fn an_empty_file_is_rejected_and_one_of_comments_means_the_defaults() {
    for empty in ["", "\n", " \t\r\n\n", "\u{feff}"] {
        refused("empty", empty.as_bytes(), "1:1", "is empty");
    }
    let (run, file) = check_file("comment", b"# nothing yet\n");
    assert_eq!((run.code, run.stdout), (Some(0), format!("{file}: ok, 0 rules\n")));
}

/// One error of each kind, each on a line that ends with the expected column and words.
const TEN_FAULTS: &str = r#"[gate]
lisen = "0.0.0.0:8888"                                              # 1: did you mean `listen`?
cores = nan                                                         # 9: finite

[[rule]]
name  = "login"
class = "ip/33"                                                     # 9: is not a network
rate  = { rate = "0/min", burst = 10 }                              # 18: a rate of 0

[[rule]]
name  = "login"                                                     # 9: another rule of this domain has this name
class = "header:x-api-key"
bucket = { size = 100, every = 5 }                                  # 32: write "5s"
window = { max = 5, per = "1min" }                                  # 10: has `bucket` already
elevated = 2                                                        # 1: belongs inside `escalation`

[[rule]]
name  = "api"
class = "cookie:sid"
budget = { share = 0.1, burst = "0s" }                              # 33: less than one request's toll

[admin]
listen = "0.0.0.0:9000"                                             # 10: needs a token
"#;

#[test]
fn ten_errors_are_ten_messages_with_their_places() {
    let scratch = Scratch::new("ten", TEN_FAULTS.as_bytes());
    let file = scratch.file.display().to_string();
    let run = tollgate(["check", &file]);
    let messages: Vec<_> = run.stderr.lines().filter(|line| line.starts_with(&file)).collect();
    let marked = TEN_FAULTS.lines().enumerate().filter_map(|(index, line)| Some((index + 1, line.split_once("# ")?.1)));
    let expected: Vec<_> = marked.map(|(line, mark)| (line, mark.split_once(": ").unwrap())).collect();
    assert_eq!(expected.len(), 10);
    assert_eq!((run.code, messages.len()), (Some(2), 10), "{}", run.stderr);
    for (message, (line, (column, words))) in messages.iter().zip(expected) {
        let place = format!("{file}:{line}:{column}: ");
        assert!(message.starts_with(&place) && message.contains(words), "{message}\nexpected {place}...{words}");
    }
}

#[test]
fn invalid_utf_8_is_reported_with_its_place() {
    refused("latin1", b"[gate]\nlisten = \"caf\xe9\"\n", "2:14", "not UTF-8");
    refused("binary", &[0x7f, b'E', b'L', b'F', 0, 1, 2, 0xff], "1:8", "not UTF-8");
    refused("zeros", b"[gate]\nh2c = tr\0ue\n", "2:7", "");
}

#[test]
fn an_unreadable_file_is_reported_with_the_reason() {
    let directory = root().join("examples").display().to_string();
    for (path, words) in [(directory.as_str(), "is a directory"), ("examples/absent.toml", "No such file")] {
        let run = tollgate(["check", path]);
        assert_eq!(run.code, Some(2));
        assert!(run.stderr.starts_with(&format!("{path}:1:1: ")) && run.stderr.contains(words), "{}", run.stderr);
    }
}

#[test]
fn a_file_that_is_too_large_is_not_read() {
    refused("large", &vec![b'#'; (1 << 20) + 1], "1:1", "is larger than");
    let (run, _) = check_file("just-right", &vec![b'#'; 1 << 20]);
    assert_eq!(run.code, Some(0));
}

#[test]
fn a_file_with_very_many_errors_is_answered_soon_and_briefly() {
    let started = std::time::Instant::now();
    for (name, piece) in
        [("rules", "[[rule]]\n"), ("keys", "k=1\n"), ("nested", "["), ("texts", "\"a\"\n"), ("dots", "a.")]
    {
        let (run, _) = check_file(name, piece.repeat((1 << 18) / piece.len()).as_bytes());
        assert_eq!(run.code, Some(2), "{name}");
        assert!(run.stderr.len() < 100_000, "{name}: {} bytes", run.stderr.len());
    }
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
}

#[test]
fn wrong_arguments_exit_2_and_help_exits_0() {
    assert_eq!(tollgate(["check"]).code, Some(2));
    assert_eq!(tollgate(["chekc", "x"]).code, Some(2));
    assert_eq!(tollgate(["check", "a", "b"]).code, Some(2));
    assert_eq!(tollgate(["check", "--help"]).code, Some(0));
}

#[test]
fn an_incomplete_address_in_the_arguments_is_answered_with_a_complete_one() {
    for (option, written) in [("--listen", "9000"), ("--admin", "localhost:9000")] {
        let run = tollgate(["gate", "--backend", "http://127.0.0.1:1", option, written]);
        assert_eq!(run.code, Some(2));
        assert!(run.stderr.contains("write one such as \"127.0.0.1:9000\""), "{}", run.stderr);
    }
}

#[test]
fn a_note_mentions_observe_mode() {
    let (run, _) = check_file("observe", b"[gate]\nmode = 'observe'\n");
    assert!(run.code == Some(0) && run.stdout.contains("note: `gate.mode` is \"observe\""), "{}", run.stdout);
    let (run, _) = check_file("enforce", b"[gate]\nmode = 'enforce'\n");
    assert!(run.code == Some(0) && !run.stdout.contains("gate.mode"), "{}", run.stdout);
    let rule = |name: &str, mode: &str| {
        format!("[[rule]]\nname = '{name}'\nmode = '{mode}'\nclass = 'ip/32'\nin_flight = {{ max = 9 }}\n")
    };
    let (run, _) = check_file("observe-one", (rule("login", "observe") + &rule("api", "enforce")).as_bytes());
    assert!(run.stdout.contains("note: 1 rule (`login`) only observes: "), "{}", run.stdout);
    let many: String = (0..6).map(|number| rule(&format!("r{number}"), "observe")).collect();
    let (run, _) = check_file("observe-many", many.as_bytes());
    assert!(run.stdout.contains("note: 6 rules only observe: "), "{}", run.stdout);
    let (run, _) = check_file("observe-none", rule("api", "enforce").as_bytes());
    assert!(run.code == Some(0) && !run.stdout.contains("only observe"), "{}", run.stdout);
}

/// A file on another machine, or one that only the gate can read, is no mistake in the settings.
#[test]
fn a_note_names_the_files_of_certificates_and_tokens_that_do_not_exist() {
    let here = std::env::current_exe().unwrap();
    let tls = format!("[gate]\ntls = {{ cert = '{}', key = '/nowhere/privkey.pem' }}\n", here.display());
    let door = "listen = 8890, tls = { cert = '/nowhere/c', key = '/nowhere/k', client_ca = '/nowhere/ca' }";
    let webhook = "[watch]\nwebhook = 'https://hooks.example/'\nwebhook_secret_file = '/nowhere/secret'\n";
    let text = format!("{tls}[admin]\ntoken_file = '/nowhere/token'\n[doors]\nhttp = {{ {door} }}\n{webhook}");
    let (run, _) = check_file("certificates", text.as_bytes());
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let notes: Vec<_> = run.stdout.lines().filter(|line| line.starts_with("note: ")).collect();
    let note = |file: String| format!("note: {file} does not exist on this machine: a gate does not start without it");
    let files = ["privkey.pem", "token", "c", "k", "ca", "secret"];
    assert_eq!(notes, files.map(|file| note(format!("/nowhere/{file}"))));
}

#[test]
fn a_note_names_the_files_that_only_root_can_read() {
    let token = Scratch::new("root-token", "t".repeat(40).as_bytes());
    let text = format!("[admin]\ntoken_file = '{}'\n", token.file.display());
    let notes = |mode| {
        std::fs::set_permissions(&token.file, std::fs::Permissions::from_mode(mode)).unwrap();
        let (run, _) = check_file("root", text.as_bytes());
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        run.stdout.contains(&format!("note: only root can read {}: ", token.file.display()))
    };
    let is_root = std::fs::metadata(&token.file).unwrap().uid() == 0;
    assert_eq!(notes(0o600), is_root);
    assert!(!notes(0o640));
}

/// A note about flags would only distract users who have not configured them.
#[test]
fn a_file_without_watch_has_no_note_about_flags() {
    let rule = "[[rule]]\nname = 'one'\nclass = 'ip/32'\nrate = { rate = '5/min', burst = 5 }\n";
    let (run, file) = check_file("quiet", rule.as_bytes());
    assert_eq!((run.code, run.stdout), (Some(0), format!("{file}: ok, 1 rule\n")));
}

#[test]
fn a_hardening_list_has_pass_or_fail_and_what_to_write() {
    let hardening = |name: &str, content: &str| {
        let scratch = Scratch::new(name, content.as_bytes());
        tollgate(["check", "--hardening", &scratch.file.display().to_string()])
    };
    let safe = "[gate]\nbackend = 'http://127.0.0.1:8080'\ntrusted_proxies = ['private']\nlisten = '0.0.0.0:80'\n\
        [gate.access_log]\noutput = 'stdout'\n[[rule]]\nname = 'bots'\nclass = 'user-agent+ip/24'\nin_flight = { max = 9 }\n";
    let run = hardening("safe", safe);
    assert!(run.code == Some(0) && !run.stdout.contains("FAIL"), "{}", run.stdout);
    assert!(
        run.stdout.contains("  pass  clients connect to 0.0.0.0:80 over TLS, or through a proxy\n"),
        "{}",
        run.stdout
    );
    assert!(
        run.stdout.contains("\n  -     ") && run.stdout.ends_with(" passed, 0 failed, 1 not in use (-)\n"),
        "{}",
        run.stdout
    );
    let unsafe_file = "[gate]\nmode = 'observe'\nbackend = 'http://backend.example:80'\nlisten = '0.0.0.0:80'\n\
        [[rule]]\nname = 'bots'\nclass = 'user-agent'\nin_flight = { max = 9 }\n\
        [master]\naccounting = '0.0.0.0:10004'\ngates_without_keys = 'private'\n";
    let run = hardening("unsafe", unsafe_file);
    assert_eq!(run.code, Some(1), "{}", run.stdout);
    for words in [
        "the gate enforces",
        "0.0.0.0:80 over TLS",
        "backends are on this machine",
        "requests are logged",
        "no rule has a class",
        "gates authenticate to the master",
    ] {
        assert!(
            run.stdout.lines().any(|line| line.starts_with("  FAIL  ") && line.contains(words)),
            "{words}: {}",
            run.stdout
        );
    }
    assert!(run.stdout.contains("`bots` throttles all clients with the same key together"), "{}", run.stdout);
    let crawlers =
        "[[rule]]\nname = 'bots'\nclass = 'user-agent'\nwhen.header.user-agent = '*bot*'\nin_flight = { max = 9 }\n";
    let crawlers = hardening("crawlers", crawlers);
    let passes = |line: &str| line.starts_with("  pass  no rule has a class") && line.contains("unless `when` selects");
    assert!(crawlers.stdout.lines().any(passes), "{}", crawlers.stdout);
    let everybody = hardening("everybody", "[gate]\nbackend = 'http://a'\ntrusted_proxies = ['0.0.0.0/0']\n");
    assert!(everybody.stdout.contains("  FAIL  `trusted_proxies` contains proxies only"), "{}", everybody.stdout);
    assert_eq!(hardening("wrong", "[gate]\nlisten = 1\n").code, Some(2));
}
