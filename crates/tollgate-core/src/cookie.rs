//! Cookies in a `Cookie` header.

/// The first cookie of this name in a `Cookie` header.
pub fn find_cookie<'a>(cookies: &'a [u8], name: &str) -> Option<&'a [u8]> {
    pairs(cookies).filter_map(pair).find(|(known, _)| *known == name.as_bytes()).map(|(_, value)| value)
}

/// The cookies of a header, as texts such as `name=value`.
pub(crate) fn pairs(cookies: &[u8]) -> impl Iterator<Item = &[u8]> {
    cookies.split(|&byte| byte == b';').map(<[u8]>::trim_ascii)
}

/// The name and value of a cookie; `None` if there is no `=`.
pub(crate) fn pair(cookie: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = cookie.iter().position(|&byte| byte == b'=')?;
    Some((cookie[..equals].trim_ascii(), cookie[equals + 1..].trim_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_with_white_space_around_its_name() {
        assert_eq!(find_cookie(b"a=b;sid = x ; sid=y", "sid"), Some(&b"x"[..]));
        assert_eq!(find_cookie(b"xsid=1; sid", "sid"), None);
    }
}
