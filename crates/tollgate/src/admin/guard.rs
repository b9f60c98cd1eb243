//! Who may come in, and do what. Everything that reaches the address for operators passes here first.
//!
//! The address is on loopback unless somebody says otherwise, but loopback is not a wall: any page that a person on this machine looks at
//! can send requests there. So the host must be one that is ours (a name that an attacker points at 127.0.0.1 is not), and a change that
//! comes from a page must come from our page and show a word that only our page can know.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};

use prometheus_client::metrics::counter::Counter;
use subtle::ConstantTimeEq;
use tollgate_core::time::Moment;

use super::Console;
use super::problem::Problem;
use super::server::is_health_check;
use super::sessions::{Attempts, Session, Sessions};
use super::tokens::{Role, Tokens, random_word};
use super::wrong_tokens::{WrongToken, WrongTokens};
use crate::session_cookie;

/// The header field in which a page shows its word.
pub(super) const CSRF: HeaderName = HeaderName::from_static("x-tollgate-csrf");

/// What a page may load and send: only what is ours.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Who asks.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    /// What they may do.
    pub(super) role: Role,
    /// What they call themselves.
    pub(super) name: String,
    /// What their page has to show with a change.
    pub(super) csrf: Option<String>,
    /// Whether they have logged in, and can log out.
    pub(super) login: bool,
}

impl Caller {
    /// How they were let in, for the list of changes: they may give any name with a change, but cannot choose this.
    pub(super) fn let_in(&self) -> String {
        let role = self.role.as_str();
        match (self.login, &self.csrf) {
            (true, _) => format!("logged in as {}, {role}", self.name),
            (false, None) => format!("by the {role}'s token"),
            (false, Some(_)) => "no token is asked for".to_owned(),
        }
    }
}

/// What somebody was let in by: what is sent to them for hours is sent for as long as it lets them in.
#[derive(Clone, Debug)]
pub(super) struct Admission {
    /// How often other tokens had been asked for than before.
    renewals: u64,
    /// The word of their session.
    session: Option<String>,
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

impl Peer {
    /// The address of the peer, as handlers get it; unspecified where a request did not come over a connection.
    pub(super) fn address(peer: Option<Extension<Self>>) -> IpAddr {
        peer.map_or(IpAddr::from([0, 0, 0, 0]), |Extension(peer)| peer.0.ip())
    }
}

/// What is known of who may come in.
pub(crate) struct Guard {
    tokens: ArcSwap<Tokens>,
    hosts: ArcSwap<Vec<String>>,
    pub(super) sessions: Sessions,
    attempts: Attempts,
    wrong_tokens: WrongTokens,
    /// How often other tokens were asked for than before.
    renewals: AtomicU64,
    /// What our page shows where nobody logs in.
    open_csrf: String,
}

impl Guard {
    /// Asks for these tokens, and answers to these names besides addresses and `localhost`.
    pub(crate) fn new(tokens: Tokens, hosts: Vec<String>) -> Self {
        let (sessions, attempts, open_csrf) = (Sessions::default(), Attempts::default(), random_word());
        let wrong_tokens = WrongTokens::default();
        let (tokens, hosts) = (ArcSwap::from_pointee(tokens), ArcSwap::from_pointee(hosts));
        Self { tokens, hosts, sessions, attempts, wrong_tokens, renewals: AtomicU64::new(0), open_csrf }
    }

    /// Wrong tokens so far, as a metric.
    pub(super) fn wrong_tokens(&self) -> Counter {
        self.wrong_tokens.count()
    }

    /// The tokens in these files, if they are others than are asked for now.
    pub(crate) fn other_tokens<'a>(
        &self,
        files: impl IntoIterator<Item = (Role, &'a Path)>,
        bytes_min: usize,
    ) -> io::Result<Option<Tokens>> {
        self.tokens.load().renewed(files, bytes_min)
    }

    /// Asks for these tokens from now on, if any are given, and answers to these names. Whoever has shown another token has to show one again.
    pub(crate) fn renew(&self, tokens: Option<Tokens>, hosts: Vec<String>) {
        self.hosts.store(Arc::new(hosts));
        if let Some(tokens) = tokens {
            self.tokens.store(Arc::new(tokens));
            self.sessions.end_all();
            self.renewals.fetch_add(1, Ordering::Release);
        }
    }

