//! The tickets of admitted requests, stored until their end is reported. A ticket is the record of a request: its
//! permit and its charges.
//!
//! The name of a ticket is its position and a random number, so that a client cannot guess the ticket of another. Each
//! thread stores the tickets that it has issued behind a lock of its own; any thread can receive the report.
//!
//! A ticket is open if it must be settled at the end of the request: it has a permit, or limits in flight or budgets
//! apply. Other tickets, the light ones, serve only for a refund. They have a small store of their own, so that they
//! cannot evict open tickets.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;
use serde::{Serialize, Serializer};
use slab::Slab;
use tollgate_core::time::Moment;

use crate::gate::DoorTicket;

/// Maximum number of light tickets of a thread.
const LIGHT_PER_THREAD: usize = 1024;
/// Maximum length of a ticket's name, in bytes.
const NAME_BYTES_MAX: usize = 48;

/// All tickets.
pub(super) struct Tickets {
    /// One for each thread.
    shards: Box<[Mutex<Shard>]>,
    /// Generates the random numbers.
    hasher: RandomState,
}

/// The tickets that one thread has issued.
struct Shard {
    /// The store of open tickets, and that of light ones.
    stores: [TicketStore; 2],
    /// The number of tickets so far.
    issued: u64,
}

/// A bounded set of tickets.
struct TicketStore {
    slots: Slab<KeptTicket>,
    /// Slots and secrets in the order of insertion. An entry whose ticket was removed is skipped.
    order: VecDeque<(usize, u64)>,
    /// Maximum number of tickets.
    max: usize,
}

struct KeptTicket {
    /// The random number in its name.
    secret: u64,
    deadline: Moment,
    ticket: Box<DoorTicket>,
}

/// The name of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TicketId {
    /// The index of the thread.
    shard: usize,
    /// The index in [`Shard::stores`].
    store: usize,
    slot: usize,
    secret: u64,
}

impl fmt::Display for TicketId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:x}-{:x}-{:x}-{:x}", self.shard, self.store, self.slot, self.secret)
    }
}

impl Serialize for TicketId {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        output.collect_str(self)
    }
}

impl TicketId {
    fn parse(name: &str) -> Option<Self> {
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        let mut parts = name.split('-');
        let mut index = || usize::from_str_radix(parts.next()?, 16).ok();
        let (shard, store, slot) = (index()?, index()?, index()?);
        let secret = u64::from_str_radix(parts.next()?, 16).ok()?;
        parts.next().is_none().then_some(Self { shard, store, slot, secret })
    }
}

impl Tickets {
    /// Stores for `tickets_max` open tickets, divided among `threads`, and for light ones.
    pub(super) fn new(threads: usize, tickets_max: usize) -> Self {
        let shard = || {
            let open = TicketStore::new(tickets_max.div_ceil(threads.max(1)));
            Mutex::new(Shard { stores: [open, TicketStore::new(LIGHT_PER_THREAD)], issued: 0 })
        };
        Self { shards: (0..threads.max(1)).map(|_| shard()).collect(), hasher: RandomState::new() }
    }

    /// Stores a ticket of the thread `shard`. If the store is full, its oldest ticket is removed and returned.
    pub(super) fn keep(
        &self,
        shard: usize,
        ticket: Box<DoorTicket>,
        is_open: bool,
        deadline: Moment,
    ) -> (TicketId, Option<Box<DoorTicket>>) {
        let store = usize::from(!is_open);
        let mut all = self.shards[shard].lock();
        all.issued += 1;
        let secret = self.hasher.hash_one((shard, all.issued));
        let (slot, evicted) = all.stores[store].put(KeptTicket { secret, deadline, ticket });
        (TicketId { shard, store, slot, secret }, evicted.map(|kept| kept.ticket))
    }

    /// Removes and returns the ticket with this name.
    pub(super) fn take(&self, name: &str) -> Option<Box<DoorTicket>> {
        let id = TicketId::parse(name).filter(|id| id.shard < self.shards.len() && id.store < 2)?;
        self.shards[id.shard].lock().stores[id.store].take(id.slot, id.secret).map(|kept| kept.ticket)
    }

    /// Removes the expired tickets of a thread and passes them to `expired`.
    pub(super) fn expire(&self, shard: usize, now: Moment, mut expired: impl FnMut(Box<DoorTicket>)) {
        for store in 0..2 {
            let due = self.shards[shard].lock().stores[store].due(now);
            for (slot, secret) in due {
                let kept = self.shards[shard].lock().stores[store].take(slot, secret);
                kept.into_iter().for_each(|kept| expired(kept.ticket));
            }
        }
    }

    /// The number of open tickets: requests whose end is not known yet.
    pub(super) fn open(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().stores[0].slots.len()).sum()
    }

    /// The number of all tickets.
    pub(super) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().stores.iter().map(|store| store.slots.len()).sum::<usize>()).sum()
    }
}

impl TicketStore {
    fn new(max: usize) -> Self {
        Self { slots: Slab::new(), order: VecDeque::new(), max: max.max(1) }
    }

    fn put(&mut self, kept: KeptTicket) -> (usize, Option<KeptTicket>) {
        let evicted = if self.slots.len() >= self.max { self.take_oldest() } else { None };
        let secret = kept.secret;
        let slot = self.slots.insert(kept);
        self.order.push_back((slot, secret));
        // Tickets that were settled leave entries in `order`.
        if self.order.len() > 2 * self.max {
            let is_kept =
                |&(slot, secret): &(usize, u64)| self.slots.get(slot).is_some_and(|kept| kept.secret == secret);
            self.order.retain(is_kept);
        }
        (slot, evicted)
    }

    /// Removes the oldest ticket.
    fn take_oldest(&mut self) -> Option<KeptTicket> {
        while let Some((slot, secret)) = self.order.pop_front() {
            let kept = self.take(slot, secret);
            if kept.is_some() {
                return kept;
            }
        }
        None
    }

    fn take(&mut self, slot: usize, secret: u64) -> Option<KeptTicket> {
        self.slots.get(slot).filter(|kept| kept.secret == secret)?;
        self.slots.try_remove(slot)
    }

    /// Slots and secrets of the tickets whose deadline has passed.
    fn due(&self, now: Moment) -> Vec<(usize, u64)> {
        let due = self.slots.iter().filter(|(_, kept)| kept.deadline <= now);
        due.map(|(slot, kept)| (slot, kept.secret)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_ticket_is_parsed_and_other_texts_are_refused() {
        let id = TicketId { shard: 3, store: 1, slot: 77, secret: u64::MAX };
        assert_eq!(id.to_string(), "3-1-4d-ffffffffffffffff");
        assert_eq!(TicketId::parse("3-1-4d-ffffffffffffffff"), Some(id));
        for name in ["", "-", "0-0-0", "0-0-0-0-0", "0-0-0-x", "0-0-ffffffffffffffffff-0", &"0".repeat(49)] {
            assert_eq!(TicketId::parse(name), None, "{name}");
        }
    }
}
