//! What is between the relay and the connections: for every master the gate's side of the protocol, and what waits to be sent.

use std::cell::RefCell;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tollgate_core::fleet::{ClockReading, Gate, GateSettings, Order, Usage};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_wire::smockron;
use tollgate_wire::zmtp::Identity;

use super::bound_names::BoundNames;
use super::figures::MasterFigures;
use super::{LinkSettings, MasterSettings, Obey};
use crate::clock::Clock;
use crate::identifier::Name;
use crate::relay::{Act, Relay, Word};

/// Everything that the tasks of the link share. They run on one thread, and nobody keeps a borrow across an await.
pub(super) struct Desk {
    relay: Relay,
    clock: Clock,
    obey: Obey,
    /// Which master keeps the relay's rule, and which of that master's domains it is.
    homes: Vec<(usize, u16)>,
    names: RefCell<BoundNames>,
    pub(super) masters: Vec<Master>,
    /// Resolves when there is something to carry on.
    woken: Arc<Notify>,
}

/// One master, as it looks from here.
pub(super) struct Master {
    pub(super) settings: MasterSettings,
    pub(super) figures: Arc<MasterFigures>,
    /// Who this process is to it, on a link that is authenticated.
    pub(super) identity: Option<Identity>,
    gate: RefCell<Gate<RandomState>>,
    pub(super) outbox: RefCell<Outbox>,
    /// Resolves when there is something to send.
    pub(super) posted: Notify,
}

/// What waits to be sent to a master that is there.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) bytes: Vec<u8>,
    /// What the master wants to hear; none while it is away.
    pub(super) topics: Vec<Box<[u8]>>,
    /// A master of our own is there. If it falls silent, what is sent would wait on the way.
    is_own: bool,
}

const REPEAT_EVERY: Span = Span::from_secs(1);
const SILENCE_MAX: Span = Span::from_secs(2);
const DELAY_MAX: Span = Span::from_secs(3600);
/// No more is written to what waits than this: a master that does not keep up hears the latest counts when it does.
const OUTBOX_BYTES_MAX: usize = 256 * 1024;
/// So much is carried on before others have their turn.
const STRETCH: usize = 1024;
/// How long words gather before they are carried on: at a million decisions a second, an eighth of what may be under way.
const LULL: Duration = Duration::from_millis(1);
/// So many times nothing was found before the link lies down. Whoever drops the next word has to wake it, which costs that decision more than all the rest
/// of it: so it happens once for a stretch of requests, and not because a master has left less to do.
const QUIET_LOOKS: u32 = 20;
/// How often the figures are looked at when nothing happens.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl Desk {
    pub(super) fn new(
        settings: &LinkSettings,
        relay: Relay,
        figures: &[Arc<MasterFigures>],
        clock: Clock,
        obey: Obey,
        woken: Arc<Notify>,
    ) -> Self {
        let homes = settings.masters.iter().enumerate();
        let homes =
            homes.flat_map(|(master, settings)| (0..).zip(&settings.rules).map(move |(domain, _)| (master, domain)));
        let masters = settings.masters.iter().zip(figures).map(|(master, figures)| Master {
            gate: RefCell::new(gate(master, settings)),
            identity: master.identity(settings.keys.as_ref()),
            settings: master.clone(),
            figures: figures.clone(),
            outbox: RefCell::default(),
            posted: Notify::new(),
        });
        let (homes, masters) = (homes.collect(), masters.collect());
        Self { relay, clock, obey, homes, names: RefCell::default(), masters, woken }
    }

    /// Carries on what decisions have dropped, until the end.
    pub(super) async fn carry_on(self: std::rc::Rc<Self>) {
        let mut quiet_looks = 0;
        loop {
            let carried = self.carry_stretch();
            self.masters.iter().for_each(|master| self.write_reports(master));
            quiet_looks = if carried > 0 { 0 } else { quiet_looks + 1 };
            if carried == STRETCH {
                tokio::task::yield_now().await;
            } else if quiet_looks < QUIET_LOOKS {
                tokio::time::sleep(LULL).await;
            } else if !self.relay.sleep() {
                self.lie_down().await;
            }
        }
    }

    /// Carries on as much as comes before others have their turn: how much that was.
    fn carry_stretch(&self) -> usize {
        let mut carried = 0;
        while carried < STRETCH
            && let Some(word) = self.relay.next()
        {
            if let Some(master) = self.take_in(&word) {
                self.write_reports(master);
            }
            self.relay.put_back(word);
            carried += 1;
        }
        carried
    }

    /// Until somebody has something to carry on, or it is time to look by oneself.
    async fn lie_down(&self) {
        let now = self.clock.now();
        let due = self.masters.iter().filter_map(|master| master.due()).min();
        let pause = due.map_or(LOOK_EVERY, |due| Duration::from(due.since(now)).min(LOOK_EVERY));
        tokio::select! {
            () = self.woken.notified() => {}
            () = tokio::time::sleep(pause.max(LULL)) => {}
        }
    }

    /// There is room again for what waits.
    pub(super) fn room_again(&self) {
        self.woken.notify_one();
    }

    /// A master said something; whether it made sense.
    pub(super) fn hear(&self, place: usize, frames: &[&[u8]]) -> bool {
        let master = &self.masters[place];
        let Ok(order) = smockron::read_order(frames) else {
            MasterFigures::count(&master.figures.order_faults);
            return false;
        };
        self.apply(master, &order);
        true
    }

    fn apply(&self, master: &Master, order: &Order<'_>) {
        let reading = self.read_clock();
        let (instruction, heard) = {
            let mut gate = master.gate.borrow_mut();
            (gate.handle_order(order, reading), gate.hears_master(reading.now))
        };
        master.figures.heard.store(heard, Relaxed);
        master.outbox.borrow_mut().is_own |= heard;
        if let Some((domain, instruction)) = instruction {
            MasterFigures::count(&master.figures.orders);
            let rule = &master.settings.rules[usize::from(domain)].rule;
            (self.obey)(rule, order.identifier, instruction, reading.now);
        }
        // A master that was not heard before is told at once who owes something.
        self.woken.notify_one();
    }

    fn read_clock(&self) -> ClockReading {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        ClockReading { now: self.clock.now(), wall_ms: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX) }
    }

    /// Takes in what a decision did. The answer is a master that must hear of it before the next: one that counts messages, and for which
    /// each has its own time.
    fn take_in(&self, word: &Word) -> Option<&Master> {
        let &(place, domain) = self.homes.get(usize::from(word.rule))?;
        let master = &self.masters[place];
        let mut gate = master.gate.borrow_mut();
        let mut names = self.names.borrow_mut();
        let now = self.clock.now();
        let room = &mut Name::new();
        match word.act {
            Act::Usage { hash, ref identifier, count, held_until, clear, ref note } => {
                let identifier = identifier.write(room);
                names.note(word.rule, hash, identifier);
                let toll = Toll { count, cpu: Span::ZERO };
                let note = note.as_deref().unwrap_or_default();
                gate.handle_usage(&Usage { domain, identifier, held_until, toll, clear, note }, now);
            }
            Act::Settlement { hash, cpu, clear } => {
                let identifier = names.find(word.rule, hash)?;
                let toll = Toll { count: 0, cpu };
                gate.handle_usage(&Usage { domain, identifier, held_until: None, toll, clear, note: &[] }, now);
            }
            Act::Return { hash, count, clear } => {
                let identifier = names.find(word.rule, hash)?;
                gate.handle_return(domain, identifier, count, clear);
            }
            Act::Refusal { ref identifier } => gate.handle_refusal(domain, identifier.write(room)),
        }
        (!gate.hears_master(now)).then_some(master)
    }

    /// Writes what there is to say into the outbox, or drops it if nobody is there to hear it.
    fn write_reports(&self, master: &Master) {
        let reading = self.read_clock();
        let (mut gate, mut outbox) = (master.gate.borrow_mut(), master.outbox.borrow_mut());
        let heard = gate.hears_master(reading.now);
        master.figures.heard.store(heard, Relaxed);
        master.figures.identifiers.store(gate.identifiers() as u64, Relaxed);
        let is_silent = outbox.is_own && !heard;
        loop {
            let is_behind = outbox.bytes.len() >= OUTBOX_BYTES_MAX;
            if is_behind && heard {
                // What is not asked for now adds up, and is told in one word later.
                break;
            }
            let Some(report) = gate.poll_report(reading) else { break };
            let is_wanted = !is_silent && outbox.wants(report.domain);
            let figure = match (is_wanted, is_behind) {
                (false, _) => &master.figures.reports_dropped_away,
                (true, true) => &master.figures.reports_dropped_behind,
                (true, false) => {
                    smockron::put_report(&mut outbox.bytes, &report);
                    &master.figures.reports_sent
                }
            };
            MasterFigures::count(figure);
        }
        if !outbox.bytes.is_empty() {
            master.posted.notify_one();
        }
    }
}

