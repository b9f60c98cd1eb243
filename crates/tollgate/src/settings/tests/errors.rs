//! Every error is reported once, at its position, with a correction.

use super::*;

/// Asserts that the text has exactly these errors: each starts with its position and contains these words.
pub(super) fn check(text: &str, expected: &[(&str, &str)]) {
    let found = errors(text);
    let fits = |(found, (place, words)): (&String, &(&str, &str))| {
        found.starts_with(&format!("{place}: ")) && found.contains(words)
    };
    let right = found.len() == expected.len() && found.iter().zip(expected).all(fits);
    assert!(right, "{text}\nexpected {expected:#?}\nfound {found:#?}");
}

/// Asserts that a rule with this line has one error, in that line, with these words.
fn check_rule(line: &str, column: usize, words: &str) {
    check(&format!("[[rule]]\nname = \"r\"\nclass = \"ip/32\"\n{line}\n"), &[(&format!("4:{column}"), words)]);
}

#[test]
fn the_error_of_a_removed_key_names_its_replacement() {
    check(
        "[gate]\nhold = { per_key = 16 }\n",
        &[("2:10", "`per_key` was removed: requests are refused by estimated wait (`max`)")],
    );
}

#[test]
fn invalid_values_of_a_limit_are_errors() {
    for (rate, words) in [
        ("\"0/s\"", "above 0"),
        ("\"-1/s\"", "negative"),
        ("\"nan/s\"", "finite"),
        ("\"inf/s\"", "finite"),
        ("\"1e308/s\"", "too large to be exact"),
        ("\"1e-300/s\"", "too small to be exact"),
        ("\"5/0s\"", "a period of 0"),
        ("\"5/mn\"", "did you mean"),
        ("0", "add the time"),
        ("-1", "negative"),
        ("nan", "finite"),
        ("inf", "finite"),
        ("1e308", "add the time"),
        ("5", "\"5/s\""),
        ("true", "a rate such as `\"5/min\"`"),
    ] {
        check_rule(&format!("rate = {{ rate = {rate}, burst = 1 }}"), 17, words);
    }
    check_rule("rate = { rate = \"1/s\", burst = 0 }", 32, "must not be 0");
    check_rule("rate = { rate = \"1/s\", burst = -1 }", 32, "negative");
    check_rule("rate = { rate = \"1/s\", burst = 0.5 }", 32, "a whole number, at least 1");
    check_rule("rate = { rate = \"1/s\", burst = 9223372036854775808000 }", 32, "too large");
    check_rule("rate = { rate = \"1/week\", burst = 9223372036854775807 }", 8, "584 years");
    check_rule("rate = { rate = \"9223372036854775809/s\", burst = 1 }", 8, "more per nanosecond");
    check_rule("bucket = { size = 0 }", 19, "must not be 0");
    check_rule("bucket = { size = 10, every = \"0s\" }", 31, "must not be 0");
    check_rule("bucket = { size = 10, drip = 0 }", 30, "must not be 0");
    check_rule("bucket = { size = 4294967296 }", 19, "the most is 4294967295");
    check_rule("bucket = { size = 4294967295, every = \"9999 weeks\" }", 10, "584 years");
    check_rule("window = { max = 5, per = \"10s\", ceiling = 2 }", 44, "below max");
    check_rule("window = { max = 70000, per = \"10s\" }", 10, "65535");
    check_rule("window = { max = 5, per = 10 }", 27, "write \"10s\"");
    check_rule("in_flight = 0", 13, "must not be 0");
    check_rule("in_flight = \"many\"", 13, "a whole number");
    check_rule("budget = { share = 0.1, burst = \"0s\" }", 33, "less than one request's toll");
    check_rule("budget = { share = 0.1, burst = \"999us\" }", 33, "less than one request's toll");
    check_rule("budget = { share = 0, burst = \"1s\" }", 20, "above 0");
    check_rule("budget = { share = 1.01, burst = \"1s\" }", 20, "at most 1");
    check_rule("budget = { share = nan, burst = \"1s\" }", 20, "finite");
    check_rule("budget = { share = -inf, burst = \"1s\" }", 20, "finite");
    check_rule("budget = { share = 1e-300, burst = \"1s\" }", 20, "more than 6 decimals");
    check_rule("budget = { cores = 1e308, burst = \"1s\" }", 20, "too large");
    check_rule("budget = { share = 0.1, cores = 1, burst = \"1s\" }", 20, "not both");
    check_rule("budget = { burst = \"1s\" }", 10, "`share` or `cores`");
    check_rule("legacy = {}", 10, "`max` and `duration`");
    check_rule("legacy = { max = 1 }", 18, "needs `duration`");
    check_rule("legacy = { duration = \"1s\" }", 23, "needs `max`");
    check_rule("legacy = { max = 1, duration = \"0s\" }", 32, "must not be 0: for no limit, which 0 is in Sharkey,");
    check_rule("legacy = { min_interval = \"0s\" }", 27, "must not be 0: for no limit, which 0 is in Sharkey,");
}

