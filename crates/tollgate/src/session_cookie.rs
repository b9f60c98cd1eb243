//! The session cookie of the console, the web interface on the admin address. `admin` sets and reads it; this module
//! has its name, and removes it from forwarded requests.
//!
//! Browsers send a cookie to all ports of a host. A browser that is logged in to the console therefore also sends the
//! cookie to the site on another port, where the backend could read it and use the session. The gate removes it.

use memchr::memmem;

/// Name of the cookie.
pub(crate) const NAME: &str = "tollgate_session";

/// Removes the session cookie from `value`, the value of a `Cookie` header, and calls `write` with the rest, without
/// spaces at its ends. If the session was the only cookie, `write` is not called. If `value` does not contain the name
/// of the session cookie, `write` gets `value` itself.
pub(crate) fn without(value: &[u8], mut write: impl FnMut(&[u8])) {
    if memmem::find(value, NAME.as_bytes()).is_none() {
        return write(value);
    }
    let others: Vec<_> = value.split(|byte| *byte == b';').filter(|pair| !is_session(pair)).collect();
    let joined = others.join(&b';');
    let rest = joined.trim_ascii();
    if !rest.is_empty() {
        write(rest);
    }
}

/// Whether a `name=value` pair of a `Cookie` header is the session cookie.
fn is_session(pair: &[u8]) -> bool {
    pair.split(|byte| *byte == b'=').next().is_some_and(|name| name.trim_ascii() == NAME.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_session_is_removed() {
        let check = |value: &str, expected: Option<&str>| {
            let mut written = None;
            without(value.as_bytes(), |rest| written = Some(String::from_utf8(rest.to_vec()).unwrap()));
            assert_eq!(written.as_deref(), expected, "{value}");
        };
        check("a=1; b=2", Some("a=1; b=2"));
        check("tollgate_session=x", None);
        check("tollgate_session=x; a=1", Some("a=1"));
        check("a=1; tollgate_session=x; b=2", Some("a=1; b=2"));
        check("a=1;tollgate_session=x;tollgate_session=y", Some("a=1"));
        check("a=1; tollgate_session = x", Some("a=1"));
        check("tollgate_session; a=1", Some("a=1"));
        check("my_tollgate_session=x; a=tollgate_session", Some("my_tollgate_session=x; a=tollgate_session"));
    }
}
