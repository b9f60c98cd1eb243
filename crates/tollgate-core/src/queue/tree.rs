//! Waiting requests in fair order: one lane of the queue, for requests whose prices are in one octave (factor of two).
//!
//! Every address, network and block has a tag in virtual time, which advances by what its requests cost (`charge.rs`).
//! A request's rank is the largest tag over its address, network and block. A network's tag changes with every request
//! of every address in it, so a plain heap of requests would have to be rebuilt each time. The smallest of the largest
//! can be found level by level instead: a node ranks no earlier than its own tag, and no earlier than its first child.
//! Each node keeps an ordered set of its children, and a change travels four steps up: tenant, address, network, block.
//!
//! Tags are compared in coarse steps, quanta. Among siblings of the same quantum, the one that was served longest ago
//! goes first. So a newcomer waits for one request of each competing block, not for the backlog of a crawler. Below an
//! address, tenants (connections of one NAT, for example) take turns in the same way. Within a tenant, requests leave
//! in order of arrival.

use super::client::{ADDRESS, Client, KEYS, TAGS};
use alloc::collections::{BTreeMap, BTreeSet};

/// Tags are compared in steps of 2^31 ns (2.1 s of virtual time). A finer order would make equal clients wait for each
/// other's last millisecond, and their slowest requests 1.6 times as slow.
const QUANTUM_BITS: u32 = 31;

/// Position among siblings: the quantised tag, then the turn.
pub(super) type Rank = (u64, u64);

/// The children of a node, in order: the keys of nodes or, of a tenant, the slots of its requests.
type Children = BTreeSet<(Rank, u64)>;

/// A move among siblings: the node's key or the request's slot, its rank before, and its rank after. Without a rank, it
/// is not among them.
type Move = (u64, Option<Rank>, Option<Rank>);

#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    blocks: Children,
    /// The node of each key that has requests waiting.
    nodes: BTreeMap<u64, Node>,
    /// How many addresses have requests waiting.
    pub(super) addresses: u32,
}

#[derive(Clone, Debug)]
struct Node {
    /// The quantised tag of the key; 0 for a tenant.
    quantum: u64,
    /// When it was last served, or else when its first request arrived.
    turn: u64,
    /// The rank under which the parent's set holds this node.
    placed: Option<Rank>,
    children: Children,
}

/// A waiting request at one end of the order.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    /// The position of its block, or of its tenant within one address.
    pub(super) rank: Rank,
    pub(super) request: u32,
}

impl Tree {
    /// How many blocks have requests waiting.
    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The request to dispatch first.
    pub(super) fn first(&self) -> Option<End> {
        self.end(&self.blocks, KEYS, BTreeSet::first)
    }

    /// The request to dispatch last: the newest of the client furthest ahead.
    pub(super) fn last(&self) -> Option<End> {
        self.end(&self.blocks, KEYS, BTreeSet::last)
    }

    /// The newest request of the tenant of an address that was served last.
    pub(super) fn newest_of(&self, address: u64) -> Option<u32> {
        self.end(&self.nodes.get(&address)?.children, KEYS - TAGS, BTreeSet::last).map(|end| end.request)
    }

    /// The request at one end of the order below some nodes, with this many levels of nodes between them.
    fn end(&self, top: &Children, levels: usize, choose: fn(&Children) -> Option<&(Rank, u64)>) -> Option<End> {
        let &(rank, mut at) = choose(top)?;
        for _ in 0..levels {
            at = choose(&self.nodes.get(&at)?.children)?.1;
        }
        Some(End { rank, request: at as u32 })
    }

    /// How many blocks go before this one, counted up to `most`. A block that has nothing waiting would be at `rank`.
    pub(super) fn blocks_before(&self, block: u64, rank: Rank, most: usize) -> usize {
        let rank = self.nodes.get(&block).and_then(|node| node.placed).unwrap_or(rank);
        self.blocks.range(..(rank, 0)).take(most).count()
    }

    /// Adds a request of a client whose keys are at `tags`. `turn` is the number of requests that came before it.
    pub(super) fn push(&mut self, client: &Client, tags: [u64; TAGS], request: u32, turn: u64) {
        for (depth, key) in client.keys().into_iter().enumerate() {
            self.nodes.entry(key).or_insert_with(|| {
                self.addresses += u32::from(depth == ADDRESS);
                let quantum = tags.get(depth).copied().map_or(0, quantum);
                Node { quantum, turn, placed: None, children: Children::new() }
            });
        }
        self.change(client, (request.into(), None, Some((0, turn))), |_, _| ());
    }

    /// Removes a request that waits here since `turn`.
    pub(super) fn remove(&mut self, client: &Client, request: u32, turn: u64) {
        self.change(client, (request.into(), Some((0, turn)), None), |_, _| ());
    }

