//! Lists of networks, as networks, names such as `private`, and files: `gate.trusted_proxies` and
//! `master.gates_without_keys`.

use std::ops::Range;
use std::path::{Path, PathBuf};

use tollgate_core::network::{Network, NetworkSet};
use toml::Spanned;
use toml::de::DeValue;

use super::error::{ErrorCollector, shown};
use super::read_file;
use super::shape::Shape;
use super::suggestion::did_you_mean;
use super::table::{Located, Value};
use super::value::{OneOrMany, text_value};

/// Named lists of networks.
const NAMED: [(&str, &[&str]); 2] = [
    ("loopback", &["127.0.0.0/8", "::1"]),
    (
        "private",
        &["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "fc00::/7", "fe80::/10"],
    ),
];
/// Maximum number of networks in a list with files: more than any CDN publishes.
const NETWORKS_MAX: usize = 65_536;
/// Maximum number of invalid lines of a file that are reported.
const LINES_SHOWN_MAX: usize = 5;

/// One entry of the list.
#[derive(Clone, Debug)]
pub(crate) enum TrustedEntry {
    /// One network, or those of a name in [`NAMED`].
    Networks(Vec<Network>),
    /// `file:/path`: a file with one network per line.
    File(PathBuf),
}

/// One entry, or a list of several.
pub(crate) type TrustedEntries = OneOrMany<Located<TrustedEntry>>;

impl TrustedEntry {
    fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("file:") {
            return match path {
                path if path.contains('\0') => Err("a path must not contain NUL".to_owned()),
                path if path.starts_with('/') => Ok(Self::File(path.into())),
                path => Err(format!(
                    "{} is not an absolute path: write one such as \"file:/etc/tollgate/proxies.txt\"",
                    shown(path)
                )),
            };
        }
        if let Some((_, networks)) = NAMED.iter().find(|(name, _)| *name == text) {
            return Ok(Self::Networks(networks.iter().filter_map(|text| Network::parse(text)).collect()));
        }
        Network::parse(text).map(|network| Self::Networks(vec![network])).ok_or_else(|| {
            let hint = did_you_mean(text, NAMED.iter().map(|(name, _)| *name));
            format!(
                "{} is not an address or network{hint}: write one such as \"10.0.0.0/8\", \"private\", \"loopback\", \
                 or \"file:/path\" for a file with one network per line",
                shown(text)
            )
        })
    }
}

text_value!(
    TrustedEntry,
    "an address, a network, \"private\", \"loopback\" or \"file:/path\"",
    "10.0.0.0/8",
    Self::parse
);

/// A list of entries, parsed to the networks of all of them. Reads the files.
pub(crate) enum Networks {}

impl Value for Networks {
    type Parsed = NetworkSet;

    fn shape() -> Shape {
        TrustedEntries::shape()
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<NetworkSet> {
        TrustedEntries::read(value, errors).map(|entries| networks(entries, errors))
    }
}

/// The networks of all entries. Reads the files.
fn networks(entries: Vec<Located<TrustedEntry>>, errors: &mut ErrorCollector) -> NetworkSet {
    let mut networks = Vec::new();
    for entry in entries {
        match entry.value {
            TrustedEntry::Networks(entries) => networks.extend(entries),
            TrustedEntry::File(path) => read_networks(&path, &entry.span, &mut networks, errors),
        }
    }
    networks.into_iter().collect()
}

/// Adds the networks of a file. Reports invalid lines at `span`, the entry in the settings that names the file.
fn read_networks(path: &Path, span: &Range<usize>, networks: &mut Vec<Network>, errors: &mut ErrorCollector) {
    let file = path.display();
    let text = match read_file(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(message) => return errors.report(span, format!("{file} {message}")),
    };
    let mut wrong = 0;
    for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let entry = line.split('#').next().unwrap_or_default().trim();
        if entry.is_empty() {
            continue;
        }
        match Network::parse(entry) {
            Some(_) if networks.len() >= NETWORKS_MAX => {
                return errors.report(span, format!("{file} has too many networks: at most {NETWORKS_MAX} are read"));
            }
            Some(network) => networks.push(network),
            None => {
                wrong += 1;
                if wrong <= LINES_SHOWN_MAX {
                    let message = "is not an address or network: write one per line, such as 10.0.0.0/8";
                    errors.report(span, format!("{file}:{}: {} {message}", number + 1, shown(entry)));
                }
            }
        }
    }
    if wrong > LINES_SHOWN_MAX {
        errors.report(span, format!("{file}: {} more lines are invalid", wrong - LINES_SHOWN_MAX));
    }
}

#[cfg(test)]
mod tests {
    use crate::settings::Settings;

    fn read(list: &str) -> Result<Settings, String> {
        let text = format!("[gate]\nbackend = 'http://a'\ntrusted_proxies = {list}\n");
        Settings::parse("t.toml", &text).map_err(|errors| errors.to_string())
    }

    fn trusts(settings: &Settings, address: &str) -> bool {
        settings.gate.as_ref().unwrap().trusted_proxies.contains(address.parse().unwrap())
    }

    #[test]
    fn a_name_is_replaced_by_its_list_of_networks() {
        let settings = read("['loopback', '192.0.2.1']").unwrap();
        for (address, expect) in
            [("127.0.0.9", true), ("::1", true), ("192.0.2.1", true), ("192.0.2.2", false), ("10.0.0.1", false)]
        {
            assert_eq!(trusts(&settings, address), expect, "{address}");
        }
        let settings = read("'private'").unwrap();
        for (address, expect) in [
            ("10.1.2.3", true),
            ("172.31.0.1", true),
            ("172.32.0.1", false),
            ("192.168.1.1", true),
            ("fd00::1", true),
            ("127.0.0.1", false),
        ] {
            assert_eq!(trusts(&settings, address), expect, "{address}");
        }
        assert!(read("['privat']").unwrap_err().contains("did you mean `private`?"));
        assert!(read("['file:proxies.txt']").unwrap_err().contains("is not an absolute path"));
    }

    #[test]
    fn a_file_has_one_network_per_line_and_invalid_lines_are_reported_with_their_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("proxies.txt");
        let list = format!("['file:{}', 'loopback']", path.display());
        assert!(read(&list).unwrap_err().contains("cannot be read"));
        std::fs::write(&path, "# the CDN\n198.51.100.0/24\r\n\n2001:db8::/32   # v6\n").unwrap();
        let settings = read(&list).unwrap();
        for address in ["198.51.100.7", "2001:db8::7", "127.0.0.1"] {
            assert!(trusts(&settings, address), "{address}");
        }
        assert!(!trusts(&settings, "203.0.113.1"));
        std::fs::write(&path, "198.51.100.0/24\n198.51.100.0/33\nexample.org\n").unwrap();
        let message = read(&list).unwrap_err();
        for (line, text) in [(2, "`198.51.100.0/33`"), (3, "`example.org`")] {
            assert!(message.contains(&format!("proxies.txt:{line}: {text} is not an address")), "{message}");
        }
        assert!(message.starts_with("t.toml:3:20: "), "{message}");
        std::fs::write(&path, "x\n".repeat(100)).unwrap();
        assert!(read(&list).unwrap_err().contains("95 more lines are invalid"));
    }
}
