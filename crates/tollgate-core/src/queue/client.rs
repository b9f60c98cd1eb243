//! The client of a request, as the queue sees it.

/// Levels that are charged: block, network, address.
pub(super) const TAGS: usize = 3;
/// Levels that are ordered: those, and the tenant.
pub(super) const KEYS: usize = TAGS + 1;
/// The index of the address among the levels.
pub(super) const ADDRESS: usize = 2;

/// The keys of a request's client, as keyed hashes, all different.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Of the block (IPv4 /16, IPv6 /48).
    pub block: u64,
    /// Of the network (/24, /56).
    pub network: u64,
    /// Of the address (/32, /64).
    pub address: u64,
    /// Of one user behind the address, such as a connection. Tenants of an address take turns.
    pub tenant: u64,
}

impl Client {
    pub(super) const fn keys(&self) -> [u64; KEYS] {
        // The same tenant behind another address is another one.
        [self.block, self.network, self.address, self.tenant ^ self.address.rotate_left(32)]
    }
}

/// The share of the backend that each level is due, in thousandths of its cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// One address.
    pub address_milli: u32,
    /// Its network.
    pub network_milli: u32,
    /// Its block.
    pub block_milli: u32,
}

/// The tag that decides about a client: the largest of its address, network and block.
pub(super) fn largest(tags: [u64; TAGS]) -> u64 {
    tags.into_iter().fold(0, u64::max)
}
