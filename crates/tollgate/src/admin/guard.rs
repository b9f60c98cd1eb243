//! Authentication and authorisation of all requests to the admin address.
//!
//! The address is on loopback by default, but loopback is no protection: any web page that a user of this machine opens
//! can send requests there. Therefore the `Host` must be known, which defeats DNS rebinding, and a change that comes
//! from a page must come from our page and contain its CSRF token.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};

use subtle::ConstantTimeEq;
use tollgate_core::time::Moment;

use super::problem::AdminProblem;
use super::server::is_health_check;
use super::sessions::{LoginSession, Sessions, TokenFailures};
use super::tokens::{Role, Tokens, random_secret};
use super::wrong_tokens::{WrongToken, WrongTokens};
use super::{Console, ConsoleState};
use crate::session_cookie;

/// Header with the CSRF token.
pub(super) const CSRF: HeaderName = HeaderName::from_static("x-tollgate-csrf");

/// Content security policy of our pages: only our own files and requests.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The authenticated sender of a request.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    /// Permissions.
    pub(super) role: Role,
    /// Name that the person chose; not verified.
    pub(super) name: String,
    /// CSRF token that changes have to contain, if the request comes from a page.
    pub(super) csrf: Option<String>,
    /// Whether the sender logged in, and can log out.
    pub(super) login: bool,
}

impl Identity {
    /// How the sender was authenticated, for the field `let_in` in the list of changes. Unlike the name it cannot be
    /// chosen.
    pub(super) fn authentication(&self) -> String {
        let role = self.role.as_str();
        match (self.login, &self.csrf) {
            (true, _) => format!("logged in as {}, {role}", self.name),
            (false, None) => format!("by the {role}'s token"),
            (false, Some(_)) => "no token is required".to_owned(),
        }
    }
}

/// The credential by which a request was authorised. An event stream, which lasts for hours, checks with each event
/// whether its credential is still valid.
#[derive(Clone, Debug)]
pub(super) struct Credential {
    /// Value of [`Guard::renewals`] at that time. It is different after the tokens were replaced.
    renewals: u64,
    /// Session ID from the cookie; `None` if the request has a bearer token or no session.
    session: Option<String>,
}

/// Remote address of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerAddress(pub(super) SocketAddr);

impl PeerAddress {
    /// Remote address for a handler; unspecified if the request did not arrive over a connection.
    pub(super) fn address(peer: Option<Extension<Self>>) -> IpAddr {
        peer.map_or(IpAddr::from([0, 0, 0, 0]), |Extension(peer)| peer.0.ip())
    }
}

/// Tokens, sessions and host names that are accepted.
pub(crate) struct Guard {
    pub(crate) tokens: ArcSwap<Tokens>,
    /// Host names besides IP addresses and `localhost`.
    hosts: ArcSwap<Vec<String>>,
    pub(super) sessions: Sessions,
    /// Bounds how many wrong tokens are logged.
    failures: TokenFailures,
    /// Counts wrong tokens and delays the responses to them.
    pub(super) wrong_tokens: WrongTokens,
    /// How many times the tokens were replaced.
    renewals: AtomicU64,
    /// CSRF token of pages when no token is required.
    open_csrf: String,
}

impl Guard {
    /// Accepts these tokens, and these host names besides addresses and `localhost`.
    pub(crate) fn new(tokens: Tokens, hosts: Vec<String>) -> Self {
        let (sessions, failures, open_csrf) = (Sessions::default(), TokenFailures::default(), random_secret());
        let wrong_tokens = WrongTokens::default();
        let (tokens, hosts) = (ArcSwap::from_pointee(tokens), ArcSwap::from_pointee(hosts));
        Self { tokens, hosts, sessions, failures, wrong_tokens, renewals: AtomicU64::new(0), open_csrf }
    }

    /// Replaces the tokens, if any are given, and the host names. Replacing tokens ends all sessions.
    pub(crate) fn renew(&self, tokens: Option<Tokens>, hosts: Vec<String>) {
        self.hosts.store(Arc::new(hosts));
        if let Some(tokens) = tokens {
            self.tokens.store(Arc::new(tokens));
            self.sessions.0.lock().clear();
            self.renewals.fetch_add(1, Ordering::Release);
        }
    }

    /// The credential of a request. Call this before the request is authorised, so that a token that is replaced
    /// meanwhile is detected.
    fn credential(&self, request: &Request, now: Moment) -> Credential {
        let renewals = self.renewals.load(Ordering::Acquire);
        let session = if bearer(request.headers()).is_none() { self.session(request.headers(), now) } else { None };
        Credential { renewals, session: session.map(|(id, _)| id.to_owned()) }
    }