/// Asserts that a rule with a limit and this line has one error, in that line, with these words.
fn check_beside(line: &str, column: usize, words: &str) {
    let text = format!("[[rule]]\nname = \"r\"\nclass = \"ip/32\"\nrate = {{ rate = \"1/s\", burst = 1 }}\n{line}\n");
    check(&text, &[(&format!("5:{column}"), words)]);
}

#[test]
fn invalid_values_of_a_rule_are_errors() {
    check_beside("bucket = { size = 1 }", 10, "has `rate` already");
    check_beside("factor = 0", 10, "above 0");
    check_beside("factor = -1", 10, "negative");
    check_beside("factor = 0.0001", 10, "more than 3 decimals");
    check_beside("hold = \"11s\"", 8, "`max` of `hold` in `[gate]`");
    check_beside("warmup = \"0s\"", 10, "must not be 0");
    check_beside("mode = \"obsrve\"", 8, "did you mean `observe`?");
    check_beside("mode = \"off\"", 8, "expected `\"enforce\"` or `\"observe\"`");
    check_beside("state = \"reddis\"", 9, "did you mean `redis`?");
    check_beside("state = \"redis\"", 9, "needs a `[redis]` table");
    let fine =
        "[[rule]]\nname = \"r\"\nclass = \"path\"\nbucket = { size = 1, every = \"1500ns\" }\nstate = \"redis\"\n";
    check(&format!("{fine}[redis]\nurl = \"redis://h\""), &[("5:9", "whole microseconds")]);
    let both = "[[rule]]\nname = \"r\"\nclass = \"path\"\n\
                legacy = { max = 1, duration = \"1s\", min_interval = \"1ms\" }\nmemory = \"64B\"";
    check(both, &[("5:10", "write a larger `memory`")]);
    check_beside("memory = \"64B\"", 10, "have 64: write a larger `memory`");
    let wide =
        "[[rule]]\nname = \"r\"\nclass = \"path\"\nwindow = { max = 60000, per = \"1s\" }\n[gate]\nmemory = \"1MiB\"";
    check(wide, &[("1:1", "write a larger `memory`")]);
    let leased = |limit: &str, lease: &str| {
        format!(
            "[redis]\nurl = 'redis://h'\n[[rule]]\nname = 'r'\nclass = 'path'\nstate = 'redis'\n\
             {limit}\nlease = {lease}\n"
        )
    };
    check(&leased("budget = { share = 0.1, burst = '1s' }", "0.1"), &[("8:9", "only a bucket, a rate or a window")]);
    check(&leased("in_flight = 100", "0.1"), &[("8:9", "only a bucket, a rate or a window")]);
    check(&leased("bucket = { size = 10 }", "0.1"), &[("8:9", "less than two requests")]);
    check(&leased("bucket = { size = 100 }\nmode = 'observe'", "0.1"), &[("9:9", "in observe mode")]);
    check(&leased("bucket = { size = 100 }", "1.5"), &[("8:9", "at most 1")]);
    check_beside("lease = 0.1", 9, "needs `state = \"redis\"`");
    check_beside("status = 200", 10, "from 400 to 599");
    check_beside("headers = \"yes\"", 11, "`true` or `false`");
    check_beside("elevated = 2", 1, "belongs inside `escalation`");
    check_beside("size = 2", 1, "belongs inside `bucket`");
    check_beside("when = { path = [] }", 17, "an empty list");
    check_beside("when = { header = { a = [] } }", 25, "an empty list");
    check_beside("when = { path = \"\" }", 17, "matches nothing");
    check_beside(
        "when = { path = \"login\" }",
        17,
        "every path begins with a slash, so no path matches `login`: write `/login`",
    );
    check_beside(
        "when = { path = \"/login?x=*\" }",
        17,
        "paths are compared without their query, so no path matches `/login?x=*`: write `/login`",
    );
    check_beside("unless = { path = [\"/a\", \"b/*\"] }", 26, "write `/b/*`");
    check_beside("when = { method = \"PO ST\" }", 19, "not a method");
    check_beside("when = { client = \"10.0.0.0/33\" }", 19, "not an address or network");
    check_beside("when = { header = { \"x y\" = \"1\" } }", 21, "not a header name");
    check_beside("when = \"POST\"", 8, "expected a table");
    check_beside("escalation = { critical = 1.5 }", 27, "below `elevated`");
    check_beside("escalation = { elevated = 0.5 }", 27, "at least 1");
    check_beside("escalation = { backoff = \"5min\" }", 14, "shorter than `backoff`");
    check_beside("escalation = { backoff = \"5s\", backoff_max = \"1s\" }", 46, "shorter than `backoff`");
    check_beside("escalation = { backoff = \"0s\" }", 26, "must not be 0");
    check_beside("escalation = { release = \"0s\" }", 26, "must not be 0");
    check_beside("escalation = { levels = 0 }", 25, "must not be 0");
    check_beside("escalation = { levels = 256 }", 25, "the most is 255");
}

