//! The inputs of rules: the headers, cookies and JSON values that rules use as keys or in conditions.
//!
//! A repeated header or cookie has two values; some servers use the first, others the last. A client could
//! show one value to the gate and another to the backend. The gate therefore reduces each of these headers and cookies
//! to one value before forwarding, and removes *look-alikes*: other names that some servers read as the same. Both
//! sides then use the same value.

use alloc::string::String;
use alloc::vec::Vec;

use crate::class::{Class, Part};
use crate::condition::Condition;
pub use crate::cookie::find_cookie;
use crate::cookie::{pair, pairs};
use crate::form::is_same_php_variable;
use crate::rule::Rule;

/// The names of the headers and cookies, and the JSON pointers, that some rules use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    /// The headers, in lower case.
    pub headers: Vec<String>,
    /// The cookies, by their exact names.
    pub cookies: Vec<String>,
    /// The JSON pointers into the body of a request.
    pub json_pointers: Vec<String>,
}

impl Inputs {
    /// The inputs of these rules, and of the account class if there is one.
    pub fn of<'a>(rules: impl IntoIterator<Item = &'a Rule>, account: Option<&Class>) -> Self {
        let mut inputs = Self::default();
        account.into_iter().for_each(|class| inputs.add_class(class));
        for rule in rules {
            inputs.add_class(&rule.class);
            core::iter::once(&rule.when).chain(&rule.unless).for_each(|condition| inputs.add_condition(condition));
        }
        inputs
    }

    /// Adds the inputs of a condition.
    pub fn add_condition(&mut self, condition: &Condition) {
        condition.headers.iter().for_each(|(name, _)| add(&mut self.headers, name));
        condition.cookies.iter().for_each(|(name, _)| add(&mut self.cookies, name));
        if !condition.upgrades.is_empty() {
            add(&mut self.headers, "upgrade");
        }
    }

    /// Adds the inputs of a class.
    pub fn add_class(&mut self, class: &Class) {
        for part in &class.parts {
            match part {
                Part::UserAgent => add(&mut self.headers, "user-agent"),
                Part::Header(name) => add(&mut self.headers, name),
                Part::Cookie(name) => add(&mut self.cookies, name),
                Part::Json(pointer) => add(&mut self.json_pointers, pointer),
                _ => {}
            }
        }
    }

    /// Whether some server reads a header of this name, in lower case, as one that rules use.
    pub fn is_look_alike(&self, name: &[u8]) -> bool {
        self.headers.iter().any(|known| known.as_bytes() != name && is_same_variable(known.as_bytes(), name))
    }

    /// Whether some server reads a cookie of this name as one that rules use. `name` itself is not one of those.
    fn is_look_alike_cookie(&self, name: &[u8]) -> bool {
        self.cookies.iter().any(|known| is_same_php_variable(known.as_bytes(), name))
    }
}

/// Whether CGI and similar interfaces, which pass headers as variables, derive the same variable from two header names
/// in lower case. All of them replace `-` by `_`, PHP also replaces `.`, and some replace every byte but letters and
/// digits.
pub fn is_same_variable(a: &[u8], b: &[u8]) -> bool {
    let is_same = |(a, b): (&u8, &u8)| a == b || !(a.is_ascii_alphanumeric() || b.is_ascii_alphanumeric());
    a.len() == b.len() && a.iter().zip(b).all(is_same)
}

/// Whether some server reads another value of the cookie `name` than [`find_cookie`]: the cookie occurs with two
/// values, or the name of another cookie is read as the same.
pub fn is_ambiguous_cookie(cookies: &[u8], name: &str) -> bool {
    let first = find_cookie(cookies, name);
    pairs(cookies).filter_map(pair).any(|(known, value)| match known == name.as_bytes() {
        true => first != Some(value),
        false => is_same_php_variable(name.as_bytes(), known),
    })
}

fn add(names: &mut Vec<String>, name: &str) {
    if !names.iter().any(|known| known == name) {
        names.push(name.into());
    }
}

/// The separator between the values of a repeated header, whose name is in lower case (RFC 9110, 5.3; RFC 9113, 8.2.3).
pub fn separator(name: &[u8]) -> &'static [u8] {
    if name == b"cookie" { b"; " } else { b", " }
}

/// Appends the header `cookies` to `out` without repetitions of cookies that rules use, and without their look-alikes.
/// Returns `false`, and leaves `out` unchanged, if there is nothing to remove.
pub fn write_distinct_cookies(inputs: &Inputs, cookies: &[u8], out: &mut Vec<u8>) -> bool {
    let mut seen = SeenCookies::default();
    if !pairs(cookies).any(|pair| seen.is_dropped(inputs, pair)) {
        return false;
    }
    let start = out.len();
    let mut seen = SeenCookies::default();
    for pair in pairs(cookies).filter(|pair| !seen.is_dropped(inputs, pair)) {
        if out.len() > start {
            out.extend_from_slice(b"; ");
        }
        out.extend_from_slice(pair);
    }
    true
}

