//! Keys, from the bytes that a terminal sends.

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    BackTab,
    Up,
    Down,
    PageUp,
    PageDown,
    /// Ctrl-C.
    Interrupt,
}

/// The keys in what a terminal has sent. What is no key that anybody needs is skipped.
pub(super) fn keys(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some((&first, rest)) = bytes.split_first() {
        bytes = rest;
        match first {
            0x1b => match rest {
                [b'[' | b'O', sequence @ ..] => {
                    let end = sequence.iter().position(|byte| (0x40..=0x7e).contains(byte)).unwrap_or(sequence.len());
                    keys.extend(named(&sequence[..(end + 1).min(sequence.len())]));
                    bytes = sequence.get(end + 1..).unwrap_or_default();
                }
                _ => keys.push(Key::Escape),
            },
            b'\r' | b'\n' => keys.push(Key::Enter),
            b'\t' => keys.push(Key::Tab),
            0x7f | 0x08 => keys.push(Key::Backspace),
            0x03 => keys.push(Key::Interrupt),
            0x20..=0x7e => keys.push(Key::Char(char::from(first))),
            _ => {}
        }
    }
    keys
}

fn named(sequence: &[u8]) -> Option<Key> {
    Some(match sequence {
        b"A" => Key::Up,
        b"B" => Key::Down,
        b"C" => Key::Tab,
        b"D" | b"Z" => Key::BackTab,
        b"5~" => Key::PageUp,
        b"6~" => Key::PageDown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        assert_eq!(keys(b"q\x1b[A\x1b[B\r"), [Key::Char('q'), Key::Up, Key::Down, Key::Enter]);
        assert_eq!(keys(b"\x1b"), [Key::Escape]);
        assert_eq!(keys(b"\x1b[5~\x1b[Z\x7f\x03"), [Key::PageUp, Key::BackTab, Key::Backspace, Key::Interrupt]);
        assert_eq!(keys(b"\x1b[99;99R\x1b[\xffx"), []);
        assert_eq!(keys(&[0x1b, b'[']), []);
    }
}
