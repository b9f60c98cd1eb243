//! The interface of the store (Redis, Valkey or a Redis Cluster) for the rest of this folder: questions about requests,
//! each with a deadline, and settlements.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, timeout_at};
use tollgate_core::decision::Decision;
use tollgate_core::limit::Charge;
use tollgate_core::rule::{Rule, Situation};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use super::answer::{Answer, Reply};
use super::cluster_parts::ClusterParts;
use super::counters::Counts;
use super::health::StoreHealth;
use super::pipeline::{self, Call, ConnectionCounts, ConnectionPool, Waiting};
use super::rule::{Operation, SharedRule, WORK_LIFE, Work};
use super::script::{Errand, Script};
use super::slot::slot_of;
use super::store_clocks::StoreClocks;
use super::store_ticket::{StoreTicket, Taken};
use super::{Address, Unanswered};
use fastrand;

/// Settings of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The deadline of an answer.
    pub deadline: Duration,
    /// The deadline of an answer for rules with [`OnTimeout::Wait`](super::OnTimeout::Wait).
    pub wait: Duration,
    /// The maximum number of calls that wait to be sent.
    pub waiting_max: usize,
    /// The number of connections.
    pub connections: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { deadline: DEADLINE, wait: Duration::from_secs(1), waiting_max: 4096, connections: 2 }
    }
}

/// The default deadline of an answer. docs/decisions/redis-deadline.md has the measurements.
const DEADLINE: Duration = Duration::from_millis(50);
/// A connection is closed if an answer takes longer than the longest of this and the deadlines.
const SILENCE_MAX: Duration = Duration::from_millis(500);

/// A store that many gates share. It is cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    pub(super) inner: Arc<StoreInner>,
    tasks: Arc<Mutex<Vec<JoinHandle<()>>>>,
    connections: watch::Receiver<ConnectionCounts>,
}

#[derive(Debug)]
pub(super) struct StoreInner {
    options: Options,
    is_cluster: bool,
    /// The queue to the connections.
    calls: mpsc::Sender<Call>,
    /// The runtime of the tasks.
    pub(super) runtime: Handle,
    health: Arc<StoreHealth>,
    /// The start of the clock of the breakers.
    origin: Instant,
    /// The random bits of the next [`Work`].
    next_work: AtomicU64,
    /// The operations that renew requests in flight, for rules that count them.
    in_flight: Mutex<HashMap<Work, Vec<Errand>>>,
}

/// A shared rule that applies to a request, and the slot of the request's key.
#[derive(Clone, Debug)]
pub struct AskedRule {
    pub(super) place: usize,
    pub(super) rule: Arc<SharedRule>,
    pub(super) slot: Vec<u8>,
}

impl AskedRule {
    /// The rule with index `place`, asked about `key`.
    pub fn new(place: usize, rule: &Arc<SharedRule>, key: &[u8]) -> Self {
        Self { place, rule: Arc::clone(rule), slot: rule.slot(key) }
    }
}

/// The rules of a request that are decided in one step: on a Cluster, those of one hash slot.
struct Group {
    /// The part of the store that has them.
    part: usize,
    asked: Vec<AskedRule>,
}

/// The question about a request, which is the same for all groups.
#[derive(Clone, Copy)]
struct StoreQuestion {
    operation: Operation,
    toll: Toll,
    work: Work,
    situation: Situation,
}

/// A call for a group that is not answered yet. Dropping it refunds charges that the store still makes.
struct Pending {
    inner: Arc<StoreInner>,
    group: Group,
    question: StoreQuestion,
    /// The time of the call, on the clock of the breakers.
    asked_at: Moment,
    /// The channel for the reply; `None` if the call could not be queued, or after the reply.
    answered: Option<oneshot::Receiver<Result<Reply, Unanswered>>>,
}

impl Store {
    /// Opens the store at `address`, with tasks on the current runtime. Connections are made in the
    /// background, so the store need not be available.
    pub fn open(address: Address, options: Options) -> Self {
        let (calls, waiting) = mpsc::channel(options.waiting_max.max(1));
        let is_cluster = address.is_cluster();
        let health = Arc::new(StoreHealth::new(is_cluster));
        let inner = Arc::new(StoreInner {
            options,
            is_cluster,
            calls,
            runtime: Handle::current(),
            health: Arc::clone(&health),
            origin: Instant::now(),
            next_work: AtomicU64::new(fastrand::u64(..)),
            in_flight: Mutex::default(),
        });
        // All calls share the connections of a Cluster client.
        let connections = if is_cluster { 1 } else { options.connections.max(1) };
        let pool = Arc::new(ConnectionPool {
            address,
            script: Script::new(),
            waiting: tokio::sync::Mutex::new(Waiting { calls: waiting, kept: VecDeque::new() }),
            health,
            waiting_max: options.waiting_max.max(1),
            clocks: StoreClocks::new(is_cluster),
            silence_max: options.deadline.max(options.wait).max(SILENCE_MAX),
            connection_counts: watch::Sender::new(ConnectionCounts { connected: 0, trying: connections }),
        });
        let made = pool.connection_counts.subscribe();
        let tasks = (0..connections).map(|_| tokio::spawn(pipeline::run(Arc::clone(&pool)))).collect();
        tokio::spawn(renew(Arc::downgrade(&inner)));
        Self { inner, tasks: Arc::new(Mutex::new(tasks)), connections: made }
    }