    /// A request of the client was dispatched: its tenant, address, network and block go to the end of their rounds.
    pub(super) fn served(&mut self, client: &Client, turn: u64) {
        self.change(client, Move::default(), |_, node| node.turn = turn);
    }

    /// The client's keys have new tags.
    pub(super) fn retag(&mut self, client: &Client, tags: [u64; TAGS]) {
        self.change(client, Move::default(), |depth, node| node.quantum = tags.get(depth).copied().map_or(0, quantum));
    }

    /// Moves a request of a client, and changes those of its nodes that have requests waiting, from its tenant up. Moves
    /// each node to where it belongs, and removes it if it has nothing waiting any more.
    fn change(&mut self, client: &Client, mut moved: Move, change: impl Fn(usize, &mut Node)) {
        for (depth, key) in client.keys().into_iter().enumerate().rev() {
            let Some(node) = self.nodes.get_mut(&key) else { continue };
            place(&mut node.children, moved);
            change(depth, node);
            let rank = node.children.first().map(|&((quantum, _), _)| (quantum.max(node.quantum), node.turn));
            moved = (key, core::mem::replace(&mut node.placed, rank), rank);
            if rank.is_none() {
                self.nodes.remove(&key);
                self.addresses -= u32::from(depth == ADDRESS);
            }
        }
        place(&mut self.blocks, moved);
    }
}

/// Moves a node or request among its siblings.
fn place(siblings: &mut Children, (key, from, to): Move) {
    if from != to {
        from.map(|rank| siblings.remove(&(rank, key)));
        to.map(|rank| siblings.insert((rank, key)));
    }
}

/// Tags in the same quantum are equal in the order.
pub(super) const fn quantum(tag: u64) -> u64 {
    tag >> QUANTUM_BITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn client(address: u64, tenant: u64) -> Client {
        Client {
            block: 3000 + address / 6,
            network: 2000 + address / 3,
            address: 1000 + address,
            tenant: 5000 + address * 10 + tenant,
        }
    }

    proptest! {
        /// The tree against a list that is searched from end to end.
        #[test]
        fn the_first_has_the_smallest_of_the_largest_tags(
            steps in prop::collection::vec((0u8..4, 0u64..12, 0u64..3, 0u64..50, 0u64..50, 0u64..50), 1..300),
        ) {
            let quantum = 1 << QUANTUM_BITS;
            let mut tree = Tree::default();
            let mut tags: BTreeMap<u64, u64> = BTreeMap::new();
            let mut waiting: Vec<(Client, u32)> = Vec::new();
            for (id, (what, address, tenant, a, b, c)) in steps.into_iter().enumerate() {
                let client = client(address, tenant);
                let known = |client: &Client| {
                    let [block, network, address, _] = client.keys();
                    [block, network, address].map(|key| tags.get(&key).copied().unwrap_or(0))
                };
                match what {
                    0 | 1 => {
                        tree.push(&client, known(&client), id as u32, id as u64);
                        waiting.push((client, id as u32));
                    }
                    2 => {
                        let new = [a * quantum, b * quantum, c * quantum];
                        for (key, tag) in client.keys().into_iter().zip(new) {
                            tags.insert(key, tag);
                        }
                        tree.retag(&client, new);
                    }
                    _ if !waiting.is_empty() => {
                        let (client, request) = waiting.remove(a as usize % waiting.len());
                        tree.remove(&client, request, u64::from(request));
                    }
                    _ => {}
                }
                let known = |client: &Client| {
                    let [block, network, address, _] = client.keys();
                    [block, network, address].map(|key| tags.get(&key).copied().unwrap_or(0)).into_iter().max().unwrap()
                };
                let least = waiting.iter().map(|(client, _)| known(client)).min();
                let most = waiting.iter().map(|(client, _)| known(client)).max();
                prop_assert_eq!(tree.first().map(|end| end.rank.0 * quantum), least);
                prop_assert!(tree.last().map(|end| end.rank.0 * quantum) <= most);
                prop_assert_eq!(tree.blocks() == 0, waiting.is_empty());
                let mut addresses: Vec<_> = waiting.iter().map(|(client, _)| client.address).collect();
                addresses.sort_unstable();
                addresses.dedup();
                prop_assert_eq!(tree.addresses as usize, addresses.len());
            }
        }
    }

    #[test]
    fn tenants_of_an_address_take_turns_and_each_is_in_order() {
        let mut tree = Tree::default();
        for (request, tenant) in [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2)] {
            tree.push(&client(1, tenant), [0; TAGS], request, u64::from(request));
        }
        let mut order = Vec::new();
        let mut turn = 10;
        while let Some(End { request, .. }) = tree.first() {
            let tenant = client(1, if request < 3 { 1 } else { 2 });
            tree.remove(&tenant, request, u64::from(request));
            turn += 1;
            tree.served(&tenant, turn);
            order.push(request);
        }
        assert_eq!(order, [0, 3, 1, 4, 2]);
    }
}