    /// Whether a credential is still valid.
    pub(super) fn is_valid(&self, credential: &Credential, now: Moment) -> bool {
        let lasts = |id: &String| !self.tokens.load().are_required() || self.sessions.find(id, now).is_some();
        credential.renewals == self.renewals.load(Ordering::Acquire) && credential.session.as_ref().is_none_or(lasts)
    }

    /// Whether a `Host` header is accepted. IP addresses always are: DNS rebinding needs a name.
    fn is_known_host(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split_once(']').map_or("", |(address, _)| address),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        let same = |ours: &String| ours.eq_ignore_ascii_case(name);
        name.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost") || self.hosts.load().iter().any(same)
    }

    /// Role of the token that a client sent. A valid token is always accepted, so that wrong ones cannot lock out
    /// operators. The caller must mark the response to a wrong token with [`WrongToken`], so that it is delayed.
    pub(super) fn role_of(&self, sent: &str, from: IpAddr, console: &Console) -> Result<Role, AdminProblem> {
        if let Some(role) = self.tokens.load().role_of(sent) {
            return Ok(role);
        }
        self.wrong_tokens.count.inc();
        if !self.failures.failed(from, console.watch.calendar.now()) {
            return Err(AdminProblem::new(
                StatusCode::TOO_MANY_REQUESTS,
                "too many wrong tokens: try again in a minute",
            ));
        }
        tracing::warn!(%from, "wrong token at the admin address");
        Err(AdminProblem::new(StatusCode::UNAUTHORIZED, "wrong token"))
    }

    /// Authenticates a request by its bearer token or session cookie. `None` if it has neither.
    fn identity(&self, headers: &HeaderMap, from: IpAddr, console: &Console) -> Result<Option<Identity>, AdminProblem> {
        if !self.tokens.load().are_required() {
            let (role, name, csrf) = (Role::Operator, "operator".to_owned(), Some(self.open_csrf.clone()));
            return Ok(Some(Identity { role, name, csrf, login: false }));
        }
        if let Some(token) = bearer(headers) {
            let role = self.role_of(token, from, console).map_err(AdminProblem::by_wrong_token)?;
            return Ok(Some(Identity { role, name: role.as_str().to_owned(), csrf: None, login: false }));
        }
        let session = self.session(headers, console.watch.calendar.now());
        Ok(session.map(|(_, session)| Identity {
            role: session.role,
            name: session.name,
            csrf: Some(session.csrf),
            login: true,
        }))
    }

    /// Session of a request, with its ID. All cookies of the name are tried, because another site on the same host may
    /// have set one too, and browsers may send that one first.
    fn session<'a>(&self, headers: &'a HeaderMap, now: Moment) -> Option<(&'a str, LoginSession)> {
        cookies(headers).find_map(|id| Some((id, self.sessions.find(id, now)?)))
    }

    /// Rejects a change sent by a page of another site.
    fn reject_foreign(&self, headers: &HeaderMap) -> Result<(), AdminProblem> {
        let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        let host = text(&header::HOST).unwrap_or_default();
        let is_ours =
            |origin: &str| origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")) == Some(host);
        let site = text(&HeaderName::from_static("sec-fetch-site"));
        if text(&header::ORIGIN).is_none_or(is_ours) && matches!(site, None | Some("same-origin" | "none")) {
            return Ok(());
        }
        Err(AdminProblem::forbidden("the request comes from another site"))
    }

    /// Rejects a change of a page without its CSRF token. A request with a bearer token needs none, and if no token is
    /// required, neither does a client that is not a browser.
    fn reject_forged(&self, identity: &Identity, headers: &HeaderMap) -> Result<(), AdminProblem> {
        let Some(csrf) = &identity.csrf else { return Ok(()) };
        let fetch = HeaderName::from_static("sec-fetch-site");
        let signs_of_browser =
            [&header::ORIGIN, &header::COOKIE, &header::REFERER, &fetch].map(|name| headers.contains_key(name));
        if !self.tokens.load().are_required() && !signs_of_browser.contains(&true) {
            return Ok(());
        }
        match headers.get(CSRF).and_then(|value| value.to_str().ok()) {
            Some(sent) if is_same_secret(sent, csrf) => Ok(()),
            _ => Err(AdminProblem::forbidden("the CSRF token of this session is missing: reload the page")),
        }
    }

    /// Authorises a request. Returns its sender; `None` for health checks, the login page and the files of the console,
    /// which everybody may request.
    fn admit(&self, request: &Request, console: &Console) -> Result<Option<Identity>, AdminProblem> {
        let (path, headers) = (request.uri().path(), request.headers());
        if is_health_check(request) {
            return Ok(None);
        }
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        if !host.is_some_and(|host| self.is_known_host(host)) {
            return Err(AdminProblem::new(
                StatusCode::FORBIDDEN,
                "unknown host: use an IP address, or add the name to `hosts` in [admin]",
            ));
        }
        let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
        if changes {
            self.reject_foreign(headers)?;
        }
        if path == "/login" || path.starts_with("/console/") {
            return Ok(None);
        }
        let from = PeerAddress::address(request.extensions().get::<PeerAddress>().copied().map(Extension));
        let Some(identity) = self.identity(headers, from, console)? else {
            return Err(AdminProblem::new(StatusCode::UNAUTHORIZED, "a token is required"));
        };
        let reports = path == "/api/v1/rejections" && *request.method() == Method::POST;
        if identity.role == Role::Reporter && !reports {
            return Err(AdminProblem::forbidden("a reporter may only send refusals to POST /api/v1/rejections"));
        }
        // These two are sent with POST, but a viewer may use them: they change nothing except the own session.
        let is_for_viewers = path == "/api/v1/explain" || path == "/logout";
        if changes && !is_for_viewers && identity.role == Role::Viewer {
            return Err(AdminProblem::forbidden("a viewer cannot make changes"));
        }
        if changes {
            self.reject_forged(&identity, headers)?;
        }
        Ok(Some(identity))
    }
}