    /// What somebody who asks this is let in by, if they are. To be asked before it is looked whether they are.
    fn admission(&self, request: &Request, now: Moment) -> Admission {
        let renewals = self.renewals.load(Ordering::Acquire);
        let session = if bearer(request.headers()).is_none() { self.session(request.headers(), now) } else { None };
        Admission { renewals, session: session.map(|(word, _)| word.to_owned()) }
    }

    /// Whether somebody who was let in by this would be let in now.
    pub(super) fn still_admits(&self, by: &Admission, now: Moment) -> bool {
        let lasts = |word: &String| !self.tokens.load().are_asked_for() || self.sessions.find(word, now).is_some();
        by.renewals == self.renewals.load(Ordering::Acquire) && by.session.as_ref().is_none_or(lasts)
    }

    /// Whether a name, as it is in `Host`, is one of ours. An address is always: nobody can point it elsewhere.
    fn is_ours(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split_once(']').map_or("", |(address, _)| address),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        let same = |ours: &String| ours.eq_ignore_ascii_case(name);
        name.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost") || self.hosts.load().iter().any(same)
    }

    /// The role of a token. A valid token is always accepted. Only failures are throttled, so that wrong tokens lock
    /// nobody out. The answer to a wrong token has to be marked with [`WrongToken`].
    pub(super) fn role_of(&self, shown: &str, from: IpAddr, console: &Console) -> Result<Role, Problem> {
        if let Some(role) = self.tokens.load().role_of(shown) {
            return Ok(role);
        }
        self.wrong_tokens.note();
        if !self.attempts.failed(from, console.watch.calendar().now()) {
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens: wait a minute"));
        }
        tracing::warn!(%from, "a wrong token was shown to the address for operators");
        Err(Problem::new(StatusCode::UNAUTHORIZED, "that token is not known"))
    }

    /// Who asks, by the token or the cookie that is shown.
    fn caller(&self, headers: &HeaderMap, from: IpAddr, console: &Console) -> Result<Option<Caller>, Problem> {
        if let Some(token) = bearer(headers) {
            if !self.tokens.load().are_asked_for() {
                return Ok(Some(self.anybody()));
            }
            let role = self.role_of(token, from, console).map_err(Problem::by_wrong_token)?;
            return Ok(Some(Caller { role, name: role.as_str().to_owned(), csrf: None, login: false }));
        }
        if !self.tokens.load().are_asked_for() {
            return Ok(Some(self.anybody()));
        }
        let session = self.session(headers, console.watch.calendar().now());
        Ok(session.map(|(_, session)| Caller {
            role: session.role,
            name: session.name,
            csrf: Some(session.csrf),
            login: true,
        }))
    }

    /// The session of a request, and its word. All cookies of the name are tried: another site on the same host can
    /// set one as well, and browsers may send that one first.
    fn session<'a>(&self, headers: &'a HeaderMap, now: Moment) -> Option<(&'a str, Session)> {
        cookies(headers).find_map(|word| Some((word, self.sessions.find(word, now)?)))
    }

    /// Whoever can connect, where no token is asked for.
    fn anybody(&self) -> Caller {
        Caller { role: Role::Operator, name: "operator".to_owned(), csrf: Some(self.open_csrf.clone()), login: false }
    }

    /// Whether this is a change that only a page could have sent, and not ours.
    fn refuse_foreign(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        let host = text(&header::HOST).unwrap_or_default();
        if let Some(origin) = text(&header::ORIGIN) {
            let of_host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            if of_host != Some(host) {
                return Err(Problem::forbidden("this comes from another page"));
            }
        }
        match text(&HeaderName::from_static("sec-fetch-site")) {
            None | Some("same-origin" | "none") => Ok(()),
            Some(_) => Err(Problem::forbidden("this comes from another page")),
        }
    }

