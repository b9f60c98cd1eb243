//! What is no TOML, in words that say what to write instead. The parser says what it expected, which is not always that.

use toml::de::Error;

use super::fault::{Collector, shown};
use super::secret::follows_secret_key;

/// Reports what the parser found.
pub(super) fn report(error: &Error, text: &str, faults: &mut Collector) {
    // Only what is nested too deeply has no place of its own.
    let span = error.span().unwrap_or(0..0);
    match error.message() {
        // The line is TOML all the same: what else it says can be looked at.
        "duplicate key" => faults.fault(&span, "duplicate key: it is in this table already, leave one of the two out"),
        message if message.starts_with("string values must be quoted") => match text.get(span.clone()) {
            None | Some("") => faults.syntax(span, "a value is missing: write one after the `=`"),
            // Where such a word ends is a guess, and there may be a password in it.
            Some(word) if word.contains("://") => faults.syntax(span, "a URL is text: write it in quotes"),
            Some(_) if follows_secret_key(text, span.start) => faults.syntax(span, "text is written in quotes"),
            Some(word) => faults.syntax(span, format!("{} is no value: text is written in quotes", shown(word))),
        },
        message if message.contains("recurs") => {
            faults.syntax(span, "tables or lists are nested too deeply: no settings are")
        }
        message => faults.syntax(span, message),
    }
}
