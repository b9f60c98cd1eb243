//! A damaged file is parsed without a panic, and the positions of its errors are inside the file.

use proptest::prelude::*;

use super::*;

/// A change to a text, as made by typing mistakes and faulty disks.
#[derive(Clone, Debug)]
enum Damage {
    Remove(usize),
    Insert(String),
    Repeat(usize),
    Truncate,
    Replace(&'static str, &'static str),
}

fn damage() -> impl Strategy<Value = Damage> {
    let pieces = [
        "[[", "]", "{", "}", "\"", "'", "=", ".", ",", "\n", "#", "-1", "0", "nan", "1e308", "\"\"\"", "é", "\0",
        "true",
    ];
    prop_oneof![
        (1..40_usize).prop_map(Damage::Remove),
        prop::sample::select(pieces.to_vec()).prop_map(|piece| Damage::Insert(piece.to_string())),
        ".{0,8}".prop_map(Damage::Insert),
        (1..60_usize).prop_map(Damage::Repeat),
        Just(Damage::Truncate),
        prop::sample::select(
            &[("burst", "brust"), ("\"10s\"", "10"), ("rate", "bucket"), ("5", "-5"), ("rule", "rul")][..]
        )
        .prop_map(|(from, to)| Damage::Replace(from, to)),
    ]
}

impl Damage {
    fn apply(&self, text: &mut String, at: prop::sample::Index) {
        let at = text.floor_char_boundary(at.index(text.len() + 1));
        let end = |length: usize| text.floor_char_boundary((at + length).min(text.len()));
        match self {
            Self::Remove(length) => text.replace_range(at..end(*length), ""),
            Self::Insert(piece) => text.insert_str(at, piece),
            Self::Repeat(length) => {
                let piece = text[at..end(*length)].to_string();
                text.insert_str(at, &piece);
            }
            Self::Truncate => text.truncate(at),
            Self::Replace(from, to) => *text = text.replace(from, to),
        }
    }
}

/// Asserts that the position of every error is a character of the text or the end of a line.
fn assert_errors_are_inside(text: &str) {
    let Err(errors) = Settings::parse("test.toml", text) else { return };
    assert!(errors.iter().next().is_some());
    for error in errors.iter() {
        let line = text.split('\n').nth(error.line - 1).unwrap_or_else(|| panic!("no line {}", error.line));
        assert!(error.column <= line.chars().count() + 1, "{error:?}");
        assert!(!error.message.is_empty() && !error.message.contains('\n'));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_damaged_file_has_errors_inside_it_or_none(
        damages in prop::collection::vec((damage(), any::<prop::sample::Index>()), 1..6),
    ) {
        let mut text = EVERYTHING.to_string();
        for (damage, at) in damages {
            damage.apply(&mut text, at);
        }
        assert_errors_are_inside(&text);
    }

    #[test]
    fn any_text_has_errors_inside_it_or_none(text in "(?s).{0,200}") {
        assert_errors_are_inside(&text);
    }

    #[test]
    fn any_value_of_any_key_is_read_or_refused(
        key in prop::sample::select(
            &["rate.rate", "rate.burst", "hold", "factor", "class", "name", "status", "when.path"][..],
        ),
        value in prop_oneof![
            "\"[0-9a-z./+ -]{0,12}\"",
            "-?[0-9]{1,22}",
            "-?[0-9]{1,9}\\.[0-9]{1,9}(e-?[0-9]{1,3})?",
            Just("nan".to_string()), Just("-inf".to_string()), Just("[]".to_string()), Just("{}".to_string()),
        ],
    ) {
        assert_errors_are_inside(&format!("[[rule]]\n{key} = {value}\n"));
    }
}