/// The cookies seen so far in a header: one bit for each of the first 128 cookies that rules use. Repetitions of
/// further ones are not detected.
#[derive(Default)]
struct SeenCookies(u128);

impl SeenCookies {
    /// Whether the cookie `text`, such as `name=value`, is dropped: it repeats one that rules use, or is a look-alike.
    fn is_dropped(&mut self, inputs: &Inputs, text: &[u8]) -> bool {
        let Some((name, _)) = pair(text) else { return false };
        let Some(index) = inputs.cookies.iter().position(|known| known.as_bytes() == name) else {
            return inputs.is_look_alike_cookie(name);
        };
        let before = self.0;
        self.0 |= 1u128.checked_shl(index as u32).unwrap_or_default();
        index < 128 && before == self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(headers: &[&str], cookies: &[&str]) -> Inputs {
        let names = |names: &[&str]| names.iter().map(|name| String::from(*name)).collect();
        Inputs { headers: names(headers), cookies: names(cookies), json_pointers: Vec::new() }
    }

    #[test]
    fn only_the_first_cookie_of_a_name_that_rules_use_stays() {
        let inputs = inputs(&[], &["sid", "user"]);
        let check = |cookies: &str, expect: Option<&str>| {
            let mut out = Vec::from(&b"x"[..]);
            let changed = write_distinct_cookies(&inputs, cookies.as_bytes(), &mut out);
            assert_eq!(changed.then_some(&out[1..]), expect.map(str::as_bytes), "{cookies}");
        };
        check("a=1; sid=2; a=3; user=4", None);
        check("", None);
        check("sid=1;a=2; sid=3;user=4", Some("sid=1; a=2; user=4"));
        check("sid=1; sid =2; SID=3; sid", Some("sid=1; SID=3; sid"));
    }

    #[test]
    fn cookies_that_php_reads_as_one_that_rules_use_are_dropped() {
        let inputs = inputs(&[], &["my_sid", "__Host-id"]);
        for name in [
            "my.sid",
            "my sid",
            "my[sid",
            "my_sid[]",
            "my_sid[a]b",
            "my%5fsid",
            "my_sid%00x",
            "my%5Fsid",
            "my+sid",
            "%20my_sid",
            "my%2esid[",
            "..Host-id",
        ] {
            let (cookies, mut out) = (alloc::format!("a=1; {name}=2; my_sid=3; b=4"), Vec::new());
            assert!(write_distinct_cookies(&inputs, cookies.as_bytes(), &mut out), "{name}");
            assert_eq!(out, b"a=1; my_sid=3; b=4", "{name}");
        }
        for name in ["my-sid", "MY_SID", "mysid", "my_sid_", "my_sidx", "my_si", "%6", "my_sid%"] {
            assert!(!inputs.is_look_alike_cookie(name.as_bytes()), "{name}");
        }
        let dotted = Inputs { headers: Vec::new(), cookies: alloc::vec!["my.sid".into()], json_pointers: Vec::new() };
        let mut out = Vec::new();
        assert!(!write_distinct_cookies(&dotted, b"my.sid=1; a=2", &mut out));
        assert!(write_distinct_cookies(&dotted, b"my_sid=1; my.sid=2", &mut out) && out == b"my.sid=2");
    }

    #[test]
    fn a_cookie_with_two_values_or_a_look_alike_is_ambiguous() {
        for cookies in ["sid=1; sid=2", "a=b;sid=1;sid =2", "sid[]=1", "sid=1; s%69d=1"] {
            assert!(is_ambiguous_cookie(cookies.as_bytes(), "sid"), "{cookies}");
        }
        for cookies in ["", "sid=1", "sid=1; a=2; sid=1", "SID=1; sid=2", "sid"] {
            assert!(!is_ambiguous_cookie(cookies.as_bytes(), "sid"), "{cookies}");
        }
    }

    #[test]
    fn a_name_that_servers_read_alike_is_a_look_alike() {
        let inputs = inputs(&["x-api-key", "user_id"], &[]);
        for name in ["x_api_key", "x-api_key", "user-id", "x.api.key", "x~api-key", "user.id"] {
            assert!(inputs.is_look_alike(name.as_bytes()), "{name}");
        }
        for name in ["x-api-key", "user_id", "x-api-keys", "xapi-key"] {
            assert!(!inputs.is_look_alike(name.as_bytes()), "{name}");
        }
    }
}
