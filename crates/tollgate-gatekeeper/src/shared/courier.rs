//! Carries calls to the store and answers back: one task per connection, many calls per pipeline.
//!
//! Calls that are made while a pipeline is under way wait for the next and then go together, so the busier the gate, the fewer the round trips
//! per decision. A call whose caller has gone by then is not sent. When a connection breaks, its task makes
//! another, at growing and jittered pauses; who calls in such a pause is turned away at once, unless another connection is there. What is to be done in any case
//! waits for the next connection.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::{Mutex, Semaphore, mpsc, oneshot, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use super::Unanswered;
use super::address::{Address, Connection};
use super::answer::{NoReply, Reply};
use super::random;
use super::script::{Errand, Script};
use super::vitals::Vitals;

const RECONNECT_MIN: Duration = Duration::from_millis(20);
const RECONNECT_MAX: Duration = Duration::from_secs(1);
/// So many calls at most in one pipeline: more would make the first wait for the last.
const PIPELINE_MAX: usize = 256;
/// So many calls at most are decided by the server in one go: nobody else is served meanwhile.
const BATCH_MAX: usize = 64;
/// How often a Cluster is asked who has which slots.
const LEARN_EVERY: Duration = Duration::from_secs(5);
/// So many failures in a row and a Cluster's connections are made anew.
const FAILURES_MAX: usize = 64;

/// A script call that waits to be sent.
#[derive(Debug)]
pub(super) struct Call {
    /// What to do, in one step.
    pub(super) errands: Vec<Errand>,
    /// When nobody waits for it any more; none for what is to be done in any case.
    pub(super) expires: Option<Instant>,
    /// Where the answer goes.
    pub(super) answer: oneshot::Sender<Result<Reply, Unanswered>>,
}

/// What the couriers of a store share.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) address: Address,
    pub(super) script: Script,
    pub(super) waiting: Mutex<Waiting>,
    pub(super) vitals: Arc<Vitals>,
    pub(super) waiting_max: usize,
    /// A connection that owes an answer for longer is given up.
    pub(super) silence_max: Duration,
    pub(super) couriers: watch::Sender<Couriers>,
}

/// The calls that wait for a courier.
#[derive(Debug)]
pub(super) struct Waiting {
    calls: mpsc::Receiver<Call>,
    /// What is to be done in any case, and came when nobody had a connection. It goes first.
    kept: VecDeque<Call>,
}

impl Waiting {
    pub(super) const fn new(calls: mpsc::Receiver<Call>) -> Self {
        Self { calls, kept: VecDeque::new() }
    }
}

/// How many couriers there are for those who call. With none of them nobody is kept waiting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Couriers {
    /// They have a connection.
    pub(super) connected: usize,
    /// They are making one.
    pub(super) trying: usize,
}

/// Carries calls until nobody can make any more.
pub(super) async fn carry(route: Arc<Route>) {
    let mut pause = RECONNECT_MIN;
    loop {
        match open(&route).await {
            Ok(connection) => {
                pause = RECONNECT_MIN;
                route.vitals.tallies.connects.add(1);
                route.vitals.trouble.set(None);
                let change = |there: bool| {
                    route.couriers.send_modify(|couriers| {
                        let (from, to) = (&mut couriers.trying, &mut couriers.connected);
                        let (from, to) = if there { (from, to) } else { (to, from) };
                        (*from, *to) = (*from - 1, *to + 1);
                    });
                };
                change(true);
                let ended = match connection {
                    Connection::Single(connection) => pipeline(&route, connection).await,
                    Connection::Cluster(connection) => scatter(&route, connection).await,
                };
                if ended {
                    return;
                }
                change(false);
            }
            Err(error) => {
                route.vitals.trouble.set(Some(error.to_string()));
                if route.waiting.lock().await.calls.is_closed() {
                    return;
                }
                turn_away(&route, Instant::now() + pause / 2 + (pause / 2).mul_f64(random::fraction())).await;
                pause = (pause * 2).min(RECONNECT_MAX);
            }
        }
    }
}

