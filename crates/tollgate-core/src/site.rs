//! The hosts of sites, and the choice between sites whose hosts overlap.
//!
//! A host belongs to the site with the most specific pattern: the host itself, or else the longest wildcard. The gate
//! uses this to select the backends of a request, and a rule of a site to decide whether it applies. Both compute it
//! from the host of the request, so that no connection, spelling or door can separate the two.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::Ipv6Addr;

/// A host, or a wildcard such as `*.example.com` for all hosts below `example.com`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern {
    /// In lower case, without dots at the end. A wildcard begins with a dot, and no host does.
    text: String,
}

impl HostPattern {
    /// Parses a pattern. `None` if no host matches it, as with a port or a star in the middle.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim_end_matches('.').to_ascii_lowercase();
        let is_ipv6 = |host: &str| {
            let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            inner.is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok())
        };
        let is_label = |label: &str| {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            !label.is_empty() && label.bytes().all(is_allowed)
        };
        let host = text.strip_prefix("*.").unwrap_or(&text);
        let is_host = host.split('.').all(is_label) || is_ipv6(&text);
        is_host.then(|| Self { text: text.strip_prefix('*').unwrap_or(&text).into() })
    }

    /// The number of bytes at the end of `host` that the pattern determines; `None` if it does not match. A larger
    /// number is a more specific match, and two different patterns that match a host never have the same. `host` has no
    /// port and no dot at the end, as returned by [`host_of`](crate::request::host_of).
    #[inline]
    pub fn specificity(&self, host: &[u8]) -> Option<usize> {
        let is_long_enough =
            if self.is_wildcard() { host.len() > self.text.len() } else { host.len() == self.text.len() };
        let end = &host[host.len().checked_sub(self.text.len())?..];
        (is_long_enough && end.eq_ignore_ascii_case(self.text.as_bytes())).then_some(self.text.len())
    }

    fn is_wildcard(&self) -> bool {
        self.text.starts_with('.')
    }

    /// Whether this pattern is more specific than `other`: every host that matches this one matches `other` too.
    fn is_within(&self, other: &Self) -> bool {
        other.specificity(self.text.as_bytes()).is_some() && self != other
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", if self.is_wildcard() { "*" } else { "" }, self.text)
    }
}

/// The index of the site that `host` belongs to.
pub fn find_site<'a>(sites: impl IntoIterator<Item = &'a [HostPattern]>, host: &[u8]) -> Option<usize> {
    let matching = |(index, patterns)| best(patterns, host).map(|specificity| (specificity, index));
    sites.into_iter().enumerate().filter_map(matching).max().map(|(_, index)| index)
}

/// The specificity of the most specific pattern that `host` matches.
fn best(patterns: &[HostPattern], host: &[u8]) -> Option<usize> {
    patterns.iter().filter_map(|pattern| pattern.specificity(host)).max()
}

/// The hosts of one site, as a condition of its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteHosts {
    own: Vec<HostPattern>,
    /// Patterns of other sites that are more specific than one of this site.
    others: Vec<HostPattern>,
}

