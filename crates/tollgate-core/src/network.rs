//! IP networks: single ones as keys and in conditions, and large sets of them, such as trusted proxies.

use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IP network such as `10.0.0.0/8`. All bits after the prefix are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    address: IpAddr,
    /// In bits.
    prefix: u8,
}

/// Converts an IPv4-mapped IPv6 address (`::ffff:203.0.113.7`) to IPv4, because it is the same client.
pub fn unmapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

impl Network {
    /// The network of `address` with this prefix length, which is capped at the length of the address.
    #[inline]
    pub fn of(address: IpAddr, prefix: u8) -> Self {
        match unmapped(address) {
            IpAddr::V4(v4) => {
                let prefix = prefix.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                Self { address: IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask)), prefix }
            }
            IpAddr::V6(v6) => {
                let prefix = prefix.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                Self { address: IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask)), prefix }
            }
        }
    }

    /// Parses `10.0.0.0/8`, `2001:db8::/32`, or a single address.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address.parse::<IpAddr>().ok()?, Some(prefix.parse::<u8>().ok()?)),
            None => (text.parse::<IpAddr>().ok()?, None),
        };
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.unwrap_or(bits);
        (prefix <= bits).then(|| Self::of(address, prefix))
    }

    /// Whether `address` is in this network.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = unmapped(address);
        address.is_ipv4() == self.address.is_ipv4() && Self::of(address, self.prefix).address == self.address
    }

    /// The network's address.
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// The prefix length in bits.
    pub const fn prefix(&self) -> u8 {
        self.prefix
    }
}

impl fmt::Display for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.address, self.prefix)
    }
}

/// Many networks, in which an address is found in logarithmic time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkSet {
    /// The first and the last address of each range, in order and without overlap.
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

impl NetworkSet {
    /// Whether it has no network.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Whether `address` is in one of the networks.
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        match unmapped(address) {
            IpAddr::V4(v4) => is_in(&self.v4, v4.to_bits()),
            IpAddr::V6(v6) => is_in(&self.v6, v6.to_bits()),
        }
    }
}

impl FromIterator<Network> for NetworkSet {
    fn from_iter<I: IntoIterator<Item = Network>>(networks: I) -> Self {
        let mut set = Self::default();
        for Network { address, prefix } in networks {
            match address {
                IpAddr::V4(v4) => {
                    let rest = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
                    set.v4.push((v4.to_bits(), v4.to_bits() | rest));
                }
                IpAddr::V6(v6) => {
                    let rest = u128::MAX.checked_shr(prefix.into()).unwrap_or(0);
                    set.v6.push((v6.to_bits(), v6.to_bits() | rest));
                }
            }
        }
        merge(&mut set.v4);
        merge(&mut set.v6);
        set
    }
}

fn is_in<T: Copy + Ord>(ranges: &[(T, T)], address: T) -> bool {
    let after = ranges.partition_point(|range| range.0 <= address);
    after.checked_sub(1).is_some_and(|index| address <= ranges[index].1)
}

/// Orders ranges and joins those that overlap.
fn merge<T: Copy + Ord>(ranges: &mut Vec<(T, T)>) {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let overlaps = next.0 <= last.1;
        if overlaps {
            last.1 = last.1.max(next.1);
        }
        overlaps
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_address_is_the_ipv4_address() {
        let mapped: IpAddr = "::ffff:203.0.113.7".parse().unwrap();
        assert_eq!(Network::of(mapped, 24), Network::parse("203.0.113.0/24").unwrap());
        assert!(Network::parse("203.0.113.0/24").unwrap().contains(mapped));
    }

    #[test]
    fn a_network_contains_its_addresses_and_no_others() {
        let network = Network::parse("2001:db8:1:2::/64").unwrap();
        assert!(network.contains("2001:db8:1:2:ffff::1".parse().unwrap()));
        assert!(!network.contains("2001:db8:1:3::1".parse().unwrap()));
        assert!(Network::parse("0.0.0.0/0").unwrap().contains("8.8.8.8".parse().unwrap()));
        assert!(!Network::parse("0.0.0.0/0").unwrap().contains("::1".parse().unwrap()));
    }

    #[test]
    fn a_set_contains_what_one_of_its_networks_contains() {
        let networks: Vec<_> =
            ["10.0.0.0/8", "10.1.0.0/16", "192.0.2.7", "0.0.0.0/30", "255.255.255.255", "2001:db8::/32", "::1"]
                .map(|text| Network::parse(text).unwrap())
                .into();
        let set: NetworkSet = networks.iter().copied().collect();
        assert!(!set.is_empty() && NetworkSet::default().is_empty());
        for text in [
            "9.255.255.255",
            "10.0.0.0",
            "10.1.2.3",
            "10.255.255.255",
            "11.0.0.0",
            "192.0.2.6",
            "192.0.2.7",
            "192.0.2.8",
            "0.0.0.0",
            "0.0.0.3",
            "0.0.0.4",
            "255.255.255.254",
            "255.255.255.255",
            "::ffff:10.0.0.1",
            "::",
            "::1",
            "::2",
            "2001:db8:ffff::",
            "2001:db9::",
        ] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(set.contains(address), networks.iter().any(|network| network.contains(address)), "{text}");
        }
        let everything: NetworkSet = Network::parse("::/0").into_iter().collect();
        assert!(
            everything.contains("2001:db8::1".parse().unwrap()) && !everything.contains("8.8.8.8".parse().unwrap())
        );
    }

    #[test]
    fn invalid_text_is_no_network() {
        for text in ["", "10.0.0.0/33", "10.0.0", "::/129", "10.0.0.0/-1", "10.0.0.0/8/8"] {
            assert_eq!(Network::parse(text), None, "{text}");
        }
    }
}
