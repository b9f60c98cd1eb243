//! The state of one limit for one key, as a few words that a table can hold.
//!
//! A state per kind of limit would need a table per kind and an allocation per key. Instead every state is 32 bits ([`Record::aux`])
//! and a number of 64-bit words that the rule fixes once, so one table serves all limits, never allocates, and the same code runs on
//! plain memory and on memory that threads share. A record of all zeroes is a fresh one.

use alloc::boxed::Box;
use alloc::vec;

/// One key's state, in place.
pub trait Record {
    /// The 32 bits that every record has beside its words.
    fn aux(&self) -> u32;
    /// Replaces the 32 bits.
    fn set_aux(&mut self, aux: u32);
    /// The word at `index`.
    fn word(&self, index: usize) -> u64;
    /// Replaces the word at `index`.
    fn set_word(&mut self, index: usize, value: u64);
}

/// A record in plain memory, for one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainRecord {
    aux: u32,
    words: Box<[u64]>,
}

impl PlainRecord {
    /// A fresh record of `words` words.
    pub fn new(words: usize) -> Self {
        Self { aux: 0, words: vec![0; words].into_boxed_slice() }
    }
}

impl Record for PlainRecord {
    fn aux(&self) -> u32 {
        self.aux
    }

    fn set_aux(&mut self, aux: u32) {
        self.aux = aux;
    }

    fn word(&self, index: usize) -> u64 {
        self.words[index]
    }

    fn set_word(&mut self, index: usize, value: u64) {
        self.words[index] = value;
    }
}
