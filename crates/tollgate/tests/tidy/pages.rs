//! Every block of every page in `docs` is run by a test, or says what it is.
//!
//! A block with the language `toml` is a settings file: `tests/blackbox/examples.rs` checks all of them and
//! `tests/pages/configurations.rs` starts all of them. A block with the language `text` is not run: it is a drawing, a
//! formula or output. Each other block is listed in [`BLOCKS`] with its test. The pages of `first_pages.rs` have their
//! own list.

use std::fs;

use tollgate_core::decision::Reason;

use crate::{files, root};

/// The pages for new users, whose blocks another test lists.
const LISTED_ELSEWHERE: [&str; 6] = [
    "docs/install.md",
    "docs/start.md",
    "docs/tls.md",
    "docs/behind-a-proxy.md",
    "docs/recipes.md",
    "docs/comparison.md",
];

const ADMIN: &str = "docs/admin.md";
const ENVOY: &str = "docs/coming-from/envoy.md";
const FLAGS: &str = "docs/flags.md";
const HTTP_DOOR: &str = "docs/door-http.md";
const FORWARD_AUTH: &str = "docs/door-forward-auth.md";
const TIMING: &str = "docs/server-timing.md";
const EMBEDDING: &str = "docs/embedding.md";

const COMMANDS: &str = "pages/commands.rs";
const ORIGINALS: &str = "pages/originals.rs";
const CLIENTS: &str = "doors/clients.rs";
const AUTH: &str = "doors/auth.rs";
const SNIPPETS: &str = "gate/server_timing/mod.rs";
const EMBEDDED: &str = "../../tollgate-gatekeeper/tests/embedding_page.rs";

/// A block that is not run. The reason is the text after the mark.
const NOT_RUN: &str = "not run: ";

/// A page, the language of a block, the file of its test in `crates/tollgate/tests`, and the name of the test. In the
/// order of the page.
type RunBlock = (&'static str, &'static str, &'static str, &'static str);

