//! Bytes as hexadecimal text, for secrets of the admin address, signatures of webhooks, and commands to a master.

use std::fmt::Write;

/// Two lower-case digits per byte.
pub(crate) fn encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes that the digits stand for; `None` if the text is not hexadecimal.
pub(crate) fn decode(digits: &str) -> Option<Vec<u8>> {
    let pair = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_decoded_as_they_were_encoded_and_other_text_is_rejected() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert!(encode(&bytes).starts_with("000102") && encode(&bytes).ends_with("fdfeff"));
        assert_eq!(decode(&encode(&bytes)).unwrap(), bytes);
        assert_eq!((decode("0"), decode("zz"), decode("\u{e9}")), (None, None, None));
    }
}
