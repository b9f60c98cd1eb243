//! `/v1/auth`: forward-auth. A proxy asks for a decision on each request before it forwards it.
//!
//! Traefik and Caddy send `X-Forwarded-Method`, `-Host`, `-Uri` and `-For`, and forward any response other than 2xx to
//! the client. nginx forwards the client's header fields, so a client could forge `X-Forwarded-Uri`. Under
//! `/v1/auth/nginx`, `X-Original-Method` and `X-Original-URI`, which the configuration of nginx sets, therefore take
//! precedence. nginx accepts only 401 and 403 as refusals, so it gets 403, and the real status in `X-Tollgate-Status`.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Request as HttpRequest, Response, StatusCode};
use tollgate_core::decision::Verdict;
use tollgate_core::form::AMBIGUOUS;
use tollgate_core::inputs::{Inputs, find_cookie, is_ambiguous_cookie, separator};
use tollgate_core::network::unmapped;
use tollgate_core::path::NormalPath;
use tollgate_core::request::{Request, host_of};
use tollgate_core::time::Span;
use tollgate_gatekeeper::limit_status;
use tollgate_wire::forwarded::client_by_x_forwarded_for;

use super::body::Whole;
use super::problem::DoorProblem;
use crate::doors::metrics::Count;
use crate::doors::request::path_and_query;
use crate::doors::station::Station;
use crate::doors::tickets::TicketId;
use crate::gate::{Inquiry, NoRuling, OnHold, Refusal, Ruling, jittered_secs, spread_of};
use crate::settings::DEFAULT_DOMAIN;

/// The header field with the ticket of an admitted request.
const TICKET: HeaderName = HeaderName::from_static("x-tollgate-ticket");
/// The header field with the status for the client, for nginx.
const STATUS: HeaderName = HeaderName::from_static("x-tollgate-status");

/// The kind of proxy that calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proxy {
    /// Traefik, Caddy, HAProxy: any status is forwarded to the client.
    Plain,
    /// nginx: 403 is a refusal.
    Nginx,
}

/// The query parameters of the call.
#[derive(Default, serde::Deserialize)]
struct AuthQuery {
    #[serde(default)]
    domain: Option<String>,
    #[serde(default)]
    queue: Option<String>,
    #[serde(default)]
    deadline_ms: Option<u64>,
}

/// Maximum deadline of a ticket, in milliseconds: one hour.
const DEADLINE_MS_MAX: u64 = 3_600_000;

/// The token of a proxy: in `X-Tollgate-Token`, or in the query if the proxy cannot add a header field.
pub(super) fn token<B>(request: &HttpRequest<B>) -> Option<Cow<'_, [u8]>> {
    #[derive(serde::Deserialize)]
    struct TokenQuery {
        token: String,
    }
    let field = request.headers().get("x-tollgate-token").map(|value| Cow::Borrowed(value.as_bytes()));
    let in_query = || serde_urlencoded::from_str::<TokenQuery>(request.uri().query()?).ok();
    field.or_else(|| in_query().map(|query| Cow::Owned(query.token.into_bytes())))
}