const BLOCKS: &[RunBlock] = &[
    ("docs/choosing-state.md", "redis", COMMANDS, "a_redis_user_with_the_documented_permissions_is_enough"),
    (ADMIN, "sh", COMMANDS, "tokens_are_made_and_protect_the_admin_address_as_documented"),
    (ADMIN, "sh", COMMANDS, "the_commands_for_operators_show_and_clear_clients_and_flags"),
    (ADMIN, "sh", COMMANDS, "a_decision_is_explained_with_the_documented_fields"),
    (ADMIN, "json", COMMANDS, "a_decision_is_explained_with_the_documented_fields"),
    (ADMIN, "sh", COMMANDS, "a_client_is_cleared_and_exempt_as_documented"),
    ("docs/coming-from/anubis-and-crowdsec.md", "yaml", ORIGINALS, "crowdsec_finds_a_scanner_in_the_documented_log"),
    (ENVOY, "yaml", NOT_RUN, "the original, which the page translates"),
    (ENVOY, "yaml", COMMANDS, "limits_of_envoyproxy_ratelimit_are_served_as_documented"),
    (ENVOY, "sh", COMMANDS, "limits_of_envoyproxy_ratelimit_are_served_as_documented"),
    ("docs/coming-from/fail2ban.md", "ini", NOT_RUN, "the original, which the page translates"),
    (
        "docs/coming-from/fail2ban.md",
        "ini",
        "gate/coming_from.rs",
        "a_jail_is_a_window_with_escalation_and_fail2ban_finds_refusals_in_the_log",
    ),
    ("docs/coming-from/governor.md", "rust ignore", NOT_RUN, "the original, which the page translates"),
    ("docs/coming-from/haproxy.md", "haproxy", ORIGINALS, "haproxy_accepts_the_limits_that_the_page_translates"),
    (
        "docs/coming-from/nginx.md",
        "nginx",
        ORIGINALS,
        "nginx_and_the_translation_of_its_limits_refuse_the_same_requests",
    ),
    ("docs/coming-from/nginx.md", "nginx", ORIGINALS, "nginx_accepts_the_limits_that_the_page_translates"),
    ("docs/coming-from/screentinker.md", "javascript", CLIENTS, "a_server_tells_a_device_to_wait_as_documented"),
    ("docs/coming-from/smockron.md", "sh", COMMANDS, "other_limiters_are_left_with_the_documented_commands"),
    (
        "docs/coming-from/smockron.md",
        "yaml",
        "blackbox/import.rs",
        "the_documented_translation_of_smockron_is_that_of_the_command",
    ),
    ("docs/coming-from/tempomat.md", "sh", COMMANDS, "other_limiters_are_left_with_the_documented_commands"),
    (
        "docs/coming-from/tempomat.md",
        "json",
        "blackbox/import.rs",
        "the_documented_translation_of_tempomat_is_that_of_the_command",
    ),
    ("docs/door-envoy.md", "yaml", "doors/grpc/envoy.rs", "the_documented_configuration_limits_requests_of_envoy"),
    ("docs/door-envoy.md", "yaml", "doors/grpc/envoy.rs", "the_documented_configuration_limits_requests_of_envoy"),
    ("docs/door-envoy.md", "sh", COMMANDS, "a_file_of_envoy_limits_answers_over_http_as_documented"),
    (FORWARD_AUTH, "nginx", AUTH, "nginx_turns_a_refusal_into_429_as_documented"),
    (FORWARD_AUTH, "yaml", NOT_RUN, "Traefik is not installed; a test sends its requests"),
    (FORWARD_AUTH, "caddyfile", ORIGINALS, "caddy_calls_the_door_as_documented"),
    (FORWARD_AUTH, "haproxy", AUTH, "haproxy_calls_the_door_as_documented_and_forwards_requests_without_it"),
    (FORWARD_AUTH, "nginx", AUTH, "the_queue_behind_nginx_bounds_the_requests_at_the_backend"),
    (FORWARD_AUTH, "nginx", AUTH, "the_documented_log_of_nginx_settles_requests_over_syslog_and_from_a_file"),
    (FORWARD_AUTH, "nginx", AUTH, "the_documented_log_of_nginx_settles_requests_over_syslog_and_from_a_file"),
    (HTTP_DOOR, "javascript", CLIENTS, "the_javascript_example_runs_as_it_stands"),
    (HTTP_DOOR, "python", CLIENTS, "the_python_example_runs_as_it_stands"),
    (HTTP_DOOR, "go", CLIENTS, "the_go_example_runs_as_it_stands"),
    (HTTP_DOOR, "php", CLIENTS, "the_php_example_runs_as_it_stands"),
    (HTTP_DOOR, "sh", "doors/tls.rs", "the_documented_certificates_and_settings_work"),
    (
        "docs/door-resp.md",
        "python",
        "doors/resp.rs",
        "redis_py_runs_the_documented_example_in_both_versions_of_the_protocol",
    ),
    (EMBEDDING, "toml cargo", EMBEDDED, "the_dependencies_of_the_page_are_those_of_the_workspace"),
    (EMBEDDING, "rust", EMBEDDED, "every_line_of_code_on_the_page_is_in_an_example_or_a_test"),
    (EMBEDDING, "toml cargo", EMBEDDED, "the_dependencies_of_the_page_are_those_of_the_workspace"),
    (EMBEDDING, "rust", EMBEDDED, "every_line_of_code_on_the_page_is_in_an_example_or_a_test"),
    (EMBEDDING, "rust", EMBEDDED, "every_line_of_code_on_the_page_is_in_an_example_or_a_test"),
    (EMBEDDING, "sh", "../../tollgate-gatekeeper/examples/shared-limits.rs", "two_instances_together_admit_the_limit"),
    (EMBEDDING, "rust", EMBEDDED, "a_service_joins_a_master_in_three_lines"),
    (FLAGS, "sh", COMMANDS, "a_flag_is_cleared_over_the_api_as_documented"),
    (FLAGS, "python", COMMANDS, "the_signature_of_a_webhook_is_verified_as_documented"),
    (FLAGS, "sh", COMMANDS, "tokens_are_made_and_protect_the_admin_address_as_documented"),
    ("docs/fleet.md", "sh", COMMANDS, "the_example_of_a_fleet_keeps_one_limit"),
    ("docs/fleet.md", "sh", COMMANDS, "keys_are_made_as_documented"),
    ("docs/how-it-thinks.md", "sh", NOT_RUN, "measures for minutes on a quiet machine"),
    ("docs/log.md", "json", COMMANDS, "lines_of_the_logs_have_the_documented_fields"),
    ("docs/log.md", "json", COMMANDS, "lines_of_the_logs_have_the_documented_fields"),
    ("docs/log.md", "json", COMMANDS, "lines_of_the_logs_have_the_documented_fields"),
    ("docs/log.md", "logrotate", ORIGINALS, "logrotate_rotates_the_access_log_as_documented"),
    ("docs/memory.md", "sh", NOT_RUN, "it is a test of its own, `memory`"),
    ("docs/metrics.md", "yaml", ORIGINALS, "prometheus_accepts_the_scrape_configuration"),
    (
        "docs/pages.md",
        "html",
        "gate/pages.rs",
        "the_documented_pages_are_found_beside_the_settings_file_from_any_working_directory",
    ),
    ("docs/performance.md", "sh", NOT_RUN, "measures for minutes on a quiet machine"),
    ("docs/replay.md", "sh", COMMANDS, "replay_runs_as_documented"),
    ("docs/replay.md", "nginx", ORIGINALS, "replay_reads_a_log_in_the_documented_format_of_nginx"),
    ("docs/replay.md", "apache", ORIGINALS, "replay_reads_a_line_in_the_documented_format_of_apache"),
    ("docs/replay.md", "json", COMMANDS, "replay_runs_as_documented"),
    (TIMING, "php", SNIPPETS, "php_reports_its_cpu_time"),
    (TIMING, "python", SNIPPETS, "a_wsgi_application_reports_its_cpu_time"),
    (TIMING, "ruby", SNIPPETS, "a_rack_application_reports_its_cpu_time"),
    (TIMING, "javascript", SNIPPETS, "node_reports_its_cpu_time"),
    (TIMING, "go", SNIPPETS, "go_reports_its_cpu_time"),
    (TIMING, "rust", SNIPPETS, "axum_reports_its_cpu_time"),
    ("docs/storm.md", "sh", "../../tollgate-storm/tests/program.rs", "the_documented_commands_run"),
    ("docs/troubleshooting.md", "sh", COMMANDS, "a_decision_is_explained_with_the_documented_fields"),
    ("docs/watch-alone.md", "sh", "doors/alone.rs", "the_watch_alone_accepts_reports_and_flags_accounts_as_documented"),
    ("docs/watch-alone.md", "go", "doors/alone.rs", "the_watch_alone_accepts_reports_and_flags_accounts_as_documented"),
];

