//! The session cookie of the console.
//!
//! Browsers send a cookie to all ports of a host. A browser with a session of the console therefore also sends it to
//! the site behind the gate, where the backend could read it. The gate removes it.

use memchr::memmem;

/// Name of the cookie.
pub(crate) const NAME: &str = "tollgate_session";

/// Calls `write` with a `Cookie` header without the session, unless there is no other cookie. A header without a
/// session is passed on unchanged and is not copied.
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

/// Whether a pair of a `Cookie` header is the session.
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