#[test]
fn a_rule_needs_a_name_a_class_and_one_limit() {
    let rule = |head: &str| format!("[[rule]]\n{head}\nin_flight = 1\n");
    check(&rule("class = \"ip/32\""), &[("1:1", "missing key `name`")]);
    check(&rule("name = \"r\""), &[("1:1", "missing key `class`: write `class = \"ip/32\"`")]);
    check(&rule("name = \"\"\nclass = \"path\""), &[("2:8", "must not be empty")]);
    check(&rule("name = \"a\\u001b\"\nclass = \"path\""), &[("2:8", "control characters")]);
    check(&rule("name = 5\nclass = \"path\""), &[("2:8", "a name such as")]);
    let class =
        |class: &str, words: &str| check(&rule(&format!("name = \"r\"\nclass = \"{class}\"")), &[("3:9", words)]);
    class("user_agent", "did you mean `user-agent`?");
    class("ip/33", "`ip/20,52`");
    class("headr:x-api-key", "did you mean `header:NAME`?");
    class("header:", "needs a name");
    class("json:user", "needs a JSON pointer after the colon, such as `json:/user/id`");
    class("colour", "classes are ip/32");
    class("colour", "query:NAME, json:/POINTER");
    class("ip", "did you mean `ip/32`?");
    let twice = "[[rule]]\nname = \"a\"\nclass = \"path\"\nin_flight = 1\n";
    check(&twice.repeat(2), &[("6:8", "another rule of this domain has this name")]);
    check("[[rule]]\nname = \"a\"\nclass = \"path\"\n", &[("1:1", "a rule needs a limit")]);
    check("[rule]\nname = \"a\"\n", &[("1:1", "two brackets")]);
}

#[test]
fn one_mistake_is_one_error() {
    let rule = "[[rule]]\nname = \"r\"\nclass = \"ip/32\"\n";
    check(
        &format!("{rule}rate = {{ rate = \"1/s\", brust = 1 }}"),
        &[("4:24", "unknown key `brust`, did you mean `burst`?")],
    );
    check(&format!("{rule}rates = {{ rate = \"1/s\", burst = 1 }}"), &[("4:1", "did you mean `rate`?")]);
    check(&format!("{rule}rate = \"1/s\""), &[("4:8", "a table such as `{ rate = \"5/min\", burst = 10 }`")]);
    check(
        &format!("{rule}budget = {{ share = 2, burst = \"1s\" }}\nstate = \"redis\"\n[redis]\nurl = \"http://a\""),
        &[("4:20", "at most 1"), ("7:7", "unknown scheme `http` of Redis")],
    );
    check("[admin]\nlisten = \"0.0.0.0:1\"\ntoken_file = \"\"", &[("3:14", "must not be empty")]);
}

