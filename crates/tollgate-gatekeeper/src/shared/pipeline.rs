//! Sends calls to the store: one task per connection, many calls per pipeline.
//!
//! Calls that arrive while a pipeline is in flight wait for the next one and are sent together, so a busier
//! gate needs fewer round trips per decision. A call whose caller is gone is not sent. When a connection
//! breaks, its task reconnects with jittered and growing pauses. During such a pause, calls fail immediately
//! unless another connection exists; calls that must be made wait for the next connection.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
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
use super::answer::{Reply, ReplyError};
use super::health::StoreHealth;
use super::script::{Errand, Script};
use super::store_clocks::StoreClocks;
use fastrand;

/// The shortest pause between connection attempts.
const RECONNECT_MIN: Duration = Duration::from_millis(20);
/// The longest pause between connection attempts.
const RECONNECT_MAX: Duration = Duration::from_secs(1);
/// The maximum number of calls per pipeline. With more, the first would wait for the last.
const PIPELINE_MAX: usize = 256;
/// The maximum number of calls per script invocation, during which the server serves no other client.
const BATCH_MAX: usize = 64;
/// The interval at which the owners of a Cluster's hash slots are queried.
const QUERY_SLOTS_EVERY: Duration = Duration::from_secs(5);
/// The number of failed calls in a row after which the connections to a Cluster are made again.
const FAILURES_MAX: usize = 64;

/// A script call that waits to be sent.
#[derive(Debug)]
pub(super) struct Call {
    /// The operations of one request, executed in one step.
    pub(super) errands: Vec<Errand>,
    /// The time after which no caller waits; `None` for settlements, which must be made in any case.
    pub(super) expires: Option<Instant>,
    /// The channel for the reply.
    pub(super) answer: oneshot::Sender<Result<Reply, Unanswered>>,
}

/// The state that all connection tasks of a store share.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    pub(super) address: Address,
    pub(super) script: Script,
    pub(super) waiting: Mutex<Waiting>,
    pub(super) health: Arc<StoreHealth>,
    /// The maximum number of calls in [`Waiting::kept`], and of calls in flight to a Cluster.
    pub(super) waiting_max: usize,
    pub(super) clocks: StoreClocks,
    /// A connection whose answer takes longer is closed.
    pub(super) silence_max: Duration,
    pub(super) connection_counts: watch::Sender<ConnectionCounts>,
}

/// The calls that wait for a connection.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) calls: mpsc::Receiver<Call>,
    /// Calls that must be made and arrived without a connection. They are sent first.
    pub(super) kept: VecDeque<Call>,
}

/// The number of connection tasks by state. Without any, calls fail immediately.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionCounts {
    /// Connected.
    pub(super) connected: usize,
    /// Connecting.
    pub(super) trying: usize,
}

/// The task of one connection: connects and sends calls until the store is closed.
pub(super) async fn run(pool: Arc<ConnectionPool>) {
    let mut pause = RECONNECT_MIN;
    loop {
        match open(&pool).await {
            Ok(connection) => {
                pause = RECONNECT_MIN;
                pool.health.counters.connects.fetch_add(1, Relaxed);
                pool.health.connect_error.set(None);
                let set_connected = |is_connected: bool| {
                    pool.connection_counts.send_modify(|connection_counts| {
                        let (from, to) = (&mut connection_counts.trying, &mut connection_counts.connected);
                        let (from, to) = if is_connected { (from, to) } else { (to, from) };
                        (*from, *to) = (*from - 1, *to + 1);
                    });
                };
                set_connected(true);
                let is_closed = match connection {
                    Connection::Single(connection) => run_single(&pool, connection).await,
                    Connection::Cluster(connection) => run_cluster(&pool, connection).await,
                };
                if is_closed {
                    return;
                }
                set_connected(false);
            }
            Err(error) => {
                pool.health.connect_error.set(Some(error.to_string()));
                if pool.waiting.lock().await.calls.is_closed() {
                    return;
                }
                fail_until(&pool, Instant::now() + pause / 2 + (pause / 2).mul_f64(fastrand::f64())).await;
                pause = (pause * 2).min(RECONNECT_MAX);
            }
        }
    }
}

/// Waits until `until`. Calls in the meantime fail, unless another task is connected or connecting.
async fn fail_until(pool: &ConnectionPool, until: Instant) {
    pool.connection_counts.send_modify(|connection_counts| connection_counts.trying -= 1);
    let mut connection_counts = pool.connection_counts.subscribe();
    let counts = *connection_counts.borrow();
    let mut is_alone = counts.connected + counts.trying == 0;
    while is_alone {
        is_alone = tokio::select! {
            biased;
            _ = connection_counts.wait_for(|connection_counts| connection_counts.connected > 0) => false,
            () = sleep_until(until) => false,
            is_open = fail_waiting(pool) => is_open,
        };
    }
    sleep_until(until).await;
    pool.connection_counts.send_modify(|connection_counts| connection_counts.trying += 1);
}

