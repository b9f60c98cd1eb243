//! A descriptor of Envoy as a request that a rule decides on. It is used for limits from files in the format of
//! envoyproxy/ratelimit, each of which is one rule.

use std::net::IpAddr;
use tollgate_core::request::Request;

use super::messages::DescriptorEntry;

/// A descriptor: a list of entries, each with a key and a value, with the rule of its limit.
pub(super) struct DescriptorRequest<'a> {
    /// The rule that decides alone.
    pub(super) rule: &'a str,
    /// The entries. The class `descriptor:NAME` has the value of the entry with this key.
    pub(super) entries: &'a [DescriptorEntry],
    /// The key for a rule of the class `identifier`, which limits have for whose entries no class can be written.
    pub(super) identifier: Option<&'a str>,
}

impl Request for DescriptorRequest<'_> {
    fn client(&self) -> Option<IpAddr> {
        // The entry of Envoy's action `remote_address`.
        self.entries.iter().find(|entry| entry.key == "remote_address")?.value.parse().ok()
    }

    fn attribute(&self, name: &str) -> Option<&[u8]> {
        if name == "identifier" && self.identifier.is_some() {
            return self.identifier.map(str::as_bytes);
        }
        self.entries.iter().find(|entry| entry.key == name).map(|entry| entry.value.as_bytes())
    }

    fn rule_name(&self) -> Option<&str> {
        Some(self.rule)
    }
}
