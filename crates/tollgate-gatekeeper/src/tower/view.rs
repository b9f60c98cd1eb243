//! Presents an HTTP request of a service to the rules of the limiter: its address, method, path, headers and the
//! attributes that the service supplies.

use core::fmt;
use core::net::IpAddr;
use std::sync::Arc;

use http::header::COOKIE;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Uri};
use tollgate_core::inputs::{Inputs, separator, write_distinct_cookies};
use tollgate_core::path::NormalPath;
use tollgate_core::request::{Request as Asked, host_of};

/// The parts of a request that can identify a caller: all but its body.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'a> {
    /// The method.
    pub method: &'a Method,
    /// The target.
    pub uri: &'a Uri,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// Data from other layers.
    pub extensions: &'a Extensions,
}

/// Finds the client's address.
pub(super) type FindClient = Arc<dyn Fn(RequestView<'_>) -> Option<IpAddr> + Send + Sync>;
/// Finds a caller's name, for the classes `identifier` and `descriptor:NAME`.
pub(super) type FindAttribute = Arc<dyn for<'a> Fn(RequestView<'a>, &str) -> Option<&'a [u8]> + Send + Sync>;

/// The functions that identify callers.
#[derive(Clone)]
pub(super) struct Extractors {
    pub(super) client: FindClient,
    pub(super) attribute: FindAttribute,
}

impl fmt::Debug for Extractors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Extractors").finish_non_exhaustive()
    }
}

impl Default for Extractors {
    /// Uses an address in the extensions, and no attributes.
    fn default() -> Self {
        Self { client: Arc::new(|view| view.extensions.get::<IpAddr>().copied()), attribute: Arc::new(|_, _| None) }
    }
}

/// A request as the limiter reads it.
pub(super) struct View<'a> {
    view: RequestView<'a>,
    client: Option<IpAddr>,
    /// Allocates only if the path is not in normal form.
    normal_path: NormalPath,
    extractors: &'a Extractors,
}

impl<'a> View<'a> {
    pub(super) fn new<B>(request: &'a http::Request<B>, extractors: &'a Extractors) -> Self {
        let view = RequestView {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        };
        let normal_path = NormalPath::of(view.uri.path().as_bytes());
        Self { view, client: (extractors.client)(view), normal_path, extractors }
    }
}

impl Asked for View<'_> {
    fn client(&self) -> Option<IpAddr> {
        self.client
    }

    fn method(&self) -> &[u8] {
        self.view.method.as_str().as_bytes()
    }

    fn target(&self) -> &[u8] {
        self.view.uri.path_and_query().map_or(b"/", |target| target.as_str().as_bytes())
    }

    fn host(&self) -> Option<&[u8]> {
        host_of(self.view.uri.host().map(str::as_bytes).or_else(|| self.header("host"))?)
    }

    fn normal_path(&self) -> Option<&NormalPath> {
        self.normal_path.differing()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.view.headers.get(name).map(HeaderValue::as_bytes)
    }

    fn attribute(&self, name: &str) -> Option<&[u8]> {
        (self.extractors.attribute)(self.view, name)
    }
}

/// Reduces each header and cookie that rules use to one value, so that the service sees the same value as the
/// rules. Repeated headers are joined. Of a repeated cookie, only the first is kept. Headers and cookies that some
/// servers would confuse with one of them, such as `x_user` with `x-user`, are dropped, and so is white space around a
/// value, which HTTP/2 can carry.
pub(super) fn unify(headers: &mut HeaderMap, inputs: &Inputs) {
    for name in &inputs.headers {
        join(headers, name);
    }
    if !inputs.cookies.is_empty() {
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

/// Joins all headers with this name into one, without white space around the values.
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
