//! What is owed, as bytes: a stretch of the books, written down so that whoever reads it later knows who owes how much.
//!
//! How long something is still owed is written, not until when: whoever reads it has another clock.

use std::ops::Range;
use std::time::Duration;

use tollgate_core::time::{Moment, Span};

use super::Shared;
use super::books::Books;

/// A stretch of the books, as it stands.
#[derive(Default)]
pub(super) struct Page {
    /// The records.
    pub(super) bytes: Vec<u8>,
    /// The same for the same debts, whenever they are written down; 0 for none.
    pub(super) digest: u64,
    /// How long the last of it is owed.
    pub(super) life: Duration,
}

impl Page {
    /// Writes down what is owed in these places.
    pub(super) fn of(books: &mut Books, places: Range<usize>, now: Moment) -> Self {
        let mut page = Self::default();
        let (mut digest, mut life) = (Digest::default(), Span::ZERO);
        for (domain, identifier, clears) in books.master().debts(places, now) {
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

/// Takes over what these records say is owed, less what was paid back since they were written. Says how many there were, or nothing if they
/// make no sense.
pub(super) fn restore(mut reader: Reader<'_>, away: Span, books: &Shared) -> Option<u64> {
    let mut books = books.borrow_mut();
    let reading = books.read_clock();
    let mut restored = 0;
    while !reader.is_empty() {
        let (domain, identifier) = (reader.bytes()?, reader.bytes()?);
        for place in 0..usize::from(reader.byte()?) {
            let clear = (reading.now + Span::from_nanos(reader.number()?)).before(away);
            if clear > reading.now {
                books.master().restore(domain, identifier, place, clear, reading.now);
            }
        }
        restored += 1;
    }
    Some(restored)
}

/// Puts a checksum behind bytes.
pub(super) fn seal(bytes: &mut Vec<u8>) {
    let sum = checksum(bytes);
    bytes.extend_from_slice(&sum.to_be_bytes());
}

fn put_bytes(output: &mut Vec<u8>, bytes: &[u8]) {
    output.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    output.extend_from_slice(bytes);
}

/// FNV-1a: it is to find damage, not forgery.
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

/// Reads what was written down.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// What is between the mark and the checksum, if both are right.
    pub(super) fn checked(bytes: &'a [u8], mark: &[u8]) -> Option<Self> {
        let (content, sum) = bytes.split_last_chunk::<8>()?;
        (checksum(content) == u64::from_be_bytes(*sum)).then_some(())?;
        content.strip_prefix(mark).map(Self)
    }

    /// Reads bytes that have been checked.
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
