//! The requests that wait, ordered by tag, where a tag is the largest over address, network and block.
//!
//! A network's tag changes with every request of every address in it, so a plain heap of requests would have to be rebuilt each time. But
//! the smallest of the largest can be found level by level: a network is as early as its earliest address allows and no earlier than its
//! own tag, and so is a block. So each has an ordered set of what waits in it, and a change travels three steps up.

use super::{BEHIND, Client, LEVELS, Ticket};
use crate::prediction::Expected;
use crate::time::Span;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// A place in the order, in virtual time, then who has been waiting for its turn longest.
type Order = (u64, u64);

/// The node that all blocks hang from.
const ROOT: usize = 0;

#[derive(Clone, Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    nodes_free: Vec<usize>,
    /// The node of a key, for keys of which something waits.
    index: BTreeMap<u64, usize>,
    requests: Vec<Request>,
    requests_free: Vec<usize>,
    waiting: usize,
    reserved: Span,
    turns: u64,
}

#[derive(Clone, Debug, Default)]
struct Node {
    key: u64,
    parent: usize,
    /// Where the key's next request starts.
    tag: u64,
    /// Where this node stands among its siblings.
    placed: Option<Order>,
    /// What waits below, in order; empty for an address.
    below: BTreeSet<(Order, usize)>,
    /// Of an address: its requests, and the order of the key since it last had a turn.
    newest: Option<usize>,
    oldest: Option<usize>,
    count: usize,
    reserved: Span,
    turn: Order,
    /// The last turn that was promised to a request of this address which was turned away.
    promised: u64,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    generation: u32,
    /// `None` in a place that is free.
    waits: Option<(Client, Expected)>,
    /// How far it stands behind cheaper ones, as long as its key's tag does not count.
    rank: u64,
    older: Option<usize>,
    newer: Option<usize>,
}

/// The request to go first of those in a tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    /// Where it stands.
    pub(super) order: Order,
    /// The largest tag of its client's keys.
    pub(super) tag: u64,
    /// What it is expected to cost.
    pub(super) expected: Expected,
    pub(super) ticket: Ticket,
}

/// Which of several goes: the first or the last.
type Choose = fn(&BTreeSet<(Order, usize)>) -> Option<&(Order, usize)>;