/// The languages of the blocks of a page. Code in another form than a fenced block with a language is an error.
fn languages(text: &str) -> Result<Vec<&str>, String> {
    let mut languages = Vec::new();
    let (mut is_open, mut is_after_blank, mut is_in_list) = (false, true, false);
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        if let Some(language) = trimmed.strip_prefix("```") {
            if !is_open && language.is_empty() {
                return Err(format!("line {}: a block without a language", index + 1));
            }
            if !is_open {
                languages.push(language);
            }
            is_open = !is_open;
        } else if !is_open {
            if (is_after_blank && indent >= 4 && !is_in_list)
                || trimmed.starts_with("~~~")
                || trimmed.starts_with("<pre")
            {
                return Err(format!("line {}: code in another form than a fenced block", index + 1));
            }
            let is_item =
                trimmed.starts_with("- ") || trimmed.split_once(". ").is_some_and(|(at, _)| at.parse::<u8>().is_ok());
            is_in_list = is_item || (is_in_list && (indent > 0 || trimmed.is_empty()));
        }
        is_after_blank = trimmed.is_empty();
    }
    if is_open { Err("a block without an end".to_owned()) } else { Ok(languages) }
}

#[test]
fn every_block_of_every_page_is_run_by_a_test() {
    let pages = files(&[".md"]).into_iter().filter(|(page, _)| page.starts_with("docs/"));
    for (page, text) in pages.filter(|(page, _)| !LISTED_ELSEWHERE.contains(&page.as_str())) {
        let found = languages(&text).unwrap_or_else(|fault| panic!("{page}, {fault}"));
        let found: Vec<_> = found.into_iter().filter(|language| !["toml", "text"].contains(language)).collect();
        let listed: Vec<_> = BLOCKS.iter().filter(|block| block.0 == page).map(|block| block.1).collect();
        assert_eq!(found, listed, "the blocks of {page}, and those of BLOCKS with their tests");
    }
}

