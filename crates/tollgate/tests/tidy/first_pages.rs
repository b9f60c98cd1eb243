//! Every command and configuration of the pages for new users is run by a test.
//!
//! These pages are README.md, the pages under "Start" there, and the two pages for contributors. A block of one of them
//! is listed in [`BLOCKS`] and a command in its prose in [`COMMANDS`], each with the test that runs it. A block in any
//! other form, such as an indented one, is an error, because no test would find it.

use std::collections::BTreeSet;
use std::fs;

use crate::{between, root};

const README_TESTS: &str = "crates/tollgate/tests/gate/readme.rs";
const START_TESTS: &str = "crates/tollgate/tests/gate/start.rs";
const RECIPE_TESTS: &str = "crates/tollgate/tests/gate/recipes.rs";
const PROXY_TESTS: &str = "crates/tollgate/tests/gate/proxies.rs";
const PACKAGE_TEST: &str = "contrib/package-test/inside.py";
/// `./test`.
const TEST: &str = "test";

/// A page, the language and the first line of a block, the file of the test that runs it, and the text of that file
/// that does, usually the name of the test.
type RunBlock = (&'static str, &'static str, &'static str, &'static str, &'static str);

const BLOCKS: &[RunBlock] = &[
    (
        "README.md",
        "sh",
        "cargo install --locked --path crates/tollgate",
        TEST,
        "    cargo install -q --debug --locked --path crates/tollgate",
    ),
    (
        "README.md",
        "sh",
        "tollgate gate --backend http://127.0.0.1:8080",
        README_TESTS,
        "fn a_gate_without_a_file_serves_the_backend_and_has_a_console",
    ),
    ("README.md", "toml", "[gate]", README_TESTS, "fn the_rule_is_checked_replayed_and_enforced_as_documented"),
    (
        "README.md",
        "sh",
        "tollgate check tollgate.toml",
        README_TESTS,
        "fn the_rule_is_checked_replayed_and_enforced_as_documented",
    ),
    ("CONTRIBUTING.md", "sh", "cargo build", TEST, "run_parts \"${parts[@]}\""),
    (
        "CONTRIBUTING.md",
        "sh",
        "cargo run -q -- reference > docs/reference.md",
        "crates/tollgate/tests/blackbox/manual.rs",
        "fn the_reference_page_is_up_to_date",
    ),
    (
        "docs/install.md",
        "sh",
        "sudo apt-get install ./tollgate_*.deb",
        PACKAGE_TEST,
        "def the_package_installs_and_serves",
    ),
    (
        "docs/install.md",
        "sh",
        "sudo sed -i 's|^backend *=.*|backend = \"http://127.0.0.1:3000\"|' /etc/tollgate/tollgate.toml",
        PACKAGE_TEST,
        "def a_reload_applies_the_settings_and_a_file_with_mistakes_changes_nothing",
    ),
    (
        "docs/install.md",
        "sh",
        "sudo mkdir -p /etc/systemd/system/tollgate.socket.d",
        PACKAGE_TEST,
        "def the_socket_unit_moves_the_gate_to_port_80",
    ),
    (
        "docs/install.md",
        "sh",
        "sudo systemctl disable --now tollgate.socket",
        PACKAGE_TEST,
        "def without_the_socket_unit_the_gate_listens_where_its_settings_say",
    ),
    (
        "docs/install.md",
        "sh",
        "sudo apt-get install ./tollgate_*.deb",
        PACKAGE_TEST,
        "def an_upgrade_under_load_fails_no_request",
    ),
    (
        "docs/install.md",
        "sh",
        "sudo apt-get remove -y tollgate",
        PACKAGE_TEST,
        "def a_removed_package_leaves_settings_and_state_and_can_be_installed_again",
    ),
    (
        "docs/install.md",
        "sh",
        "tar -xzf tollgate-*-linux.tar.gz",
        PACKAGE_TEST,
        "def the_static_binary_runs_anywhere_and_may_listen_on_port_80_with_a_capability",
    ),
    (
        "docs/install.md",
        "sh",
        "sudo setcap cap_net_bind_service=+ep /usr/local/bin/tollgate",
        PACKAGE_TEST,
        "def the_static_binary_runs_anywhere_and_may_listen_on_port_80_with_a_capability",
    ),
    (
        "docs/install.md",
        "sh",
        "sudo useradd --system --user-group --home-dir /var/lib/tollgate --shell /usr/sbin/nologin tollgate",
        PACKAGE_TEST,
        "def the_units_of_the_archive_run_the_static_binary",
    ),
    (
        "docs/install.md",
        "sh",
        "docker build -t tollgate -f contrib/docker/Dockerfile .",
        PACKAGE_TEST,
        "def the_commands_of_the_image_serve_without_a_container",
    ),
    (
        "docs/install.md",
        "sh",
        "cargo install --locked --path crates/tollgate",
        TEST,
        "    cargo install -q --debug --locked --path crates/tollgate",
    ),
    (
        "docs/start.md",
        "toml",
        "[gate]",
        START_TESTS,
        "fn observe_mode_shows_which_clients_would_have_been_throttled_and_a_reload_ends_it",
    ),
    ("docs/start.md", "sh", "tollgate check tollgate.toml", START_TESTS, "fn every_command_is_run_by_a_test"),
    ("docs/start.md", "sh", "tollgate doctor --once", START_TESTS, "fn every_command_is_run_by_a_test"),
    (
        "docs/start.md",
        "sh",
        "tollgate doctor --once",
        START_TESTS,
        "fn a_client_that_was_refused_is_found_and_explained",
    ),
    ("docs/start.md", "toml", "[gate]", START_TESTS, "fn the_first_rule_only_counts_until_its_mode_is_removed"),
    ("docs/start.md", "sh", "tollgate check tollgate.toml", START_TESTS, "fn every_command_is_run_by_a_test"),
    ("docs/tls.md", "toml", "[gate]", PACKAGE_TEST, "blocks(\"tls.md\", \"HTTPS\", \"toml\")"),
    (
        "docs/tls.md",
        "sh",
        "sudo mkdir -p /etc/systemd/system/tollgate.socket.d",
        PACKAGE_TEST,
        "def certificates_of_certbot_are_served_and_renewed",
    ),
    (
        "docs/tls.md",
        "sh",
        "sudo certbot certonly --standalone -d example.com --deploy-hook /usr/libexec/tollgate/certbot-hook",
        PACKAGE_TEST,
        "def certificates_of_certbot_are_served_and_renewed",
    ),
    (
        "docs/tls.md",
        "sh",
        "sudo /usr/libexec/tollgate/install-certificate /etc/letsencrypt/live/example.com/fullchain.pem /etc/letsencrypt/live/example.com/privkey.pem",
        PACKAGE_TEST,
        "def certificates_of_certbot_are_served_and_renewed",
    ),
    (
        "docs/tls.md",
        "sh",
        "tollgate check /etc/tollgate/tollgate.toml",
        PACKAGE_TEST,
        "def certificates_of_certbot_are_served_and_renewed",
    ),
    ("docs/tls.md", "caddyfile", "{", PACKAGE_TEST, "def certificates_of_caddy_are_served_and_renewed"),
    ("docs/tls.md", "ini", "[Path]", PACKAGE_TEST, "def certificates_of_caddy_are_served_and_renewed"),
    ("docs/tls.md", "ini", "[Service]", PACKAGE_TEST, "def certificates_of_caddy_are_served_and_renewed"),
    (
        "docs/tls.md",
        "sh",
        "sudo systemctl daemon-reload",
        PACKAGE_TEST,
        "def certificates_of_caddy_are_served_and_renewed",
    ),
    (
        "docs/tls.md",
        "sh",
        "openssl s_client -connect 127.0.0.1:443 -servername example.com </dev/null | openssl x509 -noout -subject -enddate",
        PACKAGE_TEST,
        "blocks(\"tls.md\", \"Renewal\")",
    ),
    (
        "docs/behind-a-proxy.md",
        "sh",
        "sudo nginx -t",
        PACKAGE_TEST,
        "def an_application_behind_nginx_is_protected_as_the_page_says",
    ),
    (
        "docs/behind-a-proxy.md",
        "toml",
        "[gate]",
        PROXY_TESTS,
        "fn behind_nginx_clients_are_distinguished_and_websockets_work",
    ),
    (
        "docs/behind-a-proxy.md",
        "nginx",
        "map $http_upgrade $connection_upgrade {",
        PROXY_TESTS,
        "fn behind_nginx_clients_are_distinguished_and_websockets_work",
    ),
    ("docs/behind-a-proxy.md", "caddyfile", "example.com {", PROXY_TESTS, "fn behind_caddy_clients_are_distinguished"),
    (
        "docs/behind-a-proxy.md",
        "haproxy",
        "defaults",
        PROXY_TESTS,
        "fn behind_haproxy_with_the_proxy_protocol_clients_are_distinguished",
    ),
    (
        "docs/behind-a-proxy.md",
        "toml",
        "[gate]",
        PROXY_TESTS,
        "fn behind_haproxy_with_the_proxy_protocol_clients_are_distinguished",
    ),
    (
        "docs/behind-a-proxy.md",
        "yaml",
        "http:",
        PROXY_TESTS,
        "fn behind_the_headers_of_traefik_clients_are_distinguished",
    ),
    (
        "docs/behind-a-proxy.md",
        "toml",
        "[gate]",
        PROXY_TESTS,
        "fn behind_the_headers_of_cloudflare_clients_are_distinguished",
    ),
    (
        "docs/behind-a-proxy.md",
        "nginx",
        "set_real_ip_from 173.245.48.0/20;",
        PROXY_TESTS,
        "fn behind_nginx_behind_the_headers_of_cloudflare_clients_are_distinguished",
    ),
    ("docs/behind-a-proxy.md", "sh", "tollgate doctor --once --class ip/32", PROXY_TESTS, "fn doctor_shows_both"),
    ("docs/recipes.md", "toml", "[gate]", RECIPE_TESTS, "fn crawlers_get_their_share_and_people_are_not_delayed"),
    ("docs/recipes.md", "toml", "[gate]", RECIPE_TESTS, "fn guesses_of_a_password_are_limited"),
    ("docs/recipes.md", "toml", "[gate]", RECIPE_TESTS, "fn an_api_key_gets_its_documented_limit"),
    (
        "docs/recipes.md",
        "toml",
        "[gate]",
        RECIPE_TESTS,
        "fn a_fleet_reconnects_and_a_device_that_keeps_reconnecting_is_refused",
    ),
    (
        "docs/recipes.md",
        "toml",
        "[gate]",
        RECIPE_TESTS,
        "fn an_office_gets_ten_times_the_share_of_a_crawler_and_divides_it_among_its_users",
    ),
    (
        "docs/recipes.md",
        "toml",
        "priority = [{ name = \"logged-in\", when = { cookie = { session = \"*\" } }, weight = 4 }]",
        RECIPE_TESTS,
        "fn logged_in_users_get_four_times_the_share_by_one_line",
    ),
    (
        "docs/recipes.md",
        "toml",
        "[gate]",
        RECIPE_TESTS,
        "fn logged_in_users_get_more_checkouts_come_first_and_health_checks_do_not_wait",
    ),
    ("docs/recipes.md", "toml", "[gate]", RECIPE_TESTS, "fn an_api_key_has_its_own_share_behind_the_address_of_a_cdn"),
];

/// Commands in the prose, with the test that runs each.
const COMMANDS: &[(&str, &str, &str)] = &[
    ("./package", TEST, "    ./package\n"),
    ("./package deb", TEST, "    ./package deb\n"),
    ("./test", ".ci/run", "exec ./test\n"),
    ("./test full", TEST, "run_parts \"${parts[@]}\""),
    ("cargo run --release -- demo", TEST, "cargo run -q --locked --release -- demo"),
    ("curl -H 'X-Forwarded-For: 203.0.113.7' http://127.0.0.1:8888/", PROXY_TESTS, "\"X-Forwarded-For: 203.0.113.7\""),
    ("curl --haproxy-protocol http://127.0.0.1:8888", PROXY_TESTS, "\"--haproxy-protocol\""),
    ("curl http://127.0.0.1:8888", PROXY_TESTS, "fn curl("),
    (
        "docker compose -f examples/compose/compose.yaml up",
        PACKAGE_TEST,
        "def the_compose_example_serves_through_nginx",
    ),
    ("journalctl -u tollgate", PACKAGE_TEST, "journalctl -u tollgate --no-pager"),
    ("journalctl -u tollgate | grep 203.0.113.7", PACKAGE_TEST, "journalctl -u tollgate | grep "),
    ("kill -HUP", START_TESTS, "gate.signal(\"HUP\")"),
    ("sudo systemctl reload tollgate", PACKAGE_TEST, "systemctl reload tollgate"),
    ("systemctl reload tollgate", PACKAGE_TEST, "systemctl reload tollgate"),
    ("systemctl restart tollgate", PACKAGE_TEST, "systemctl restart tollgate\""),
    ("tollgate --version", PACKAGE_TEST, "tollgate \\d"),
    ("tollgate check --hardening tollgate.toml", "crates/tollgate/tests/blackbox/examples.rs", "\"--hardening\""),
    ("tollgate doctor", "crates/tollgate/tests/admin/doctor.rs", "tollgate(&[\"doctor\"]"),
    (
        "tollgate gate --config tollgate.toml",
        START_TESTS,
        "const START: &str = \"tollgate gate --config tollgate.toml\";",
    ),
    ("tollgate health", PACKAGE_TEST, "\"tollgate health\""),
    ("tollgate init", "crates/tollgate/tests/blackbox/init.rs", "fn on_a_terminal_it_asks_three_questions"),
];

/// Commands in the prose that no test runs, with the reason.
const NOT_RUN: &[(&str, &str)] = &[
    ("cargo test -p tollgate --test gate -- name_of_the_test", "has a placeholder; ./test runs all of them"),
    (
        "rustup target add x86_64-unknown-linux-musl",
        "changes the machine's toolchain; ./package uses the target if it exists",
    ),
];

/// The first words of commands.
const PROGRAMS: [&str; 19] = [
    "apt",
    "apt-get",
    "cargo",
    "certbot",
    "curl",
    "docker",
    "docker-compose",
    "dpkg",
    "journalctl",
    "kill",
    "nginx",
    "openssl",
    "rustup",
    "setcap",
    "sudo",
    "systemctl",
    "tar",
    "tollgate",
    "tollgate-storm",
];

/// README.md, the pages under "Start" there, and those for contributors.
fn pages() -> Vec<String> {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let start = between(&readme, "- **Start:**", "\n- **")[0];
    let linked: Vec<_> = between(start, "](", ")").into_iter().map(str::to_owned).collect();
    assert!(linked.len() >= 5, "{linked:?}");
    ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned).into_iter().chain(linked).collect()
}

