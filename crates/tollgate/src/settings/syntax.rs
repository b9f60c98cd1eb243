//! Messages for TOML syntax errors. They name the correct syntax; the messages of the parser often do not.

use toml::de::Error;

use super::error::{ErrorCollector, shown};
use super::secret::follows_secret_key;

/// Reports an error of the TOML parser.
pub(super) fn report(error: &Error, text: &str, errors: &mut ErrorCollector) {
    // Only the error about deep nesting has no position.
    let span = error.span().unwrap_or(0..0);
    match error.message() {
        // Not a syntax error: the rest of the line can still be checked.
        "duplicate key" => errors.report(&span, "duplicate key: it is in this table already, leave one of the two out"),
        message if message.starts_with("string values must be quoted") => match text.get(span.clone()) {
            None | Some("") => errors.syntax(span, "a value is missing: write one after the `=`"),
            // The message omits the word: its end is a guess, and it may contain a password.
            Some(word) if word.contains("://") => errors.syntax(span, "a URL is text: write it in quotes"),
            Some(_) if follows_secret_key(text, span.start) => errors.syntax(span, "text is written in quotes"),
            Some(word) => errors.syntax(span, format!("{} is not a value: text is written in quotes", shown(word))),
        },
        message if message.contains("recurs") => errors.syntax(span, "tables or lists are nested too deeply"),
        message => errors.syntax(span, message),
    }
}
