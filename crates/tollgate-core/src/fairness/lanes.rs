//! Two trees of requests that wait: one for what is light beside the rest, one for the rest.
//!
//! Requests of clients behind their share stand in one line all the same, whichever lane they are in. Those of clients that are ahead take
//! turns by lane: each lane gets half of what there is, as long as it wants it.

use super::costs::Costs;
use super::tree::{First, Tree};
use super::{Client, LEVELS, Ticket};
use crate::prediction::Expected;
use crate::time::Span;

/// How many lanes there are.
const LANES: usize = 2;

/// A lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// For requests that are light beside the others.
    Light,
    /// For the others.
    Common,
}

impl Lane {
    const ALL: [Self; LANES] = [Self::Light, Self::Common];
}

#[derive(Clone, Debug)]
pub(super) struct Lanes {
    trees: [Tree; LANES],
    /// What has gone of each lane.
    had: [u64; LANES],
    costs: Costs,
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self { trees: [Tree::new(), Tree::new()], had: [0; LANES], costs: Costs::default() }
    }

    pub(super) fn waiting(&self) -> usize {
        self.trees.iter().map(Tree::waiting).sum()
    }

    /// What those who wait are expected to cost.
    pub(super) fn costs(&self) -> Costs {
        self.costs
    }

    /// What is reserved for all that wait.
    pub(super) fn reserved(&self) -> Span {
        self.trees.iter().fold(Span::ZERO, |sum, tree| sum + tree.reserved())
    }

    /// How many requests of the client's address wait.
    pub(super) fn waiting_of(&self, client: Client) -> usize {
        self.trees.iter().map(|tree| tree.waiting_of(client)).sum()
    }

    /// What is reserved for the waiting requests of the client's address.
    pub(super) fn reserved_of(&self, client: Client) -> Span {
        self.trees.iter().fold(Span::ZERO, |sum, tree| sum + tree.reserved_of(client))
    }

    /// The first of each lane, in the order in which they go. Those whose tag is not beyond `front` are behind their share.
    pub(super) fn firsts(&self, front: u64) -> impl Iterator<Item = First> + use<> {
        let [light, common] = Lane::ALL.map(|lane| self.first(lane));
        let common_goes_first = match (&light, &common) {
            (Some(light), Some(common)) => match (light.tag <= front, common.tag <= front) {
                (true, true) => common.order < light.order,
                (true, false) => false,
                (false, _) => self.had[Lane::Common as usize] < self.had[Lane::Light as usize],
            },
            _ => false,
        };
        let order = if common_goes_first { [common, light] } else { [light, common] };
        order.into_iter().flatten()
    }

    fn first(&self, lane: Lane) -> Option<First> {
        let first = self.trees[lane as usize].first()?;
        Some(First { ticket: first.ticket.in_lane(lane), ..first })
    }

    /// The tag of those whose turn it is.
    pub(super) fn least_tag(&self) -> Option<u64> {
        self.trees.iter().filter_map(|tree| tree.first().map(|first| first.tag)).min()
    }

    /// Whether a request waits in this lane whose tag is not beyond `front`.
    pub(super) fn waits_in(&self, lane: Lane, front: u64) -> bool {
        self.trees[lane as usize].first().is_some_and(|first| first.tag <= front)
    }

    /// The lane of a request that waits.
    pub(super) fn lane(&self, ticket: Ticket) -> Lane {
        Lane::ALL[ticket.slot() % LANES]
    }

    /// A request of this lane goes, or cost more or less than was thought. What a lane did not want while it was empty is not made up for.
    pub(super) fn charge(&mut self, lane: Lane, cost: Span, by: fn(u64, u64) -> u64) {
        let other = Lane::ALL[1 - lane as usize];
        let had = by(self.had[lane as usize], cost.as_nanos());
        self.had[lane as usize] = had;
        if self.trees[other as usize].waiting() == 0 {
            self.had[other as usize] = self.had[other as usize].max(had);
        }
    }

    /// The request to go last, with its tag.
    pub(super) fn last(&self) -> Option<(u64, Ticket)> {
        let last = |lane: Lane| self.trees[lane as usize].last().map(|(tag, ticket)| (tag, ticket.in_lane(lane)));
        Lane::ALL.into_iter().filter_map(last).max_by_key(|(tag, _)| *tag)
    }

    /// Adds a request: see [`Tree::push`].
    pub(super) fn push(
        &mut self,
        lane: Lane,
        client: Client,
        tags: [u64; LEVELS],
        (line, rank): (u64, u64),
        expected: Expected,
    ) -> Ticket {
        self.costs.add(expected.reserve);
        self.trees[lane as usize].push(client, tags, line, rank, expected).in_lane(lane)
    }

    /// Takes a request out, if it still waits.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<(Client, Expected)> {
        let (client, expected) = self.trees[self.lane(ticket) as usize].remove(ticket.in_tree())?;
        self.costs.remove(expected.reserve);
        Some((client, expected))
    }

    /// The turn after the last one that was promised to a request of this address in this lane: see [`Tree::promise`].
    pub(super) fn promise(&mut self, lane: Lane, client: Client, from: u64, own: u64) -> u64 {
        self.trees[lane as usize].promise(client, from, own)
    }

    /// A request of the client was dispatched.
    pub(super) fn served(&mut self, client: Client, tags: [u64; LEVELS], line: u64) {
        self.trees.iter_mut().for_each(|tree| tree.served(client, tags, line));
    }

    /// The client's keys have new tags.
    pub(super) fn retag(&mut self, client: Client, tags: [u64; LEVELS]) {
        self.trees.iter_mut().for_each(|tree| tree.retag(client, tags));
    }
}

impl Ticket {
    /// Tickets of different lanes have different slots.
    const fn in_lane(self, lane: Lane) -> Self {
        Self { slot: self.slot * LANES as u32 + lane as u32, ..self }
    }

    const fn in_tree(self) -> Self {
        Self { slot: self.slot / LANES as u32, ..self }
    }
}
