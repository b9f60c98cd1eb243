//! A request as rules see it.

use core::net::IpAddr;
use std::sync::Arc;

use http::{Extensions, HeaderMap, Method, Uri};
use tollgate_core::path::NormalPath;
use tollgate_core::request::Request as Asked;

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
        let host = self.seen.uri.host().map(str::as_bytes).or_else(|| self.header("host"))?;
        let port =
            host.iter().rposition(|&byte| byte == b':').filter(|&at| host[at + 1..].iter().all(u8::is_ascii_digit));
        Some(&host[..port.unwrap_or(host.len())])
    }

    fn normal_path(&self) -> Option<&NormalPath> {
        self.normal_path.differing()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.seen.headers.get(name).map(http::HeaderValue::as_bytes)
    }

    fn attribute(&self, name: &str) -> Option<&[u8]> {
        (self.extractors.attribute)(self.seen, name)
    }
}
