//! Masks secrets of the settings file in error messages, in the log and in the console, which more people can read than
//! the file.
//!
//! A URL can contain a password, and its path or query can be a secret, such as the path of a webhook. Error messages
//! therefore show only the scheme, host and port of a URL. A value that is not a URL may be a misspelt one, so the
//! values of keys with names such as `token` are masked as a whole.

use std::ops::Range;

use super::suggestion::nearest;

/// Shown instead of a secret.
pub(super) const MASK: &str = "***";

/// A key that contains one of these words has a secret value, unless it ends with `_file`.
const SECRET_WORDS: [&str; 6] = ["hook", "pass", "secret", "token", "credential", "auth"];
/// Keys with secret values. A misspelt one counts as well.
const SECRET_KEYS: [&str; 2] = ["webhook", "url"];

/// The byte ranges of secrets in a line of the file or in a value, sorted and disjoint, for error messages: those in
/// URLs, their paths included, and the values of secret keys.
pub(super) fn secrets(text: &str) -> Vec<Range<usize>> {
    let mut found = secrets_of_urls(text, true);
    found.extend(secret_values(text));
    found.sort_by_key(|secret| secret.start);
    // A query such as `?token=x` is both a part of a URL and a secret value. Overlapping ranges are joined.
    found.dedup_by(|next, secret| {
        let overlaps = next.start < secret.end;
        if overlaps {
            secret.end = secret.end.max(next.end);
        }
        overlaps
    });
    found
}

/// The value with the passwords and queries of its URLs masked, for the console. Paths stay.
pub(super) fn masked(text: &str) -> String {
    without(text, &secrets_of_urls(text, false))
}

/// The text with [`MASK`] in place of these ranges.
pub(super) fn without(text: &str, secrets: &[Range<usize>]) -> String {
    let mut left = String::with_capacity(text.len());
    let mut from = 0;
    for secret in secrets {
        left.push_str(&text[from..secret.start]);
        left.push_str(MASK);
        from = secret.end;
    }
    left.push_str(&text[from..]);
    left
}

/// Whether the key before this byte of the file has a secret value.
pub(super) fn follows_secret_key(text: &str, at: usize) -> bool {
    let before = text.get(..at).unwrap_or_default();
    let line = &before[before.rfind('\n').map_or(0, |end| end + 1)..];
    line.rfind('=').is_some_and(|equals| is_secret_key(key_before(line, equals)))
}

/// The scheme of a URL. None if the text has no scheme; the whole text may then be a secret.
pub(super) fn shown_scheme(url: &str) -> Option<&str> {
    url.split_once("://").map(|(scheme, _)| scheme).filter(|scheme| scheme.chars().all(is_in_scheme))
}

/// The values of secret keys, except URLs. A list or table is masked to the end of the line.
fn secret_values(line: &str) -> Vec<Range<usize>> {
    let (mut found, mut from) = (Vec::new(), 0);
    while let Some(equals) = line[from..].find('=').map(|at| from + at) {
        from = equals + 1;
        let is_secret = is_secret_key(key_before(line, equals));
        let value = line.len() - line[from..].trim_start_matches([' ', '\t', '[', '{']).len();
        if is_secret && line[from..value].contains(['[', '{']) {
            found.push(value..line.len());
            return found;
        }
        let start = line.len() - line[value..].trim_start_matches(['"', '\'']).len();
        let end = start + value_length(&line[..start], &line[start..]);
        if is_secret && start < end && shown_scheme(&line[start..end]).is_none() {
            found.push(start..end);
        }
        if is_secret || start > value {
            from = end;
        }
    }
    found
}

/// The key before the `=` at this byte.
fn key_before(line: &str, equals: usize) -> &str {
    let key = line[..equals].trim_end().trim_end_matches(['"', '\'']);
    let is_in_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    &key[key.trim_end_matches(is_in_key).len()..]
}

fn is_secret_key(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let is_secret = SECRET_WORDS.iter().any(|word| key.contains(word)) || nearest(&key, SECRET_KEYS).is_some();
    is_secret && !key.ends_with("_file")
}

fn is_in_scheme(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')
}

/// The secrets in URLs: from `://` to the last `@` of the value, and the query. With `with_paths`, also the path.
fn secrets_of_urls(text: &str, with_paths: bool) -> Vec<Range<usize>> {
    let (mut found, mut from) = (Vec::new(), 0);
    while let Some(at) = text[from..].find("://") {
        let start = from + at + 3;
        let before = text[..from + at].trim_end_matches(is_in_scheme);
        let end = start + value_length(before, &text[start..]);
        let host = start + text[start..end].rfind('@').unwrap_or(0);
        if start < host {
            found.push(start..host);
        }
        let ends_host: &[char] = if with_paths { &['/', '?', '#'] } else { &['?', '#'] };
        if let Some(length) = text[host..end].find(ends_host).filter(|length| host + length + 1 < end) {
            found.push(host + length + 1..end);
        }
        from = end;
    }
    found
}

/// The length of a value that begins with `rest`. It ends at the quote that opened it, unless the text after that quote
/// could belong to the value: a password may contain a quote. Without such a quote, the value ends with the line.
fn value_length(before: &str, rest: &str) -> usize {
    let Some(quote @ ('"' | '\'')) = before.chars().next_back() else { return rest.len() };
    let is_end = |at: usize| {
        let after = rest[at..].trim_start_matches(quote).trim_start_matches([' ', '\t']);
        !rest[..at].ends_with('\\') && (after.is_empty() || after.starts_with([',', ']', '}', '\r', '\n']))
    };
    rest.match_indices(quote).map(|(at, _)| at).find(|&at| is_end(at)).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_url_only_scheme_host_and_port_are_left() {
        let check = |line: &str, expected: &str| assert_eq!(without(line, &secrets(line)), expected);
        check("webhook = 'http://h:99999/hidden'", "webhook = 'http://h:99999/***'");
        check("webhok = 'http://h/hidden?hidden'", "webhok = 'http://h/***'");
        check("a = 'http://u:hi/dden@h/hidden', b = 1", "a = 'http://***@h/***', b = 1");
        check("url = 'unix:///run/redis?pass=hidden'", "url = 'unix:///***'");
        check("ftp://h/hidden?token=hidden", "ftp://h/***");
        check("ftp://h?password=hidden&x=hidden", "ftp://h?***");
        check("otlp = ftp://u:hidden@h:1/hidden?a=1&token=hidden", "otlp = ftp://***@h:1/***");
        assert_eq!(masked("'unix:///run/redis?pass=hidden'"), "'unix:///run/redis?***'");
    }

    #[test]
    fn a_secret_value_that_is_no_url_is_masked_as_a_whole() {
        let check = |line: &str, expected: &str| assert_eq!(without(line, &secrets(line)), expected);
        check("webhook = 'h/hidden'", "webhook = '***'");
        check("webhook = hidden/hidden", "webhook = ***");
        check(
            "watch = { webhook = \"http:/hidden\", state = 'local' }",
            "watch = { webhook = \"***\", state = 'local' }",
        );
        check("\"url\" = 'u:hidden@h'", "\"url\" = '***'");
        check("password = 'hidden'", "password = '***'");
        check("token = 'hidden'", "token = '***'");
        check("webhook = ['hidden', 'hidden']", "webhook = [***");
        check("token_file = '/a/token'", "token_file = '/a/token'");
        check("rate = '1/s'", "rate = '1/s'");
    }
}