/// A fenced block.
#[derive(Debug, PartialEq)]
struct FencedBlock {
    language: String,
    lines: Vec<String>,
}

/// The fenced blocks of a page, and its prose. Code in any other form is an error.
fn read(text: &str) -> Result<(Vec<FencedBlock>, String), String> {
    let (mut blocks, mut prose) = (Vec::new(), String::new());
    let mut open: Option<(&str, FencedBlock)> = None;
    let (mut is_after_blank, mut is_in_list) = (true, false);
    for (index, line) in text.lines().enumerate() {
        let (number, trimmed) = (index + 1, line.trim_start());
        let indent = line.len() - trimmed.len();
        let fence = trimmed.get(..3).filter(|marks| *marks == "```" || *marks == "~~~");
        match (open.take(), fence) {
            (None, Some(marks)) => {
                let language = trimmed.trim_start_matches(&marks[..1]).trim().to_owned();
                if language.is_empty() {
                    return Err(format!("line {number}: a block without a language"));
                }
                open = Some((marks, FencedBlock { language, lines: Vec::new() }));
            }
            (Some((marks, block)), _) if trimmed.trim_end() == marks => blocks.push(block),
            (Some((marks, mut block)), _) => {
                block.lines.push(line.to_owned());
                open = Some((marks, block));
            }
            (None, None) => {
                if is_after_blank && indent >= 4 && !is_in_list {
                    return Err(format!("line {number}: an indented block; use a fence with a language"));
                }
                if ["<pre", "<code", "> ```", ">```"].iter().any(|form| trimmed.starts_with(form)) {
                    return Err(format!("line {number}: code in another form than a fenced block"));
                }
                let is_item = trimmed.starts_with("- ")
                    || trimmed.split_once(". ").is_some_and(|(number, _)| number.parse::<u8>().is_ok());
                is_in_list = is_item || (is_in_list && (indent > 0 || trimmed.is_empty()));
                prose += line;
                prose += "\n";
            }
        }
        is_after_blank = trimmed.is_empty();
    }
    open.map_or(Ok((blocks, prose)), |_| Err("a block without an end".to_owned()))
}

