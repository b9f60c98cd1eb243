//! A part of the state in serialised form.
//!
//! Debts are written as durations, not as moments, because the reader has another clock.

use std::ops::Range;
use std::time::Duration;

use tollgate_core::time::{Moment, Span};

use super::Shared;
use super::state::MasterState;

/// A part of the state at one moment.
#[derive(Default)]
pub(super) struct StatePage {
    /// The records.
    pub(super) bytes: Vec<u8>,
    /// A digest that depends only on the debts, not on the time of writing; 0 for no debts.
    pub(super) digest: u64,
    /// The longest duration of a debt.
    pub(super) life: Duration,
}

impl StatePage {
    /// Serialises the debts in these slots.
    pub(super) fn of(state: &mut MasterState, slots: Range<usize>, now: Moment) -> Self {
        let mut page = Self::default();
        let (mut digest, mut life) = (Digest::default(), Span::ZERO);
        for (domain, identifier, clears) in state.master().debts(slots, now) {
            put_bytes(&mut page.bytes, domain);
            put_bytes(&mut page.bytes, identifier);
            digest.take(domain);
            digest.take(identifier);
            page.bytes.push(clears.len() as u8);
            for clear in clears {
                let left = clear.since(now);
                page.bytes.extend_from_slice(&left.as_nanos().to_be_bytes());
                digest.take(&clear.as_nanos().to_be_bytes());
                life = life.max(left);
            }
        }
        page.digest = if page.bytes.is_empty() { 0 } else { digest.0 };
        page.life = life.into();
        page
    }
}

/// Restores the debts in these records, less the part that was paid back since. Returns their number, or `None` for
/// invalid records.
pub(super) fn restore(mut reader: PageReader<'_>, away: Span, state: &Shared) -> Option<u64> {
    let mut state = state.borrow_mut();
    let reading = state.read_clock();
    let mut restored = 0;
    while !reader.is_empty() {
        let (domain, identifier) = (reader.bytes()?, reader.bytes()?);
        for place in 0..usize::from(reader.byte()?) {
            let clear = (reading.now + Span::from_nanos(reader.number()?)).before(away);
            if clear > reading.now {
                state.master().restore(domain, identifier, place, clear, reading.now);
            }
        }
        restored += 1;
    }
    Some(restored)
}

/// Appends a checksum.
pub(super) fn seal(bytes: &mut Vec<u8>) {
    let sum = checksum(bytes);
    bytes.extend_from_slice(&sum.to_be_bytes());
}

fn put_bytes(output: &mut Vec<u8>, bytes: &[u8]) {
    output.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    output.extend_from_slice(bytes);
}

/// FNV-1a, which detects damage, not forgery.
fn checksum(bytes: &[u8]) -> u64 {
    let mut digest = Digest::default();
    digest.take(bytes);
    digest.0
}

struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    fn take(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    }
}

/// Parses serialised state.
pub(super) struct PageReader<'a>(&'a [u8]);

impl<'a> PageReader<'a> {
    /// Returns the content between the magic bytes and the checksum, if both are valid.
    pub(super) fn checked(bytes: &'a [u8], mark: &[u8]) -> Option<Self> {
        let (content, sum) = bytes.split_last_chunk::<8>()?;
        (checksum(content) == u64::from_be_bytes(*sum)).then_some(())?;
        content.strip_prefix(mark).map(Self)
    }

    /// Reads bytes whose checksum was verified.
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*number))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_first_chunk::<2>()?;
        let (bytes, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        self.0 = rest;
        Some(bytes)
    }
}