#[test]
fn every_test_of_a_block_exists_and_names_its_page() {
    for (page, language, file, test) in BLOCKS.iter().filter(|block| block.2 != NOT_RUN) {
        let text = fs::read_to_string(root().join("crates/tollgate/tests").join(file)).unwrap();
        assert!(text.contains(&format!("fn {test}()")), "{file} has no test {test} for {language} of {page}");
        let name = page.trim_start_matches("docs/").trim_start_matches("coming-from/").trim_end_matches(".md");
        // An example that the page links to need not name the page.
        let example = fs::read_to_string(root().join(page)).unwrap().contains(file.rsplit('/').next().unwrap());
        assert!(text.contains(name) || example, "{file} does not use {page}");
    }
}

#[test]
fn code_in_another_form_is_an_error() {
    assert_eq!(languages("a\n```sh\nb\n```\n- c\n\n    d\n```toml cargo\n```\n"), Ok(vec!["sh", "toml cargo"]));
    for wrong in ["```\na\n```\n", "a\n\n    b\n", "```sh\na\n", "~~~\na\n~~~\n", "<pre>a</pre>\n"] {
        assert!(languages(wrong).is_err(), "{wrong}");
    }
}

/// The measured constants of docs/sizing.md, each with the page of the measurement and the text there.
const SIZES: [(&str, &str, &str); 13] = [
    (
        "71,000 per second (13.2 us each; nginx 12.5 us)",
        "performance",
        "| tollgate | 71095 | 1.00 [0.60-1.14] | 13.2 us |",
    ),
    ("nginx 12.5 us", "performance", "| nginx | 70053 | 1.00 | 12.5 us |"),
    ("(6.5 us each; nginx 5.4 us)", "performance", "| CPU time of a refusal | 5.4 us | 6.5 us |"),
    ("used 167 MB", "performance", "| memory with 10,000 idle connections after that | 11.9 MB | 166.9 MB |"),
    ("374,000 per second, on the Redis", "performance", "374,000/s on one core"),
    ("1.2 million per second", "performance", "1.2 million, 0.88 times a libzmq subscriber"),
    ("216 bytes per client", "performance", "| memory of a master with 1 million clients | 216 MB |"),
    ("27 bytes per key", "performance", "A table uses 27 bytes per key"),
    ("| 2 to 3 KB |", "memory", "| HTTP/1.1, idle after a request | 27 | 2,684 |"),
    ("TLS, idle | 14 KB |", "memory", "| TLS, idle after a request over HTTP/1.1 | 700 | 14,363 |"),
    ("HTTP/2, idle | 24 KB |", "memory", "| HTTP/2, idle after a request | 48 | 23,654 |"),
    ("a waiting request | 10 KB |", "memory", "| HTTP/1.1, waiting in the queue | 27 | 9,109 |"),
    ("a websocket, silent | 4 KB |", "memory", "| websocket, silent | 68 | 4,003 |"),
];

#[test]
fn the_constants_of_the_sizing_page_are_those_that_were_measured() {
    let page = |name: &str| fs::read_to_string(root().join(format!("docs/{name}.md"))).unwrap();
    for (constant, measured_on, measurement) in SIZES {
        assert!(page("sizing").contains(constant), "docs/sizing.md: {constant}");
        assert!(page(measured_on).contains(measurement), "docs/{measured_on}.md has another value for {constant}");
    }
}

/// The reasons in the code for a refusal by a rule, by the queue or by the limits on uploads.
#[test]
fn every_reason_of_a_refusal_has_a_row_on_the_page_of_troubleshooting() {
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let rows: String = page.lines().filter(|line| line.starts_with("| `")).collect();
    let strings = |path: &str, begin: &str, end: &str| -> Vec<String> {
        let text = fs::read_to_string(root().join("crates").join(path)).unwrap();
        let part = text.split_once(begin).unwrap().1.split_once(end).unwrap().0;
        part.split('"').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let admitted = ["no-rule", "within-limit", "warm-up", "would-hold", "would-refuse"];
    let of_rules = Reason::ALL.map(|reason| reason.as_str().to_owned());
    let of_queue = strings("tollgate/src/gate/decide/queue/bound.rs", "Some(RefusedBy::", "});");
    let of_uploads = strings("tollgate/src/gate/decide/admission.rs", "let (reason, allowed) = match", "};");
    let reasons: Vec<_> = of_rules
        .into_iter()
        .chain(of_queue)
        .chain(of_uploads)
        .filter(|reason| !admitted.contains(&reason.as_str()))
        .collect();
    assert!(reasons.len() >= 10, "{reasons:?}");
    for reason in reasons {
        assert!(rows.contains(&format!("`{reason}`")), "docs/troubleshooting.md has no row for {reason}");
    }
}
