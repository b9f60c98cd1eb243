//! `/v1/auth`: forward-auth. A proxy asks for a decision on each request before it forwards it. The call has the header
//! fields of the request, and the response admits or refuses it.
//!
//! Traefik and Caddy send `X-Forwarded-Method`, `-Host`, `-Uri` and `-For`, and forward any response other than 2xx to
//! the client. nginx forwards the client's header fields, so a client could forge `X-Forwarded-Uri`. Under
//! `/v1/auth/nginx`, `X-Original-Method` and `X-Original-URI`, which the configuration of nginx sets, therefore take
//! precedence. nginx accepts only 401 and 403 as refusals, so it gets 403, and the real status in `X-Tollgate-Status`.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use tollgate_core::decision::Verdict;
use tollgate_core::form::AMBIGUOUS;
use tollgate_core::inputs::{Inputs, find_cookie, is_ambiguous_cookie};
use tollgate_core::network::unmapped;
use tollgate_core::path::NormalPath;
use tollgate_core::request::{Request, host_of, path_of};
use tollgate_core::time::Span;
use tollgate_gatekeeper::limit_status;
use tollgate_wire::forwarded::client_by_x_forwarded_for;
use tollgate_wire::http1::fields::tokens;
use tollgate_wire::http1::{Fields, Name, RequestHead};

use super::door_reply::DoorReply;
use super::problem::DoorProblem;
use super::query;
use crate::doors::metrics::Count;
use crate::doors::request::path_and_query;
use crate::doors::station::Station;
use crate::gate::{Inquiry, NoRuling, OnHold, Refusal, Ruling, jittered_secs, spread_of};
use crate::settings::DEFAULT_DOMAIN;

/// The header field with the ticket of an admitted request.
const TICKET: &str = "x-tollgate-ticket";
/// The header field with the status for the client, for nginx.
const STATUS: &str = "x-tollgate-status";

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
    /// The domain whose rules decide.
    domain: Option<String>,
    /// Whether the request also waits in the fair queue; `0` and `false` are no.
    queue: Option<String>,
    /// The time after which the ticket expires, in milliseconds.
    deadline_ms: Option<u64>,
}

/// Maximum deadline of a ticket, in milliseconds: one hour.
const DEADLINE_MS_MAX: u64 = 3_600_000;

/// The token of a proxy: in `X-Tollgate-Token`, or in the query if the proxy cannot add a header field.
pub(super) fn token(call: &RequestHead) -> Option<Cow<'_, [u8]>> {
    #[derive(serde::Deserialize)]
    struct TokenQuery {
        token: String,
    }
    let field = call.fields.find(b"x-tollgate-token").map(Cow::Borrowed);
    let in_query = || serde_urlencoded::from_bytes::<TokenQuery>(query(call)?).ok();
    field.or_else(|| in_query().map(|query| Cow::Owned(query.token.into_bytes())))
}

/// Responds to a proxy. The response is delayed while a rule or the queue holds the request.
pub(super) async fn auth(
    station: &Station,
    peer: SocketAddr,
    call: &RequestHead,
    proxy: Proxy,
    reply: &mut DoorReply,
) -> Result<(), DoorProblem> {
    let query: AuthQuery = serde_urlencoded::from_bytes(query(call).unwrap_or_default())
        .map_err(|_| DoorProblem::malformed("the query may have `domain`, `queue`, `deadline_ms` and `token`"))?;
    if query.deadline_ms.is_some_and(|millis| !(1..=DEADLINE_MS_MAX).contains(&millis)) {
        return Err(DoorProblem::malformed(format!("`deadline_ms` is not from 1 to {DEADLINE_MS_MAX}")));
    }
    let domain = query.domain.as_deref().unwrap_or(DEFAULT_DOMAIN);
    let ambiguity = station.decider.has_inputs(domain, |inputs| is_ambiguous(inputs, &call.fields));
    if ambiguity.map_err(no_ruling)? {
        station.count(Count::Refused);
        refuse_ambiguous(proxy, reply);
        return Ok(());
    }
    let request = ForwardedRequest::new(station, peer, call, proxy);
    let inquiry = Inquiry { domain, count: 1, cpu: None, factor: None, has_key: false, on_hold: OnHold::Wait };
    let since = station.decider.now();
    let ruling = station.decider.decide(inquiry, &request).await.map_err(no_ruling)?;
    if ruling.decision.verdict.is_refusal() {
        station.count(Count::Refused);
        refuse(station, &request, &ruling.refusal(), Some(&ruling), proxy, reply);
        return Ok(());
    }
    write_limit_fields(&ruling, reply);
    let queues = query.queue.is_some_and(|queue| !matches!(&*queue, "0" | "false"));
    let is_open = ruling.is_open();
    let mut ticket = ruling.ticket();
    if queues && let Err(refusal) = station.decider.take_permit(&mut ticket, request.client, &request).await {
        station.count(Count::Refused);
        reply.clear();
        refuse(station, &request, &refusal, None, proxy, reply);
        return Ok(());
    }
    station.count(Count::Admitted);
    if queues || is_open {
        station.decider.account(&mut ticket, &request, since);
        let id = station.keep(ticket, true, query.deadline_ms.map(Span::from_millis));
        reply.field(TICKET, id.to_string().as_bytes());
    } else {
        // The ticket has nothing to settle at the end of the request, and a proxy never asks for a refund.
        station.decider.settle(ticket, None);
    }
    reply.field("cache-control", b"no-store");
    Ok(())
}