    /// Whether a change shows what our page shows. A program that shows a token, or that is no browser, need not.
    fn refuse_forged(&self, caller: &Caller, headers: &HeaderMap) -> Result<(), Problem> {
        let Some(csrf) = &caller.csrf else { return Ok(()) };
        let fetch = HeaderName::from_static("sec-fetch-site");
        let by_browser =
            [&header::ORIGIN, &header::COOKIE, &header::REFERER, &fetch].map(|name| headers.contains_key(name));
        if !self.tokens.load().are_asked_for() && !by_browser.contains(&true) {
            return Ok(());
        }
        match headers.get(CSRF).and_then(|value| value.to_str().ok()) {
            Some(shown) if same(shown, csrf) => Ok(()),
            _ => Err(Problem::forbidden("the word that belongs to this session is missing: reload the page")),
        }
    }

    fn admit(&self, request: &Request, console: &Console) -> Result<Option<Caller>, Problem> {
        let (path, headers) = (request.uri().path(), request.headers());
        if is_health_check(request) {
            return Ok(None);
        }
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        if !host.is_some_and(|host| self.is_ours(host)) {
            return Err(Problem::new(
                StatusCode::FORBIDDEN,
                "this host is not known here: use an address, or name it in `hosts` of [admin]",
            ));
        }
        let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
        if changes {
            self.refuse_foreign(headers)?;
        }
        if path == "/login" || path.starts_with("/console/") {
            return Ok(None);
        }
        let from = Peer::address(request.extensions().get::<Peer>().copied().map(Extension));
        let Some(caller) = self.caller(headers, from, console)? else {
            return Err(Problem::new(StatusCode::UNAUTHORIZED, "a token is asked for"));
        };
        let reports = path == "/api/v1/rejections" && *request.method() == Method::POST;
        if caller.role == Role::Reporter && !reports {
            return Err(Problem::forbidden(
                "a reporter may send refusals to POST /api/v1/rejections, and nothing else",
            ));
        }
        // Asking what would happen changes nothing, but it takes a body.
        let asks = path == "/api/v1/explain" || path == "/logout";
        if changes && !asks && caller.role == Role::Viewer {
            return Err(Problem::forbidden("a viewer cannot change anything"));
        }
        if changes {
            self.refuse_forged(&caller, headers)?;
        }
        Ok(Some(caller))
    }
}

/// Lets in who may come in, and says to browsers what pages may do.
pub(super) async fn guard(State(console): State<Arc<Console>>, mut request: Request, next: Next) -> Response {
    let is_page = request.uri().path() == "/" && request.method() == Method::GET;
    let admission = console.guard.admission(&request, console.watch.calendar().now());
    let mut response = match console.guard.admit(&request, &console) {
        Ok(caller) => {
            request.extensions_mut().insert(admission);
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
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

/// The token of a program.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().unwrap_or_default();
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    Some(if scheme.eq_ignore_ascii_case("bearer") { token.trim() } else { "" })
}

/// The words of all sessions that are shown.
pub(super) fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes);
    values.flat_map(|value| value.split(|byte| *byte == b';')).filter_map(|pair| {
        let (name, value) = str::from_utf8(pair).ok()?.trim().split_once('=')?;
        (name == session_cookie::NAME).then_some(value)
    })
}

/// Whether two words are the same, in a time that does not depend on how far they are.
fn same(shown: &str, word: &str) -> bool {
    shown.as_bytes().ct_eq(word.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_somebody_points_here_is_not_ours() {
        let guard = Guard::new(Tokens::none(), vec!["gate.example".to_owned()]);
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
            assert!(guard.is_ours(host), "{host}");
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
            assert!(!guard.is_ours(host), "{host}");
        }
    }

    #[test]
    fn how_somebody_was_let_in_is_said_whatever_they_are_called() {
        let ann = |csrf: Option<&str>, login| {
            let (name, csrf) = ("ann".to_owned(), csrf.map(str::to_owned));
            Caller { role: Role::Operator, name, csrf, login }.let_in()
        };
        assert_eq!(ann(Some("word"), true), "logged in as ann, operator");
        assert_eq!(ann(None, false), "by the operator's token");
        assert_eq!(ann(Some("word"), false), "no token is asked for");
    }

    #[test]
    fn words_are_compared_whole() {
        assert!(same("abc", "abc"));
        assert!(!same("abc", "abd") && !same("ab", "abc") && !same("", "a"));
    }
}
