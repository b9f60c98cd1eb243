//! Path normalization: the ways in which a backend may interpret the path of a request.
//!
//! Servers disagree about paths. One decodes `%2f` and merges slashes, another does neither, a third drops
//! `;parameters` first. A rule that compares bytes is bypassed by any spelling that the backend interprets as
//! the rule's path. The gate does not know the server behind it, so a path has several readings, and rules
//! use all of them: `when` holds if one reading matches, `unless` only if every reading matches. The backend
//! receives the original bytes.
//!
//! The normal form is computed in these steps, each in linear time.
//!
//! 1. Percent-escapes are decoded until none is left, so `%256c` is `l`. A `\` becomes `/`.
//! 2. Path parameters, from `;` to the next slash, are dropped. A second form that keeps them is a reading of its own.
//! 3. Empty segments and `.` are dropped; `..` removes the segment before it. A trailing slash stays.
//! 4. Controls, space, `%`, `?`, `#` and bytes above 127 are escaped again, with upper-case digits.
//!
//! A path that begins with two slashes is a network-path reference (RFC 3986, 4.2): a backend that resolves
//! its target as a URL reads `//host/login` as `/login`. The gate therefore also reads it without its first segment.
//!
//! Servers that disagree about step 1, step 2 or empty segments resolve `..` differently, and an encoded
//! slash within a parameter may or may not end the parameter. The same holds for an encoded slash within a
//! first segment that may be a host, and for `.` and an empty segment before the first name: some servers
//! read `/.//host/login` as `//host/login`. The readings of such a path cannot be listed, so the path is
//! *ambiguous*: every `when` on a path holds, no `unless` does, and all ambiguous paths share one key and one
//! route. Clients resolve dots before they send a path, so only attackers and scanners send these.
//!
//! Letter case is significant: `/Login` and `/login` are different paths.

use alloc::string::String;
use alloc::vec::Vec;

use crate::pattern::Pattern;

/// The key of all ambiguous paths. It is ambiguous itself, so a query for this key finds it.
pub const AMBIGUOUS: &[u8] = b"/..;";

/// The readings of a path besides its original bytes. The buffers are reused for the next path.
#[derive(Clone, Debug, Default)]
pub struct NormalPath {
    /// The path after step 1.
    decoded: Vec<u8>,
    /// The normal form, followed by the form with parameters.
    forms: Vec<u8>,
    /// The end of the normal form in `forms`.
    normal_bytes: usize,
    /// Whether any reading differs from the original path.
    differs: bool,
    /// Whether the first segment of the forms may be a host.
    has_host: bool,
    /// Whether the path has readings that no form shows.
    pub is_ambiguous: bool,
}

impl NormalPath {
    /// The readings of `path`.
    pub fn of(path: &[u8]) -> Self {
        let mut normal = Self::default();
        normal.read(path);
        normal
    }

    /// Replaces the previous path by this one, which has no query. A path that is already in normal form is
    /// only scanned.
    ///
    /// A target without a leading slash (`*`, `host:443`, empty) is not a path and has no other reading.
    #[inline]
    pub fn read(&mut self, path: &[u8]) {
        self.differs = false;
        if path.first() == Some(&b'/') && !is_normal(path) {
            self.normalise(path);
        }
    }

    /// These readings, if any differs from the original path.
    pub const fn differing(&self) -> Option<&Self> {
        if self.differs { Some(self) } else { None }
    }

    /// The normal form. Meaningful only if [`differing`](Self::differing).
    pub fn normal(&self) -> &[u8] {
        &self.forms[..self.normal_bytes]
    }

    /// The normal form with its parameters.
    fn with_parameters(&self) -> &[u8] {
        match &self.forms[self.normal_bytes..] {
            [] => self.normal(),
            form => form,
        }
    }

    /// The forms: with and without parameters, and where the first segment may be a host, without it.
    #[inline]
    fn forms(&self) -> impl Iterator<Item = &[u8]> {
        let with_host = [self.normal(), self.with_parameters()];
        let without_host = with_host.map(without_first_segment);
        with_host.into_iter().chain(without_host.into_iter().take(if self.has_host { 2 } else { 0 }))
    }

