//! A descriptor of Envoy as a request that rules decide on.

use std::net::IpAddr;
use tollgate_core::request::Request;

use super::messages::DescriptorEntry;

/// A descriptor whose limit is known by its rule.
pub(super) struct DescriptorRequest<'a> {
    /// The rule that decides alone.
    pub(super) rule: &'a str,
    /// The entries, whose values are the keys of classes.
    pub(super) entries: &'a [DescriptorEntry],
    /// The key of a rule whose entries have no class of their own.
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