#[test]
fn invalid_values_of_roles_are_errors() {
    check("[admin]\nlisten = \"0.0.0.0:9\"", &[("2:10", "needs a token")]);
    check("[admin]\nlisten = \"localhost:9\"", &[("2:10", "\"127.0.0.1:9\"")]);
    check("[master]\naccounting = \"0.0.0.0:9\"", &[("2:14", "`tollgate keys master.key`")]);
    check("[master]\nkey_file = \"k\"", &[("2:12", "write their public keys as `gates`")]);
    check("[master]\nkey_file = \"k\"\ngates = [\"short\"]", &[("3:10", "a key is forty characters")]);
    let key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
    check(&format!("[master]\ngates = [\"{key}\"]"), &[("2:9", "`gates` needs `key_file`")]);
    let open = format!("[master]\ncontrol = \"0.0.0.0:9\"\ngates = [\"{key}\"]");
    check(&open, &[("2:11", "`tollgate keys master.key`")]);
    check("[watch]\nwebhook_secret_file = \"/s\"", &[("2:23", "write the URL of the receiver")]);
    check("[watch]\nwebhook = \"https://h/\"", &[("2:11", "needs `webhook_secret_file`")]);
    check("[metrics]\ngraphite_prefix = \"p\"", &[("2:19", "`graphite_prefix` needs `graphite`")]);
    check("[metrics]\ngraphite_every = \"1s\"", &[("2:18", "`graphite = \"localhost:2003\"`")]);
    check("[metrics]\ngraphite_prefix = \"p\"\ngraphite_every = \"1s\"", &[("2:19", "needs `graphite`")]);
    check("[redis]\ndeadline = \"1ms\"", &[("1:1", "missing key `url`")]);
    check("[redis]\nurl = \"redis://h\"\ndeadline = \"0s\"", &[("3:12", "must not be 0")]);
    check("[redis]\nurl = \"redis+clustr://h\"", &[("2:7", "did you mean `redis+cluster`?")]);
    check("[redis]\nurl = \"redis://\"", &[("2:7", "not a URL of Redis")]);
    check("[redis]\nurl = \"redis://h\"\nca_file = \"/ca\"", &[("3:11", "write `rediss`")]);
    check("[redis]\nurl = \"redis+sentinel://h\"", &[("2:7", "/name-of-the-master")]);
    check("[watch]\nflag_threshold = 0\nflag_window = \"0s\"", &[("2:18", "must not be 0"), ("3:15", "must not be 0")]);
    check("[gate]\nproxy_protocol = true", &[("2:18", "needs `trusted_proxies`")]);
    check("[gate]\ntls = { cert = \"a\" }", &[("2:7", "missing key `key`")]);
    check("[gate]\nlisten = []", &[("2:10", "needs an address for clients")]);
    check("[gate]\nbackend = \"127.0.0.1:80\"", &[("2:11", "write its scheme")]);
    check("[gate]\nin_flight = \"many\"", &[("2:13", "\"auto\"")]);
    check("[gate]\ncores = 0", &[("2:9", "above 0")]);
    check("[gate]\nworkers = 5000", &[("2:11", "at most 1024")]);
    check("[gate]\nmemory = \"1B\"", &[("2:10", "at least \"64KiB\"")]);
    check("[gate]\nhold = { memory = \"0B\" }", &[("2:8", "write at least \"96KiB\"")]);
    let backends = "backend = [\"http://a.example\", \"http://b.example\"]\n";
    let hold = |memory: &str| format!("[gate]\nhold = {{ memory = \"{memory}\" }}\n");
    check(&(hold("191KiB") + backends), &[("2:8", "at least \"192KiB\"")]);
    check(&(hold("192KiB") + backends), &[]);
    let site = "[[site]]\nhost = \"c.example\"\nbackend = \"http://c.example\"\n";
    check(&(hold("192KiB") + backends + site), &[("4:1", "at least \"288KiB\"")]);
    check(&(hold("288KiB") + backends + site), &[]);
    check("[gate]\nmemory = 64", &[("2:10", "\"64MiB\"")]);
    check("[gate]\nfairness = { \"ip/33\" = 0.1 }", &[("2:14", "did you mean `ip/32`?")]);
    check("[gate]\nfairness = { \"ip/32\" = 2 }", &[("2:24", "at most 1")]);
    check("[gate]\nfairness = { by = \"cookies:sid\" }", &[("2:19", "unknown class `cookies:sid`")]);
    check(
        "[gate]\nfairness = { by = \"ip/32+json:/user/id\" }",
        &[("2:19", "the fair queue does not read bodies: write a class such as `cookie:sid`")],
    );
    check("[gate]\nfairness = { place = \"instead\" }", &[("2:22", "write `by = \"cookie:sid\"`")]);
    check(
        "[gate]\nfairness = { by = \"cookie:sid\", place = \"below\" }",
        &[("2:41", "`\"beneath\"` or `\"instead\"`")],
    );
    check("[gate]\nbands = { elevated = \"1s\" }", &[("2:9", "`critical` must be longer than `elevated`")]);
    check("[gate]\ntimeouts = { head = \"0s\" }", &[("2:21", "must not be 0")]);
    check("[gate]\nbounds = { head = \"1GiB\" }", &[("2:19", "\"64KiB\"")]);
}

