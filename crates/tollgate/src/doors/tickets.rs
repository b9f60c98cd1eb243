//! Tickets of admitted requests, kept until their end is reported.
//!
//! A ticket's name is where it is kept and a random number, so nobody can guess the name of another client's ticket. Each thread keeps the tickets that it
//! has issued behind its own lock; the report may come to any thread. Tickets that hold nothing until the request ends (only counting limits were
//! charged) are of use only to give the charge back, so they have a small room of their own and cannot push out the others.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate_core::time::Moment;

use crate::gate::DoorTicket;

/// Tickets of a thread that hold nothing until the request ends.
const LIGHT_PER_THREAD: usize = 1024;
/// No name is longer than this.
const NAME_BYTES_MAX: usize = 48;

/// All tickets.
pub(super) struct Tickets {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
}

/// The tickets that one thread has issued: those that hold something, and the others.
struct Shard {
    rooms: [Room; 2],
    issued: u64,
}

/// So many tickets.
struct Room {
    slots: Vec<Option<Kept>>,
    free: Vec<u32>,
    /// Slots in the order in which they were taken. An entry whose ticket has left is skipped.
    order: VecDeque<(u32, u64)>,
    max: usize,
}

struct Kept {
    secret: u64,
    deadline: Moment,
    ticket: DoorTicket,
}

/// The name of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TicketId {
    shard: usize,
    room: usize,
    slot: u32,
    secret: u64,
}

impl fmt::Display for TicketId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:x}-{:x}-{:x}-{:016x}", self.shard, self.room, self.slot, self.secret)
    }
}

impl TicketId {
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
    /// Room for `tickets_max` tickets that hold something, split over so many threads.
    pub(super) fn new(threads: usize, tickets_max: usize) -> Self {
        let shard = || {
            let open = Room::new(tickets_max.div_ceil(threads.max(1)));
            Mutex::new(Shard { rooms: [open, Room::new(LIGHT_PER_THREAD)], issued: 0 })
        };
        Self { shards: (0..threads.max(1)).map(|_| shard()).collect(), hasher: RandomState::new() }
    }

    fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a ticket. If there is no room, the oldest leaves for it.
    pub(super) fn keep(
        &self,
        shard: usize,
        ticket: DoorTicket,
        is_open: bool,
        deadline: Moment,
    ) -> (TicketId, Option<DoorTicket>) {
        let room = usize::from(!is_open);
        let mut all = self.shard(shard);
        all.issued += 1;
        let secret = self.hasher.hash_one((shard, all.issued));
        let (slot, evicted) = all.rooms[room].put(Kept { secret, deadline, ticket });
        (TicketId { shard, room, slot, secret }, evicted.map(|kept| kept.ticket))
    }

    /// The ticket of this name, which is not kept any more.
    pub(super) fn take(&self, name: &str) -> Option<DoorTicket> {
        let id = TicketId::parse(name).filter(|id| id.shard < self.shards.len() && id.room < 2)?;
        self.shard(id.shard).rooms[id.room].take(id.slot, id.secret).map(|kept| kept.ticket)
    }

    /// Hands the tickets of a thread whose deadline is over to `expired`.
    pub(super) fn expire(&self, shard: usize, now: Moment, mut expired: impl FnMut(DoorTicket)) {
        for room in 0..2 {
            let due = self.shard(shard).rooms[room].due(now);
            for (slot, secret) in due {
                let kept = self.shard(shard).rooms[room].take(slot, secret);
                kept.into_iter().for_each(|kept| expired(kept.ticket));
            }
        }
    }

    /// The number of requests whose end is not known yet.
    pub(super) fn open(&self) -> usize {
        (0..self.shards.len()).map(|index| self.shard(index).rooms[0].count()).sum()
    }

    /// How many tickets are kept.
    pub(super) fn count(&self) -> usize {
        let rooms = |index: usize| self.shard(index).rooms.iter().map(Room::count).sum::<usize>();
        (0..self.shards.len()).map(rooms).sum()
    }
}

impl Room {
    fn new(max: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), order: VecDeque::new(), max: max.max(1) }
    }

    fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn put(&mut self, kept: Kept) -> (u32, Option<Kept>) {
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

    fn oldest(&mut self) -> Option<Kept> {
        while let Some((slot, secret)) = self.order.pop_front() {
            let kept = self.take(slot, secret);
            if kept.is_some() {
                return kept;
            }
        }
        None
    }

    fn take(&mut self, slot: u32, secret: u64) -> Option<Kept> {
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
    fn the_name_of_a_ticket_is_read_back_and_nothing_else_is_one() {
        let id = TicketId { shard: 3, room: 1, slot: 77, secret: u64::MAX };
        assert_eq!(TicketId::parse(&id.to_string()), Some(id));
        for name in ["", "-", "0-0-0", "0-0-0-0-0", "0-0-0-x", "0-0-ffffffffffffffffff-0", &"0".repeat(49)] {
            assert_eq!(TicketId::parse(name), None, "{name}");
        }
    }
}