impl Master {
    /// When there is something to say, unless that waits for room.
    fn due(&self) -> Option<Moment> {
        let is_behind = self.outbox.borrow().bytes.len() >= OUTBOX_BYTES_MAX;
        if is_behind { None } else { self.gate.borrow().poll_timeout() }
    }

    /// Whether a master of our own is heard.
    pub(super) fn is_own(&self) -> bool {
        self.outbox.borrow().is_own
    }

    /// The control connection is gone, and who answers next may be another master.
    pub(super) fn lose_sight(&self) {
        self.gate.borrow_mut().handle_disconnect();
        self.outbox.borrow_mut().is_own = false;
        self.figures.heard.store(false, Relaxed);
    }
}

impl Outbox {
    /// Whether the topic of `domain`, which is its name and a NUL, begins with something that is wanted.
    fn wants(&self, domain: &[u8]) -> bool {
        self.topics.iter().any(|wanted| match wanted.split_last() {
            Some((0, name)) if name == domain => true,
            _ => domain.starts_with(wanted),
        })
    }

    /// The connection is gone. What was not sent is not kept for who comes next.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.topics.clear();
    }
}

fn gate(master: &MasterSettings, settings: &LinkSettings) -> Gate<RandomState> {
    let settings = GateSettings {
        domains: master.rules.iter().map(|linked| linked.domain.as_bytes().into()).collect(),
        identifiers_max: settings.identifiers_max,
        repeat_every: REPEAT_EVERY,
        silence_max: SILENCE_MAX,
        delay_max: DELAY_MAX,
        // They were picked out before they came here.
        refusals_sampled: settings.refusals_sampled.map(|_| 1),
        log_info: settings.log_info,
    };
    // Keyed at random by the standard library.
    Gate::new(settings, RandomState::new().build_hasher().finish(), RandomState::new())
}
