//! Parses key presses of the live view from the bytes of a terminal in raw mode.

/// A key press.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyPress {
    Char(char),
    Enter,
    Escape,
    Backspace,
    /// Tab or the right arrow.
    Tab,
    /// Shift-Tab or the left arrow.
    BackTab,
    Up,
    Down,
    PageUp,
    PageDown,
    /// Ctrl-C.
    Interrupt,
}

/// Key presses in the input. Unknown sequences are skipped.
pub(super) fn keys(mut bytes: &[u8]) -> Vec<KeyPress> {
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
                _ => keys.push(KeyPress::Escape),
            },
            b'\r' | b'\n' => keys.push(KeyPress::Enter),
            b'\t' => keys.push(KeyPress::Tab),
            0x7f | 0x08 => keys.push(KeyPress::Backspace),
            0x03 => keys.push(KeyPress::Interrupt),
            0x20..=0x7e => keys.push(KeyPress::Char(char::from(first))),
            _ => {}
        }
    }
    keys
}

/// The key with this escape sequence, without the two bytes that introduce it.
fn named(sequence: &[u8]) -> Option<KeyPress> {
    Some(match sequence {
        b"A" => KeyPress::Up,
        b"B" => KeyPress::Down,
        b"C" => KeyPress::Tab,
        b"D" | b"Z" => KeyPress::BackTab,
        b"5~" => KeyPress::PageUp,
        b"6~" => KeyPress::PageDown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_presses_are_parsed() {
        assert_eq!(keys(b"q\x1b[A\x1b[B\r"), [KeyPress::Char('q'), KeyPress::Up, KeyPress::Down, KeyPress::Enter]);
        assert_eq!(keys(b"\x1b"), [KeyPress::Escape]);
        assert_eq!(
            keys(b"\x1b[5~\x1b[Z\x7f\x03"),
            [KeyPress::PageUp, KeyPress::BackTab, KeyPress::Backspace, KeyPress::Interrupt]
        );
        assert_eq!(keys(b"\x1b[99;99R\x1b[\xffx"), []);
        assert_eq!(keys(&[0x1b, b'[']), []);
    }
}
