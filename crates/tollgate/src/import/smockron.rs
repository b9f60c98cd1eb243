//! Translates the configuration of a Smockron master, `config/default.yaml`, to that of a Tollgate master. Each domain
//! of Smockron becomes a rule with a rate.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::flat_yaml::scalars;
use super::{Imported, quoted};

/// Smockron's default port for accounting. Control is the next one.
const ACCOUNTING_PORT: u16 = 10004;
/// The default port of statsd.
const STATSD_PORT: u16 = 8125;

/// The names of Smockron's units of time, and the length of each in milliseconds. A number without a unit is in
/// milliseconds.
const UNITS: [(&[&str], u64); 5] = [
    (&["", "ms", "msec"], 1),
    (&["s", "sec", "second", "seconds"], 1000),
    (&["m", "min", "minute", "minutes"], 60_000),
    (&["h", "hr", "hour", "hours"], 3_600_000),
    (&["d", "day", "days"], 86_400_000),
];

/// The values of a domain as they are written.
#[derive(Default)]
struct DomainText {
    rate: Option<String>,
    interval: Option<String>,
    burst: Option<String>,
}

/// Translates the text of a configuration, or returns all its errors.
pub(super) fn translate(text: &str) -> Result<Imported, Vec<String>> {
    let mut imported = Imported::default();
    let (mut listen, mut statsd) = (None, None);
    let mut domains: BTreeMap<String, DomainText> = BTreeMap::new();
    for scalar in scalars(text).map_err(|error| vec![error])? {
        let path: Vec<&str> = scalar.path.iter().map(String::as_str).collect();
        match path.as_slice() {
            // Older versions have `socket`.
            ["server" | "socket", "listen"] => listen = Some(scalar.text),
            ["stats", "host"] => statsd = Some(scalar.text),
            ["domains", domain, "rate"] => domains.entry((*domain).to_owned()).or_default().rate = Some(scalar.text),
            ["domains", domain, "interval"] => domains.entry((*domain).to_owned()).or_default().interval = Some(scalar.text),
            ["domains", domain, "burst"] => domains.entry((*domain).to_owned()).or_default().burst = Some(scalar.text),
            ["datastore", "host"] => imported.notes.push(
                "`datastore` is not needed: the master keeps its state in memory and in the directory `state_dir`, and with \
                 `books` in [master] also on the Redis of [redis]"
                    .to_owned(),
            ),
            _ => imported.notes.push(format!("`{}` has no counterpart and was ignored", path.join("."))),
        }
    }
    if domains.is_empty() {
        return Err(vec!["has no domains".to_owned()]);
    }
    let mut errors = Vec::new();
    errors.extend(master(listen.as_deref().unwrap_or("0.0.0.0"), statsd.as_deref(), &mut imported).err());
    // The rules of `default` are not in a [[domain]]: they come first.
    let (default, others): (Vec<_>, Vec<_>) = domains.iter().partition(|(name, _)| *name == "default");
    for (name, domain) in default.into_iter().chain(others) {
        errors.extend(rule(name, domain, &mut imported).err().map(|why| format!("domain {name}: {why}")));
    }
    if errors.is_empty() { Ok(imported) } else { Err(errors) }
}

/// Parses `tcp://address:port`. The scheme may be absent, and the port, which is then `port`.
fn address(text: &str, port: u16) -> Result<SocketAddr, String> {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, digits)) if !host.contains(':') => {
            (host, digits.parse().map_err(|_| format!("`{text}` has no valid port"))?)
        }
        _ => (rest, port),
    };
    let ip = match host.trim_matches(['[', ']']) {
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        "*" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        host => host.parse().map_err(|_| format!("`{text}` is a host name: write its address"))?,
    };
    Ok(SocketAddr::new(ip, port))
}