/// The command on a line, without its comment.
fn without_comment(line: &str) -> &str {
    line.split(" # ").next().unwrap().trim()
}

fn is_command(text: &str) -> bool {
    let mut words = text.split_whitespace();
    let first = words.next().unwrap_or_default();
    first.starts_with("./") || (PROGRAMS.contains(&first) && words.next().is_some())
}

/// Commands in code spans.
fn commands(prose: &str) -> BTreeSet<String> {
    let spans = prose.split('`').skip(1).step_by(2).map(|span| span.split_whitespace().collect::<Vec<_>>().join(" "));
    spans.filter(|span| is_command(span)).collect()
}

fn has(file: &str, mark: &str) -> bool {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}")).contains(mark)
}

#[test]
fn every_block_of_the_first_pages_is_run_by_a_test() {
    for page in pages() {
        let (blocks, _) =
            read(&fs::read_to_string(root().join(&page)).unwrap()).unwrap_or_else(|fault| panic!("{page}, {fault}"));
        let (shown, run): (Vec<_>, Vec<_>) = blocks.iter().partition(|block| block.language == "text");
        for line in shown.iter().flat_map(|block| &block.lines) {
            assert!(!is_command(line) && !line.starts_with("$ "), "{page} has a command in a text block: {line}");
        }
        let found: Vec<_> = run.iter().map(|block| (&*block.language, without_comment(&block.lines[0]))).collect();
        let listed: Vec<_> = BLOCKS.iter().filter(|block| block.0 == page).map(|block| (block.1, block.2)).collect();
        assert_eq!(found, listed, "the blocks of {page}, and those of BLOCKS with their tests");
    }
    for (page, _, first, file, mark) in BLOCKS {
        assert!(pages().iter().any(|known| known == page), "{page} is not one of the first pages");
        assert!(has(file, mark), "{file} has no {mark:?}, which runs {first:?} of {page}");
    }
}

