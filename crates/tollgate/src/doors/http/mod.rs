//! The HTTP door: applications and proxies ask for decisions about requests that they serve, and report their cost. The
//! requests to the door itself are named calls.
//!
//! It uses the HTTP parser of the gate. A connection has one call at a time: the next one is read once the response to
//! the one before it is sent, so a client that reads no responses is not read from either.

mod answer;
mod auth;
mod call_reader;
mod check;
mod check_json;
mod door_reply;
mod json;
mod load;
mod problem;
mod report;

use std::borrow::Cow;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::Instant;
use tollgate_wire::http1::RequestHead;

use super::buffer::{gather_responses, send};
use super::connections::Usage;
use super::metrics::Count;
use super::station::{Station, bearer};
use super::thread::DoorPeer;
use call_reader::{CallReader, client_left};
use door_reply::DoorReply;
use problem::DoorProblem;

/// Timeout from the end of a call to the complete head of the next one. Clients reuse connections.
const HEAD_WAIT_MAX: Duration = Duration::from_secs(60);

/// Serves one connection until it ends.
pub(super) async fn converse(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: DoorPeer,
    station: Rc<Station>,
    usage: Rc<Usage>,
    mut drains: watch::Receiver<bool>,
) {
    let is_draining = drains.clone();
    let mut drained = pin!(drains.wait_for(|is_draining| *is_draining));
    // The timer may end before the timeout: setting it for each call would cost as much as the decision.
    let mut timer = pin!(tokio::time::sleep(HEAD_WAIT_MAX));
    let door = HttpDoor { station: &station, usage: &usage, peer };
    let (mut reader, mut reply, mut out) = (CallReader::default(), DoorReply::default(), Vec::new());
    loop {
        let head = tokio::select! {
            biased;
            head = reader.read_head(&mut stream) => head,
            _ = &mut drained => return,
            () = &mut timer => {
                let deadline = usage.used_at.get() + HEAD_WAIT_MAX;
                if deadline <= Instant::now() {
                    return;
                }
                timer.as_mut().reset(deadline);
                continue;
            }
        };
        reply.clear();
        let answered = match head {
            Some(Ok(())) => door.answer(&mut stream, &mut reader, &mut reply).await,
            Some(Err(fault)) => Some(Err(DoorProblem::new(fault.status(), fault.detail()))),
            None => return,
        };
        let Some(answered) = answered else { return };
        if let Err(problem) = answered {
            usage.touch();
            door.count(&problem);
            problem.write(&mut reply);
        }
        let stays_open = reader.has_ended() && reader.head.keeps_alive() && !reply.closes && !*is_draining.borrow();
        reply.write(&mut out, &reader.head, stays_open, &station.date.get());
        if send(&mut stream, &mut out).await.is_err() {
            return;
        }
        if !stays_open {
            return reader.linger(&mut stream).await;
        }
    }
}

/// The door for one connection.
struct HttpDoor<'a> {
    station: &'a Station,
    usage: &'a Usage,
    peer: DoorPeer,
}

/// The endpoint of a call, by its path.
#[derive(Clone, Copy, Debug)]
enum Endpoint {
    /// `/v1/auth`: a proxy asks before it forwards a request.
    Auth(auth::Proxy),
    /// `/v1/check`: an application asks before it serves a request.
    Check,
    /// `/v1/report`: the end of requests is reported.
    Report,
    /// `/v1/report?ticket=...`: the same, with the query alone and with any method, for proxies.
    QueryReport,
    /// `/v1/load`: an application reports its load.
    Load,
    /// `/json`: Envoy's rate limit service as JSON.
    Json,
}

impl Endpoint {
    fn of(head: &RequestHead) -> Option<Self> {
        match head.path() {
            b"/v1/auth" => Some(Self::Auth(auth::Proxy::Plain)),
            b"/v1/auth/nginx" => Some(Self::Auth(auth::Proxy::Nginx)),
            b"/v1/check" => Some(Self::Check),
            b"/v1/report" if query(head).is_some() => Some(Self::QueryReport),
            b"/v1/report" => Some(Self::Report),
            b"/v1/load" => Some(Self::Load),
            b"/json" => Some(Self::Json),
            _ => None,
        }
    }