#[test]
fn invalid_priorities_are_errors() {
    let priority = |lines: &str| format!("[[priority]]\nname = \"p\"\nwhen = {{ path = \"/p\" }}\n{lines}\n");
    check(&priority(""), &[("1:1", "needs `weight = 4` or `exempt = true`")]);
    check(&priority("exempt = false"), &[("1:1", "needs `weight = 4` or `exempt = true`")]);
    check(&priority("exempt = true\nweight = 4"), &[("5:10", "leave one of the two out")]);
    for (weight, words) in [
        ("0", "above 0"),
        ("-4", "negative"),
        ("nan", "finite"),
        ("inf", "finite"),
        ("0.09", "from 0.1 to 100"),
        ("100.1", "from 0.1 to 100"),
        ("\"4\"", "a number above 0"),
    ] {
        check(&priority(&format!("weight = {weight}")), &[("4:10", words)]);
    }
    check(&priority("wieght = 4"), &[("4:1", "did you mean `weight`?")]);
    let twice = format!("{}{}", priority("weight = 4"), priority("exempt = true"));
    check(&twice, &[("6:8", "another priority has this name")]);
    let exempt = |lines: &str| format!("[[priority]]\nname = \"all\"\nexempt = true\n{lines}\n");
    for lines in ["", "when = {}", "when = { header = {} }", "unless = { path = \"/p\" }"] {
        check(&exempt(lines), &[("1:1", "`exempt` needs a condition in `when`")]);
    }
    check(&exempt("when = { path = [] }"), &[("4:17", "an empty list has no effect")]);
    check(&priority("exempt = \"yes\""), &[("4:10", "true")]);
    check("[[priority]]\nweight = 1\n", &[("1:1", "missing key `name`")]);
    check("[priority]\nname = \"p\"\nweight = 1\n", &[("1:1", "in two brackets")]);
    let flagged = "[[priority]]\nname = \"p\"\nwhen = { flagged = true }\nweight = 0.1\n";
    check(&format!("{flagged}[watch]\naccount_class = \"user\"\n"), &[("3:20", "`flagged` is about accounts")]);
    check(&priority("weight = 4\nunless = { cookie = { \"a b\" = \"*\" } }"), &[("5:23", "not a cookie name")]);
}

#[test]
fn two_listeners_on_one_address_are_an_error() {
    let text =
        "[gate]\nlisten = \"0.0.0.0:80\"\n[doors]\nhttp = \"127.0.0.1:80\"\n[admin]\nlisten = \"127.0.0.1:81\"\n";
    check(text, &[("4:8", "`gate.listen` and `doors.http`")]);
    // The position of a default is that of its table.
    check("[admin]\nlisten = \"127.0.0.1:8888\"\n\n[gate]", &[("4:1", "`admin.listen` and `gate.listen`")]);
}