    #[cold]
    fn normalise(&mut self, path: &[u8]) {
        let Self { decoded, forms, .. } = self;
        let found = decode(path, decoded);
        forms.clear();
        let dots = resolve(decoded, forms, Parameters::Drop);
        self.normal_bytes = forms.len();
        if found.parameters {
            resolve(decoded, forms, Parameters::Keep);
        }
        let is_odd = found.escapes || found.parameters || found.slashes || dots.current || dots.empty;
        self.has_host = decoded.starts_with(b"//");
        self.is_ambiguous = found.ends_early
            || found.slash_in_parameters
            || (self.has_host && found.has_slash_in_first_segment(decoded))
            || (dots.parent && is_odd)
            || (dots.leading_current && dots.leading_empty);
        self.differs = self.is_ambiguous || forms != path;
    }
}

/// The path that names the route of a request, which is also its key in the class `path`: the normal form
/// without a trailing slash.
pub fn canonical<'a>(path: &'a [u8], normal: Option<&'a NormalPath>) -> &'a [u8] {
    match normal {
        Some(normal) if normal.is_ambiguous => AMBIGUOUS,
        Some(normal) => without_slash(normal.normal()),
        None => without_slash(path),
    }
}

/// The path after its first segment, at least a slash.
fn without_first_segment(path: &[u8]) -> &[u8] {
    let end = path.iter().skip(1).position(|&byte| byte == b'/');
    end.map_or(b"/", |end| &path[end + 1..])
}

fn without_slash(path: &[u8]) -> &[u8] {
    match path {
        [rest @ .., b'/'] if !rest.is_empty() => rest,
        _ => path,
    }
}

/// Whether a byte is escaped in the normal form.
const fn is_escaped(byte: u8) -> bool {
    !byte.is_ascii_graphic() || matches!(byte, b'%' | b'?' | b'#')
}

/// Whether a path with a leading slash is in normal form and has no other reading.
fn is_normal(path: &[u8]) -> bool {
    let mut at = 1;
    let mut after_slash = true;
    while let Some(&byte) = path.get(at) {
        match byte {
            b'/' if after_slash => return false,
            b'.' if after_slash && is_dots(&path[at..]) => return false,
            b'%' => match escape(&path[at..]) {
                Some(escaped) if !matches!(escaped, 0 | b'\n' | b'%') && is_escaped(escaped) => {
                    if path[at + 1..at + 3].iter().any(u8::is_ascii_lowercase) {
                        return false;
                    }
                    at += 2;
                }
                _ => return false,
            },
            b';' | b'\\' => return false,
            _ if is_escaped(byte) => return false,
            _ => {}
        }
        after_slash = byte == b'/';
        at += 1;
    }
    true
}

/// Whether the first segment of `rest` is `.` or `..`.
fn is_dots(rest: &[u8]) -> bool {
    matches!(rest, [b'.'] | [b'.', b'/', ..] | [b'.', b'.'] | [b'.', b'.', b'/', ..])
}

/// The byte that the escape at the start of `text` encodes.
pub(crate) fn escape(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = text else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()
}

/// The findings of [`decode`].
#[derive(Default)]
struct Found {
    /// An escape of a byte that is not escaped in the normal form.
    escapes: bool,
    /// An encoded slash, or a backslash.
    slashes: bool,
    /// A `;`.
    parameters: bool,
    /// An encoded slash or a backslash after a `;` in the same segment.
    slash_in_parameters: bool,
    /// Where the first slash is that was written as one and follows a name.
    first_segment_end: Option<usize>,
    /// A NUL, at which some servers cut the path, or a line feed. `$` in regular expressions of Python, PHP and Perl
    /// matches before a line feed at the end, so their routers find the route without it.
    ends_early: bool,
}

impl Found {
    /// Whether a slash that was not written as one is inside of the first segment that has a name.
    fn has_slash_in_first_segment(&self, decoded: &[u8]) -> bool {
        let segment = &decoded[..self.first_segment_end.unwrap_or(decoded.len())];
        segment.iter().skip_while(|&&byte| byte == b'/').any(|&byte| byte == b'/')
    }
}