    /// Resolves when all connections are established, so that the store decides on the first request. Never
    /// resolves while the store is down.
    pub fn connected(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut connections = self.connections.clone();
        let most = if self.inner.is_cluster { 1 } else { self.inner.options.connections.max(1) };
        async move {
            // An error means that the connection tasks have ended.
            drop(connections.wait_for(|counts| counts.connected >= most).await);
        }
    }

    /// Resolves when all pending calls are sent and the connections are closed, which happens soon after the
    /// last clone and the last ticket are dropped. Only the first call waits.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let tasks = core::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        async move {
            for task in tasks {
                // A task that panicked has ended, too.
                drop(task.await);
            }
        }
    }

    /// The health of the store.
    pub fn health(&self) -> &Arc<StoreHealth> {
        &self.inner.health
    }

    /// The counters.
    pub fn counts(&self) -> Counts {
        self.inner.health.counts()
    }

    /// The deadline of a call that starts now; `waits` is for rules with [`OnTimeout::Wait`](super::OnTimeout::Wait).
    pub(super) fn expiry(&self, waits: bool) -> Instant {
        let Options { deadline, wait, .. } = self.inner.options;
        Instant::now() + if waits { wait.max(deadline) } else { deadline }
    }

    /// Refunds `count` of an unused lease.
    pub(super) fn give_back(&self, taken: Taken, count: u64) {
        let toll = Toll { count, cpu: Span::ZERO };
        StoreTicket { taken: vec![taken], toll, work: Work::new(0), inner: Arc::clone(&self.inner) }.refund();
    }

    /// Asks the store about a request to which all of `asked` apply. The decision is on the store's clock:
    /// see [`Answer::on_clock`].
    pub async fn decide(
        &self,
        asked: Vec<AskedRule>,
        toll: Toll,
        situation: &Situation,
    ) -> Result<(Answer, StoreTicket), Unanswered> {
        self.decide_by(asked, toll, situation, self.expiry(false)).await
    }

    /// The decision of each of `asked` by index, or why the store did not answer. Nothing is charged.
    pub async fn explain(
        &self,
        asked: Vec<AskedRule>,
        toll: Toll,
        situation: &Situation,
    ) -> Vec<(usize, Result<Answer, Unanswered>)> {
        let question = StoreQuestion { operation: Operation::Read, toll, work: Work::new(0), situation: *situation };
        let explain = |group: &Group, reply: Reply| reply.explain(&group.rules(), toll, situation);
        self.inner.ask_each(asked, question, explain).await
    }

    /// Removes the state of each of `asked`. Returns by index whether there was any, or why the store did not
    /// answer. Requests in flight stay counted.
    pub async fn forget(&self, asked: Vec<AskedRule>, situation: &Situation) -> Vec<(usize, Result<bool, Unanswered>)> {
        let (operation, toll) = (Operation::Forget, Toll::default());
        let question = StoreQuestion { operation, toll, work: Work::new(0), situation: *situation };
        let known = |group: &Group, reply: Reply| Ok(group.places().zip(reply.known()).collect());
        self.inner.ask_each(asked, question, known).await
    }

    /// [`Self::decide`] with the deadline `expires`.
    pub(super) async fn decide_by(
        &self,
        asked: Vec<AskedRule>,
        toll: Toll,
        situation: &Situation,
        expires: Instant,
    ) -> Result<(Answer, StoreTicket), Unanswered> {
        let asked_at = Instant::now();
        let outcome = self.inner.decide(asked, toll, situation, expires).await;
        match &outcome {
            Ok(_) => self.inner.health.answered(asked_at.elapsed()),
            Err(why) => self.inner.health.counters.unanswered(*why),
        }
        outcome
    }
}

impl StoreInner {
    fn now(&self) -> Moment {
        Moment::ZERO + Span::from(self.origin.elapsed())
    }

