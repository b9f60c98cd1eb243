//! A small YAML document as a list of its values, each with the path of its keys. `tollgate import smockron` uses it.
//!
//! A configuration of Smockron is a map of maps of scalars. Lists and aliases are rejected, so that the size of the
//! result is bounded by the size of the text.

use saphyr_parser::{Event, Parser};

/// The maximum depth of nesting.
const DEPTH_MAX: usize = 16;

/// A scalar and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scalar {
    /// The keys that lead to it.
    pub(super) path: Vec<String>,
    /// Its text.
    pub(super) text: String,
}

/// The scalars of `text` in file order.
pub(super) fn scalars(text: &str) -> Result<Vec<Scalar>, String> {
    let mut scalars = Vec::new();
    // For each open map, the key whose value comes next.
    let mut open: Vec<Option<String>> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| format!("is not YAML: {error}"))?;
        let line = span.start.line();
        match event {
            Event::MappingStart(..) if open.len() == DEPTH_MAX => {
                return Err(format!("line {line}: nested too deeply"));
            }
            Event::MappingStart(..) => open.push(None),
            Event::MappingEnd => {
                open.pop();
                if let Some(key) = open.last_mut() {
                    *key = None;
                }
            }
            Event::Scalar(text, ..) => {
                let Some(key) = open.last_mut() else { return Err(format!("line {line}: expected a map")) };
                if key.is_none() {
                    *key = Some(text.into_owned());
                    continue;
                }
                let path = open.iter().flatten().cloned().collect();
                scalars.push(Scalar { path, text: text.into_owned() });
                if let Some(key) = open.last_mut() {
                    *key = None;
                }
            }
            Event::SequenceStart(..) | Event::Alias(..) => {
                return Err(format!("line {line}: a list or an alias, which such a file does not have"));
            }
            _ => {}
        }
    }
    Ok(scalars)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_path_of_their_keys() {
        let found = scalars("a: 1\nb:\n  c: \"x y\" # why\n  d: {e: 2}\nf: ~\n").unwrap();
        let found: Vec<_> = found.iter().map(|one| (one.path.join("."), one.text.as_str())).collect();
        let expected = [("a", "1"), ("b.c", "x y"), ("b.d.e", "2"), ("f", "~")];
        assert_eq!(found, expected.map(|(path, text)| (path.to_owned(), text)));
    }

    #[test]
    fn other_documents_are_rejected() {
        for text in ["- a\n", "a: [1]\n", "a: &x 1\nb: *x\n", "just text", "a: b: c\n", &"{a: ".repeat(40)] {
            assert!(scalars(text).is_err(), "{text}");
        }
        assert_eq!(scalars(""), Ok(Vec::new()));
    }
}