/// Writes the table `[master]`.
fn master(listen: &str, statsd: Option<&str>, imported: &mut Imported) -> Result<(), String> {
    let accounting = address(listen, ACCOUNTING_PORT)?;
    let Some(control_port) = accounting.port().checked_add(1) else {
        return Err(format!("`{listen}`: there is no port after this one for control"));
    };
    let control = SocketAddr::new(accounting.ip(), control_port);
    let toml = &mut imported.toml;
    let _ = write!(
        toml,
        "# Translated from a configuration of Smockron by `tollgate import smockron`.\n[master]\n\
         accounting = \"{accounting}\"\ncontrol    = \"{control}\"\n"
    );
    if !accounting.ip().is_loopback() {
        toml.push_str(
            "# Original gatekeepers have no keys. Name only their networks here: their messages can be read and forged on the way.\n\
             gates_without_keys = [\"private\"]\n",
        );
        let note = "`gates_without_keys` admits gates from private networks without authentication: write the networks \
                    of your gatekeepers there";
        imported.notes.push(note.to_owned());
    }
    toml.push_str("state_dir  = \"/var/lib/tollgate\"   # keeps delays across restarts, as Redis did; `tollgate pardon` needs it\n");
    if let Some(host) = statsd {
        match address(host, STATSD_PORT) {
            Ok(statsd) => drop(writeln!(toml, "statsd     = \"{statsd}\"")),
            Err(why) => imported.notes.push(format!(
                "`stats.host` was not translated: {why} and the port {STATSD_PORT} as `statsd` in [master]"
            )),
        }
    }
    Ok(())
}

/// Writes the rule of a domain.
fn rule(name: &str, domain: &DomainText, imported: &mut Imported) -> Result<(), String> {
    let (count, period_ms) = match (&domain.rate, &domain.interval) {
        (Some(rate), _) => rate_of(rate)?,
        (None, Some(interval)) => (1, duration_ms(interval)?),
        (None, None) => return Err("has neither `rate` nor `interval`".to_owned()),
    };
    if count == 0 || period_ms == 0 {
        return Err("a rate of 0, or over a time of 0, is no limit".to_owned());
    }
    if period_ms * 2 < count {
        imported.notes.push(format!(
            "domain {name}: Smockron rounds its interval to 0 ms and does not limit it; here it is limited"
        ));
    }
    let burst = domain.burst.as_deref().ok_or("has no `burst`, which Smockron needs too")?.trim();
    let burst = match burst.parse::<u64>() {
        Ok(burst) => burst,
        // A duration is the number of requests that the rate allows in it.
        Err(_) => {
            let product = duration_ms(burst)?.checked_mul(count).ok_or("`rate` times `burst` is too large")?;
            (product / period_ms).max(1)
        }
    };
    let toml = &mut imported.toml;
    let table = if name == "default" { "[[rule]]" } else { "[[domain.rule]]" };
    if name != "default" {
        let _ = write!(toml, "\n[[domain]]\nname = {}\n", quoted(name));
    }
    let _ = write!(
        toml,
        "\n{table}\nname  = {}\n\
         class = \"identifier\"          # whatever gatekeepers report: REMOTE_ADDR, or smockron_identifier\n\
         rate  = {{ rate = \"{}\", burst = {burst} }}\n",
        quoted(name),
        rate_text(count, period_ms)
    );
    Ok(())
}

/// Parses `N/interval` or `N per interval` to the number and the interval in milliseconds.
fn rate_of(text: &str) -> Result<(u64, u64), String> {
    let bad = || format!("`{text}` is not a rate such as 5/min");
    let (count, interval) = text.split_once('/').or_else(|| text.split_once("per")).ok_or_else(bad)?;
    Ok((count.trim().parse().map_err(|_| bad())?, duration_ms(interval)?))
}

/// Parses a duration such as `30s`. Without a number it is one unit.
fn duration_ms(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_ms = UNITS.iter().find(|(names, _)| names.contains(&unit.trim())).map(|(_, ms)| *ms);
    let number = if number.is_empty() { Some(1) } else { number.parse::<u64>().ok() };
    let ms = number.zip(unit_ms).and_then(|(number, unit_ms)| number.checked_mul(unit_ms));
    ms.filter(|ms| !text.is_empty() && *ms < 1 << 40).ok_or_else(|| format!("`{text}` is not a duration such as 30s"))
}

