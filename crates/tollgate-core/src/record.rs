//! The state of one limit for one key, in a few machine words.
//!
//! A type per kind of limit would need a table per kind and an allocation per key. Instead, every state is 32
//! bits ([`Record::aux`]) and a number of 64-bit words that the rule fixes once. One table then serves all
//! limits without allocation, and the same code runs on private memory and on memory that threads share. A
//! record of all zeroes is a fresh one.

use alloc::boxed::Box;
use alloc::vec;

/// Access to the state of one key, in place.
pub trait Record {
    /// The 32 bits that every record has besides its words.
    fn aux(&self) -> u32;
    /// Replaces the 32 bits.
    fn set_aux(&mut self, aux: u32);
    /// The word at `index`.
    fn word(&self, index: usize) -> u64;
    /// Replaces the word at `index`.
    fn set_word(&mut self, index: usize, value: u64);
    /// Makes a record of `words` words a fresh one.
    fn clear(&mut self, words: usize) {
        self.set_aux(0);
        (0..words).for_each(|index| self.set_word(index, 0));
    }
}

/// A record in private memory: of any number of words, or in place as an array of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlainRecord<W = Box<[u64]>> {
    aux: u32,
    words: W,
}

impl PlainRecord {
    /// A fresh record of `words` words.
    pub fn new(words: usize) -> Self {
        Self { aux: 0, words: vec![0; words].into_boxed_slice() }
    }
}

impl<W: AsRef<[u64]> + AsMut<[u64]>> Record for PlainRecord<W> {
    fn aux(&self) -> u32 {
        self.aux
    }

    fn set_aux(&mut self, aux: u32) {
        self.aux = aux;
    }

    fn word(&self, index: usize) -> u64 {
        self.words.as_ref()[index]
    }

    fn set_word(&mut self, index: usize, value: u64) {
        self.words.as_mut()[index] = value;
    }
}