/// Responds to a proxy. The response is delayed while a rule or the queue holds the request.
pub(super) async fn auth<B>(
    station: &Station,
    peer: SocketAddr,
    call: &HttpRequest<B>,
    proxy: Proxy,
) -> Result<Response<Whole>, DoorProblem> {
    let query: AuthQuery = serde_urlencoded::from_str(call.uri().query().unwrap_or_default())
        .map_err(|_| DoorProblem::malformed("the query may have `domain`, `queue`, `deadline_ms` and `token`"))?;
    if query.deadline_ms.is_some_and(|millis| !(1..=DEADLINE_MS_MAX).contains(&millis)) {
        return Err(DoorProblem::malformed(format!("`deadline_ms` is not from 1 to {DEADLINE_MS_MAX}")));
    }
    let domain = query.domain.as_deref().unwrap_or(DEFAULT_DOMAIN);
    let ambiguity = station.decider.has_inputs(domain, |inputs| is_ambiguous(inputs, call.headers()));
    if ambiguity.map_err(no_ruling)? {
        station.count(Count::Refused);
        return Ok(ambiguous(proxy));
    }
    let request = ForwardedRequest::new(station, peer, call, proxy);
    let inquiry = Inquiry { domain, count: 1, cpu: None, factor: None, has_key: false, on_hold: OnHold::Wait };
    let since = station.decider.now();
    let ruling = station.decider.decide(inquiry, &request).await.map_err(no_ruling)?;
    if ruling.decision.verdict.is_refusal() {
        station.count(Count::Refused);
        return Ok(refuse(station, &request, &ruling.refusal(), Some(&ruling), proxy));
    }
    let mut response = admit(&ruling);
    let queues = query.queue.is_some_and(|queue| !matches!(&*queue, "0" | "false"));
    let is_open = ruling.is_open();
    let mut ticket = ruling.ticket();
    if queues && let Err(refusal) = station.decider.take_permit(&mut ticket, request.client, &request).await {
        station.count(Count::Refused);
        return Ok(refuse(station, &request, &refusal, None, proxy));
    }
    station.count(Count::Admitted);
    if queues || is_open {
        station.decider.account(&mut ticket, &request, since);
        let id = station.keep(ticket, true, query.deadline_ms.map(Span::from_millis));
        response.headers_mut().insert(TICKET, ticket_value(id));
    } else {
        // The ticket holds no permit and no count in flight, and a proxy never asks for a refund.
        station.decider.settle(ticket, None);
    }
    Ok(response)
}

fn ticket_value(id: TicketId) -> HeaderValue {
    HeaderValue::from_str(&id.to_string()).expect("a ticket's name is ASCII")
}

fn no_ruling(why: NoRuling) -> DoorProblem {
    match why {
        NoRuling::UnknownDomain => DoorProblem::unknown("there is no such `domain`"),
        _ => DoorProblem::impossible("the rules cannot decide"),
    }
}

/// Adds the rate limit headers.
fn write_limit_fields(ruling: &Ruling, fields: &mut HeaderMap) {
    let is_refusal = ruling.decision.verdict.is_refusal();
    let Some(standing) = ruling.standing() else { return };
    limit_status::write_fields(standing, is_refusal, |field, value| {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            fields.insert(HeaderName::from_static(field.name()), value);
        }
    });
}