#[test]
fn a_domain_needs_a_unique_name() {
    check("[[domain]]\nname = \"default\"", &[("2:8", "write its rules as `[[rule]]`")]);
    check("[[domain]]\nname = \"a\"\n[[domain]]\nname = \"a\"", &[("4:8", "another domain has this name")]);
    let nameless = "[[domain]]\n[[domain.rule]]\nname = \"r\"\nclass = \"pth\"\nin_flight = 1";
    check(nameless, &[("1:1", "missing key `name`"), ("4:9", "did you mean `path`?")]);
}

#[test]
fn syntax_errors_do_not_cause_further_errors() {
    check(
        "[gate\nlisten = \"0.0.0.0:80\"\nx = \n\n[gate]\ny = 1",
        &[("1:6", "expected `]`"), ("6:1", "unknown key `y`")],
    );
    check("a = 1\nb =\nc = \"\n", &[("1:1", "unknown key `a`"), ("2:4", "a value is missing"), ("3:6", "expected")]);
    check("[gate]\nbackend = http\n", &[("2:11", "`http` is not a value: text is written in quotes")]);
    check("[gate]\nh2c = true\nh2c = false\n", &[("3:1", "duplicate key")]);
    check("[gate]\n[gate]\n", &[("2:2", "duplicate key")]);
    // A key that may be in a line with a syntax error is not reported as missing.
    check("[[rule]]\nname = \"r\nclass = \"path\"\nin_flight = 1\n", &[("2:10", "expected")]);
}

#[test]
fn columns_are_counted_in_characters_not_bytes() {
    check("[gate] # ééé\nlisten = \"日本:80\" # é\n", &[("2:10", "`日本:80`")]);
    check("gate = { \"日本\" = 1, h2c = 2 }", &[("1:10", "unknown key `日本`"), ("1:26", "`true` or `false`")]);
    check("[gate]\n\"é\" = 1\n", &[("2:1", "unknown key `é`")]);
    check("gate.\"日本\".x = 1\n", &[("1:6", "unknown key `日本`")]);
    check("[gate]\r\nh2c = 1\r\n", &[("2:7", "`true` or `false`")]);
}

#[test]
fn hostile_files_are_bounded() {
    let nested = format!("a = {}", "[".repeat(100_000));
    assert!(!errors(&nested).is_empty());
    let dotted = format!("{} = 1", vec!["a"; 100_000].join("."));
    assert!(!errors(&dotted).is_empty());
    let many = errors(&"[[rule]]\n".repeat(100_000));
    assert_eq!(many.len(), 100, "the number of shown errors is bounded");
    let long_line = errors(&format!("{} = 1", "k".repeat(500_000)));
    assert!(long_line.len() == 1 && long_line[0].len() < 1000, "{}", long_line[0].len());
    for text in
        ["\"\\u001b[31m\" = 1", "a = x\u{1b}[31m", "a = \"\u{9b}31m", "[gate]\nlisten = \"\\u001b\"", "a = 'x\ty'"]
    {
        let shown = Settings::parse("test.toml", text).unwrap_err().to_string();
        assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
    }
}

#[test]
fn an_error_is_shown_with_its_line() {
    let errors = Settings::parse("t.toml", "[gate]\n  lisen = \"x\"\n").unwrap_err().to_string();
    assert_eq!(
        errors,
        "t.toml:2:3: unknown key `lisen`, did you mean `listen`?\n  2 |   lisen = \"x\"\n    |   ^^^^^\n"
    );
}

