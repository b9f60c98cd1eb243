//! The store as a gate sees it: a question with a deadline.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::HashMap;
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
use super::count::Counts;
use super::courier::{self, Call, Couriers, Route, Waiting};
use super::parts::Parts;
use super::random;
use super::rule::{Operation, SharedRule, WORK_LIFE, Work};
use super::script::{Errand, Script};
use super::slot::slot_of;
use super::ticket::{Taken, Ticket};
use super::vitals::Vitals;
use super::{Address, Unanswered};

/// How the store is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long an answer is waited for.
    pub deadline: Duration,
    /// How long an answer is waited for where a rule has [`OnTimeout::Wait`](super::OnTimeout::Wait).
    pub wait: Duration,
    /// How many calls may wait to be sent.
    pub waiting_max: usize,
    /// How many connections are made.
    pub connections: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { deadline: DEADLINE, wait: Duration::from_secs(1), waiting_max: 4096, connections: 2 }
    }
}

/// The deadline unless another is set. Measured on a busy machine: see docs/decisions/redis-deadline.md.
const DEADLINE: Duration = Duration::from_millis(50);
/// A connection that owes an answer for longer than this, and than the deadline, is given up.
const SILENCE_MAX: Duration = Duration::from_millis(500);

/// A store that many gates share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
    couriers: Arc<Mutex<Vec<JoinHandle<()>>>>,
    connections: watch::Receiver<Couriers>,
}

#[derive(Debug)]
pub(super) struct Inner {
    options: Options,
    is_cluster: bool,
    calls: mpsc::Sender<Call>,
    runtime: Handle,
    vitals: Arc<Vitals>,
    origin: Instant,
    works: AtomicU64,
    /// What says that a request is still at work, for those that a rule counts.
    at_work: Mutex<HashMap<Work, Vec<Errand>>>,
}

/// A shared rule that applies to a request.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'request> {
    /// Where the rule stands among all rules.
    pub place: usize,
    /// The rule.
    pub rule: &'request Arc<SharedRule>,
    /// The request's key in the rule's class.
    pub key: &'request [u8],
}

/// The claims of a request that are decided in one step.
struct Group {
    /// The part of the store that has them.
    part: usize,
    asked: Vec<Claimed>,
}

/// A rule that applies to a request, and the slot of the request's key.
struct Claimed {
    /// Where the rule stands among all rules.
    place: usize,
    rule: Arc<SharedRule>,
    slot: Vec<u8>,
}

/// What is asked of every group.
#[derive(Clone, Copy)]
struct Question {
    operation: Operation,
    toll: Toll,
    work: Work,
    situation: Situation,
}

/// A group that was asked about and has not been answered.
struct Pending {
    inner: Arc<Inner>,
    group: Group,
    question: Question,
    asked_at: Moment,
    answered: Option<oneshot::Receiver<Result<Reply, Unanswered>>>,
}

impl Store {
    /// A store at `address`, asked by tasks of the runtime that this is called on. Connections are made in the background: a
    /// store that is not there is no reason not to start.
    pub fn open(address: Address, options: Options) -> Self {
        let (calls, waiting) = mpsc::channel(options.waiting_max.max(1));
        let is_cluster = address.is_cluster();
        let vitals = Arc::new(Vitals::new(is_cluster));
        let inner = Arc::new(Inner {
            options,
            is_cluster,
            calls,
            runtime: Handle::current(),
            vitals: Arc::clone(&vitals),
            origin: Instant::now(),
            works: AtomicU64::new(random::bits()),
            at_work: Mutex::default(),
        });
        // The connections of a Cluster are shared by all calls already.
        let connections = if is_cluster { 1 } else { options.connections.max(1) };
        let route = Arc::new(Route {
            address,
            script: Script::new(),
            waiting: tokio::sync::Mutex::new(Waiting::new(waiting)),
            vitals,
            waiting_max: options.waiting_max.max(1),
            silence_max: options.deadline.max(options.wait).max(SILENCE_MAX),
            couriers: watch::Sender::new(Couriers { connected: 0, trying: connections }),
        });
        let made = route.couriers.subscribe();
        let couriers = (0..connections).map(|_| tokio::spawn(courier::carry(Arc::clone(&route)))).collect();
        tokio::spawn(renew(Arc::downgrade(&inner)));
        Self { inner, couriers: Arc::new(Mutex::new(couriers)), connections: made }
    }

