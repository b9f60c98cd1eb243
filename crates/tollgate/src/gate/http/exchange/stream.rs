//! A request at a backend, and its answer on the way back.
//!
//! Both directions are two futures of one task: the rest of the request goes to the backend while the response comes back. A small
//! request body is read before the request goes to a backend ([`ClientBody::gather`]). The response is buffered only while its client reads too slowly
//! ([`super::download`]). The client's side and the backend's side are each HTTP/1.1 or HTTP/2, behind small traits.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tollgate_wire::http1::fields::tokens;
use tollgate_wire::http1::hop_by_hop::strip_nominated;
use tollgate_wire::http1::{Length, Name, RequestHead, ResponseHead};

use super::backend::Backend;
use super::body::{Broken, Meter, Piece, PumpBroke, Sink, Source, pump};
use super::download::{self, Spill, download};
use super::report;
use super::spool::Overflow;
use super::worker::Worker;
use crate::gate::decide::admission::{Outcome, Ticket};
use crate::gate::net::timer::{Timer, Way};
use crate::settings::Gate as Settings;

/// A body of so many bytes is read before its request goes to a backend.
pub(crate) const GATHERED_MAX: usize = 16 * 1024;
/// A client that sends nothing for so long keeps the backend waiting. Between two packets of one that sends, less passes.
pub(crate) const PAUSE_MAX: Duration = Duration::from_millis(5);
/// A body that does not say how long it is is waited for no longer than this, however it comes.
pub(crate) const UNSURE_MAX: Duration = Duration::from_millis(50);

/// What a client sends after the head.
pub(crate) trait ClientBody: Source {
    /// Reads all of the body ahead, if it is no longer than [`GATHERED_MAX`]. If it does not say how long it is, it is given up when nothing
    /// comes for [`PAUSE_MAX`], and after [`UNSURE_MAX`]: perhaps the client waits for the answer before it goes on. Says whether all of it is here.
    async fn gather(&mut self, length: Length) -> Result<bool, Broken>;

    /// Resolves when the client goes. What it sends meanwhile is kept.
    async fn departure(&mut self) -> Broken;

    /// Whether all of the body has been read.
    fn has_ended(&self) -> bool;

    /// The request goes to a backend: from here on the bounds of the backend hold for its memory.
    fn forwarded(&mut self) {}
}

/// What a client is sent.
pub(crate) trait Reply: Sink + Spill {
    /// Sends an interim answer (1xx).
    async fn interim(&mut self, head: &ResponseHead) -> Result<(), Broken>;

    /// Begins the answer. `keep` says that the client may send another request afterwards.
    fn begin(&mut self, head: &ResponseHead, keep: bool) -> Result<(), Broken>;

    /// Memory that a response takes while it waits for the client, besides its bytes, if it is not bounded by the number of connections.
    fn task_bytes(&self) -> usize {
        0
    }

    /// The part of the response so far, for the access log.
    fn sent(&self) -> Sent;
}

/// The part of a response that was sent or buffered, for the access log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// The version of HTTP that the client speaks.
    pub(crate) protocol: &'static str,
    /// Whether the head of the final response was sent.
    pub(crate) has_begun: bool,
    pub(crate) body_bytes: u64,
}

/// What a backend is sent.
pub(crate) trait Forward: Sink {
    /// Tells the backend that the rest of the request will never come. Says whether it can be heard what becomes of it.
    async fn break_off(&mut self) -> bool;
}

/// What a backend sends.
pub(crate) trait Answer: Source {
    /// Reads the next head: of an interim answer, or of the final one.
    async fn head(&mut self, head: &mut ResponseHead) -> Result<(), Broken>;

    /// Whether anything has come: then the backend has seen the request.
    fn has_begun(&self) -> bool;

    /// Whether the final head has come.
    fn has_head(&self) -> bool;
}

/// What a conversation is about.
pub(crate) struct Topic<'a> {
    pub(crate) worker: &'a Worker,
    pub(crate) settings: &'a Settings,
    pub(crate) backend: &'a Backend,
    pub(crate) request: &'a RequestHead,
    /// The deadlines of the backend's side.
    pub(crate) timer: &'a Timer,
    /// Whether the client's connection can be kept, as far as the request goes.
    pub(crate) keep: bool,
}

/// What a conversation changes besides its two sides.
pub(crate) struct ConversationState<'a, 'b> {
    pub(crate) response: &'a mut ResponseHead,
    pub(crate) ticket: &'a mut Ticket,
    /// The part of the response that the client has not taken.
    pub(crate) overflow: &'a mut Overflow<'b>,
}