impl Tree {
    pub(super) fn new() -> Self {
        Self {
            nodes: alloc::vec![Node::default()],
            nodes_free: Vec::new(),
            index: BTreeMap::new(),
            requests: Vec::new(),
            requests_free: Vec::new(),
            waiting: 0,
            reserved: Span::ZERO,
            turns: 0,
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// What is reserved for all that wait.
    pub(super) fn reserved(&self) -> Span {
        self.reserved
    }

    /// How many requests of the client's address wait.
    pub(super) fn waiting_of(&self, client: Client) -> usize {
        self.index.get(&client.address).map_or(0, |&node| self.nodes[node].count)
    }

    /// What is reserved for the waiting requests of the client's address.
    pub(super) fn reserved_of(&self, client: Client) -> Span {
        self.index.get(&client.address).map_or(Span::ZERO, |&node| self.nodes[node].reserved)
    }

    /// The request to go first: the newest of the address whose turn it is.
    pub(super) fn first(&self) -> Option<First> {
        let (order, _) = *self.nodes[ROOT].below.first()?;
        let (tag, address) = self.descend(|below| below.first());
        let slot = self.nodes[address].newest?;
        let (_, expected) = self.requests[slot].waits?;
        Some(First { order, tag, expected, ticket: self.ticket(slot) })
    }

    /// The request to go last, with its tag: the oldest of an address.
    pub(super) fn last(&self) -> Option<(u64, Ticket)> {
        let (tag, address) = self.descend(|below| below.last());
        self.nodes[address].oldest.map(|slot| (tag, self.ticket(slot)))
    }

    /// An address, and the largest tag on the way to it.
    fn descend(&self, choose: Choose) -> (u64, usize) {
        let (mut tag, mut node) = (0, ROOT);
        while let Some(&(_, below)) = choose(&self.nodes[node].below) {
            node = below;
            tag = tag.max(self.nodes[node].tag);
        }
        (tag, node)
    }

    /// Adds a request of a client whose keys are at `tags`. It stands `rank` after `line` or after its address's tag, whichever is later; and not
    /// before its tags.
    pub(super) fn push(
        &mut self,
        client: Client,
        tags: [u64; LEVELS],
        line: u64,
        rank: u64,
        expected: Expected,
    ) -> Ticket {
        let mut node = ROOT;
        for (key, tag) in client.keys().into_iter().zip(tags) {
            node = self.child(node, key, tag);
        }
        if self.nodes[node].count == 0 {
            self.nodes[node].turn = (line, self.next_turn());
        }
        let slot = self.requests_free.pop().unwrap_or(self.requests.len());
        let older = self.nodes[node].newest;
        let request = Request { generation: 0, waits: Some((client, expected)), rank, older, newer: None };
        match self.requests.get_mut(slot) {
            Some(place) => *place = Request { generation: place.generation, ..request },
            None => self.requests.push(request),
        }
        if let Some(older) = older {
            self.requests[older].newer = Some(slot);
        }
        let leaf = &mut self.nodes[node];
        leaf.newest = Some(slot);
        leaf.oldest = leaf.oldest.or(Some(slot));
        leaf.count += 1;
        leaf.reserved = leaf.reserved + expected.reserve;
        self.waiting += 1;
        self.reserved = self.reserved + expected.reserve;
        self.place(node);
        self.ticket(slot)
    }

    /// Takes a request out, if it still waits.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<(Client, Expected)> {
        let slot = ticket.slot();
        let request = *self.requests.get(slot).filter(|request| request.generation == ticket.generation)?;
        let (client, expected) = request.waits?;
        let node = *self.index.get(&client.address)?;
        let leaf = &mut self.nodes[node];
        leaf.count -= 1;
        leaf.reserved = less(leaf.reserved, expected.reserve);
        self.reserved = less(self.reserved, expected.reserve);
        match request.newer {
            Some(newer) => self.requests[newer].older = request.older,
            None => leaf.newest = request.older,
        }
        match request.older {
            Some(older) => self.requests[older].newer = request.newer,
            None => leaf.oldest = request.newer,
        }
        let generation = request.generation.wrapping_add(1);
        self.requests[slot] = Request { generation, waits: None, rank: 0, older: None, newer: None };
        self.requests_free.push(slot);
        self.waiting -= 1;
        self.place(node);
        Some((client, expected))
    }

    /// The turn after the last one that was promised to a request of this address, which is `own` long and not before `from`.
    pub(super) fn promise(&mut self, client: Client, from: u64, own: u64) -> u64 {
        let Some(&node) = self.index.get(&client.address) else { return from.saturating_add(own) };
        let leaf = &mut self.nodes[node];
        leaf.promised = leaf.promised.max(from).saturating_add(own);
        leaf.promised
    }

    /// A request of the client was dispatched: its keys have new tags, and its address goes to the end of its equals.
    pub(super) fn served(&mut self, client: Client, tags: [u64; LEVELS], line: u64) {
        if let Some(&node) = self.index.get(&client.address) {
            self.nodes[node].turn = (line, self.next_turn());
        }
        self.retag(client, tags);
    }

    /// The client's keys have new tags.
    pub(super) fn retag(&mut self, client: Client, tags: [u64; LEVELS]) {
        for (key, tag) in client.keys().into_iter().zip(tags).rev() {
            if let Some(&node) = self.index.get(&key) {
                self.nodes[node].tag = tag;
                self.place(node);
            }
        }
    }

    /// The node of `key` under `parent`, made if there is none.
    fn child(&mut self, parent: usize, key: u64, tag: u64) -> usize {
        if let Some(&node) = self.index.get(&key) {
            return node;
        }
        let fresh = Node { key, parent, tag, ..Node::default() };
        let node = self.nodes_free.pop().unwrap_or(self.nodes.len());
        match self.nodes.get_mut(node) {
            Some(place) => *place = fresh,
            None => self.nodes.push(fresh),
        }
        self.index.insert(key, node);
        node
    }

    /// Puts a node, and what it hangs from, where they belong; a node of which nothing waits goes.
    fn place(&mut self, mut node: usize) {
        while node != ROOT {
            let order = self.order(node);
            let Node { key, parent, placed, .. } = self.nodes[node];
            if order != placed {
                if let Some(placed) = placed {
                    self.nodes[parent].below.remove(&(placed, node));
                }
                if let Some(order) = order {
                    self.nodes[parent].below.insert((order, node));
                }
                self.nodes[node].placed = order;
            }
            if order.is_none() {
                self.index.remove(&key);
                self.nodes_free.push(node);
            }
            node = parent;
        }
    }

    fn order(&self, node: usize) -> Option<Order> {
        let node = &self.nodes[node];
        let (place, turn) = match (node.below.first(), node.newest) {
            (Some(&(order, _)), _) => order,
            // Who is behind: who has had least and wants least first, and all of them before those who are ahead.
            (None, Some(newest)) => {
                let (line, turn) = node.turn;
                let place = line.max(node.tag).saturating_add(self.requests[newest].rank);
                (place.min(line.saturating_add(BEHIND.as_nanos())), turn)
            }
            (None, None) => return None,
        };
        Some((place.max(node.tag), turn))
    }

    fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    fn ticket(&self, slot: usize) -> Ticket {
        Ticket { slot: slot as u32, generation: self.requests[slot].generation }
    }
}

fn less(from: Span, span: Span) -> Span {
    Span::from_nanos(from.as_nanos().saturating_sub(span.as_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn client(address: u64) -> Client {
        Client { address: 1000 + address, network: 2000 + address / 3, block: 3000 + address / 6 }
    }

    proptest! {
        /// The tree against a list that is searched from end to end.
        #[test]
        fn the_first_is_the_smallest_of_the_largest(
            steps in prop::collection::vec((0u8..4, 0u64..12, 0u64..50, 0u64..50, 0u64..50), 1..300),
        ) {
            let mut tree = Tree::new();
            let mut tags: BTreeMap<u64, u64> = BTreeMap::new();
            let mut turns: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
            let mut waiting: Vec<(u64, Ticket)> = Vec::new();
            let mut ranks: BTreeMap<Ticket, u64> = BTreeMap::new();
            let mut turn = 0;
            for (what, address, a, b, c) in steps {
                let client = client(address);
                let known = |tags: &BTreeMap<u64, u64>| client.keys().map(|key| tags.get(&key).copied().unwrap_or(0));
                match what {
                    0 | 1 => {
                        if !waiting.iter().any(|(other, _)| *other == address) {
                            turn += 1;
                            turns.insert(address, (a, turn));
                        }
                        waiting.push((address, tree.push(client, known(&tags), a, b, Span::from_nanos(1).into())));
                        ranks.insert(waiting[waiting.len() - 1].1, b);
                    }
                    2 => {
                        for (key, tag) in client.keys().into_iter().zip([a, b, c]) {
                            tags.insert(key, tag);
                        }
                        tree.retag(client, [a, b, c]);
                    }
                    _ => {
                        if let Some(First { ticket, .. }) = tree.first() {
                            let at = waiting.iter().position(|(_, other)| *other == ticket).unwrap();
                            waiting.remove(at);
                            prop_assert!(tree.remove(ticket).is_some());
                        }
                    }
                }
                let newest = |address: u64| waiting.iter().rfind(|(other, _)| *other == address).unwrap().1;
                let tag = |address: u64| {
                    let own = self::client(address).keys().map(|key| tags.get(&key).copied().unwrap_or(0));
                    own.into_iter().fold(0, u64::max)
                };
                let own = |address: u64| tags.get(&self::client(address).address).copied().unwrap_or(0);
                let place = |address: u64| {
                    let line = turns[&address].0;
                    let place = line.max(own(address)) + ranks[&newest(address)];
                    place.min(line + BEHIND.as_nanos()).max(tag(address))
                };
                let earliest = waiting.iter().map(|(address, _)| place(*address)).min();
                prop_assert_eq!(tree.first().is_some(), earliest.is_some());
                if let Some(First { order, tag: first, ticket, .. }) = tree.first() {
                    let (address, _) = waiting.iter().find(|(_, other)| *other == ticket).unwrap();
                    prop_assert_eq!(Some(place(*address)), earliest);
                    prop_assert_eq!(Some(order.0), earliest);
                    prop_assert_eq!(newest(*address), ticket);
                    prop_assert_eq!(tag(*address), first);
                }
                prop_assert_eq!(tree.waiting(), waiting.len());
                prop_assert_eq!(tree.reserved(), Span::from_nanos(waiting.len() as u64));
            }
            for (_, ticket) in waiting {
                tree.remove(ticket);
            }
            prop_assert!(tree.index.is_empty() && tree.nodes[ROOT].below.is_empty());
        }
    }
}