fn no_ruling(why: NoRuling) -> DoorProblem {
    match why {
        NoRuling::UnknownDomain => DoorProblem::unknown("there is no such `domain`"),
        _ => DoorProblem::impossible("the rules cannot decide"),
    }
}

/// Adds the rate limit headers.
fn write_limit_fields(ruling: &Ruling, reply: &mut DoorReply) {
    let is_refusal = ruling.decision.verdict.is_refusal();
    let Some(standing) = ruling.standing() else { return };
    limit_status::write_fields(standing, is_refusal, |field, value| reply.field(field.as_str(), value));
}

/// Makes this the response to a refused request. `ruling` is the decision, if a rule has refused it and not the queue.
fn refuse(
    station: &Station,
    request: &ForwardedRequest<'_>,
    refusal: &Refusal,
    ruling: Option<&Ruling>,
    proxy: Proxy,
    reply: &mut DoorReply,
) {
    let is_for_good = ruling.is_some_and(|ruling| ruling.decision.verdict == Verdict::RefuseForGood);
    let random = spread_of(request.client, Station::unix_ms());
    let retry_secs = refusal.retry_after.filter(|_| !is_for_good).map(|wait| jittered_secs(wait, random));
    let is_repeatable = matches!(request.method, b"GET" | b"HEAD");
    let (content_type, body) = station.decider.refusal_body(refusal, request.wants_html(), is_repeatable, retry_secs);
    let status = refusal.status();
    reply.status = status_for(proxy, status);
    if let Some(ruling) = ruling {
        write_limit_fields(ruling, reply);
    }
    if let Some(secs) = retry_secs {
        reply.number_field("retry-after", secs);
    }
    reply.number_field(STATUS, status.into());
    reply.field("content-type", content_type.as_bytes());
    reply.field("cache-control", b"no-store");
    reply.body = body;
}

/// The status of a refusal for this proxy.
fn status_for(proxy: Proxy, status: u16) -> u16 {
    match proxy {
        Proxy::Plain => status,
        Proxy::Nginx => 403,
    }
}

/// Whether the backend may read another value of a header field than the rules. The gate would change the field before
/// it forwards the request; a door cannot.
fn is_ambiguous(inputs: &Inputs, fields: &Fields) -> bool {
    let count_of = |name: &[u8]| fields.iter().filter(|field| field.name_bytes == name).count();
    // The lines of `Cookie` are one list, which clients may split.
    let is_repeated = |name: &String| name != "cookie" && count_of(name.as_bytes()) > 1;
    inputs.headers.iter().any(is_repeated) || fields.iter().any(|field| inputs.is_look_alike(field.name_bytes))
}

/// The response to an ambiguous request.
fn refuse_ambiguous(proxy: Proxy, reply: &mut DoorReply) {
    let detail = "a header that rules use occurs twice, or beside one whose name is read as the same";
    let problem = DoorProblem::malformed(detail);
    problem.write(reply);
    reply.status = status_for(proxy, problem.status);
    reply.number_field(STATUS, problem.status.into());
}

/// The request that a proxy wants to forward.
struct ForwardedRequest<'a> {
    client: IpAddr,
    method: &'a [u8],
    /// The path with its query.
    target: &'a [u8],
    /// The host with its port.
    authority: Option<&'a [u8]>,
    /// The header fields of the call, with those of the client.
    fields: &'a Fields,
    normal_path: NormalPath,
}

impl<'a> ForwardedRequest<'a> {
    /// The request that a call is about. `peer` is the address of the proxy.
    fn new(station: &Station, peer: SocketAddr, call: &'a RequestHead, proxy: Proxy) -> Self {
        let fields = &call.fields;
        let either = |[forwarded, original]: [&str; 2]| {
            let (first, second) = if proxy == Proxy::Nginx { (original, forwarded) } else { (forwarded, original) };
            fields.find(first.as_bytes()).or_else(|| fields.find(second.as_bytes()))
        };
        let target = either(["x-forwarded-uri", "x-original-uri"]).map_or(&b"/"[..], path_and_query);
        let method = either(["x-forwarded-method", "x-original-method"]).unwrap_or(&call.method);
        let own_host = Some(&call.authority[..]).filter(|host| !host.is_empty());
        let authority = match proxy {
            Proxy::Plain => fields.first(Name::XForwardedHost).or(own_host),
            Proxy::Nginx => own_host,
        };
        let client = client(station, peer.ip(), fields);
        Self { client, method, target, authority, fields, normal_path: NormalPath::of(path_of(target)) }
    }

    fn wants_html(&self) -> bool {
        self.fields.all(Name::Accept).flat_map(tokens).any(|range| range.starts_with(b"text/html"))
    }
}

/// The client: the last address in `X-Forwarded-For` that is not a trusted proxy, or the proxy itself without that
/// field.
fn client(station: &Station, peer: IpAddr, fields: &Fields) -> IpAddr {
    let lines = fields.all(Name::XForwardedFor);
    client_by_x_forwarded_for(unmapped(peer), lines, |address| station.decider.trusts(address))
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
        self.fields.find(name.as_bytes())
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
