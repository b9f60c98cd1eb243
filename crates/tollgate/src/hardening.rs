//! The list of `tollgate check --hardening`: what makes an exposed gate safe, each with pass or fail.
//!
//! Only settings that a file can get wrong without a fault are here. A check names the setting and the value that it looked at; a failure says what to write.

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use tollgate_core::rule::Mode;

use crate::settings::{Gate, Settings};

/// One line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    /// The property that is checked.
    pub(crate) subject: String,
    pub(crate) outcome: Outcome,
}

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Pass,
    /// With advice.
    Fail(String),
    /// The file does not use the feature.
    NotUsed,
}

impl Check {
    fn new(subject: impl Into<String>, is_safe: bool, advice: impl Into<String>) -> Self {
        let outcome = if is_safe { Outcome::Pass } else { Outcome::Fail(advice.into()) };
        Self { subject: subject.into(), outcome }
    }

    fn not_used(subject: &str) -> Self {
        Self { subject: subject.to_owned(), outcome: Outcome::NotUsed }
    }
}

/// Permission bits that let others than the owner and the group write, and read.
const OTHERS_WRITE: u32 = 0o002;
const OTHERS_READ: u32 = 0o004;

/// Every check of these settings, which were read from `file`.
pub(crate) fn checks(file: &Path, settings: &Settings) -> Vec<Check> {
    let mut checks = vec![is_closed_to_others(file, "the configuration file", OTHERS_WRITE)];
    if let Some(gate) = &settings.gate {
        checks.extend(gate_checks(gate));
    }
    checks.extend(admin_checks(settings));
    checks.extend(rule_checks(settings));
    checks.push(match &settings.redis {
        Some(redis) => {
            let url = &redis.url;
            let host = url.split("://").nth(1).unwrap_or_default().rsplit('@').next().unwrap_or_default();
            let is_near =
                url.starts_with("unix") || is_private_host(host.rsplit_once(':').map_or(host, |(host, _)| host));
            Check::new(
                "Redis is reached over TLS or in a private network",
                url.starts_with("rediss") || is_near,
                "write `rediss` in `redis.url`, which is TLS",
            )
        }
        None => Check::not_used("Redis is reached over TLS or in a private network"),
    });
    checks
}

fn gate_checks(gate: &Gate) -> Vec<Check> {
    let exposed: Vec<_> = gate.listen.iter().filter(|address| !address.ip().is_loopback()).collect();
    let is_behind_proxy = !gate.trusted_proxies.is_empty();
    let everybody = ["8.8.8.8", "203.0.113.1", "2606:4700::1", "2a00::1"];
    let trusts_everybody = everybody
        .iter()
        .filter_map(|address| address.parse::<IpAddr>().ok())
        .any(|address| gate.trusted_proxies.contains(address));
    let mut checks = vec![
        Check::new(
            "the gate enforces (`gate.mode`)",
            gate.mode == Mode::Enforce,
            "`mode = \"observe\"` holds and refuses nothing: write \"enforce\" once you know what it would do",
        ),
        match exposed.first() {
            None => Check::new("clients reach the gate on this machine only, or over TLS", true, ""),
            Some(address) => Check::new(
                format!("clients reach {address} over TLS, or through a proxy"),
                !gate.tls.is_empty() || is_behind_proxy,
                "write `tls` under [gate], or terminate TLS in front of the gate and name that proxy in `trusted_proxies`",
            ),
        },
        match is_behind_proxy {
            true => Check::new(
                "`trusted_proxies` names proxies and not everybody",
                !trusts_everybody,
                "a trusted client can claim any address: name your proxies alone",
            ),
            false => Check::not_used("`trusted_proxies` names proxies and not everybody"),
        },
        Check::new(
            "backends are on this machine, in a private network, or reached over TLS",
            gate.backends.iter().all(|backend| backend.tls || is_private_host(&backend.host)),
            "requests cross a public network in the clear: write `https` or `h2` in `backend`",
        ),
        Check::new(
            "requests are logged (`gate.access_log`)",
            gate.access_log.is_some(),
            "write `[gate.access_log]` with an `output`: without it, single requests cannot be traced later",
        ),
    ];
    checks.extend(gate.tls.iter().map(|tls| is_closed_to_others(&tls.key, "the TLS key", OTHERS_READ | OTHERS_WRITE)));
    checks
}

fn admin_checks(settings: &Settings) -> Vec<Check> {
    let Some(admin) = &settings.admin else {
        return vec![Check::new("the admin address is on loopback, or asks for a token", true, "")];
    };
    let mut checks = vec![Check::new(
        format!("the admin address {} is on loopback, or asks for a token", admin.listen),
        admin.listen.ip().is_loopback() || admin.token_file.is_some(),
        "write `token_file` under [admin]",
    )];
    let files = [&admin.token_file, &admin.viewer_token_file, &admin.reporter_token_file];
    let closed = |file| is_closed_to_others(file, "the token file", OTHERS_READ | OTHERS_WRITE);
    checks.extend(files.into_iter().flatten().map(|file| closed(file)));
    checks
}

/// Rules whose key clients choose: a client escapes by choosing another, and a value that many share throttles all of them together.
fn rule_checks(settings: &Settings) -> Vec<Check> {
    let rules = settings.domains.iter().flat_map(|domain| &domain.rules);
    let chosen = rules.filter(|settings| {
        let class = settings.rule.class.to_string();
        settings.rule.mode == Mode::Enforce
            && class.split('+').all(|part| matches!(part.trim(), "user-agent" | "path" | "host" | "method"))
    });
    let names: Vec<_> = chosen.map(|settings| format!("`{}`", settings.rule.name)).collect();
    vec![Check::new(
        "every rule tells callers apart by more than what many clients share (user agent, path, host, method)",
        names.is_empty(),
        format!("{} throttles everybody with the same value together: add `+ip/24` to its class", names.join(", ")),
    )]
}

fn is_closed_to_others(file: &Path, what: &str, bits: u32) -> Check {
    let verb = if bits & OTHERS_READ == 0 { "written" } else { "read" };
    let subject = format!("{what} {} cannot be {verb} by others", file.display());
    match std::fs::metadata(file) {
        Ok(metadata) => {
            let advice = format!("run `chmod o-rw {}`", file.display());
            Check::new(subject, metadata.mode() & bits == 0, advice)
        }
        Err(error) => Check::new(subject, false, format!("it cannot be looked at: {error}")),
    }
}

/// Whether a host is on this machine or in a private network. A name without dots is one of a private network, such as a container.
fn is_private_host(host: &str) -> bool {
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(IpAddr::V4(v4)) => v4.is_loopback() || v4.is_private() || v4.is_link_local(),
        Ok(IpAddr::V6(v6)) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
        Err(_) => !host.contains('.') || host.ends_with(".internal") || host.ends_with(".local"),
    }
}
