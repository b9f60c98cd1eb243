//! The clients of the site, in three crowds, and their addresses.
//!
//! Every client binds the loopback address (127.x.y.z) that is assigned to it before it connects, so a proxy sees
//! distinct clients without any header. [`HEADER`] has the crowd, for the site's counters only; nothing that decides
//! on requests may read it.

use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// The request header with the client's crowd.
pub const HEADER: &str = "x-crowd";

/// The number of people, each in a separate network.
pub const HUMANS: u8 = 40;

/// The default number of the crawler's connections.
pub const CRAWLER_CONNECTIONS: u16 = 64;

/// The number of /16s of a crawler that is [`Origin::Everywhere`].
const EVERYWHERE_BLOCKS: u16 = 64;

/// A group of clients that is reported together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Crowd {
    /// People, each with a separate address.
    Human,
    /// Thirty people behind one address.
    Office,
    /// The client that causes the overload.
    Crawler,
}

impl Crowd {
    /// All crowds, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Human, Self::Office, Self::Crawler];

    /// The crowd's name in [`HEADER`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::Human => "human",
            Self::Office => "office",
            Self::Crawler => "crawler",
        }
    }

    /// The crowd of that name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|crowd| crowd.name() == name)
    }
}

/// The networks that the crawler's connections come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// All from one address.
    Address,
    /// Each from an address of its own, all in one /24.
    Network,
    /// Each from a /24 of its own, all in one /16: a hosting provider.
    Block,
    /// From 64 addresses in 64 /16s: no prefix covers the crawler.
    Everywhere,
    /// From this many /24s, one after the other in as few /16s as possible. A connection beyond this number uses
    /// another address of one of them.
    Networks(u16),
}

/// The maximum number of /24 networks of a crawler: those of 23 /16s.
pub const NETWORKS_MAX: u16 = 23 * 256;

impl Origin {
    /// The address of the crawler's connection number `index`.
    pub const fn address(self, index: u16) -> Ipv4Addr {
        match self {
            Self::Address => Ipv4Addr::new(127, 200, 1, 1),
            Self::Network => Ipv4Addr::new(127, 200, 1, 1 + (index % 254) as u8),
            Self::Block => Ipv4Addr::new(127, 200, 1 + (index % 254) as u8, 1),
            Self::Everywhere => Ipv4Addr::new(127, 100 + (index % EVERYWHERE_BLOCKS) as u8, 1, 1),
            Self::Networks(networks) => {
                let networks = if networks == 0 { 1 } else { networks };
                let network = index % networks % NETWORKS_MAX;
                let host = 1 + (index / networks % 254) as u8;
                Ipv4Addr::new(127, 100 + (network / 256) as u8, (network % 256) as u8, host)
            }
        }
    }
}

/// The address of the office.
pub const OFFICE: Ipv4Addr = Ipv4Addr::new(127, 90, 1, 1);

/// The crowd of this address.
pub fn of_address(address: Ipv4Addr) -> Crowd {
    if address == OFFICE {
        Crowd::Office
    } else if (0..HUMANS).any(|index| human(index) == address) {
        Crowd::Human
    } else {
        Crowd::Crawler
    }
}

/// The address of human number `index`, in a separate /24 and /16.
pub const fn human(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 10 + index % HUMANS, 1, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn crawlers(origin: Origin) -> Vec<[u8; 4]> {
        (0..CRAWLER_CONNECTIONS).map(|index| origin.address(index).octets()).collect()
    }

    fn distinct(origin: Origin, octets: usize) -> usize {
        crawlers(origin).iter().map(|address| address[..octets].to_vec()).collect::<HashSet<_>>().len()
    }

    #[test]
    fn the_crawler_uses_the_networks_of_its_origin() {
        let networks = |origin| (distinct(origin, 4), distinct(origin, 3), distinct(origin, 2));
        assert_eq!(networks(Origin::Address), (1, 1, 1));
        assert_eq!(networks(Origin::Network), (64, 1, 1));
        assert_eq!(networks(Origin::Block), (64, 64, 1));
        assert_eq!(networks(Origin::Everywhere), (64, 64, 64));
        assert_eq!(networks(Origin::Networks(1)), (64, 1, 1));
        assert_eq!(networks(Origin::Networks(10)), (64, 10, 1));
        assert_eq!(networks(Origin::Networks(500)), (64, 64, 1));
    }

    #[test]
    fn no_crowd_shares_a_block_with_another() {
        let blocks = |addresses: Vec<[u8; 4]>| addresses.iter().map(|address| address[1]).collect::<HashSet<u8>>();
        let people = blocks((0..HUMANS).map(|index| human(index).octets()).chain([OFFICE.octets()]).collect());
        assert_eq!(people.len(), usize::from(HUMANS) + 1);
        for origin in [Origin::Address, Origin::Network, Origin::Block, Origin::Everywhere, Origin::Networks(5888)] {
            assert!(people.is_disjoint(&blocks(crawlers(origin))));
        }
    }

    #[test]
    fn an_address_determines_the_crowd() {
        assert_eq!(of_address(OFFICE), Crowd::Office);
        assert_eq!(of_address(human(39)), Crowd::Human);
        for origin in [Origin::Address, Origin::Network, Origin::Block, Origin::Everywhere, Origin::Networks(5888)] {
            assert!((0..CRAWLER_CONNECTIONS).all(|index| of_address(origin.address(index)) == Crowd::Crawler));
        }
    }

    #[test]
    fn a_crowd_is_found_by_its_name() {
        for crowd in Crowd::ALL {
            assert_eq!(Crowd::of_name(crowd.name()), Some(crowd));
        }
        assert_eq!(Crowd::of_name("nobody"), None);
    }
}
