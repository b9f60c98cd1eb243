//! Masks values of headers, cookies and JSON bodies in logs and in the console.
//!
//! These values are often secrets, such as API keys and session IDs, which any reader of the log or the console could
//! use. They are shown as their first characters and a digest: `sk_l*3f9a01c2d4e5b607`. Different values have different
//! digests. The digest is keyed with a secret of this process, so that the value cannot be found by trying. An operator
//! can look up a key by its masked form while the gate has state for it.
//!
//! A key is the value by which a rule or a report distinguishes clients, and its class says where the value comes from:
//! `header:x-api-key`, `cookie:sid`, `ip/24+json:/user`. One class may be configured as that of accounts. Its keys are
//! not masked, because flags, webhooks and reports name accounts.

use std::borrow::Cow;
use std::hash::Hasher;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use siphasher::sip::SipHasher24;
use tollgate_core::class::Class;

/// Number of characters that are shown. Of a value of less than 16 bytes, only a quarter is shown.
const SHOWN_CHARACTERS_MAX: usize = 4;
/// Length of the digest: 64 bits as hexadecimal digits.
const DIGEST_DIGITS: usize = 16;
/// Between the shown characters and the digest.
const SEPARATOR: char = '*';

static MASK: LazyLock<Mask> = LazyLock::new(|| {
    let mut bytes = [0; 16];
    // Without a secret key, masked values could be found by trying.
    getrandom::fill(&mut bytes).expect("the system provides random numbers");
    Mask { secret: bytes, is_off: AtomicBool::new(false), account_class: RwLock::default() }
});

struct Mask {
    secret: [u8; 16],
    /// Whether the settings turn masking off (`show_values`).
    is_off: AtomicBool,
    /// Class of accounts; empty if there is none.
    account_class: RwLock<String>,
}

/// Turns masking off or on.
pub(crate) fn set_off(is_off: bool) {
    MASK.is_off.store(is_off, Ordering::Relaxed);
}

/// Sets the class of accounts.
pub(crate) fn set_account_class(class: &str) {
    // Normalised like the classes with which it is compared.
    let class = Class::parse(class).map_or_else(|_| class.to_owned(), |class| class.to_string());
    *MASK.account_class.write() = class;
}

/// Masks the value of a header, a cookie or a JSON body.
pub(crate) fn value(value: &[u8]) -> Cow<'_, [u8]> {
    if MASK.is_off.load(Ordering::Relaxed) { Cow::Borrowed(value) } else { Cow::Owned(masked(value).into_bytes()) }
}

/// Masks a key, if keys of its class are secret.
pub(crate) fn key<'a>(class: &str, key: &'a [u8]) -> Cow<'a, [u8]> {
    if is_secret(class) { value(key) } else { Cow::Borrowed(key) }
}

/// Masks the value of a header, unless it is public; in `Cookie`, the value of each cookie. `name` is in lower case.
pub(crate) fn header<'a>(name: &str, text: &'a [u8]) -> Cow<'a, [u8]> {
    if name == "cookie" {
        return Cow::Owned(each_cookie(text, |name, text| key(&format!("cookie:{name}"), text).into_owned()));
    }
    key(&format!("header:{name}"), text)
}

/// Replaces the value of each cookie of a `Cookie` header. `replace` receives the name and the value.
pub(crate) fn each_cookie(text: &[u8], mut replace: impl FnMut(&str, &[u8]) -> Vec<u8>) -> Vec<u8> {
    let pairs = text.split(|byte| *byte == b';').map(|pair| {
        let Some(equals) = pair.iter().position(|byte| *byte == b'=') else { return replace("", pair) };
        let name = String::from_utf8_lossy(&pair[..equals]);
        [&pair[..=equals], &replace(name.trim(), &pair[equals + 1..])].concat()
    });
    pairs.collect::<Vec<_>>().join(&b';')
}

/// Whether keys of a class contain values that are masked: those of headers other than `User-Agent` and `Host`, of
/// cookies and of JSON bodies. Query parameters are not masked, because the access log has them in the path.
fn is_secret(class: &str) -> bool {
    let is_public = |name: &str| matches!(name, "user-agent" | "host");
    let is_secret = |part: &str| match part.trim().split_once(':') {
        Some(("header", name)) => !is_public(name),
        Some(("cookie" | "json", _)) => true,
        _ => false,
    };
    class.split('+').any(is_secret) && *MASK.account_class.read() != class
}

/// Whether this has the form of a masked value.
pub(crate) fn is_masked(shown: &[u8]) -> bool {
    let Some((start, digest)) = shown.split_at_checked(shown.len().saturating_sub(DIGEST_DIGITS)) else { return false };
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    digest.len() == DIGEST_DIGITS
        && digest.iter().all(is_digit)
        && start
            .split_last()
            .is_some_and(|(last, start)| *last == SEPARATOR as u8 && start.len() <= SHOWN_CHARACTERS_MAX)
}

/// Whether `shown` is the masked form of this key. False if keys of the class are not masked.
pub(crate) fn is_shown_as(class: &str, key: &[u8], shown: &[u8]) -> bool {
    is_secret(class) && masked(key).as_bytes() == shown
}

fn masked(value: &[u8]) -> String {
    let mut hasher = SipHasher24::new_with_key(&MASK.secret);
    hasher.write(value);
    let visible = value.iter().take(SHOWN_CHARACTERS_MAX.min(value.len() / 4));
    let visible: String = visible.map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' }).collect();
    format!("{visible}{SEPARATOR}{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_value_has_the_first_characters_and_a_digest() {
        let shown = value(b"sk_live_0123456789abcdef");
        assert!(shown.starts_with(b"sk_l*") && shown.len() == 21 && is_masked(&shown));
        assert_ne!(shown, value(b"sk_live_0123456789abcdee"));
        assert!(value(b"abc").starts_with(b"*"), "a short value shows nothing");
        assert!(value(b"a\nb\xff12345678").starts_with(b"a.b*"));
        assert!(!is_masked(b"sk_live_0123456789abcdef") && !is_masked(b"*") && !is_masked(b""));
    }

    #[test]
    fn keys_with_headers_cookies_or_json_values_are_masked() {
        for class in ["header:x-api-key", "cookie:sid", "json:/i", "ip/24+header:x-api-key", "path+cookie:sid"] {
            let shown = key(class, b"0123456789").into_owned();
            assert!(is_masked(&shown) && is_shown_as(class, b"0123456789", &shown), "{class}");
        }
        for class in ["ip/32", "user-agent", "header:user-agent", "host", "path", "identifier", "descriptor:user"] {
            assert_eq!(&*key(class, b"0123456789"), b"0123456789", "{class}");
        }
    }

    #[test]
    fn each_cookie_is_masked_separately() {
        let shown = String::from_utf8(header("cookie", b"sid=0123456789; lang=en").into_owned()).unwrap();
        assert!(shown.starts_with("sid=01*") && shown.contains("; lang=*") && !shown.contains("0123456789"), "{shown}");
    }
}