/// Middleware: authorises the request, and adds security headers to the response.
pub(super) async fn guard(State(console): ConsoleState, mut request: Request, next: Next) -> Response {
    let is_page = request.uri().path() == "/" && request.method() == Method::GET;
    let credential = console.guard.credential(&request, console.watch.calendar.now());
    let mut response = match console.guard.admit(&request, &console) {
        Ok(identity) => {
            request.extensions_mut().insert(credential);
            if let Some(identity) = identity {
                request.extensions_mut().insert(identity);
            }
            next.run(request).await
        }
        Err(problem) => {
            let response = problem.into_response();
            if is_page && response.status() == StatusCode::UNAUTHORIZED {
                Redirect::to("/login").into_response()
            } else {
                response
            }
        }
    };
    if response.extensions().get::<WrongToken>().is_some() {
        console.guard.wrong_tokens.delay().await;
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

/// Bearer token of a request. `None` without an `Authorization` header; empty if the header has another scheme.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().unwrap_or_default();
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    Some(if scheme.eq_ignore_ascii_case("bearer") { token.trim() } else { "" })
}

/// The session IDs in the cookies of a request.
pub(super) fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes);
    values.flat_map(|value| value.split(|byte| *byte == b';')).filter_map(|pair| {
        let (name, value) = str::from_utf8(pair).ok()?.trim().split_once('=')?;
        (name == session_cookie::NAME).then_some(value)
    })
}

/// Compares two secrets in constant time.
fn is_same_secret(sent: &str, expected: &str) -> bool {
    sent.as_bytes().ct_eq(expected.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_name_that_resolves_to_this_host_is_rejected() {
        let guard = Guard::new(Tokens::default(), vec!["gate.example".to_owned()]);
        for host in [
            "127.0.0.1:8889",
            "127.0.0.1",
            "localhost:1",
            "LOCALHOST",
            "[::1]:8889",
            "10.1.2.3",
            "gate.example",
            "Gate.Example:8889",
        ] {
            assert!(guard.is_known_host(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:8889",
            "127.0.0.1.evil.example",
            "localhost.evil.example:1",
            "[::1",
            "gate.example.evil:1",
        ] {
            assert!(!guard.is_known_host(host), "{host}");
        }
    }

    #[test]
    fn changes_record_the_authentication_whatever_name_is_chosen() {
        let ann = |csrf: Option<&str>, login| {
            let (name, csrf) = ("ann".to_owned(), csrf.map(str::to_owned));
            Identity { role: Role::Operator, name, csrf, login }.authentication()
        };
        assert_eq!(ann(Some("word"), true), "logged in as ann, operator");
        assert_eq!(ann(None, false), "by the operator's token");
        assert_eq!(ann(Some("word"), false), "no token is required");
    }

    #[test]
    fn secrets_are_compared_completely() {
        assert!(is_same_secret("abc", "abc"));
        assert!(!is_same_secret("abc", "abd") && !is_same_secret("ab", "abc") && !is_same_secret("", "a"));
    }
}
