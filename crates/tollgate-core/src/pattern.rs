//! Texts with `*` as a wildcard, which conditions of rules compare with the properties of a request.

use alloc::string::String;

/// A text in which `*` matches any bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    ignore_case: bool,
}

impl Pattern {
    /// A case-sensitive pattern, for paths, cookies, query parameters and descriptors.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ignore_case: false }
    }

    /// A case-insensitive pattern, for hosts, protocols and headers.
    pub fn ignoring_case(text: impl Into<String>) -> Self {
        Self { text: text.into(), ignore_case: true }
    }

    /// Whether all of `text` matches. The time is at most proportional to the product of both lengths, because only the
    /// last star is tried again.
    pub fn matches(&self, text: &[u8]) -> bool {
        let pattern = self.text.as_bytes();
        let same = |a: u8, b: u8| if self.ignore_case { a.eq_ignore_ascii_case(&b) } else { a == b };
        let (mut p, mut t) = (0, 0);
        // Where to try again: the index after the last star, and the end of the text that it matches so far.
        let mut retry: Option<(usize, usize)> = None;
        while t < text.len() {
            if pattern.get(p) == Some(&b'*') {
                retry = Some((p + 1, t));
                p += 1;
            } else if pattern.get(p).is_some_and(|&byte| same(byte, text[t])) {
                p += 1;
                t += 1;
            } else if let Some((after_star, taken)) = retry {
                retry = Some((after_star, taken + 1));
                (p, t) = (after_star, taken + 1);
            } else {
                return false;
            }
        }
        pattern[p..].iter().all(|&byte| byte == b'*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_matches_any_bytes() {
        let check = |pattern: &str, text: &str| Pattern::new(pattern).matches(text.as_bytes());
        assert!(check("/login", "/login"));
        assert!(!check("/login", "/login/"));
        assert!(!check("/login", "/Login"));
        assert!(check("/api/*", "/api/a/b"));
        assert!(check("*.php", "/x.php.php"));
        assert!(check("/a*b*c", "/aXbYbZc"));
        assert!(!check("/a*b*c", "/aXbYbZ"));
        assert!(check("*", ""));
        assert!(!check("", "x"));
        assert!(Pattern::ignoring_case("WebSocket").matches(b"websocket"));
    }
}
