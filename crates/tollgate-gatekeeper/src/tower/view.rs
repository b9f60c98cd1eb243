//! A request as rules see it.

use core::net::IpAddr;
use std::sync::Arc;

use http::header::COOKIE;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Uri};
use tollgate_core::inputs::{Inputs, separator, write_distinct_cookies};
use tollgate_core::path::NormalPath;
use tollgate_core::request::{Request as Asked, host_of};

/// What of a request there is to tell callers apart by: all but its body.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The method.
    pub method: &'a Method,
    /// What is asked for.
    pub uri: &'a Uri,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// What layers before this one have found out.
    pub extensions: &'a Extensions,
}

/// Finds the client's address.
pub(super) type FindClient = Arc<dyn Fn(Seen<'_>) -> Option<IpAddr> + Send + Sync>;
/// Finds what a caller is called, for the classes `identifier` and `descriptor:NAME`.
pub(super) type FindAttribute = Arc<dyn for<'a> Fn(Seen<'a>, &str) -> Option<&'a [u8]> + Send + Sync>;

/// How callers are told apart.
#[derive(Clone)]
pub(super) struct Extractors {
    pub(super) client: FindClient,
    pub(super) attribute: FindAttribute,
}

impl Default for Extractors {
    /// By an address that a layer before this one has put into the extensions, and by nothing else.
    fn default() -> Self {
        Self { client: Arc::new(|seen| seen.extensions.get::<IpAddr>().copied()), attribute: Arc::new(|_, _| None) }
    }
}

pub(super) struct View<'a> {
    seen: Seen<'a>,
    client: Option<IpAddr>,
    /// Takes memory only if the path is not in normal form.
    normal_path: NormalPath,
    extractors: &'a Extractors,
}

impl<'a> View<'a> {
    pub(super) fn new<B>(request: &'a http::Request<B>, extractors: &'a Extractors) -> Self {
        let seen = Seen {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        };
        let normal_path = NormalPath::of(seen.uri.path().as_bytes());
        Self { seen, client: (extractors.client)(seen), normal_path, extractors }
    }
}

impl Asked for View<'_> {
    fn client(&self) -> Option<IpAddr> {
        self.client
    }

    fn method(&self) -> &[u8] {
        self.seen.method.as_str().as_bytes()
    }

    fn target(&self) -> &[u8] {
        self.seen.uri.path_and_query().map_or(b"/", |target| target.as_str().as_bytes())
    }

    fn host(&self) -> Option<&[u8]> {
        host_of(self.seen.uri.host().map(str::as_bytes).or_else(|| self.header("host"))?)
    }

    fn normal_path(&self) -> Option<&NormalPath> {
        self.normal_path.differing()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.seen.headers.get(name).map(HeaderValue::as_bytes)
    }

    fn attribute(&self, name: &str) -> Option<&[u8]> {
        (self.extractors.attribute)(self.seen, name)
    }
}

/// Makes one value of each header and cookie that rules use, so that the service sees the value that rules see: lines of one header are
/// joined, cookies that repeat the name of another are dropped, and so are headers and cookies that only look like one of them. White space around a value,
/// which HTTP/2 can carry, is dropped.
pub(super) fn unify(headers: &mut HeaderMap, inputs: &Inputs) {
    for name in inputs.headers() {
        join(headers, name);
    }
    if !inputs.cookies().is_empty() {
        join(headers, COOKIE.as_str());
        let mut distinct = Vec::new();
        let cookies = headers.get(COOKIE).map(HeaderValue::as_bytes).unwrap_or_default();
        if write_distinct_cookies(inputs, cookies, &mut distinct)
            && let Ok(cookies) = HeaderValue::from_maybe_shared(distinct)
        {
            headers.insert(COOKIE, cookies);
        }
    }
    while let Some(name) = headers.keys().find(|name| inputs.is_look_alike(name.as_str().as_bytes())).cloned() {
        headers.remove(name);
    }
}

fn join(headers: &mut HeaderMap, name: &str) {
    let mut values = headers.get_all(name).iter().peekable();
    let Some(first) = values.next() else { return };
    let is_trimmed = first.as_bytes().trim_ascii().len() == first.len();
    if is_trimmed && values.peek().is_none() {
        return;
    }
    let mut joined = first.as_bytes().trim_ascii().to_vec();
    for value in values {
        joined.extend_from_slice(separator(name.as_bytes()));
        joined.extend_from_slice(value.as_bytes().trim_ascii());
    }
    if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_maybe_shared(joined)) {
        headers.insert(name, value);
    }
}