    /// Resolves when all connections are made, so that the store decides about the first request. Never, as long as the store is down.
    pub fn connected(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut connections = self.connections.clone();
        let most = if self.inner.is_cluster { 1 } else { self.inner.options.connections.max(1) };
        async move {
            // An error means that the couriers have ended, and there will be no more connections.
            drop(connections.wait_for(|couriers| couriers.connected >= most).await);
        }
    }

    /// Resolves when all that the store was to be told has been told and its connections are closed, which is soon after the last
    /// clone of it and the last of its tickets have gone. Only the first who asks waits for that.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let couriers = core::mem::take(&mut *self.couriers.lock().unwrap_or_else(PoisonError::into_inner));
        async move {
            for courier in couriers {
                // One that panicked has ended too.
                drop(courier.await);
            }
        }
    }

    /// Whether `other` is a clone of this.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// How the store is doing.
    pub fn vitals(&self) -> &Arc<Vitals> {
        &self.inner.vitals
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.inner.vitals.counts()
    }

    /// The runtime whose tasks ask.
    pub(super) fn runtime(&self) -> &Handle {
        &self.inner.runtime
    }

    /// When a question that is asked now is not waited for any more.
    pub(super) fn expiry(&self) -> Instant {
        Instant::now() + self.inner.options.deadline
    }

    /// When a question that is asked now is not waited for any more by a rule with [`OnTimeout::Wait`](super::OnTimeout::Wait).
    pub(super) fn late_expiry(&self) -> Instant {
        Instant::now() + self.inner.options.wait.max(self.inner.options.deadline)
    }

    /// Gives back `count` of what was `charged` ahead and not used.
    pub(super) fn give_back(&self, rule: &Arc<SharedRule>, slot: Vec<u8>, count: u64, charged: Charge) {
        let taken = vec![Taken { rule: Arc::clone(rule), slot, charged }];
        let toll = Toll { count, cpu: Span::ZERO };
        Ticket { taken, toll, work: Work::new(0), inner: Arc::clone(&self.inner) }.refund();
    }

    /// Asks the store about a request to which all of `asked` apply. The decision is on the store's clock: see
    /// [`Answer::on_clock`].
    pub async fn decide(
        &self,
        asked: &[Asked<'_>],
        toll: Toll,
        situation: &Situation,
    ) -> Result<(Answer, Ticket), Unanswered> {
        self.decide_by(asked, toll, situation, self.expiry()).await
    }

    /// What each of `asked` would say, by its place, or why the store does not say. Nothing is charged.
    pub async fn explain(
        &self,
        asked: &[Asked<'_>],
        toll: Toll,
        situation: &Situation,
    ) -> Vec<(usize, Result<Answer, Unanswered>)> {
        let question = Question { operation: Operation::Read, toll, work: Work::new(0), situation: *situation };
        let explain = |group: &Group, reply: Reply| reply.explain(&group.rules(), toll, situation);
        self.inner.ask_each(asked, question, explain).await
    }

    /// Makes the store forget what it knows of each of `asked`, by its place, as if that had never been seen. Says whether there was
    /// something to forget, or why the store does not say. What is at work stays counted.
    pub async fn forget(&self, asked: &[Asked<'_>], situation: &Situation) -> Vec<(usize, Result<bool, Unanswered>)> {
        let nothing = Toll { count: 0, cpu: Span::ZERO };
        let question =
            Question { operation: Operation::Forget, toll: nothing, work: Work::new(0), situation: *situation };
        let known = |group: &Group, reply: Reply| Ok(group.places().zip(reply.known()).collect());
        self.inner.ask_each(asked, question, known).await
    }

    /// [`Self::decide`], with no more time than until `expires`.
    pub(super) async fn decide_by(
        &self,
        asked: &[Asked<'_>],
        toll: Toll,
        situation: &Situation,
        expires: Instant,
    ) -> Result<(Answer, Ticket), Unanswered> {
        let asked_at = Instant::now();
        let outcome = self.inner.decide(asked, toll, situation, expires).await;
        match &outcome {
            Ok(_) => self.inner.vitals.answered(asked_at.elapsed()),
            Err(why) => self.inner.vitals.tallies.unanswered(*why),
        }
        outcome
    }
}

impl Inner {
    fn now(&self) -> Moment {
        Moment::ZERO + Span::from(self.origin.elapsed())
    }

    async fn decide(
        self: &Arc<Self>,
        asked: &[Asked<'_>],
        toll: Toll,
        situation: &Situation,
        expires: Instant,
    ) -> Result<(Answer, Ticket), Unanswered> {
        let groups = self.askable(asked)?;
        let work = Work::new(self.works.fetch_add(1 << 12, Ordering::Relaxed));
        let question = Question { operation: Operation::Decide, toll, work, situation: *situation };
        let pending: Vec<_> = groups.into_iter().map(|group| self.send(group, question, expires)).collect();
        let mut total: Option<Answer> = None;
        let mut ticket = self.ticket(question, Vec::new());
        let mut failure = None;
        for pending in pending {
            match pending.answer(expires).await {
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
            // Another node of a Cluster may have charged what this one refused.
            self.give_back(ticket);
            return Ok((answer, self.ticket(question, Vec::new())));
        }
        let sign_of_life = ticket.sign_of_life();
        if !sign_of_life.is_empty() {
            self.at_work.lock().unwrap_or_else(PoisonError::into_inner).insert(question.work, sign_of_life);
        }
        Ok((answer, ticket))
    }

    /// Asks `question` about each of `asked` and makes sense of the replies. A part of a Cluster that does not answer is nothing to the others.
    async fn ask_each<T>(
        self: &Arc<Self>,
        asked: &[Asked<'_>],
        question: Question,
        make_sense: impl Fn(&Group, Reply) -> Result<Vec<(usize, T)>, Unanswered>,
    ) -> Vec<(usize, Result<T, Unanswered>)> {
        let groups = match self.askable(asked) {
            Ok(groups) => groups,
            Err(why) => return asked.iter().map(|asked| (asked.place, Err(why))).collect(),
        };
        let expires = Instant::now() + self.options.deadline;
        let pending: Vec<_> = groups.into_iter().map(|group| self.send(group, question, expires)).collect();
        let mut answers = Vec::with_capacity(asked.len());
        for mut pending in pending {
            let reply = pending.reply(expires).await;
            match reply.and_then(|reply| make_sense(&pending.group, reply)) {
                Ok(said) => answers.extend(said.into_iter().map(|(place, said)| (place, Ok(said)))),
                Err(why) => answers.extend(pending.group.places().map(|place| (place, Err(why)))),
            }
        }
        answers
    }

    /// Those that are decided in one step, if all that they need may be asked.
    fn askable(&self, asked: &[Asked<'_>]) -> Result<Vec<Group>, Unanswered> {
        let groups = self.groups(asked);
        let now = self.now();
        let mut breakers = groups.iter().map(|group| self.vitals.parts.breaker(group.part));
        // Not even a probe goes to one part while another is not to be asked: it would be wasted.
        if breakers.clone().all(|breaker| breaker.may_ask(now)) && breakers.all(|breaker| breaker.lets_through(now)) {
            Ok(groups)
        } else {
            Err(Unanswered::Down)
        }
    }

    fn send(self: &Arc<Self>, group: Group, question: Question, expires: Instant) -> Pending {
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

    fn ticket(self: &Arc<Self>, question: Question, taken: Vec<Taken>) -> Ticket {
        Ticket { taken, toll: question.toll, work: question.work, inner: Arc::clone(self) }
    }

    /// Those that are decided in one step: all, or on a Cluster those of one slot.
    fn groups(&self, asked: &[Asked<'_>]) -> Vec<Group> {
        let mut groups: Vec<(u16, Group)> = Vec::with_capacity(1);
        for asked in asked {
            let slot = asked.rule.slot(asked.key);
            let number = if self.is_cluster { slot_of(&slot) } else { 0 };
            let claimed = Claimed { place: asked.place, rule: Arc::clone(asked.rule), slot };
            match groups.iter_mut().find(|(of, _)| *of == number) {
                Some((_, group)) => group.asked.push(claimed),
                None => {
                    groups.push((number, Group { part: Parts::part_of(number), asked: vec![claimed] }));
                }
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    fn give_back(&self, ticket: Ticket) {
        if !ticket.taken.is_empty() {
            self.vitals.tallies.given_back.add(1);
            ticket.refund();
        }
    }

    /// Tells the store something that needs no answer.
    pub(super) fn tell(&self, errands: Vec<Errand>) {
        let mut rest = errands;
        while let Some(first) = rest.first() {
            let slot = slot_of(&first.slot);
            let (here, elsewhere) =
                rest.into_iter().partition(|errand| !self.is_cluster || slot_of(&errand.slot) == slot);
            let (answer, _) = oneshot::channel();
            if self.calls.try_send(Call { errands: here, expires: None, answer }).is_err() {
                self.vitals.tallies.unsettled.add(1);
            }
            rest = elsewhere;
        }
    }

    /// The request is not at work any more.
    pub(super) fn forget(&self, work: Work) {
        self.at_work.lock().unwrap_or_else(PoisonError::into_inner).remove(&work);
    }
}

impl Group {
    /// What the store's reply means, and what it took.
    fn make_sense(&self, reply: &Reply, question: &Question) -> Result<(Answer, Vec<Taken>), Unanswered> {
        let (answer, charged) = reply.answer(&self.rules(), question.toll, &question.situation)?;
        let taken = |(claimed, charged): (&Claimed, Option<Charge>)| {
            let Claimed { rule, slot, .. } = claimed;
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
    /// Waits for the answer, no longer than until `expires`.
    async fn answer(mut self, expires: Instant) -> Result<(Answer, Vec<Taken>), Unanswered> {
        let reply = self.reply(expires).await?;
        self.group.make_sense(&reply, &self.question)
    }

    /// What the store says, if it says it until `expires`.
    async fn reply(&mut self, expires: Instant) -> Result<Reply, Unanswered> {
        let breaker = self.inner.vitals.parts.breaker(self.group.part);
        let Some(answered) = self.answered.as_mut() else { return Err(Unanswered::Busy) };
        let Ok(outcome) = timeout_at(expires, answered).await else {
            breaker.missed(self.asked_at, self.inner.now(), random::bits());
            return Err(Unanswered::Late);
        };
        self.answered = None;
        let outcome = outcome.unwrap_or(Err(Unanswered::Down));
        match outcome {
            Err(Unanswered::Down) => breaker.missed(self.asked_at, self.inner.now(), random::bits()),
            _ => breaker.answered(),
        }
        outcome
    }
}

impl Drop for Pending {
    /// Whoever asked waits no longer, or is no longer there: what the store takes all the same is given back.
    fn drop(&mut self) {
        let Some(answered) = self.answered.take().filter(|_| self.question.operation == Operation::Decide) else {
            return;
        };
        let (inner, question) = (Arc::clone(&self.inner), self.question);
        let group = Group { part: self.group.part, asked: core::mem::take(&mut self.group.asked) };
        self.inner.runtime.spawn(async move {
            let Ok(Ok(reply)) = answered.await else { return };
            if let Ok((_, taken)) = group.make_sense(&reply, &question) {
                inner.give_back(inner.ticket(question, taken));
            }
        });
    }
}

fn stricter(total: Option<Answer>, answer: Answer) -> Answer {
    let Some(mut total) = total else { return answer };
    // Nodes have clocks of their own: what one says is moved to the clock of the other.
    total.decision.tighten(answer.on_clock(total.now));
    total
}

/// Says of requests that are at work for long that they still are.
async fn renew(inner: std::sync::Weak<Inner>) {
    let mut ticks = interval(Duration::from(WORK_LIFE) / 3);
    // The first tick is at once.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        let signs: Vec<_> = inner.at_work.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for sign in signs {
            inner.tell(sign);
        }
    }
}