/// Decodes escapes until none is left. A decoded byte may complete an escape with the bytes before it, so
/// this checks backwards after each byte. Another pass per layer of `%25` would take quadratic time.
fn decode(path: &[u8], out: &mut Vec<u8>) -> Found {
    let mut found = Found::default();
    let mut in_parameters = false;
    out.clear();
    for &byte in path {
        out.push(byte);
        let mut decoded = false;
        while let Some(escaped) = out.len().checked_sub(3).and_then(|start| escape(&out[start..])) {
            out.truncate(out.len() - 3);
            out.push(escaped);
            decoded = true;
        }
        let Some(last) = out.last_mut() else { continue };
        found.escapes |= decoded && !is_escaped(*last);
        match *last {
            0 | b'\n' => found.ends_early = true,
            b';' => (found.parameters, in_parameters) = (true, true),
            b'/' if !decoded => {
                in_parameters = false;
                let ends_name = out.len() > 1 && out[out.len() - 2] != b'/';
                found.first_segment_end = found.first_segment_end.or(ends_name.then_some(out.len() - 1));
            }
            b'/' | b'\\' => {
                *last = b'/';
                found.slashes = true;
                found.slash_in_parameters |= in_parameters;
            }
            _ => {}
        }
    }
    found
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Parameters {
    Drop,
    Keep,
}

/// The findings of [`resolve`].
#[derive(Default)]
struct Dots {
    /// A `.` segment.
    current: bool,
    /// A `..` segment.
    parent: bool,
    /// An empty segment that is not the last.
    empty: bool,
    /// A `.` segment before the first name.
    leading_current: bool,
    /// An empty segment before the first name.
    leading_empty: bool,
}

/// Appends a form of the decoded path: without empty segments and dots, and escaped again.
fn resolve(decoded: &[u8], out: &mut Vec<u8>, parameters: Parameters) -> Dots {
    let start = out.len();
    let mut dots = Dots::default();
    let mut ends_in_slash = false;
    let mut segments = decoded[1..].split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let name = match parameters {
            Parameters::Drop => without_parameters(segment),
            Parameters::Keep => segment,
        };
        ends_in_slash = matches!(name, b"" | b"." | b"..");
        match name {
            b"" if segments.peek().is_some() => {
                dots.empty = true;
                dots.leading_empty |= segment.is_empty() && out.len() == start;
            }
            b"" => {}
            b"." => {
                dots.current = true;
                dots.leading_current |= out.len() == start;
            }
            b".." => {
                dots.parent = true;
                let parent = out[start..].iter().rposition(|&byte| byte == b'/');
                out.truncate(start + parent.unwrap_or(0));
            }
            _ => {
                out.push(b'/');
                name.iter().for_each(|&byte| push_escaped(out, byte));
            }
        }
    }
    if ends_in_slash || out.len() == start {
        out.push(b'/');
    }
    dots
}

fn without_parameters(segment: &[u8]) -> &[u8] {
    segment.split(|&byte| byte == b';').next().unwrap_or_default()
}

fn push_escaped(out: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    if is_escaped(byte) {
        out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    } else {
        out.push(byte);
    }
}

/// A pattern that a path can match in its original or its normal form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    written: Pattern,
    /// The pattern in normal form, without a trailing slash.
    normal: Pattern,
}

impl PathPattern {
    /// A pattern in which `*` matches any bytes.
    pub fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        let normal = String::from_utf8(normal_pattern(text.as_bytes())).expect("bytes above 127 are escaped");
        Self { normal: Pattern::new(normal), written: Pattern::new(text) }
    }

    /// Whether at least one reading may match (`MAY`), or every reading must.
    #[inline]
    pub fn matches<const MAY: bool>(&self, path: &[u8], normal: Option<&NormalPath>) -> bool {
        let is_form = |form: &[u8]| self.matches_form(form);
        if self.written.matches(path) == MAY {
            return MAY;
        }
        match normal {
            None => is_form(path),
            Some(normal) if normal.is_ambiguous => MAY,
            Some(normal) if MAY => normal.forms().any(is_form),
            Some(normal) => normal.forms().all(is_form),
        }
    }

    fn matches_form(&self, form: &[u8]) -> bool {
        let bare = without_slash(form);
        self.normal.matches(bare) || (bare.len() < form.len() && self.normal.matches(form))
    }
}