/// Lets the time until `until` pass. Whoever calls meanwhile and has no other courier to wait for is not kept waiting.
async fn turn_away(route: &Route, until: Instant) {
    route.couriers.send_modify(|couriers| couriers.trying -= 1);
    let mut couriers = route.couriers.subscribe();
    let is_nobody = |couriers: Couriers| couriers.connected + couriers.trying == 0;
    let mut is_alone = is_nobody(*couriers.borrow());
    while is_alone {
        is_alone = tokio::select! {
            biased;
            _ = couriers.wait_for(|couriers| couriers.connected > 0) => false,
            () = sleep_until(until) => false,
            is_open = fail_waiting(route) => is_open,
        };
    }
    sleep_until(until).await;
    route.couriers.send_modify(|couriers| couriers.trying += 1);
}

/// Says to those who wait that nobody is there, and keeps what is to be done in any case. Ends with whether more may come. Nothing is lost
/// when it is given up while it waits.
async fn fail_waiting(route: &Route) -> bool {
    let mut waiting = route.waiting.lock().await;
    let mut calls = Vec::new();
    let is_open = waiting.calls.recv_many(&mut calls, PIPELINE_MAX).await > 0;
    for call in calls {
        if call.expires.is_none() && waiting.kept.len() < route.waiting_max {
            waiting.kept.push_back(call);
        } else {
            fail(route, [call], Unanswered::Down);
        }
    }
    is_open
}

async fn open(route: &Route) -> RedisResult<Connection> {
    let connection = route.address.connect(route.silence_max).await?;
    match connection.clone() {
        Connection::Single(mut connection) => route.script.load().exec_async(&mut connection).await?,
        Connection::Cluster(mut connection) => route.script.load().exec_async(&mut connection).await?,
    }
    Ok(connection)
}

/// Takes what is waiting, without what has waited for too long. Nothing means that the store is closed.
async fn take(route: &Route, most: usize) -> Vec<Call> {
    let mut waiting = route.waiting.lock().await;
    let kept = waiting.kept.len().min(most);
    let mut calls: Vec<_> = waiting.kept.drain(..kept).collect();
    while calls.is_empty() {
        if waiting.calls.recv_many(&mut calls, most).await == 0 {
            break;
        }
        // Whoever makes a call wakes us at once, before others who are about to make theirs: these have their turn first.
        yield_now().await;
        while calls.len() < most
            && let Ok(call) = waiting.calls.try_recv()
        {
            calls.push(call);
        }
        let now = Instant::now();
        calls.retain(|call| call.expires.is_none_or(|expires| now < expires));
    }
    calls
}

/// Sends calls to one server, many at a time. Ends with whether the store is closed; else the connection is broken.
async fn pipeline(route: &Route, mut connection: MultiplexedConnection) -> bool {
    loop {
        let calls = take(route, PIPELINE_MAX).await;
        if calls.is_empty() {
            return true;
        }
        route.vitals.tallies.calls.add(calls.len() as u64);
        route.vitals.tallies.pipelines.add(1);
        let mut answers = match send(route, &calls, &mut connection).await {
            Ok(answers) => answers,
            Err(_) => {
                fail(route, calls, Unanswered::Down);
                return false;
            }
        };
        if answers.iter().any(is_unknown_script) {
            // The server forgot, or is another one. What did run must not run twice.
            match again(route, &calls, answers, &mut connection).await {
                Ok(retried) => answers = retried,
                Err(_) => {
                    fail(route, calls, Unanswered::Down);
                    return false;
                }
            }
        }
        let demoted = answers.iter().any(is_demoted);
        let mut calls = calls.into_iter();
        for answer in answers {
            hand_out(route, calls.by_ref().take(BATCH_MAX).collect(), answer);
        }
        if demoted {
            return false;
        }
    }
}

/// The command for calls that are decided in one go.
fn command(route: &Route, batch: &[Call]) -> Cmd {
    route.script.call(batch.iter().map(|call| &call.errands[..]))
}

/// Gives each call its part of the answer to all of them.
fn hand_out(route: &Route, batch: Vec<Call>, answer: RedisResult<Value>) {
    let value = match answer {
        Ok(value) => value,
        Err(error) => return fail(route, batch, why(&error)),
    };
    let replies = Reply::parse(value, batch.iter().map(|call| call.errands.len()));
    for (call, reply) in batch.into_iter().zip(replies) {
        let reply = reply.map_err(|no_reply| match no_reply {
            NoReply::Foreign(errand) => {
                let slot = call.errands.get(errand).map(|errand| errand.slot.escape_ascii().to_string());
                route.vitals.foreign.set(slot);
                Unanswered::Foreign
            }
            NoReply::Garbled => Unanswered::Garbled,
        });
        // A caller who has gone is no error.
        drop(call.answer.send(reply));
    }
}