/// Fails waiting calls, and keeps those that must be made. Returns whether the queue is still open. Cancelling it loses
/// nothing.
async fn fail_waiting(pool: &ConnectionPool) -> bool {
    let mut waiting = pool.waiting.lock().await;
    let mut calls = Vec::new();
    let is_open = waiting.calls.recv_many(&mut calls, PIPELINE_MAX).await > 0;
    for call in calls {
        if call.expires.is_none() && waiting.kept.len() < pool.waiting_max {
            waiting.kept.push_back(call);
        } else {
            fail(pool, [call], Unanswered::Down);
        }
    }
    is_open
}

/// Connects, and loads the script.
async fn open(pool: &ConnectionPool) -> RedisResult<Connection> {
    let connection = pool.address.connect(pool.silence_max).await?;
    match connection.clone() {
        Connection::Single(mut connection) => pool.script.load().exec_async(&mut connection).await?,
        Connection::Cluster(mut connection) => pool.script.load().exec_async(&mut connection).await?,
    }
    Ok(connection)
}

/// Waits for calls, and takes up to `most` that have not expired. An empty result means that the store is closed.
async fn take(pool: &ConnectionPool, most: usize) -> Vec<Call> {
    let mut waiting = pool.waiting.lock().await;
    let kept = waiting.kept.len().min(most);
    let mut calls: Vec<_> = waiting.kept.drain(..kept).collect();
    while calls.is_empty() {
        if waiting.calls.recv_many(&mut calls, most).await == 0 {
            break;
        }
        // A call wakes this task immediately, before other callers make theirs, so let them run first.
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

/// Sends calls to one server in pipelines. Returns `true` if the store is closed, `false` if the connection
/// is broken.
async fn run_single(pool: &ConnectionPool, mut connection: MultiplexedConnection) -> bool {
    loop {
        let calls = take(pool, PIPELINE_MAX).await;
        if calls.is_empty() {
            return true;
        }
        pool.health.counters.calls.fetch_add(calls.len() as u64, Relaxed);
        pool.health.counters.pipelines.fetch_add(1, Relaxed);
        let sent = Instant::now();
        let Ok(answers) = send(pool, &calls, &mut connection).await else {
            fail(pool, calls, Unanswered::Down);
            return false;
        };
        let demoted = answers.iter().any(is_demoted);
        let mut calls = calls.into_iter();
        for answer in answers {
            pass_replies(pool, calls.by_ref().take(BATCH_MAX).collect(), sent, answer);
        }
        if demoted {
            return false;
        }
    }
}

/// The command for calls that are executed together. Their deadline is the latest of those of their callers.
fn command(pool: &ConnectionPool, batch: &[Call]) -> Cmd {
    let expires = batch.iter().filter_map(|call| call.expires).max();
    let closed = Instant::now() + pool.silence_max;
    let deadline_us = expires.and_then(|expires| pool.clocks.deadline_us(slot(batch)?, expires, closed));
    pool.script.call(batch.iter().map(|call| &call.errands[..]), deadline_us)
}

/// The first slot of a batch, which determines the node and its clock. On a Cluster, a batch is one call, all of whose
/// slots are on one node.
fn slot(batch: &[Call]) -> Option<&[u8]> {
    batch.first()?.errands.first().map(|errand| &errand.slot[..])
}

/// Passes each call, sent at `sent`, its part of the reply.
fn pass_replies(pool: &ConnectionPool, batch: Vec<Call>, sent: Instant, answer: RedisResult<Value>) {
    let value = match answer {
        Ok(value) => value,
        Err(error) => return fail(pool, batch, why(&error)),
    };
    let replies = Reply::parse(value, batch.iter().map(|call| call.errands.len()));
    let ran = replies.iter().find_map(|reply| match reply {
        Ok(reply) => Some(reply.now),
        Err(ReplyError::Late(now)) => Some(*now),
        Err(ReplyError::Foreign(_) | ReplyError::Garbled) => None,
    });
    if let (Some(slot), Some(ran)) = (slot(&batch), ran) {
        pool.clocks.learn(slot, sent, ran);
    }
    for (call, reply) in batch.into_iter().zip(replies) {
        let reply = reply.map_err(|no_reply| match no_reply {
            ReplyError::Foreign(errand) => {
                let slot = call.errands.get(errand).map(|errand| errand.slot.escape_ascii().to_string());
                pool.health.foreign.set(slot);
                Unanswered::Foreign
            }
            ReplyError::Late(_) => Unanswered::Late,
            ReplyError::Garbled => Unanswered::Garbled,
        });
        // The caller may be gone.
        drop(call.answer.send(reply));
    }
}

/// Sends calls in one pipeline. If the server has lost the script, or another server has taken its address, loads the
/// script and repeats the calls that failed without it; calls that ran must not run twice.
async fn send(
    pool: &ConnectionPool,
    calls: &[Call],
    connection: &mut MultiplexedConnection,
) -> RedisResult<Vec<RedisResult<Value>>> {
    let batches = calls.chunks(BATCH_MAX);
    let mut pipeline = redis::Pipeline::with_capacity(batches.len());
    for batch in batches {
        pipeline.add_command(command(pool, batch));
    }
    let mut answers: Vec<RedisResult<Value>> = pipeline.ignore_errors().query_async(connection).await?;
    if answers.iter().any(is_unknown_script) {
        pool.script.load().exec_async(connection).await?;
        for (batch, answer) in calls.chunks(BATCH_MAX).zip(&mut answers) {
            if is_unknown_script(answer) {
                *answer = command(pool, batch).query_async(connection).await;
            }
        }
    }
    Ok(answers)
}

/// Sends each call to the node of its slot. Returns `true` if the store is closed, `false` if the connections
/// are broken.
async fn run_cluster(pool: &Arc<ConnectionPool>, connection: ClusterConnection) -> bool {
    let in_flight = Arc::new(Semaphore::new(pool.waiting_max));
    let failures = Arc::new(AtomicUsize::new(0));
    let mut query_at = Instant::now();
    loop {
        let calls = take(pool, PIPELINE_MAX).await;
        if calls.is_empty() {
            return true;
        }
        if failures.load(Relaxed) >= FAILURES_MAX {
            fail(pool, calls, Unanswered::Down);
            return false;
        }
        if Instant::now() >= query_at {
            query_at = Instant::now() + QUERY_SLOTS_EVERY;
            tokio::spawn(query_slots(Arc::clone(pool), connection.clone()));
        }
        pool.health.counters.calls.fetch_add(calls.len() as u64, Relaxed);
        for call in calls {
            let Ok(permit) = Arc::clone(&in_flight).try_acquire_owned() else {
                fail(pool, [call], Unanswered::Busy);
                continue;
            };
            let (pool, mut connection, failures) = (Arc::clone(pool), connection.clone(), Arc::clone(&failures));
            tokio::spawn(async move {
                let (batch, sent) = (vec![call], Instant::now());
                let answer = deliver(&pool.script, &command(&pool, &batch), &mut connection).await;
                match &answer {
                    Ok(_) => failures.store(0, Relaxed),
                    Err(_) => drop(failures.fetch_add(1, Relaxed)),
                }
                pass_replies(&pool, batch, sent, answer);
                drop(permit);
            });
        }
    }
}

/// Queries the owners of slots. Without an answer nothing changes.
async fn query_slots(pool: Arc<ConnectionPool>, mut connection: ClusterConnection) {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let anybody = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
    if let Ok(slots) = connection.route_command(question, anybody).await {
        pool.health.parts.learn(&slots);
    }
}

/// Sends one command to its node. If the node does not have the script, loads it and repeats the command.
async fn deliver(script: &Script, command: &Cmd, connection: &mut ClusterConnection) -> RedisResult<Value> {
    let answer = command.query_async(connection).await;
    if is_unknown_script(&answer) {
        script.load().exec_async(connection).await?;
        return command.query_async(connection).await;
    }
    answer
}

/// Fails calls for this reason, and counts settlements that are lost.
fn fail(pool: &ConnectionPool, calls: impl IntoIterator<Item = Call>, why: Unanswered) {
    for call in calls {
        if call.expires.is_none() {
            pool.health.counters.unsettled.fetch_add(1, Relaxed);
        }
        drop(call.answer.send(Err(why)));
    }
}

/// Distinguishes an error of a working server from an unavailable server. A server that is loading or that redirects to
/// another one is unavailable, too.
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

/// Whether the server has become a replica. Another server may be the primary by now, so the task reconnects.
fn is_demoted(answer: &RedisResult<Value>) -> bool {
    let demoted = |error: &RedisError| {
        matches!(error.kind(), ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown))
            || error.code() == Some("READONLY")
    };
    answer.as_ref().is_err_and(demoted)
}