impl SiteHosts {
    /// The hosts that match one of `own`, unless one of `others` is more specific.
    pub fn new<'a>(own: Vec<HostPattern>, others: impl IntoIterator<Item = &'a HostPattern>) -> Self {
        let is_inside = |other: &&HostPattern| own.iter().any(|own| other.is_within(own));
        let others = others.into_iter().filter(is_inside).cloned().collect();
        Self { own, others }
    }

    /// Whether `host` belongs to the site.
    #[inline]
    pub fn contains(&self, host: &[u8]) -> bool {
        best(&self.own, host) > best(&self.others, host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;

    fn pattern(text: &str) -> HostPattern {
        HostPattern::parse(text).unwrap()
    }

    #[test]
    fn a_pattern_is_a_host_or_everything_below_one() {
        let matches = |text: &str, host: &str| pattern(text).specificity(host.as_bytes()).is_some();
        assert!(matches("shop.example", "SHOP.Example") && matches("Shop.Example.", "shop.example"));
        assert!(!matches("shop.example", "www.shop.example") && !matches("shop.example", "op.example"));
        assert!(matches("*.shop.example", "www.shop.example") && matches("*.shop.example", "a.b.SHOP.example"));
        assert!(!matches("*.shop.example", "shop.example") && !matches("*.shop.example", "myshop.example"));
        assert!(!matches("*.shop.example", ".shop.example") && !matches("shop.example", ""));
        assert!(matches("[::1]", "[::1]") && matches("192.0.2.1", "192.0.2.1"));
        for text in ["shop.example", "*.shop.example", "[2001:db8::1]"] {
            assert_eq!(pattern(text).to_string(), text);
        }
    }

    #[test]
    fn a_pattern_that_no_host_matches_is_none() {
        for text in
            ["", ".", "*", "*.", "a:80", "a..b", "www.*.example", "*shop", "a b", "[::1", "[x]", "*.[::1]", "ä.example"]
        {
            assert_eq!(HostPattern::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_most_specific_pattern_decides_and_a_rule_agrees_with_the_choice_of_the_backend() {
        let sites = [
            Vec::from(["example.com", "*.example.com", "a.b.example.com"].map(pattern)),
            Vec::from(["shop.example.com", "*.shop.example.com"].map(pattern)),
            Vec::from(["*.b.example.com", "www.shop.example.com"].map(pattern)),
        ];
        let scope = |index: usize| {
            let others = sites.iter().enumerate().filter(|(other, _)| *other != index);
            SiteHosts::new(sites[index].clone(), others.flat_map(|(_, site)| site))
        };
        let scopes = [0, 1, 2].map(scope);
        for (host, site) in [
            ("example.com", Some(0)),
            ("x.example.com", Some(0)),
            ("x.y.example.com", Some(0)),
            ("b.example.com", Some(0)),
            ("a.b.example.com", Some(0)),
            ("c.b.example.com", Some(2)),
            ("shop.example.com", Some(1)),
            ("a.shop.example.com", Some(1)),
            ("WWW.shop.example.com", Some(2)),
            ("example.org", None),
            ("", None),
        ] {
            assert_eq!(find_site(sites.iter().map(Vec::as_slice), host.as_bytes()), site, "{host}");
            let agreeing: Vec<_> = (0..3).filter(|index| scopes[*index].contains(host.as_bytes())).collect();
            assert_eq!(agreeing, site.into_iter().collect::<Vec<_>>(), "{host}");
        }
    }

    #[test]
    fn every_host_of_small_overlapping_sites_belongs_to_one_of_them_in_both_ways() {
        // All hosts of up to three labels out of two, with every assignment of six patterns to three sites.
        let texts = ["a", "*.a", "b.a", "*.b.a", "a.a", "b.b.a"];
        let labels = ["a", "b"];
        let mut hosts = Vec::from(labels.map(String::from));
        for _ in 0..2 {
            let longer = hosts.iter().flat_map(|host| labels.map(|label| format!("{label}.{host}")));
            hosts = hosts.iter().cloned().chain(longer).collect();
        }
        for assignment in 0..3_usize.pow(6) {
            let mut sites = [const { Vec::new() }; 3];
            for (place, text) in texts.into_iter().enumerate() {
                sites[assignment / 3_usize.pow(place as u32) % 3].push(pattern(text));
            }
            for host in &hosts {
                let found = find_site(sites.iter().map(Vec::as_slice), host.as_bytes());
                for (index, site) in sites.iter().enumerate() {
                    let others = sites.iter().enumerate().filter(|(other, _)| *other != index);
                    let scope = SiteHosts::new(site.clone(), others.flat_map(|(_, site)| site));
                    assert_eq!(scope.contains(host.as_bytes()), found == Some(index), "{host} {sites:?}");
                }
            }
        }
    }
}
