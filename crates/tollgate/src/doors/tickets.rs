//! The tickets of admitted requests, stored until their end is reported.
//!
//! The name of a ticket is its position and a random number, so that a client cannot guess the ticket of another. Each
//! thread stores the tickets that it has issued behind a lock of its own; any thread can receive the report. A light
//! ticket, without a permit or a count in flight, serves only for a refund. Light tickets have a small store of their
//! own, so that they cannot evict the others.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use parking_lot::{Mutex, MutexGuard};
use tollgate_core::time::Moment;

use crate::gate::DoorTicket;

/// Maximum number of light tickets of a thread.
const LIGHT_PER_THREAD: usize = 1024;
/// Maximum length of a ticket's name, in bytes.
const NAME_BYTES_MAX: usize = 48;

/// All tickets.
pub(super) struct Tickets {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
}

/// The tickets that one thread has issued.
struct Shard {
    /// The store of tickets with a permit or a count in flight, and that of light tickets.
    stores: [TicketStore; 2],
    issued: u64,
}

/// A bounded set of tickets.
struct TicketStore {
    slots: Vec<Option<KeptTicket>>,
    free: Vec<u32>,
    /// Slots in the order of insertion. An entry whose ticket was removed is skipped.
    order: VecDeque<(u32, u64)>,
    max: usize,
}

struct KeptTicket {
    secret: u64,
    deadline: Moment,
    ticket: Box<DoorTicket>,
}

/// The name of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TicketId {
    shard: usize,
    room: usize,
    slot: u32,
    secret: u64,
}

impl TicketId {
    /// Writes the name.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        for number in [self.shard as u64, self.room as u64, self.slot.into(), self.secret] {
            let digits = (u64::BITS - number.leading_zeros()).div_ceil(4).max(1);
            let digit = |place: u32| b"0123456789abcdef"[(number >> (4 * place) & 15) as usize];
            out.extend((0..digits).rev().map(digit));
            out.push(b'-');
        }
        out.pop();
    }

    fn parse(name: &str) -> Option<Self> {
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        let mut parts = name.split('-').map(|part| u64::from_str_radix(part, 16).ok());
        let mut next = || parts.next().flatten();
        let (shard, room, slot, secret) = (next()?, next()?, next()?, next()?);
        let id = Self {
            shard: usize::try_from(shard).ok()?,
            room: usize::try_from(room).ok()?,
            slot: u32::try_from(slot).ok()?,
            secret,
        };
        parts.next().is_none().then_some(id)
    }
}

impl Tickets {
    /// A store for `tickets_max` tickets, besides light ones, divided among `threads`.
    pub(super) fn new(threads: usize, tickets_max: usize) -> Self {
        let shard = || {
            let open = TicketStore::new(tickets_max.div_ceil(threads.max(1)));
            Mutex::new(Shard { stores: [open, TicketStore::new(LIGHT_PER_THREAD)], issued: 0 })
        };
        Self { shards: (0..threads.max(1)).map(|_| shard()).collect(), hasher: RandomState::new() }
    }

    fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].lock()
    }

    /// Stores a ticket. If the store is full, the oldest ticket is removed and returned.
    pub(super) fn keep(
        &self,
        shard: usize,
        ticket: Box<DoorTicket>,
        is_open: bool,
        deadline: Moment,
    ) -> (TicketId, Option<Box<DoorTicket>>) {
        let room = usize::from(!is_open);
        let mut all = self.shard(shard);
        all.issued += 1;
        let secret = self.hasher.hash_one((shard, all.issued));
        let (slot, evicted) = all.stores[room].put(KeptTicket { secret, deadline, ticket });
        (TicketId { shard, room, slot, secret }, evicted.map(|kept| kept.ticket))
    }

    /// Removes and returns the ticket with this name.
    pub(super) fn take(&self, name: &str) -> Option<Box<DoorTicket>> {
        let id = TicketId::parse(name).filter(|id| id.shard < self.shards.len() && id.room < 2)?;
        self.shard(id.shard).stores[id.room].take(id.slot, id.secret).map(|kept| kept.ticket)
    }

    /// Removes the expired tickets of a thread and passes them to `expired`.
    pub(super) fn expire(&self, shard: usize, now: Moment, mut expired: impl FnMut(Box<DoorTicket>)) {
        for room in 0..2 {
            let due = self.shard(shard).stores[room].due(now);
            for (slot, secret) in due {
                let kept = self.shard(shard).stores[room].take(slot, secret);
                kept.into_iter().for_each(|kept| expired(kept.ticket));
            }
        }
    }

    /// The number of requests whose end is not known yet.
    pub(super) fn open(&self) -> usize {
        (0..self.shards.len()).map(|index| self.shard(index).stores[0].count()).sum()
    }

    /// The number of tickets.
    pub(super) fn count(&self) -> usize {
        let in_shard = |index: usize| self.shard(index).stores.iter().map(TicketStore::count).sum::<usize>();
        (0..self.shards.len()).map(in_shard).sum()
    }
}

impl TicketStore {
    fn new(max: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), order: VecDeque::new(), max: max.max(1) }
    }

    fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn put(&mut self, kept: KeptTicket) -> (u32, Option<KeptTicket>) {
        let evicted = if self.count() >= self.max { self.oldest() } else { None };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                (self.slots.len() - 1) as u32
            }
        };
        self.order.push_back((slot, kept.secret));
        self.slots[slot as usize] = Some(kept);
        if self.order.len() > 2 * self.max {
            let slots = &self.slots;
            self.order
                .retain(|(slot, secret)| slots[*slot as usize].as_ref().is_some_and(|kept| kept.secret == *secret));
        }
        (slot, evicted)
    }

    fn oldest(&mut self) -> Option<KeptTicket> {
        while let Some((slot, secret)) = self.order.pop_front() {
            let kept = self.take(slot, secret);
            if kept.is_some() {
                return kept;
            }
        }
        None
    }

    fn take(&mut self, slot: u32, secret: u64) -> Option<KeptTicket> {
        let place = self.slots.get_mut(slot as usize)?;
        let kept = place.take_if(|kept| kept.secret == secret)?;
        self.free.push(slot);
        Some(kept)
    }

    fn due(&self, now: Moment) -> Vec<(u32, u64)> {
        let kept = self.slots.iter().enumerate().filter_map(|(slot, kept)| Some((slot as u32, kept.as_ref()?)));
        kept.filter(|(_, kept)| kept.deadline <= now).map(|(slot, kept)| (slot, kept.secret)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_ticket_is_parsed_and_other_texts_are_refused() {
        let id = TicketId { shard: 3, room: 1, slot: 77, secret: u64::MAX };
        let mut name = Vec::new();
        id.write(&mut name);
        assert_eq!(name, b"3-1-4d-ffffffffffffffff");
        assert_eq!(TicketId::parse("3-1-4d-ffffffffffffffff"), Some(id));
        for name in ["", "-", "0-0-0", "0-0-0-0-0", "0-0-0-x", "0-0-ffffffffffffffffff-0", &"0".repeat(49)] {
            assert_eq!(TicketId::parse(name), None, "{name}");
        }
    }
}