/// A pattern in normal form. Dots are not resolved, because `..` after a star could remove anything.
fn normal_pattern(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    decode(text, &mut decoded);
    let mut out = Vec::new();
    let mut segments = decoded.split(|&byte| byte == b'/').map(without_parameters);
    // The part before the first slash: empty, or the start of a pattern such as `*.php`.
    let first = segments.next().unwrap_or_default();
    first.iter().for_each(|&byte| push_escaped(&mut out, byte));
    for segment in segments.filter(|segment| !segment.is_empty()) {
        out.push(b'/');
        segment.iter().for_each(|&byte| push_escaped(&mut out, byte));
    }
    // Without its slash, `*/` would match everything.
    let is_root = out.is_empty() && decoded.first() == Some(&b'/');
    if is_root || (decoded.ends_with(b"/") && out.ends_with(b"*")) {
        out.push(b'/');
    }
    out
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;
    use proptest::prelude::*;

    fn text(bytes: &[u8]) -> String {
        core::str::from_utf8(bytes).unwrap().to_string()
    }

    /// The normal form, or a word for a path without one.
    fn normal(path: &[u8]) -> String {
        let normal = NormalPath::of(path);
        match normal.differing() {
            Some(normal) if normal.is_ambiguous => "ambiguous".to_string(),
            Some(normal) => text(normal.normal()),
            None => text(path),
        }
    }

    #[test]
    fn each_spelling_has_the_documented_normal_form() {
        let cases: &[(&[u8], &str)] = &[
            (b"/login", "/login"),
            (b"/", "/"),
            (b"", ""),
            (b"*", "*"),
            (b"example.org:443", "example.org:443"),
            // Escapes.
            (b"/%6cogin", "/login"),
            (b"/%6Cogin", "/login"),
            (b"/%256cogin", "/login"),
            (b"/%25256cogin", "/login"),
            (b"/%%36cogin", "/login"),
            (b"/a%20b", "/a%20b"),
            (b"/caf%c3%a9", "/caf%C3%A9"),
            (b"/caf\xc3\xa9", "/caf%C3%A9"),
            (b"/%ff\xfe", "/%FF%FE"),
            (b"/a%2cb%40c", "/a,b@c"),
            (b"/100%", "/100%25"),
            (b"/100%25", "/100%25"),
            (b"/what%3f%23", "/what%3F%23"),
            (b"/%zz%4", "/%25zz%254"),
            // Slashes.
            (b"//login", "/login"),
            (b"/a///b//", "/a/b/"),
            (b"/a%2fb", "/a/b"),
            (b"/a\\b%5cc", "/a/b/c"),
            (b"/login/", "/login/"),
            // Dots.
            (b"/./login", "/login"),
            (b"/x/../login", "/login"),
            (b"/../../login", "/login"),
            (b"/a/b/..", "/a/"),
            (b"/a/.", "/a/"),
            (b"/..", "/"),
            (b"/.well-known/x", "/.well-known/x"),
            (b"/...", "/..."),
            (b"/%2e/login", "/login"),
            // Parameters.
            (b"/login;x", "/login"),
            (b"/login;a=1;b/c;d", "/login/c"),
            (b"/login%3bx", "/login"),
            (b"/;x/login", "/login"),
            (b"/login/;x", "/login/"),
            // Readings that differ between servers.
            (b"/static/..;/login", "ambiguous"),
            (b"/static/%2e%2e/login", "ambiguous"),
            (b"/static/..%2flogin", "ambiguous"),
            (b"/static/%252e%252e/login", "ambiguous"),
            (b"/static\\..\\login", "ambiguous"),
            (b"/login/x//../..", "ambiguous"),
            (b"/login/x%2fy/..", "ambiguous"),
            (b"/login/./..", "ambiguous"),
            (b"/login;%2fx", "ambiguous"),
            (b"/login%3b%252fx", "ambiguous"),
            (b"/login%00.css", "ambiguous"),
            (b"/login%0A", "ambiguous"),
            (b"/login%250a", "ambiguous"),
            (b"//a%2fb/login", "ambiguous"),
            (b"//a\\b/login", "ambiguous"),
            (b"/.//a/login", "ambiguous"),
            (b"//./a/login", "ambiguous"),
            (b"/a%2fb/login", "/a/b/login"),
            (b"/%2fa/login", "/a/login"),
            (AMBIGUOUS, "ambiguous"),
        ];
        for (path, expect) in cases {
            assert_eq!(normal(path), *expect, "{}", String::from_utf8_lossy(path));
        }
    }

    fn may(pattern: &str, path: &str) -> bool {
        PathPattern::new(pattern).matches::<true>(path.as_bytes(), NormalPath::of(path.as_bytes()).differing())
    }

    fn must(pattern: &str, path: &str) -> bool {
        PathPattern::new(pattern).matches::<false>(path.as_bytes(), NormalPath::of(path.as_bytes()).differing())
    }

    #[test]
    fn a_spelling_of_the_path_matches_the_pattern() {
        for path in [
            "/login",
            "/%6cogin",
            "//login",
            "/./login",
            "/x/../login",
            "/login/",
            "/login;x",
            "/login;x/",
            "/\\login",
            "/%2flogin",
            "/login%2f",
            "/%256cogin",
            "/login;a%20b",
            "/login/.",
        ] {
            assert!(may("/login", path), "{path}");
            assert!(!may("/logout", path), "{path}");
        }
        for (pattern, path) in [
            ("/login/", "/login"),
            ("/login/", "/login/"),
            ("/caf\u{e9}", "/caf%C3%A9"),
            ("/caf%c3%a9", "/caf\u{e9}"),
            ("/api/*", "/%61pi/x"),
            ("/api/*", "/%61pi/"),
            ("*.php", "/x.php/"),
            ("*login", "/x;%6cogin"),
            ("/a;x", "/a;x"),
            ("/%61", "/a"),
            ("/", "//"),
            ("*", "*"),
            ("*", ""),
            ("*/", "/a/"),
        ] {
            assert!(may(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [("/api/*", "/api"), ("*/", "/a"), ("/login", "/Login"), ("/login", "/login/x")] {
            assert!(!may(pattern, path), "{pattern} {path}");
        }
    }

    #[test]
    fn a_first_segment_that_may_be_a_host_is_compared_with_and_without() {
        for path in [
            "//a/login",
            "/\\a/login",
            "/\\/a/login",
            "///a/login/",
            "/%2fa/login",
            "/%5ca/%6cogin",
            "/%252Fa/login",
            "//a:80/login",
            "//u@a//login;x",
            "//a;x/login",
            "//a%2flogin",
            "//%2fa%2fb/login",
            "//a%5Cb/login",
            "//a/x/../login",
            "/.//a/login",
        ] {
            assert!(may("/login", path), "{path}");
        }
        assert!(may("/a/login", "//a/login") && may("/", "//a") && may("/api/*", "//a/api/x"));
        for path in ["/a/login", "/a//login", "//a/b/login", "//a/b//login", "/a%2flogin"] {
            assert!(!may("/login", path), "{path}");
        }
        assert!(must("*.css", "//a/b.css") && !must("*/static/*", "//static/a") && must("*/static/*", "//a/static/b"));
        assert!(!must("*a*", "//a/login"));
    }

    #[test]
    fn an_exemption_needs_every_reading_to_match() {
        for path in ["/static/a.css", "/static/", "/static/a%20b", "/static//a", "/static/a/", "/static/caf%c3%a9"] {
            assert!(must("/static/*", path), "{path}");
        }
        for path in [
            "/static/../login",
            "/static/..;/login",
            "/static/%2e%2e/login",
            "/static/%252e%252e/login",
            "/static/..%2flogin",
            "/static/..\\login",
            "/%73tatic/a",
            "/static",
        ] {
            assert!(!must("/static/*", path), "{path}");
        }
        assert!(!must("*.css", "/login;.css") && !must("*.css", "/login%00.css"));
        assert!(must("/health", "/health") && !must("/health", "/health/"));
    }

    #[test]
    fn nested_escapes_take_linear_time() {
        let tower = [b"/%".as_slice(), &b"25".repeat(500_000), b"6cogin"].concat();
        assert_eq!(normal(&tower), "/login");
    }

    #[test]
    fn all_spellings_have_one_route() {
        let route = |path: &str| text(canonical(path.as_bytes(), NormalPath::of(path.as_bytes()).differing()));
        for path in ["/login", "/login/", "//login", "/%6cogin;x", "/x/../login"] {
            assert_eq!(route(path), "/login");
        }
        assert_eq!((route("/"), route(""), route("*")), ("/".into(), "".into(), "*".into()));
        assert_eq!((route("/a/%2e%2e/b"), route("/..;")), ("/..;".into(), "/..;".into()));
    }

    /// A path of parts that servers treat differently.
    fn odd_path() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop::sample::select(vec![
            "/", "/", ".", "..", ";", "%", "%2e", "%2F", "%5c", "%25", "%3B", "%00", "\\", "a", "login", "%6c", "2",
            "6", "c", "\u{e9}", " ", "#", "*",
        ]);
        prop::collection::vec(piece, 0..16).prop_map(|pieces| [b"/", pieces.concat().as_bytes()].concat())
    }

    /// The path in another spelling, chosen by `how`.
    fn respelled(path: &str, how: &[u8]) -> String {
        let mut out = String::new();
        for (at, byte) in path.bytes().enumerate() {
            let how = how.get(at).copied().unwrap_or_default();
            match (byte, how % 6) {
                (b'/', 1) => out.push_str("//"),
                (b'/', 2) => out.push_str("/./"),
                (b'/', 3) if at > 0 => out.push_str(";p=1/"),
                (b'/', 4) => out.push_str("/\\"),
                (b'/', _) => out.push('/'),
                (_, 1 | 2) => out.push_str(&alloc::format!("%{byte:02x}")),
                (_, 3) => out.push_str(&alloc::format!("%25{byte:02X}")),
                _ => out.push(char::from(byte)),
            }
        }
        out
    }

    proptest! {
        #[test]
        fn the_normal_form_of_a_normal_form_is_itself(path in odd_path()) {
            let once = NormalPath::of(&path);
            if let Some(normal) = once.differing().filter(|normal| !normal.is_ambiguous) {
                prop_assert!(NormalPath::of(normal.normal()).differing().is_none(), "{}", text(normal.normal()));
            }
        }

        #[test]
        fn all_spellings_of_a_path_have_the_same_normal_form(
            path in "(/[a-z0-9._~-]{0,3}[a-z]){1,4}/?",
            how in prop::collection::vec(any::<u8>(), 0..24),
        ) {
            let spelling = respelled(&path, &how);
            prop_assert_eq!(normal(spelling.as_bytes()), path.clone(), "{}", &spelling);
            prop_assert!(may(&path, &spelling));
        }

        #[test]
        fn the_fast_check_agrees_with_normalisation(path in odd_path()) {
            let mut forced = NormalPath::default();
            forced.normalise(&path);
            if is_normal(&path) {
                prop_assert!(!forced.differs && forced.normal() == path);
            }
        }

        #[test]
        fn any_bytes_are_read_within_three_times_their_length(path in prop::collection::vec(any::<u8>(), 0..64)) {
            let normal = NormalPath::of(&path);
            if let Some(normal) = normal.differing() {
                prop_assert!(normal.normal().len() <= 3 * path.len() && normal.normal().first() == Some(&b'/'));
                prop_assert!(normal.normal().iter().all(u8::is_ascii_graphic));
            }
        }

        #[test]
        fn must_match_implies_may_match(path in odd_path(), pattern in "[/*a.]{1,6}") {
            let normal = NormalPath::of(&path);
            let pattern = PathPattern::new(pattern);
            let (path, normal) = (&path[..], normal.differing());
            prop_assert!(!pattern.matches::<false>(path, normal) || pattern.matches::<true>(path, normal));
        }
    }
}