    /// Whether the body of the call is read.
    fn reads_body(self) -> bool {
        !matches!(self, Self::Auth(_) | Self::QueryReport)
    }
}

/// The query of a call.
fn query(head: &RequestHead) -> Option<&[u8]> {
    head.target().get(head.path().len() + 1..)
}

/// Marks the connection as serving a call until this is dropped.
struct ServingGuard<'a>(&'a Usage);

impl<'a> ServingGuard<'a> {
    fn begin(usage: &'a Usage) -> Self {
        usage.set_serving(true);
        Self(usage)
    }
}

impl Drop for ServingGuard<'_> {
    fn drop(&mut self) {
        self.0.set_serving(false);
    }
}

impl HttpDoor<'_> {
    /// Carries out the call whose head was read, and fills `reply`. None if the client has left.
    async fn answer(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        reader: &mut CallReader,
        reply: &mut DoorReply,
    ) -> Option<Result<(), DoorProblem>> {
        let endpoint = match self.admit(&reader.head) {
            Ok(endpoint) => endpoint,
            Err(problem) => return Some(Err(problem)),
        };
        // The call is not in progress yet: a client that withholds its body can be closed for another one.
        if endpoint.reads_body()
            && let Err(problem) = reader.read_body(stream).await
        {
            return Some(Err(problem));
        }
        self.usage.is_useful.set(true);
        let serving = ServingGuard::begin(self.usage);
        let CallReader { input, head, body, .. } = reader;
        let answered = tokio::select! {
            biased;
            answered = self.carry_out(endpoint, head, body, reply) => answered,
            () = client_left(stream, input) => return None,
        };
        // From here on, while the response waits to be sent, the connection can be closed for another one.
        drop(serving);
        gather_responses().await;
        Some(answered)
    }

    /// Checks the token, the path and the method of a call. Returns its endpoint.
    fn admit(&self, head: &RequestHead) -> Result<Endpoint, DoorProblem> {
        let endpoint = Endpoint::of(head);
        // In a call of a proxy, `Authorization` comes from the client and is meant for the backend of the proxy.
        let token = match endpoint {
            Some(Endpoint::Auth(_)) => auth::token(head),
            _ => head.fields.find(b"authorization").and_then(bearer).map(Cow::Borrowed),
        };
        if !self.peer.has_certificate && !self.station.lets_in(token.as_deref()) {
            return Err(DoorProblem::unauthorized());
        }
        let endpoint = endpoint.ok_or_else(DoorProblem::absent)?;
        match endpoint.reads_body() {
            true if head.method != b"POST" => Err(DoorProblem::method("POST")),
            true if self.is_of_a_browser(head) => Err(DoorProblem::browser()),
            _ => Ok(endpoint),
        }
    }

    async fn carry_out(
        &self,
        endpoint: Endpoint,
        head: &RequestHead,
        body: &[u8],
        reply: &mut DoorReply,
    ) -> Result<(), DoorProblem> {
        match endpoint {
            Endpoint::Auth(proxy) => auth::auth(self.station, self.peer.address, head, proxy, reply).await,
            Endpoint::Check => check::check(self.station, body, reply).await,
            Endpoint::Report => report::report(self.station, body, reply),
            Endpoint::QueryReport => report::report_query(self.station, query(head).unwrap_or_default(), reply),
            Endpoint::Load => load::load(self.station, body, reply),
            Endpoint::Json => json::json(self.station, body, reply).await,
        }
    }

    fn count(&self, problem: &DoorProblem) {
        let is_unauthorized = problem.is_unauthorized();
        self.station.count(if is_unauthorized { Count::Unauthorized } else { Count::Malformed });
    }

    /// Whether a page in a browser makes the call without having to know a token: because none is required, or because
    /// the browser has sent the client certificate of its user, which it does for any page. The call may then be forged
    /// by any page that is open in the browser.
    fn is_of_a_browser(&self, head: &RequestHead) -> bool {
        (self.peer.has_certificate || !self.station.asks_for_token())
            && (head.fields.find(b"origin").is_some() || head.fields.find(b"sec-fetch-site").is_some())
    }
}