/// A rate in this program's notation.
fn rate_text(count: u64, period_ms: u64) -> String {
    match period_ms {
        1000 => format!("{count}/s"),
        60_000 => format!("{count}/min"),
        3_600_000 => format!("{count}/h"),
        86_400_000 => format!("{count}/d"),
        ms if ms.is_multiple_of(1000) => format!("{count} per {}s", ms / 1000),
        ms => format!("{count} per {ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::limit::{Limit, Rate};
    use tollgate_core::time::Span;

    use super::super::tests::translation;
    use super::*;

    #[test]
    fn a_key_without_a_counterpart_is_noted() {
        let imported =
            translate("server:\n  workers: 4\ndomains:\n  default:\n    rate: 1/sec\n    burst: 10\n").unwrap();
        assert!(imported.notes.iter().any(|note| note.starts_with("`server.workers`")), "{:?}", imported.notes);
    }

    #[test]
    fn the_original_file_becomes_a_master_with_the_same_limits() {
        let text = "server:\n  listen: \"0.0.0.0\"\ndatastore:\n  host: localhost\ndomains:\n  default:\n    rate: \"1/sec\"\n    burst: 10\n  \
                    uploads:\n    rate: \"5 per 10 min\"\n    burst: 30m\nstats:\n  host: localhost\n";
        let (settings, imported) = translation(text, translate);
        let master = settings.master.unwrap();
        assert_eq!((master.accounting.port(), master.control.port()), (10004, 10005));
        assert_eq!(master.statsd.unwrap().to_string(), "127.0.0.1:8125");
        assert!(master.gates_without_keys.contains("10.1.2.3".parse().unwrap()));
        let limits: Vec<_> = settings.domains.iter().map(|one| (one.name.as_str(), one.rules[0].rule.limit)).collect();
        let rate = |count, secs, burst| Limit::Rate(Rate::new(count, Span::from_secs(secs), burst).unwrap());
        assert_eq!(limits, [("default", rate(1, 1, 10)), ("uploads", rate(5, 600, 15))]);
        assert_eq!(imported.notes.len(), 2, "{:?}", imported.notes);
    }

    #[test]
    fn rates_and_intervals_are_read_as_smockron_reads_them() {
        for (text, expected) in [
            ("1/sec", (1, 1000)),
            (" 5 / 10 min", (5, 600_000)),
            ("3 per s", (3, 1000)),
            ("7/250", (7, 250)),
            ("2/2days", (2, 172_800_000)),
        ] {
            assert_eq!(rate_of(text), Ok(expected), "{text}");
        }
        for text in ["", "5", "five/s", "5/fortnight", "-1/s", "5/99999999999999999999s"] {
            assert!(rate_of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_interval_is_the_time_of_one_request() {
        for (interval, period) in [("200", 200), ("5 min", 300_000)] {
            let text = format!("domains:\n  default: {{interval: {interval}, burst: 10}}\n");
            let (settings, _) = translation(&text, translate);
            let expect = Limit::Rate(Rate::new(1, Span::from_millis(period), 10).unwrap());
            assert_eq!(settings.domains[0].rules[0].rule.limit, expect, "{interval}");
        }
    }

    #[test]
    fn a_rate_that_smockron_does_not_limit_is_noted() {
        let (_, imported) = translation("domains:\n  default: {rate: 3000/s, burst: 1}\n", translate);
        assert!(imported.notes.iter().any(|note| note.contains("does not limit it")), "{:?}", imported.notes);
    }

    #[test]
    fn wrong_files_are_rejected_with_the_reason() {
        for (text, reason) in [
            ("server: {listen: \"0.0.0.0\"}", "has no domains"),
            ("domains: {a: {rate: 1/s}}", "has no `burst`"),
            ("domains: {a: {burst: 1}}", "neither `rate` nor `interval`"),
            ("domains: {a: {rate: 0/s, burst: 1}}", "a rate of 0"),
            ("domains: {a: {rate: 18446744073709551615/s, burst: 2s}}", "is too large"),
            ("server: {listen: zmq.example}\ndomains: {a: {rate: 1/s, burst: 1}}", "is a host name"),
        ] {
            let errors = translate(text).unwrap_err();
            assert!(errors.len() == 1 && errors[0].contains(reason), "{errors:?}");
        }
        let all = "server: {listen: zmq.example}\ndomains: {a: {rate: abc, burst: 1}, b: {rate: 1/s}}";
        assert_eq!(translate(all).unwrap_err().len(), 3);
    }

    #[test]
    fn the_default_domain_comes_first() {
        let text = "domains:\n  api: {rate: 1/s, burst: 1}\n  default: {rate: 1/s, burst: 1}\n";
        let (settings, imported) = translation(text, translate);
        assert!(imported.toml.find("[[rule]]") < imported.toml.find("[[domain]]"), "{}", imported.toml);
        assert_eq!(settings.domains.len(), 2);
    }
}