#[test]
fn an_error_is_shown_without_the_passwords_of_its_line() {
    let check = |text: &str, column: usize, line: &str, carets: &str| {
        let shown = Settings::parse("t.toml", &format!("[redis]\n{text}\n")).unwrap_err().to_string();
        assert!(shown.starts_with(&format!("t.toml:2:{column}: ")), "{shown}");
        assert!(shown.ends_with(&format!("\n  2 | {line}\n    | {carets}\n")), "{shown}");
        assert!(!shown.contains("hidden"), "{shown}");
    };
    // The error is the value with the password, or is before or after it.
    check("url = 'htp://u:hidden@h'", 7, "url = 'htp://***@h'", "      ^^^^^^^^^^^^^");
    check("url = \"htp://hidden \\\" é'@hidden@h\"", 7, "url = \"htp://***@h\"", "      ^^^^^^^^^^^^^");
    check("urll = 'redis://u:hidden@h'", 1, "urll = 'redis://***@h'", "^^^^");
    let both = "{ url = 'redis://u:hidden@h', x = 'http://h', y = 1 }";
    let shown = Settings::parse("t.toml", &format!("redis = {both}\n")).unwrap_err().to_string();
    assert!(!shown.contains("hidden"), "{shown}");
    let line = "  1 | redis = { url = 'redis://***@h', x = 'http://h', y = 1 }\n";
    assert!(shown.contains(&format!("{line}    | {}^\n", " ".repeat(33))), "{shown}");
    assert!(shown.contains(&format!("{line}    | {}^\n", " ".repeat(49))), "{shown}");
    // Lines with a syntax error are masked too, and so are values that a message quotes.
    for torn in [
        "url = redis://u:hidden@h",
        "url = 'redis://u:hidden@h",
        "url = redis://hidden.hidden hidden@h # x",
        "url = 'redis://u:x'hidden@h'",
        "url = \"redis://u:\"hidden@h\" # x",
    ] {
        let shown = Settings::parse("t.toml", &format!("[redis]\n{torn}\n")).unwrap_err().to_string();
        assert!(!shown.contains("hidden"), "{shown}");
    }
    let shown = Settings::parse("t.toml", "[watch]\nwebhook = 'https://u:hidden@h/x'\n").unwrap_err().to_string();
    assert!(shown.contains("found `https://***@h/***`") && !shown.contains("hidden"), "{shown}");
    let shown = Settings::parse("t.toml", "[watch]\nwebhook = 'https://h/hidden'\n").unwrap_err().to_string();
    assert!(shown.contains("| webhook = 'https://h/***'\n") && !shown.contains("hidden"), "{shown}");
    for line in [
        "webhook = 'http://h:99999/hidden'",
        "webhok = 'https://h/hidden'",
        "webhook = 'h/hidden'",
        "webhook = h/hidden",
        "webhook = ['https://h/hidden', 'hidden']",
        "webhook = \"https:\\u002f\\u002fh:0/hidden\"",
        "webhook = 'https://h/hidden' hidden",
        "webhook = 'ftp://h/hidden?token=hidden'",
        "webhook = 'http://h:0/hidden?password=hidden'",
    ] {
        let shown = Settings::parse("t.toml", &format!("[watch]\n{line}\n")).unwrap_err().to_string();
        assert!(!shown.contains("hidden"), "{shown}");
    }
    for line in ["url = 'u:hidden@h'", "url = 'hidden'", "url = hidden", "url = 'unix://s?pass=hidden'\nx = 1"] {
        let shown = Settings::parse("t.toml", &format!("[redis]\n{line}\n")).unwrap_err().to_string();
        assert!(!shown.contains("hidden"), "{shown}");
    }
    let shown = Settings::parse("t.toml", "[admin]\ntoken = 'hidden'\n").unwrap_err().to_string();
    assert!(shown.contains("| token = '***'\n"), "{shown}");
    let shown = Settings::parse("t.toml", "[gate]\nbackend = 'http://@h'\n").unwrap_err().to_string();
    assert!(shown.contains("| backend = 'http://@h'\n"), "{shown}");
}