    async fn decide(
        self: &Arc<Self>,
        asked: Vec<AskedRule>,
        toll: Toll,
        situation: &Situation,
        expires: Instant,
    ) -> Result<(Answer, StoreTicket), Unanswered> {
        let groups = self.askable(asked)?;
        let work = Work::new(self.next_work.fetch_add(1 << 12, Relaxed));
        let question = StoreQuestion { operation: Operation::Decide, toll, work, situation: *situation };
        let pending: Vec<_> = groups.into_iter().map(|group| self.send(group, question, expires)).collect();
        let mut total: Option<Answer> = None;
        let mut ticket = self.ticket(question, Vec::new());
        let mut failure = None;
        for mut pending in pending {
            let reply = pending.reply(expires).await;
            match reply.and_then(|reply| pending.group.interpret(&reply, &question)) {
                Ok((answer, taken)) => {
                    ticket.taken.extend(taken);
                    total = Some(stricter(total, answer));
                }
                Err(why) => failure = Some(why),
            }
        }
        if let Some(why) = failure {
            self.give_back(ticket);
            return Err(why);
        }
        let answer = total.unwrap_or(Answer { decision: Decision::no_rule(situation.band), now: Moment::ZERO });
        if answer.decision.verdict.is_refusal() {
            // Another node of a Cluster may have charged its rules.
            self.give_back(ticket);
            return Ok((answer, self.ticket(question, Vec::new())));
        }
        let renewals = ticket.renewals();
        if !renewals.is_empty() {
            self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).insert(question.work, renewals);
        }
        Ok((answer, ticket))
    }

    /// Asks `question` about each of `asked` and interprets the replies. A failed part of a Cluster does not
    /// affect the others.
    async fn ask_each<T>(
        self: &Arc<Self>,
        asked: Vec<AskedRule>,
        question: StoreQuestion,
        interpret: impl Fn(&Group, Reply) -> Result<Vec<(usize, T)>, Unanswered>,
    ) -> Vec<(usize, Result<T, Unanswered>)> {
        let places: Vec<_> = asked.iter().map(|asked| asked.place).collect();
        let groups = match self.askable(asked) {
            Ok(groups) => groups,
            Err(why) => return places.into_iter().map(|place| (place, Err(why))).collect(),
        };
        let expires = Instant::now() + self.options.deadline;
        let pending: Vec<_> = groups.into_iter().map(|group| self.send(group, question, expires)).collect();
        let mut answers = Vec::with_capacity(places.len());
        for mut pending in pending {
            let reply = pending.reply(expires).await;
            match reply.and_then(|reply| interpret(&pending.group, reply)) {
                Ok(found) => answers.extend(found.into_iter().map(|(place, found)| (place, Ok(found)))),
                Err(why) => answers.extend(pending.group.places().map(|place| (place, Err(why)))),
            }
        }
        answers
    }

    /// The groups that are decided in one step, if all their breakers permit a call.
    fn askable(&self, asked: Vec<AskedRule>) -> Result<Vec<Group>, Unanswered> {
        let groups = self.groups(asked);
        let now = self.now();
        let mut breakers = groups.iter().map(|group| self.health.parts.breaker(group.part));
        // No part is probed while another one does not permit calls, because the probe would be wasted.
        if breakers.clone().all(|breaker| breaker.may_ask(now)) && breakers.all(|breaker| breaker.lets_through(now)) {
            Ok(groups)
        } else {
            Err(Unanswered::Down)
        }
    }

    /// Queues the call for a group.
    fn send(self: &Arc<Self>, group: Group, question: StoreQuestion, expires: Instant) -> Pending {
        let errands = group
            .asked
            .iter()
            .map(|claimed| Errand {
                slot: claimed.slot.clone(),
                claim: claimed.rule.claim(question.operation, question.toll, question.work, &question.situation),
            })
            .collect();
        let (answer, answered) = oneshot::channel();
        let sent = self.calls.try_send(Call { errands, expires: Some(expires), answer });
        let answered = sent.is_ok().then_some(answered);
        Pending { inner: Arc::clone(self), group, question, asked_at: self.now(), answered }
    }

    fn ticket(self: &Arc<Self>, question: StoreQuestion, taken: Vec<Taken>) -> StoreTicket {
        StoreTicket { taken, toll: question.toll, work: question.work, inner: Arc::clone(self) }
    }

    /// Groups claims that are decided in one step: all of them, or on a Cluster those of one slot.
    fn groups(&self, asked: Vec<AskedRule>) -> Vec<Group> {
        let mut groups: Vec<(u16, Group)> = Vec::with_capacity(1);
        for asked in asked {
            let number = if self.is_cluster { slot_of(&asked.slot) } else { 0 };
            match groups.iter_mut().find(|(of, _)| *of == number) {
                Some((_, group)) => group.asked.push(asked),
                None => groups.push((number, Group { part: ClusterParts::part_of(number), asked: vec![asked] })),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    /// Refunds the charges of a request that is not admitted after all, and counts it.
    fn give_back(&self, ticket: StoreTicket) {
        if !ticket.taken.is_empty() {
            self.health.counters.given_back.fetch_add(1, Relaxed);
            ticket.refund();
        }
    }

    /// Sends operations that need no reply, one call per hash slot of a Cluster.
    pub(super) fn send_without_reply(&self, errands: Vec<Errand>) {
        let mut rest = errands;
        while let Some(first) = rest.first() {
            let slot = slot_of(&first.slot);
            let (here, elsewhere) =
                rest.into_iter().partition(|errand| !self.is_cluster || slot_of(&errand.slot) == slot);
            let (answer, _) = oneshot::channel();
            if self.calls.try_send(Call { errands: here, expires: None, answer }).is_err() {
                self.health.counters.unsettled.fetch_add(1, Relaxed);
            }
            rest = elsewhere;
        }
    }

    /// Removes a request that is no longer in flight.
    pub(super) fn forget(&self, work: Work) {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).remove(&work);
    }
}

impl Group {
    /// Interprets the store's reply. Also returns the charges.
    fn interpret(&self, reply: &Reply, question: &StoreQuestion) -> Result<(Answer, Vec<Taken>), Unanswered> {
        let (answer, charged) = reply.answer(&self.rules(), question.toll, &question.situation)?;
        let taken = |(AskedRule { rule, slot, .. }, charged): (&AskedRule, Option<Charge>)| {
            charged.map(|charged| Taken { rule: Arc::clone(rule), slot: slot.clone(), charged })
        };
        Ok((answer, self.asked.iter().zip(charged).filter_map(taken).collect()))
    }

    fn places(&self) -> impl Iterator<Item = usize> {
        self.asked.iter().map(|claimed| claimed.place)
    }

    fn rules(&self) -> Vec<(usize, &Rule)> {
        self.asked.iter().map(|claimed| (claimed.place, claimed.rule.rule())).collect()
    }
}

impl Pending {
    /// The store's reply, if it arrives until `expires`.
    async fn reply(&mut self, expires: Instant) -> Result<Reply, Unanswered> {
        let breaker = self.inner.health.parts.breaker(self.group.part);
        let Some(answered) = self.answered.as_mut() else { return Err(Unanswered::Busy) };
        let Ok(outcome) = timeout_at(expires, answered).await else {
            breaker.missed(self.asked_at, self.inner.now(), fastrand::u64(..));
            return Err(Unanswered::Late);
        };
        self.answered = None;
        let outcome = outcome.unwrap_or(Err(Unanswered::Down));
        match outcome {
            Err(Unanswered::Down) => breaker.missed(self.asked_at, self.inner.now(), fastrand::u64(..)),
            _ => breaker.answered(),
        }
        outcome
    }
}

impl Drop for Pending {
    /// The caller no longer waits, so charges that the store still makes are refunded.
    fn drop(&mut self) {
        let Some(answered) = self.answered.take().filter(|_| self.question.operation == Operation::Decide) else {
            return;
        };
        let (inner, question) = (Arc::clone(&self.inner), self.question);
        let group = Group { part: self.group.part, asked: core::mem::take(&mut self.group.asked) };
        self.inner.runtime.spawn(async move {
            let Ok(Ok(reply)) = answered.await else { return };
            if let Ok((_, taken)) = group.interpret(&reply, &question) {
                inner.give_back(inner.ticket(question, taken));
            }
        });
    }
}

/// Combines the answers of two groups: the stricter decision wins.
fn stricter(total: Option<Answer>, answer: Answer) -> Answer {
    let Some(mut total) = total else { return answer };
    // Nodes have their own clocks, so one answer is converted to the clock of the other.
    total.decision.tighten(answer.on_clock(total.now));
    total
}

/// Renews all requests in flight, three times per [`WORK_LIFE`], so that the store keeps counting them.
async fn renew(inner: std::sync::Weak<StoreInner>) {
    let mut ticks = interval(Duration::from(WORK_LIFE) / 3);
    // The first tick is immediate.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        let renewals: Vec<_> =
            inner.in_flight.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for errands in renewals {
            inner.send_without_reply(errands);
        }
    }
}