/// How a conversation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The client has its answer.
    Answered {
        /// Whether the client may send another request.
        keep: bool,
        /// Whether the backend got the whole request before its answer ended.
        complete: bool,
    },
    /// Both sides have left HTTP.
    Upgraded,
    /// The client went, or did not send what it said it would.
    ClientBroke {
        broken: Broken,
        /// Whether it had been sent some of the answer.
        answered: bool,
        /// Whether request and answer are complete all the same.
        complete: bool,
    },
    /// The backend failed.
    BackendBroke {
        broken: Broken,
        /// Whether it had begun to answer.
        begun: bool,
        /// Whether the client had been sent some of it.
        answered: bool,
    },
}

impl Ended {
    /// Whether the backend has the whole request and we have the whole answer.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self, Self::Answered { complete: true, .. } | Self::ClientBroke { complete: true, .. })
    }
}

/// Why one of the directions ended early.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Client(Broken),
    Backend(Broken),
}

/// Sends a request to a backend and its answer to the client.
pub(crate) async fn converse(
    topic: &Topic<'_>,
    body: &mut impl ClientBody,
    reply: &mut impl Reply,
    answer: &mut impl Answer,
    sink: &mut impl Forward,
    state: ConversationState<'_, '_>,
) -> Ended {
    let ConversationState { response, ticket, overflow } = state;
    let Topic { worker, settings, backend, request, timer, .. } = topic;
    let wants_upgrade = request.upgrade().is_some();
    let uploaded = Cell::new(false);
    let answered = Cell::new(false);
    let endless = Cell::new(false);
    let shared = RefCell::new(&mut *ticket);
    timer.clear(Way::In);
    let upload = async {
        match pump(body, sink, &mut Uploading(&shared), request.length).await {
            Ok(()) => {
                timer.set(Way::In, settings.timeouts.response_head);
                uploaded.set(true);
                Trouble::Client(body.departure().await)
            }
            Err(PumpBroke::Source(broken)) => Trouble::Client(broken),
            Err(PumpBroke::Sink(Broken::Slow)) => Trouble::Backend(Broken::Slow),
            // The backend takes no more, perhaps because it has answered already: that is for the other direction to see.
            Err(PumpBroke::Sink(_)) => {
                timer.set(Way::In, settings.timeouts.response_head);
                std::future::pending().await
            }
        }
    };
    let downloading = async {
        loop {
            answer.head(response).await.map_err(Trouble::Backend)?;
            strip_nominated(&mut response.fields);
            if !response.is_interim() {
                break;
            }
            reply.interim(response).await.map_err(Trouble::Client)?;
        }
        if response.status == 101 && !wants_upgrade {
            return Err(Trouble::Backend(Broken::Malformed("an upgrade that nobody asked for")));
        }
        if response.status == 101 && !is_upgrade_asked_for(request, response) {
            return Err(Trouble::Backend(Broken::Malformed("an upgrade to another protocol than was asked for")));
        }
        // Now, and not when all of it has been read: that may take hours, or be up to the client.
        backend.succeeded();
        shared.borrow_mut().answers(response.status, is_talk(response));
        shared.borrow_mut().reported(report::take(&mut response.fields, &settings.toll));
        shared.borrow().tell(&mut response.fields);
        let keep = topic.keep && uploaded.get() && !worker.is_draining();
        reply.begin(response, keep).map_err(Trouble::Client)?;
        answered.set(true);
        if is_endless(response) {
            endless.set(true);
            shared.borrow_mut().done(Outcome::Answered);
        }
        if !download::is_bufferable(response) {
            overflow.set_closed(true);
        }
        let pumped = download(answer, reply, &mut Downloading(&shared), overflow, response.length).await;
        pumped.map(|()| keep).map_err(|broke| match broke {
            PumpBroke::Source(broken) => Trouble::Backend(broken),
            PumpBroke::Sink(broken) => Trouble::Client(broken),
        })
    };
    let ended = race(downloading, upload).await;
    let (complete, answered) = (uploaded.get(), answered.get());
    match ended {
        Ok(_) if response.status == 101 => Ended::Upgraded,
        Ok(keep) => Ended::Answered { keep, complete },
        Err(Trouble::Client(broken)) if endless.get() => Ended::ClientBroke { broken, answered, complete: false },
        Err(Trouble::Client(broken)) => {
            if overflow.was_full() {
                ticket.held_up();
            }
            overflow.clear();
            // The backend works on for a client that has gone. The toll runs until it has finished.
            ticket.sent();
            let outcome = if complete {
                hear_out(topic, answer, response, ticket).await
            } else if sink.break_off().await {
                // It has been told that the request never becomes whole. What it does about that is heard.
                hear_out(topic, answer, response, ticket).await;
                Outcome::CutShort
            } else {
                Outcome::Unheard
            };
            ticket.done(outcome);
            Ended::ClientBroke { broken, answered, complete: outcome == Outcome::Answered }
        }
        Err(Trouble::Backend(broken)) => Ended::BackendBroke { broken, begun: answer.has_begun(), answered },
    }
}