#[test]
fn a_url_to_post_to_needs_a_valid_host_and_port() {
    for url in [
        "https://h:99999/x",
        "https://h:0/x",
        "https://h:/x",
        "http://h?x=1",
        "http://h#x",
        "http://::1/x",
        "http://[::1/x",
        "http://[h]/x",
        "http:///x",
        "http://u@h/x",
        "http://h/ x",
    ] {
        check(&format!("[telemetry]\notlp = '{url}'\n"), &[("2:8", "expected a URL")]);
        check(&format!("[watch]\nwebhook_secret_file = '/s'\nwebhook = '{url}'\n"), &[("3:11", "expected a URL")]);
    }
    for (url, authority) in
        [("http://h", "h:80"), ("https://h/x?y", "h:443"), ("http://[::1]/", "[::1]:80"), ("http://[::1]:9", "[::1]:9")]
    {
        let settings = read(&format!("[telemetry]\notlp = '{url}'\n"));
        assert_eq!(settings.telemetry.unwrap().url.authority, authority);
    }
}

#[test]
fn invalid_links_to_masters_are_errors() {
    let rule = |body: &str| format!("[[rule]]\nname = \"r\"\nclass = \"ip/32\"\n{body}\n");
    let rate = "rate = { rate = \"1/s\", burst = 1 }\n";
    let linked = rule(&format!("{rate}state = \"master\""));
    check(&linked, &[("5:9", "write `[[link.master]]`")]);
    check(&format!("{linked}[link]"), &[("6:1", "names no master")]);
    let bucket = rule("bucket = { size = 1 }\nstate = \"master\"");
    check(&format!("{bucket}[[link.master]]"), &[("5:9", "rates and budgets only")]);
    check(&rule(&format!("{rate}wire_domain = \"x\"")), &[("5:15", "needs `state = \"master\"`")]);
    let other = linked.replace("\"r\"", "\"s\"");
    let same = |text: &str| text.replace("state =", "wire_domain = \"x\"\nstate =");
    check(&format!("{}{}[master]", same(&linked), same(&other)), &[("12:9", "another rule is `x` at the master")]);
    let [r, s] = [&linked, &other].map(|text| text.replace("ip/32", "identifier"));
    check(&format!("{r}{s}[master]"), &[("10:9", "another rule is `default` at the master")]);
    let master = |body: &str| format!("{linked}[[link.master]]\n{body}");
    check(&master("accounting = \"nowhere\""), &[("7:14", "not a host and port")]);
    check(&master("accounting = \"h:65535\""), &[("7:14", "write `control` too")]);
    let key = "key = \"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\"";
    check(&master(key), &[("7:7", "write `key_file` in `[link]`")]);
    check(&master("domains = [\"x\"]"), &[("6:3", "no master keeps `default/r`")]);
    check(&master("[[link.master]]"), &[("7:1", "write the `domains` of one")]);
    let sharded = "[[link.master]]\n[[link.master]]\ndomains = [\"x\"]";
    check(&master(sharded), &[("7:1", "write the `domains` of one")]);
    check(&master("domains = [\"x\", \"x\"]\n[[link.master]]"), &[("7:17", "another master keeps this domain")]);
}

#[test]
fn flags_need_a_class_of_requests_and_a_redis_to_share_them() {
    let rule = "[[rule]]\nname = \"r\"\nclass = \"ip/32\"\nrate = { rate = \"1/s\", burst = 1 }\n";
    check(&format!("{rule}when = {{ flagged = true }}\n"), &[("5:20", "`watch.account_class`")]);
    check(&format!("{rule}unless = {{ flagged = 1 }}\n"), &[("5:22", "`true` or `false`")]);
    check("[watch]\nstate = \"redis\"\n", &[("2:9", "needs a `[redis]` table")]);
    check("[watch]\nstate = \"master\"\n", &[("2:9", "local")]);
}

#[test]
fn telemetry_needs_a_receiver_and_a_share_of_at_most_one() {
    check("[telemetry]\ntraces = 0.5\n", &[("1:1", "otlp")]);
    check("[telemetry]\notlp = \"collector:4318\"\n", &[("2:8", "a URL")]);
    let otlp = "[telemetry]\notlp = \"http://127.0.0.1:4318\"\n";
    check(&format!("{otlp}traces = 1.5\n"), &[("3:10", "at most 1")]);
    check(&format!("{otlp}traces = -0.5\n"), &[("3:10", "negative")]);
    check(&format!("{otlp}every = \"0s\"\n"), &[("3:9", "")]);
}
