//! An encoder for Protocol Buffers, for the field types that OTLP uses.
//!
//! A nested message is preceded by its length, which is known only afterwards. The message is therefore
//! written in place after a gap, and moved back by the unused bytes of the gap. This needs no buffer per
//! level and no separate length computation.

/// The size of the gap in bytes: enough for the length of a message of 32 GiB.
const LENGTH_BYTES: usize = 5;

/// Writes the fields of one message.
#[derive(Debug)]
pub(super) struct Writer<'a>(&'a mut Vec<u8>);

impl<'a> Writer<'a> {
    /// Appends to these bytes.
    pub(super) fn new(bytes: &'a mut Vec<u8>) -> Self {
        Self(bytes)
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn key(&mut self, field: u32, wire_type: u64) {
        self.varint(u64::from(field) << 3 | wire_type);
    }

    /// An integer, boolean or enum value.
    pub(super) fn integer(&mut self, field: u32, number: u64) {
        self.key(field, 0);
        self.varint(number);
    }

    /// A 64-bit fixed-size number.
    pub(super) fn fixed(&mut self, field: u32, number: u64) {
        self.key(field, 1);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// A floating-point number.
    pub(super) fn double(&mut self, field: u32, number: f64) {
        self.fixed(field, number.to_bits());
    }

    /// Bytes or text.
    pub(super) fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Packed 64-bit fixed-size numbers.
    pub(super) fn packed(&mut self, field: u32, numbers: impl ExactSizeIterator<Item = u64>) {
        self.key(field, 2);
        self.varint(numbers.len() as u64 * 8);
        numbers.for_each(|number| self.0.extend_from_slice(&number.to_le_bytes()));
    }

    /// A nested message.
    pub(super) fn message(&mut self, field: u32, write: impl FnOnce(&mut Writer<'_>)) {
        self.key(field, 2);
        let start = self.0.len();
        self.0.resize(start + LENGTH_BYTES, 0);
        write(&mut Writer(self.0));
        let length = self.0.len() - start - LENGTH_BYTES;
        let mut head = Vec::with_capacity(LENGTH_BYTES);
        Writer(&mut head).varint(length as u64);
        self.0.splice(start..start + LENGTH_BYTES, head);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Decodes a varint. Returns the rest, too.
    fn varint(bytes: &[u8]) -> (u64, &[u8]) {
        let end = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let number = bytes[..end].iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f));
        (number, &bytes[end..])
    }

    /// The examples of the encoding's documentation.
    #[test]
    fn the_encoding_matches_its_documentation() {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes);
        writer.integer(1, 150);
        writer.bytes(2, b"testing");
        writer.message(3, |inner| inner.integer(1, 150));
        assert_eq!(bytes, b"\x08\x96\x01\x12\x07testing\x1a\x03\x08\x96\x01");
    }

    proptest! {
        #[test]
        fn the_encoded_length_matches_the_message(outer in 0usize..400, inner in 0usize..20_000) {
            let mut bytes = Vec::new();
            Writer::new(&mut bytes).message(7, |writer| {
                writer.bytes(1, &vec![1; outer]);
                writer.message(2, |writer| writer.bytes(3, &vec![2; inner]));
                writer.fixed(4, u64::MAX);
            });
            let (key, rest) = varint(&bytes);
            let (length, rest) = varint(rest);
            prop_assert_eq!((key, length as usize), (7 << 3 | 2, rest.len()));
            let (key, rest) = varint(rest);
            let (length, rest) = varint(rest);
            prop_assert_eq!((key, length as usize), (1 << 3 | 2, outer));
            let (key, rest) = varint(&rest[outer..]);
            let (length, rest) = varint(rest);
            prop_assert_eq!(key, 2 << 3 | 2);
            prop_assert_eq!(&rest[length as usize..], &[&[4 << 3 | 1][..], &[0xff; 8]].concat()[..]);
        }
    }
}
