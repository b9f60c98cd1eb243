//! A page: a part of the master's state in serialised form, for the file ([`super::state_file`]) and for the copy on
//! Redis ([`super::redis_copy`]).
//!
//! The state has a slot for each identifier; a page has those of a range of slots that have debt. Each is a record: the
//! domain and the identifier, each after its length in 2 bytes, then a byte with the number of limits of the domain,
//! and for each limit the nanoseconds in 8 bytes until its debt is paid back. They are durations, not moments, because
//! the reader has another clock.

use std::hash::Hasher;
use std::ops::Range;
use std::time::Duration;

use bytes::Buf as _;
use tollgate_core::time::{Moment, Span};

use super::Shared;
use super::state::MasterState;
use crate::durable;

/// A part of the state at one moment.
#[derive(Default)]
pub(super) struct StatePage {
    /// The records.
    pub(super) bytes: Vec<u8>,
    /// A digest that depends only on the debts, not on the time of writing; 0 for no debts.
    pub(super) digest: u64,
    /// The time until the last debt is paid back. After it, the page is of no use.
    pub(super) life: Duration,
}

impl StatePage {
    /// Serialises the debts in these slots, as of `now`.
    pub(super) fn of(state: &mut MasterState, slots: Range<usize>, now: Moment) -> Self {
        let mut page = Self::default();
        let (mut digest, mut life) = (durable::hasher(), Span::ZERO);
        for (domain, identifier, clears) in state.master.debts(slots, now) {
            put_bytes(&mut page.bytes, domain);
            put_bytes(&mut page.bytes, identifier);
            digest.write(domain);
            digest.write(identifier);
            page.bytes.push(clears.len() as u8);
            for clear in clears {
                let left = clear.since(now);
                page.bytes.extend_from_slice(&left.as_nanos().to_be_bytes());
                digest.write(&clear.as_nanos().to_be_bytes());
                life = life.max(left);
            }
        }
        page.digest = if page.bytes.is_empty() { 0 } else { digest.finish() };
        page.life = life.into();
        page
    }
}

/// Restores the debts in these records, which were written `away` ago, less the part that was paid back since. Returns
/// the number of identifiers, or `None` if a record is invalid.
pub(super) fn restore(mut reader: &[u8], away: Span, state: &Shared) -> Option<u64> {
    let mut state = state.borrow_mut();
    let reading = state.clock.read();
    let mut restored = 0;
    while !reader.is_empty() {
        let (domain, identifier) = (read_bytes(&mut reader)?, read_bytes(&mut reader)?);
        for index in 0..usize::from(reader.try_get_u8().ok()?) {
            let clear = (reading.now + Span::from_nanos(reader.try_get_u64().ok()?)).before(away);
            if clear > reading.now {
                state.master.restore(domain, identifier, index, clear, reading.now);
            }
        }
        restored += 1;
    }
    Some(restored)
}

fn put_bytes(output: &mut Vec<u8>, bytes: &[u8]) {
    output.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    output.extend_from_slice(bytes);
}

fn read_bytes<'a>(reader: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = reader.try_get_u16().ok()?;
    reader.split_off(..usize::from(length))
}