async fn send(
    route: &Route,
    calls: &[Call],
    connection: &mut MultiplexedConnection,
) -> RedisResult<Vec<RedisResult<Value>>> {
    let batches = calls.chunks(BATCH_MAX);
    let mut pipeline = redis::Pipeline::with_capacity(batches.len());
    for batch in batches {
        pipeline.add_command(command(route, batch));
    }
    pipeline.ignore_errors().query_async(connection).await
}

/// Makes the script known and sends again what failed for not knowing it.
async fn again(
    route: &Route,
    calls: &[Call],
    mut answers: Vec<RedisResult<Value>>,
    connection: &mut MultiplexedConnection,
) -> RedisResult<Vec<RedisResult<Value>>> {
    route.script.load().exec_async(connection).await?;
    for (batch, answer) in calls.chunks(BATCH_MAX).zip(&mut answers) {
        if is_unknown_script(answer) {
            *answer = command(route, batch).query_async(connection).await;
        }
    }
    Ok(answers)
}

/// Sends each call to the node that has its slot. Ends with whether the store is closed; else the connections are of no use.
async fn scatter(route: &Arc<Route>, connection: ClusterConnection) -> bool {
    let under_way = Arc::new(Semaphore::new(route.waiting_max));
    let failures = Arc::new(AtomicUsize::new(0));
    let mut learn_at = Instant::now();
    loop {
        let calls = take(route, PIPELINE_MAX).await;
        if calls.is_empty() {
            return true;
        }
        if failures.load(Ordering::Relaxed) >= FAILURES_MAX {
            fail(route, calls, Unanswered::Down);
            return false;
        }
        if Instant::now() >= learn_at {
            learn_at = Instant::now() + LEARN_EVERY;
            tokio::spawn(learn(Arc::clone(route), connection.clone()));
        }
        route.vitals.tallies.calls.add(calls.len() as u64);
        for call in calls {
            let Ok(permit) = Arc::clone(&under_way).try_acquire_owned() else {
                fail(route, [call], Unanswered::Busy);
                continue;
            };
            let (route, mut connection, failures) = (Arc::clone(route), connection.clone(), Arc::clone(&failures));
            tokio::spawn(async move {
                let batch = vec![call];
                let answer = deliver(&route.script, &command(&route, &batch), &mut connection).await;
                match &answer {
                    Ok(_) => failures.store(0, Ordering::Relaxed),
                    Err(_) => drop(failures.fetch_add(1, Ordering::Relaxed)),
                }
                hand_out(&route, batch, answer);
                drop(permit);
            });
        }
    }
}

/// Asks who has which slots. Without an answer it stays as it was.
async fn learn(route: Arc<Route>, mut connection: ClusterConnection) {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let anybody = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
    if let Ok(slots) = connection.route_command(question, anybody).await {
        route.vitals.parts.learn(&slots);
    }
}

async fn deliver(script: &Script, command: &Cmd, connection: &mut ClusterConnection) -> RedisResult<Value> {
    let answer = command.query_async(connection).await;
    if is_unknown_script(&answer) {
        script.load().exec_async(connection).await?;
        return command.query_async(connection).await;
    }
    answer
}

fn fail(route: &Route, calls: impl IntoIterator<Item = Call>, why: Unanswered) {
    for call in calls {
        if call.expires.is_none() {
            route.vitals.tallies.unsettled.add(1);
        }
        drop(call.answer.send(Err(why)));
    }
}

/// Whether a server that could decide said no, or none could: not there, not yet ready, or sending us on to one that is not there.
fn why(error: &RedisError) -> Unanswered {
    match error.kind() {
        ErrorKind::Server(
            ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::TryAgain
            | ServerErrorKind::BusyLoading
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown,
        ) => Unanswered::Down,
        ErrorKind::Server(_) | ErrorKind::Extension => Unanswered::Failed,
        _ => Unanswered::Down,
    }
}

fn is_unknown_script(answer: &RedisResult<Value>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Server(ServerErrorKind::NoScript))
}

/// Whether the server is not, or not yet, one that can decide: another one may be by now.
fn is_demoted(answer: &RedisResult<Value>) -> bool {
    let demoted = |error: &RedisError| {
        matches!(error.kind(), ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown))
            || error.code() == Some("READONLY")
    };
    answer.as_ref().is_err_and(demoted)
}
