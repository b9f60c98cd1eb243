//! The checks of `tollgate check --hardening`: what makes an exposed gate safe.
//!
//! Only settings that are valid but may be unsafe are checked. A check names the setting and its value; a failure names
//! the change that fixes it.

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use tollgate_core::rule::Mode;

use crate::admin::token_files;
use crate::settings::{Gate, Settings};

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HardeningCheck {
    /// The property that is checked, as a statement that is true for safe settings.
    pub(crate) subject: String,
    pub(crate) outcome: CheckOutcome,
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CheckOutcome {
    Pass,
    /// With advice for the operator: the change that fixes it.
    Fail(String),
    /// The settings do not use the feature.
    NotUsed,
}

impl HardeningCheck {
    fn new(subject: impl Into<String>, is_safe: bool, advice: impl Into<String>) -> Self {
        let outcome = if is_safe { CheckOutcome::Pass } else { CheckOutcome::Fail(advice.into()) };
        Self { subject: subject.into(), outcome }
    }

    /// A check of an optional feature. `is_safe` is `None` if the settings do not use it.
    fn if_used(subject: &str, is_safe: Option<bool>, advice: &str) -> Self {
        match is_safe {
            Some(is_safe) => Self::new(subject, is_safe, advice),
            None => Self { subject: subject.to_owned(), outcome: CheckOutcome::NotUsed },
        }
    }
}

/// Permission bit that lets users other than the owner and the group write a file.
const OTHERS_WRITE: u32 = 0o002;
/// Permission bit that lets these users read a file.
const OTHERS_READ: u32 = 0o004;

/// All checks of these settings, which were read from `file`.
pub(crate) fn checks(file: &Path, settings: &Settings) -> Vec<HardeningCheck> {
    let mut checks = vec![is_closed_to_others(file, "the configuration file", OTHERS_WRITE)];
    if let Some(gate) = &settings.gate {
        checks.extend(gate_checks(gate));
    }
    checks.extend(door_checks(settings));
    checks.extend(admin_checks(settings));
    checks.extend(rule_checks(settings));
    checks.extend(settings.master.iter().map(|master| {
        HardeningCheck::new(
            "gates authenticate to the master (`master.gates_without_keys`)",
            master.gates_without_keys.is_empty(),
            "messages of these networks can be forged: use `key_file` and `gates`, and replace original gatekeepers",
        )
    }));
    let is_redis_safe = settings.redis.as_ref().map(|redis| {
        let url = &redis.url;
        let host = url.split("://").nth(1).unwrap_or_default().rsplit('@').next().unwrap_or_default();
        let is_private = || is_private_host(host.rsplit_once(':').map_or(host, |(host, _)| host));
        url.starts_with("rediss") || url.starts_with("unix") || is_private()
    });
    checks.push(HardeningCheck::if_used(
        "the connection to Redis uses TLS or a private network",
        is_redis_safe,
        "use `rediss://` in `redis.url`",
    ));
    checks
}

fn gate_checks(gate: &Gate) -> Vec<HardeningCheck> {
    let exposed: Vec<_> = gate.listen.iter().filter(|address| !address.ip().is_loopback()).collect();
    let is_behind_proxy = !gate.trusted_proxies.is_empty();
    // A sample of public addresses: if one of them is trusted, probably all are.
    let public = ["8.8.8.8", "203.0.113.1", "2606:4700::1", "2a00::1"];
    let trusts_everybody = public
        .iter()
        .filter_map(|address| address.parse::<IpAddr>().ok())
        .any(|address| gate.trusted_proxies.contains(address));
    let mut checks = vec![
        HardeningCheck::new(
            "the gate enforces its decisions (`gate.mode`)",
            gate.mode == Mode::Enforce,
            "`mode = \"observe\"` holds and refuses nothing: set \"enforce\" once its effect is known",
        ),
        match exposed.first() {
            None => HardeningCheck::new("clients connect from this machine only, or over TLS", true, ""),
            Some(address) => HardeningCheck::new(
                format!("clients connect to {address} over TLS, or through a proxy"),
                gate.all_tls().next().is_some() || is_behind_proxy,
                "set `tls` in [gate], or terminate TLS in front of the gate and add that proxy to `trusted_proxies`",
            ),
        },
        HardeningCheck::if_used(
            "`trusted_proxies` contains proxies only",
            is_behind_proxy.then_some(!trusts_everybody),
            "a trusted client can claim any address: list only your proxies",
        ),
        HardeningCheck::new(
            "backends are on this machine, in a private network, or use TLS",
            gate.all_backends().iter().all(|backend| backend.tls || is_private_host(&backend.host)),
            "requests cross a public network unencrypted: use `https` or `h2` in `backend`",
        ),
        HardeningCheck::new(
            "requests are logged (`gate.access_log`)",
            gate.access_log.is_some(),
            "add `[gate.access_log]` with an `output`: without it, single requests cannot be traced later",
        ),
    ];
    checks.extend(gate.all_tls().map(|tls| is_closed_to_others(&tls.key, "the TLS key", OTHERS_READ | OTHERS_WRITE)));
    checks
}

/// A door is an interface through which other programs ask the gate for decisions. Beyond loopback it needs TLS,
/// because tokens and keys of clients cross the network.
fn door_checks(settings: &Settings) -> Vec<HardeningCheck> {
    let mut checks = Vec::new();
    for (name, door) in settings.doors.iter().flat_map(|doors| doors.open()) {
        if !door.address.ip().is_loopback() {
            checks.push(HardeningCheck::new(
                format!("the door `{name}` on {} uses TLS", door.address),
                door.tls.is_some(),
                format!("set `tls` in [doors.{name}]"),
            ));
        }
        let key = door.tls.as_ref().map(|tls| &tls.key);
        checks.extend(key.map(|key| is_closed_to_others(key, "the TLS key", OTHERS_READ | OTHERS_WRITE)));
    }
    checks
}

fn admin_checks(settings: &Settings) -> Vec<HardeningCheck> {
    let Some(admin) = &settings.admin else {
        return vec![HardeningCheck::new("the admin address is on loopback, or requires a token", true, "")];
    };
    let mut checks = vec![HardeningCheck::new(
        format!("the admin address {} is on loopback, or requires a token", admin.listen),
        admin.listen.ip().is_loopback() || admin.token_file.is_some(),
        "set `token_file` in [admin]",
    )];
    let closed = |(_, file)| is_closed_to_others(file, "the token file", OTHERS_READ | OTHERS_WRITE);
    checks.extend(token_files(admin).map(closed));
    checks
}

/// Finds enforced rules whose keys many clients share and any client can choose, such as paths: each of them throttles
/// all clients with the same key together, and a client escapes it by choosing another key. A rule of the class
/// `user-agent` whose `when` selects certain user agents, such as those of crawlers, is safe.
fn rule_checks(settings: &Settings) -> Vec<HardeningCheck> {
    let rules = settings.domains.iter().flat_map(|domain| &domain.rules);
    let shared = rules.filter(|settings| {
        let class = settings.rule.class.to_string();
        let selects_agents = settings.rule.when.headers.iter().any(|(name, _)| name == "user-agent");
        settings.rule.mode == Mode::Enforce
            && !(selects_agents && class.contains("user-agent"))
            && class.split('+').all(|part| matches!(part.trim(), "user-agent" | "path" | "host" | "method"))
    });
    let names: Vec<_> = shared.map(|settings| format!("`{}`", settings.rule.name)).collect();
    vec![HardeningCheck::new(
        "no rule has a class whose keys many clients share (path, host, method, or user agent unless `when` selects \
         user agents)",
        names.is_empty(),
        format!("{} throttles all clients with the same key together: add `+ip/24` to its class", names.join(", ")),
    )]
}

/// Checks that none of these permission bits of a file are set. `what` names the file for the operator.
fn is_closed_to_others(file: &Path, what: &str, bits: u32) -> HardeningCheck {
    let verb = if bits & OTHERS_READ == 0 { "written" } else { "read" };
    let subject = format!("{what} {} cannot be {verb} by others", file.display());
    match std::fs::metadata(file) {
        Ok(metadata) => {
            let advice = format!("run `chmod o-rw {}`", file.display());
            HardeningCheck::new(subject, metadata.mode() & bits == 0, advice)
        }
        Err(error) => HardeningCheck::new(subject, false, format!("cannot check it: {error}")),
    }
}

/// Whether a host is on this machine or in a private network. Names are not resolved: those without dots, such as names
/// of containers, and those in `.internal` and `.local` count as private.
fn is_private_host(host: &str) -> bool {
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(IpAddr::V4(v4)) => v4.is_loopback() || v4.is_private() || v4.is_link_local(),
        Ok(IpAddr::V6(v6)) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
        Err(_) => !host.contains('.') || host.ends_with(".internal") || host.ends_with(".local"),
    }
}