fn admit(ruling: &Ruling) -> Response<Whole> {
    let mut response = Response::new(Whole::from(Vec::new()));
    write_limit_fields(ruling, response.headers_mut());
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn refuse(
    station: &Station,
    request: &ForwardedRequest<'_>,
    refusal: &Refusal,
    ruling: Option<&Ruling>,
    proxy: Proxy,
) -> Response<Whole> {
    let is_for_good = ruling.is_some_and(|ruling| ruling.decision.verdict == Verdict::RefuseForGood);
    let random = spread_of(request.client, Station::unix_ms());
    let retry_secs = refusal.retry_after.filter(|_| !is_for_good).map(|wait| jittered_secs(wait, random));
    let is_repeatable = matches!(request.method, b"GET" | b"HEAD");
    let (content_type, body) = station.decider.refusal_body(refusal, request.wants_html(), is_repeatable, retry_secs);
    let mut response = Response::new(Whole::from(body));
    let status = refusal.status();
    *response.status_mut() = match proxy {
        Proxy::Plain => StatusCode::from_u16(status).unwrap_or(StatusCode::TOO_MANY_REQUESTS),
        Proxy::Nginx => StatusCode::FORBIDDEN,
    };
    let fields = response.headers_mut();
    if let Some(ruling) = ruling {
        write_limit_fields(ruling, fields);
    }
    if let Some(secs) = retry_secs {
        fields.insert(RETRY_AFTER, secs.into());
    }
    fields.insert(STATUS, status.into());
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Whether the backend may read another value of a header field than the rules. The gate would change the field before
/// it forwards the request; a door cannot.
fn is_ambiguous(inputs: &Inputs, headers: &HeaderMap) -> bool {
    let is_used = |name: &str| inputs.headers().iter().any(|known| known == name);
    // The lines of `Cookie` are one list, which clients may split.
    let is_repeated = |name: &str| name != "cookie" && headers.get_all(name).iter().nth(1).is_some() && is_used(name);
    headers.keys().any(|name| is_repeated(name.as_str()) || inputs.is_look_alike(name.as_str().as_bytes()))
}

/// The response to an ambiguous request.
fn ambiguous(proxy: Proxy) -> Response<Whole> {
    let detail = "a header that rules use occurs twice, or beside one whose name is read as the same";
    let mut response = DoorProblem::malformed(detail).response();
    let status = response.status();
    if proxy == Proxy::Nginx {
        *response.status_mut() = StatusCode::FORBIDDEN;
    }
    response.headers_mut().insert(STATUS, status.as_u16().into());
    response
}

/// The request that a proxy wants to forward.
struct ForwardedRequest<'a> {
    client: IpAddr,
    method: &'a [u8],
    target: &'a [u8],
    /// The host with its port.
    authority: Option<&'a [u8]>,
    headers: &'a HeaderMap,
    /// The combined values of header fields with several lines.
    joined: Vec<(&'a HeaderName, Vec<u8>)>,
    normal_path: NormalPath,
}

impl<'a> ForwardedRequest<'a> {
    fn new<B>(station: &Station, peer: SocketAddr, call: &'a HttpRequest<B>, proxy: Proxy) -> Self {
        let headers = call.headers();
        let either = |[forwarded, original]: [&str; 2]| {
            let (first, second) = if proxy == Proxy::Nginx { (original, forwarded) } else { (forwarded, original) };
            headers.get(first).or_else(|| headers.get(second)).map(HeaderValue::as_bytes)
        };
        let target = either(["x-forwarded-uri", "x-original-uri"]).map_or(&b"/"[..], path_and_query);
        let method = either(["x-forwarded-method", "x-original-method"]).unwrap_or(call.method().as_str().as_bytes());
        let host = match proxy {
            Proxy::Plain => headers.get("x-forwarded-host").or_else(|| headers.get("host")),
            Proxy::Nginx => headers.get("host"),
        };
        let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
        let joined = headers.keys().filter_map(|name| Some((name, joined(headers, name)?))).collect();
        Self {
            client: client(station, peer.ip(), headers),
            method,
            target,
            authority: host.map(HeaderValue::as_bytes),
            headers,
            joined,
            normal_path: NormalPath::of(path),
        }
    }

    fn wants_html(&self) -> bool {
        let ranges = self.headers.get_all(ACCEPT).into_iter();
        ranges
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
            .any(|range| range.trim_ascii().starts_with(b"text/html"))
    }
}

/// The client: the last address in `X-Forwarded-For` that is not a trusted proxy, or the proxy itself without that
/// field.
fn client(station: &Station, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    let peer = unmapped(peer);
    let lines = headers.get_all("x-forwarded-for").into_iter().map(HeaderValue::as_bytes);
    client_by_x_forwarded_for(peer, lines, |address| station.decider.trusts(address))
}

/// The combined value of a header field with several lines. None if it has fewer than two.
fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<Vec<u8>> {
    let mut lines = headers.get_all(name).into_iter().map(HeaderValue::as_bytes);
    let (first, second) = (lines.next()?, lines.next()?);
    let between = separator(name.as_str().as_bytes());
    let mut value = [first, between, second].concat();
    for line in lines {
        value.extend_from_slice(between);
        value.extend_from_slice(line);
    }
    Some(value)
}

impl Request for ForwardedRequest<'_> {
    fn client(&self) -> Option<IpAddr> {
        Some(self.client)
    }

    fn method(&self) -> &[u8] {
        self.method
    }

    fn target(&self) -> &[u8] {
        self.target
    }

    fn host(&self) -> Option<&[u8]> {
        host_of(self.authority?)
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        if name == "host" {
            return self.authority;
        }
        let joined = self.joined.iter().find(|(known, _)| known.as_str() == name).map(|(_, value)| &**value);
        joined.or_else(|| self.headers.get(name).map(HeaderValue::as_bytes))
    }

    /// A cookie that backends may read in different ways has a value that all such cookies share. Browsers can send
    /// two cookies of one name, so the request is not refused.
    fn cookie(&self, name: &str) -> Option<&[u8]> {
        let cookies = self.header("cookie")?;
        if is_ambiguous_cookie(cookies, name) { Some(AMBIGUOUS) } else { find_cookie(cookies, name) }
    }

    fn normal_path(&self) -> Option<&NormalPath> {
        self.normal_path.differing()
    }
}