/// Whether the answer is a stream of events, which is open for as long as the client likes and costs what it carries, not how long
/// it lasts. Like an upgraded connection it is not work at the backend.
fn is_endless(response: &ResponseHead) -> bool {
    let media = response.fields.find(b"content-type").unwrap_or_default();
    media.get(..17).is_some_and(|name| name.eq_ignore_ascii_case(b"text/event-stream"))
}

/// Whether the answer may be one half of a conversation, in which the client goes on sending.
fn is_talk(response: &ResponseHead) -> bool {
    let media = response.fields.find(b"content-type").unwrap_or_default();
    media.get(..16).is_some_and(|name| name.eq_ignore_ascii_case(b"application/grpc"))
}

/// Hears how the rest of a request comes.
struct Uploading<'a, 'b>(&'a RefCell<&'b mut Ticket>);

impl Meter for Uploading<'_, '_> {
    fn patience(&self) -> Option<Duration> {
        self.0.borrow().patience()
    }

    fn waited(&mut self, wait: Duration) {
        self.0.borrow_mut().waited(wait);
    }

    fn starved(&mut self) {
        self.0.borrow_mut().starved();
    }

    fn fed(&mut self, bytes: usize) {
        self.0.borrow_mut().fed(bytes);
    }

    fn source_done(&mut self) {
        self.0.borrow_mut().sent();
    }
}

/// Settles the permit when the backend has sent everything.
struct Downloading<'a, 'b>(&'a RefCell<&'b mut Ticket>);

impl Meter for Downloading<'_, '_> {
    fn held_up(&mut self) {
        self.0.borrow_mut().held_up();
    }

    fn source_done(&mut self) {
        self.0.borrow_mut().done(Outcome::Answered);
    }
}

/// Reads an answer that nobody waits for any more, within bounds, so that the backend finishes and its cost is known.
///
/// Cutting the connection at once would not stop the backend's work, only hide when it ends. An answer that goes on and on is cut:
/// who writes it notices.
async fn hear_out(
    topic: &Topic<'_>,
    answer: &mut impl Answer,
    response: &mut ResponseHead,
    ticket: &mut Ticket,
) -> Outcome {
    let settings = topic.settings;
    let heard = async {
        if !answer.has_head() {
            while !answer.has_head() {
                answer.head(response).await?;
            }
            topic.backend.succeeded();
            ticket.reported(report::take(&mut response.fields, &settings.toll));
        }
        let mut left = settings.bounds.unheard_bytes_max;
        loop {
            match answer.next().await? {
                Piece::Data(data, _) if data.len() as u64 <= left => left -= data.len() as u64,
                Piece::Data(..) => return Ok(false),
                Piece::End(_) => return Ok(true),
            }
        }
    };
    let heard: Result<Result<bool, Broken>, _> =
        tokio::time::timeout(settings.timeouts.response_head.max(settings.timeouts.unheard), heard).await;
    match heard {
        Ok(Ok(true)) => Outcome::Answered,
        Ok(Ok(false)) | Err(_) => Outcome::Abandoned,
        Ok(Err(_)) => Outcome::Failed,
    }
}

/// The first of two futures to end.
async fn race<T>(
    main: impl Future<Output = Result<T, Trouble>>,
    other: impl Future<Output = Trouble>,
) -> Result<T, Trouble> {
    let mut main = pin!(main);
    let mut other = pin!(other);
    // The request goes out before its answer is looked for. Afterwards an answer that is there counts before a client that has gone.
    if let Poll::Ready(trouble) = poll_fn(|cx| Poll::Ready(other.as_mut().poll(cx))).await {
        return Err(trouble);
    }
    poll_fn(|cx| match main.as_mut().poll(cx) {
        Poll::Ready(ended) => Poll::Ready(ended),
        Poll::Pending => other.as_mut().poll(cx).map(Err),
    })
    .await
}
/// Whether the client asked for every protocol that the backend names.
fn is_upgrade_asked_for(request: &RequestHead, response: &ResponseHead) -> bool {
    response
        .fields
        .all(Name::Upgrade)
        .flat_map(tokens)
        .all(|protocol| request.fields.has_token(Name::Upgrade, protocol))
}