#[test]
fn every_command_in_the_prose_of_the_first_pages_is_run_by_a_test() {
    let mut found = BTreeSet::new();
    for page in pages() {
        found.extend(commands(&read(&fs::read_to_string(root().join(&page)).unwrap()).unwrap().1));
    }
    let listed = COMMANDS.iter().map(|command| command.0).chain(NOT_RUN.iter().map(|command| command.0));
    assert_eq!(
        found,
        listed.map(str::to_owned).collect(),
        "the commands in the prose, and those of COMMANDS and NOT_RUN"
    );
    for (command, file, mark) in COMMANDS {
        assert!(has(file, mark), "{file} has no {mark:?}, which runs {command}");
    }
}

#[test]
fn code_that_no_test_would_find_is_an_error() {
    let block =
        |language: &str, line: &str| FencedBlock { language: language.to_owned(), lines: vec![line.to_owned()] };
    let (blocks, prose) =
        read("a\n```sh\nb\n```\n1. c\n\n   ```toml cargo\n    d\n   ```\n\n    e\n~~~text\n```\n~~~\n").unwrap();
    assert_eq!(blocks, [block("sh", "b"), block("toml cargo", "    d"), block("text", "```")]);
    assert_eq!(prose, "a\n1. c\n\n\n    e\n");
    for wrong in ["```\na\n```\n", "a\n\n    b\n", "```sh\na\n", "<pre>a</pre>\n", "> ```sh\n> a\n> ```\n"] {
        read(wrong).unwrap_err();
    }
    assert_eq!(commands("`tollgate doctor` `sudo\nx` `tollgate` `maxconn 2` `./test`").len(), 3);
}
