//! The gate's side: it reports what it let through, and turns what its master says into instructions for its own limiter.
//!
//! The decision itself is not here. It is taken by the same rule on the gate's own records, master or no master, and never waits for
//! anything of this module. A delay that the master orders is merged into that same record, so a gate enforces the rule by itself, holds
//! what it delays one interval apart instead of letting all go at once, and goes on undisturbed when the master is away.
//!
//! Nothing is queued for a master that is away. What is known is one running count per identifier: whenever the next report gets
//! through, it says everything.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::cmp::Ordering;
use core::hash::BuildHasher;

use super::ledger::{Ledger, Place, Standing};
use super::{Command, Order, Reading, Report, Stamp, Status, Tally};
use crate::limit::Limit;
use crate::record::Record;
use crate::time::{Moment, Span};
use crate::toll::Toll;

/// What a gate is told when it starts.
#[derive(Clone, Debug)]
pub struct GateSettings {
    /// The names of its domains on the wire.
    pub domains: Box<[Box<[u8]>]>,
    /// How many identifiers it counts at most, over all domains.
    pub identifiers_max: usize,
    /// How often it repeats what somebody still owes.
    pub repeat_every: Span,
    /// A master that has said nothing for this long is away.
    pub silence_max: Span,
    /// The longest delay that a master is believed.
    pub delay_max: Span,
    /// One of how many refusals is reported; none are if absent.
    pub refusals_sampled: Option<u32>,
    /// Whether reports say what a request was about and what it cost.
    pub log_info: bool,
}

/// A request that the gate has let through, at once or after a hold, or a toll that became known when it ended.
#[derive(Clone, Copy, Debug)]
pub struct Passage<'a> {
    /// Which of the gate's domains.
    pub domain: u16,
    /// The caller.
    pub identifier: &'a [u8],
    /// When it goes on, if it is held.
    pub held_until: Option<Moment>,
    /// What is counted: one request, or the CPU time of one that ended.
    pub toll: Toll,
    /// When, by the gate's own record, all is paid back.
    pub clear: Moment,
    /// What the request was about, if reports say that; empty otherwise, and for a toll.
    pub note: &'a [u8],
}

/// What the gate is to do with its own record of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Let nothing through before `next`; if `clear` is known, all is paid back no earlier than that.
    Raise {
        /// When there is room for one more.
        next: Moment,
        /// When all is paid back.
        clear: Option<Moment>,
    },
    /// Forget what is owed, and then do as with [`Instruction::Raise`] if there is a delay.
    Forget {
        /// When there is room for one more, if not at once.
        next: Option<Moment>,
        /// When all is paid back.
        clear: Option<Moment>,
    },
}

impl Instruction {
    /// Carries it out on the gate's record of `limit` for the identifier.
    pub fn apply(self, limit: &Limit, record: &mut impl Record) {
        let (next, clear) = match self {
            Self::Raise { next, clear } => (Some(next), clear),
            Self::Forget { next, clear } => {
                record.set_aux(0);
                (0..limit.words()).for_each(|index| record.set_word(index, 0));
                (next, clear)
            }
        };
        if let Some(clear) = clear.or_else(|| limit.clear_if_next(next?)) {
            limit.raise(record, clear);
        }
    }
}

/// One gate's side of the link to one master.
pub struct Gate<S> {
    id: u64,
    settings: GateSettings,
    ledger: Ledger<Counting, S>,
    /// Who has something new to report. Everyone is here at most once.
    news: VecDeque<Place>,
    /// Who still owes something, in the order in which it is to be repeated. Everyone is here at most once.
    repeats: VecDeque<(Moment, Place)>,
    /// So many at the front of `repeats` are not to wait: there is a new master.
    hurried: usize,
    refusals: VecDeque<(u16, Box<[u8]>)>,
    refusals_seen: u32,
    /// The refusal that is being told.
    refusal: Option<(u16, Box<[u8]>)>,
    clock: Option<MasterClock>,
    /// The master that was heard last, even if it is silent now; 0 for none.
    master: u64,
    /// How many masters there have been.
    acquaintance: u64,
    /// How many times a master was heard, and when it was last.
    beat: u64,
    heard: Moment,
    /// The last beat of the former master, and when it was: what was let through after it has to be told again.
    former: (u64, Moment),
    serial: u64,
}

/// A master's clock as it looks from here: never ahead of it, and behind by what the shortest way took.
#[derive(Clone, Copy)]
struct MasterClock {
    master: u64,
    /// This gate's clock less the master's.
    offset: i64,
    heard: Moment,
}

struct Counting {
    serial: u64,
    total: Toll,
    /// What a former master has heard of, and as of which acquaintance.
    base: Toll,
    acquaintance: u64,
    /// What the total was when the master was last heard before the last request, and which time that was.
    total_at_beat: Toll,
    beat: u64,
    /// The last pardon, which is remembered for as long as an order from before it could do harm.
    era: u64,
    era_forgotten: Moment,
    began: Moment,
    last: Moment,
    clear: Moment,
    /// Requests that no report has mentioned.
    unmentioned: u32,
    held_until: Option<Moment>,
    /// What the last request was about, and the CPU time that no report has told.
    note: Box<[u8]>,
    cpu_untold: Span,
    in_news: bool,
    in_repeats: bool,
}

/// Two clocks may drift apart by a ten-thousandth before it is noticed.
const DRIFT_DIVISOR: u64 = 10_000;
const NOTHING: Toll = Toll { count: 0, cpu: Span::ZERO };
/// Refusals that wait to be reported.
const REFUSALS_MAX: usize = 1024;

impl Standing for Counting {
    fn clear_at(&self) -> Moment {
        self.clear.max(self.era_forgotten)
    }
}

impl<S: BuildHasher> Gate<S> {
    /// A gate that has heard of no master yet. `id` tells it from every other gate and from itself before a restart: a random number.
    pub fn new(settings: GateSettings, id: u64, hasher: S) -> Self {
        Self {
            id,
            ledger: Ledger::new(settings.identifiers_max, hasher),
            settings,
            news: VecDeque::new(),
            repeats: VecDeque::new(),
            hurried: 0,
            refusals: VecDeque::new(),
            refusals_seen: 0,
            refusal: None,
            clock: None,
            master: 0,
            acquaintance: 0,
            beat: 0,
            heard: Moment::ZERO,
            former: (0, Moment::ZERO),
            serial: 0,
        }
    }

    /// The gate has let something through.
    pub fn handle_passage(&mut self, passage: &Passage<'_>, now: Moment) {
        self.notice_silence(now);
        let (place, _) = self.ledger.find_or_insert(passage.domain, passage.identifier, now, || Counting::new(now));
        self.keep_current(place, now);
        let Some(counting) = self.ledger.value_mut(place) else { return };
        if counting.beat != self.beat {
            counting.beat = self.beat;
            counting.total_at_beat = counting.total;
        }
        counting.total.count = counting.total.count.saturating_add(passage.toll.count);
        counting.total.cpu = counting.total.cpu + passage.toll.cpu;
        counting.unmentioned = counting.unmentioned.saturating_add(passage.toll.count.min(1) as u32);
        counting.last = now;
        counting.clear = counting.clear.max(passage.clear);
        counting.held_until = passage.held_until;
        counting.cpu_untold = counting.cpu_untold + passage.toll.cpu;
        if !passage.note.is_empty() {
            counting.note = passage.note.into();
        }
        if !core::mem::replace(&mut counting.in_news, true) {
            self.news.push_back(place);
            if self.ledger.is_overgrown(self.news.len()) {
                self.news.retain(|&place| self.ledger.entry(place).is_some());
            }
        }
    }

    /// Something that was let through did not take place after all: the backend was not reached, or its client left. The running count goes
    /// back, so that a master that heard of it lets the next one go for it; `clear` is what the gate's own record says now.
    pub fn handle_return(&mut self, domain: u16, identifier: &[u8], count: u64, clear: Moment) {
        let Some(place) = self.ledger.find(domain, identifier) else { return };
        let Some(counting) = self.ledger.value_mut(place) else { return };
        // What a former master may have heard of can no longer be taken back.
        counting.total.count = counting.total.count.saturating_sub(count).max(counting.base.count);
        counting.unmentioned = counting.unmentioned.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        counting.total_at_beat.count = counting.total_at_beat.count.min(counting.total.count);
        counting.clear = counting.clear.min(clear);
    }

    /// The gate has turned somebody away.
    pub fn handle_refusal(&mut self, domain: u16, identifier: &[u8]) {
        let Some(sampled) = self.settings.refusals_sampled else { return };
        self.refusals_seen += 1;
        if self.refusals_seen >= sampled && self.refusals.len() < REFUSALS_MAX {
            self.refusals_seen = 0;
            self.refusals.push_back((domain, identifier.into()));
        }
    }

    /// The master said something. The answer is which domain's record of the order's identifier is to change, and how.
    pub fn handle_order(&mut self, order: &Order<'_>, reading: Reading) -> Option<(u16, Instruction)> {
        if let Command::Beacon { stamp } = order.command {
            self.hear(stamp, reading.now);
        }
        let domain = self.domain(order.domain)?;
        Some((domain, self.instruction(domain, order, reading)?))
    }

    fn instruction(&mut self, domain: u16, order: &Order<'_>, reading: Reading) -> Option<Instruction> {
        let now = reading.now;
        let latest = now + self.settings.delay_max;
        let identifier = order.identifier;
        match order.command {
            Command::Beacon { .. } => None,
            // Who hears the master's own clock need not guess from its wall clock.
            Command::DelayUntil { .. } if self.clock.is_some() => None,
            Command::DelayUntil { until_ms } => {
                let wait = Span::from_millis(until_ms.saturating_sub(reading.wall_ms));
                (!wait.is_zero()).then(|| Instruction::Raise { next: (now + wait).min(latest), clear: None })
            }
            Command::Delay { stamp, era, next, clear } => {
                let clock = self.hear(stamp, now);
                let next = clock.here(next);
                let excess = next.since(latest);
                let clear = clear.map(|clear| clock.here(clear).before(excess));
                let next = next.min(latest);
                let comparison = self.compare_era(domain, identifier, era, now);
                if comparison.is_lt() {
                    return None;
                }
                self.note_clear(domain, identifier, clear);
                Some(if comparison.is_gt() {
                    Instruction::Forget { next: Some(next), clear }
                } else {
                    Instruction::Raise { next, clear }
                })
            }
            Command::Pardon { stamp, era } => {
                self.hear(stamp, now);
                let is_news = self.compare_era(domain, identifier, era, now).is_gt();
                is_news.then_some(Instruction::Forget { next: None, clear: None })
            }
        }
    }

    /// The next thing to tell the master.
    pub fn poll_report(&mut self, reading: Reading) -> Option<Report<'_>> {
        let now = reading.now;
        self.notice_silence(now);
        // News come first, unless they never end.
        let overdue = self.repeats.front().is_some_and(|&(due, _)| due + self.settings.repeat_every <= now);
        if !overdue && let Some(place) = self.next_news(now) {
            return self.report(place, reading, true);
        }
        if let Some(place) = self.next_repeat(now) {
            return self.report(place, reading, false);
        }
        match self.next_news(now) {
            Some(place) => self.report(place, reading, true),
            None => self.next_refusal(reading),
        }
    }

    /// When to poll next, if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Moment> {
        if !self.news.is_empty() || !self.refusals.is_empty() || self.hurried > 0 {
            return Some(Moment::ZERO);
        }
        self.repeats.front().map(|&(due, _)| due)
    }

    /// The connection is gone, and who answers next may be another master.
    pub fn handle_disconnect(&mut self) {
        self.clock = None;
    }

    /// Whether a master of our own is heard.
    pub fn hears_master(&self, now: Moment) -> bool {
        self.clock.is_some_and(|clock| now.since(clock.heard) <= self.settings.silence_max)
    }

    /// How many identifiers are counted.
    pub fn identifiers(&self) -> usize {
        self.ledger.len()
    }

    fn notice_silence(&mut self, now: Moment) {
        if !self.hears_master(now) {
            self.clock = None;
        }
    }

    fn hear(&mut self, stamp: Stamp, now: Moment) -> MasterClock {
        let offset = offset(now, stamp.tick);
        let clock = match self.clock {
            Some(clock) if clock.master == stamp.master => {
                let drift = now.since(clock.heard).as_nanos() / DRIFT_DIVISOR;
                MasterClock { offset: clock.offset.saturating_add_unsigned(drift).min(offset), heard: now, ..clock }
            }
            _ => {
                if stamp.master != self.master {
                    self.acquaintance += 1;
                    self.former = (self.beat, self.heard);
                    self.master = stamp.master;
                }
                self.hurried = self.repeats.len();
                MasterClock { master: stamp.master, offset, heard: now }
            }
        };
        self.beat += 1;
        self.heard = now;
        self.clock = Some(clock);
        clock
    }

    /// How an order's era compares to the last that was heard, which becomes the order's if that is later.
    fn compare_era(&mut self, domain: u16, identifier: &[u8], era: u64, now: Moment) -> Ordering {
        let known = self.ledger.find(domain, identifier).and_then(|place| self.ledger.entry(place));
        let comparison = era.cmp(&known.map_or(0, |entry| entry.value.era));
        if comparison.is_gt() {
            let forgotten = now + self.settings.delay_max;
            let (place, _) = self.ledger.find_or_insert(domain, identifier, now, || Counting::new(now));
            if let Some(counting) = self.ledger.value_mut(place) {
                // Zero: the next report begins a new counting, which does not include what was forgiven.
                *counting =
                    Counting { in_news: counting.in_news, in_repeats: counting.in_repeats, ..Counting::new(now) };
                counting.era = era;
                counting.era_forgotten = forgotten;
            }
        }
        comparison
    }

    fn note_clear(&mut self, domain: u16, identifier: &[u8], clear: Option<Moment>) {
        if let (Some(place), Some(clear)) = (self.ledger.find(domain, identifier), clear)
            && let Some(counting) = self.ledger.value_mut(place)
        {
            counting.clear = counting.clear.max(clear);
        }
    }

    fn domain(&self, name: &[u8]) -> Option<u16> {
        self.settings.domains.iter().zip(0..).find(|(domain, _)| ***domain == *name).map(|(_, place)| place)
    }

    /// Numbers a new counting, and works out what a new master need not be told.
    fn keep_current(&mut self, place: Place, now: Moment) {
        let Some(counting) = self.ledger.value_mut(place) else { return };
        if counting.serial == 0 {
            self.serial += 1;
            counting.serial = self.serial;
            counting.began = now;
            counting.acquaintance = self.acquaintance;
        }
        if counting.acquaintance != self.acquaintance {
            let (beat, heard) = self.former;
            counting.base = counting.untold_since(beat);
            counting.began = counting.began.max(heard);
            counting.acquaintance = self.acquaintance;
        }
    }

    fn next_news(&mut self, now: Moment) -> Option<Place> {
        while let Some(&place) = self.news.front() {
            if self.clock.is_none() && self.ledger.entry(place).is_some_and(|entry| entry.value.unmentioned > 1) {
                // A master that counts messages gets one for each.
                return Some(place);
            }
            self.news.pop_front();
            let Some(counting) = self.ledger.value_mut(place) else { continue };
            counting.in_news = false;
            let owes = counting.clear > now;
            if owes && !core::mem::replace(&mut counting.in_repeats, true) {
                self.repeats.push_back((now + self.settings.repeat_every, place));
                if self.ledger.is_overgrown(self.repeats.len()) {
                    self.repeats.retain(|&(_, place)| self.ledger.entry(place).is_some());
                }
            }
            return Some(place);
        }
        None
    }

    fn next_repeat(&mut self, now: Moment) -> Option<Place> {
        while let Some(&(due, place)) = self.repeats.front() {
            if now < due && self.hurried == 0 {
                return None;
            }
            self.repeats.pop_front();
            self.hurried = self.hurried.saturating_sub(1);
            let Some(counting) = self.ledger.value_mut(place) else { continue };
            if counting.clear <= now {
                counting.in_repeats = false;
                if !counting.in_news {
                    self.ledger.drop_if_clear(place, now);
                }
                continue;
            }
            self.repeats.push_back((now + self.settings.repeat_every, place));
            // An original master would count a repetition as another request.
            if self.clock.is_some() {
                return Some(place);
            }
        }
        self.hurried = 0;
        None
    }

    fn report(&mut self, place: Place, reading: Reading, is_news: bool) -> Option<Report<'_>> {
        let now = reading.now;
        self.keep_current(place, now);
        let counting = self.ledger.value_mut(place)?;
        let mentions = is_news && counting.unmentioned > 0;
        counting.unmentioned = if self.clock.is_some() { 0 } else { counting.unmentioned.saturating_sub(1) };
        let cpu = core::mem::replace(&mut counting.cpu_untold, Span::ZERO);
        let entry = self.ledger.entry(place)?;
        let counting = &entry.value;
        let wall_ms = |moment: Moment| {
            let ahead = reading.wall_ms.saturating_add(moment.since(now).as_millis_ceil());
            ahead.saturating_sub(now.since(moment).as_millis_ceil()).max(1)
        };
        let there = |moment| self.clock.map_or(moment, |clock| clock.there(moment));
        // What is owed for what later messages are going to mention is theirs to say.
        let clear = if counting.unmentioned > 0 { now } else { counting.clear };
        let (base, began) = match self.clock {
            Some(_) => (counting.base, counting.began),
            // Whoever hears this may be another than who was heard last.
            None => (counting.untold_since(self.beat), counting.began.max(self.heard)),
        };
        let (status, delayed_until_ms) = match (mentions, counting.held_until) {
            (false, _) => (Status::Rejected, None),
            (true, None) => (Status::Accepted, None),
            (true, Some(until)) => (Status::Delayed, Some(wall_ms(until))),
        };
        Some(Report {
            domain: &self.settings.domains[usize::from(entry.domain)],
            status,
            identifier: &entry.identifier,
            received_ms: wall_ms(counting.last),
            delayed_until_ms,
            note: &counting.note,
            cpu: self.settings.log_info.then_some(cpu),
            tally: Some(Tally {
                gate: self.id,
                serial: counting.serial,
                // What later messages are going to mention is not in this one.
                total: Toll {
                    count: counting.total.count.saturating_sub(u64::from(counting.unmentioned)),
                    ..counting.total
                },
                base,
                era: counting.era,
                master: self.clock.map(|clock| clock.master),
                sent: there(now),
                began: there(began),
                last: there(counting.last),
                clear: there(clear),
            }),
        })
    }

    fn next_refusal(&mut self, reading: Reading) -> Option<Report<'_>> {
        self.refusal = self.refusals.pop_front();
        let (domain, identifier) = self.refusal.as_ref()?;
        Some(Report {
            domain: &self.settings.domains[usize::from(*domain)],
            status: Status::Rejected,
            identifier,
            received_ms: reading.wall_ms.max(1),
            delayed_until_ms: None,
            note: &[],
            cpu: None,
            tally: None,
        })
    }
}

impl Counting {
    fn new(now: Moment) -> Self {
        Self {
            serial: 0,
            total: NOTHING,
            base: NOTHING,
            acquaintance: 0,
            total_at_beat: NOTHING,
            beat: 0,
            era: 0,
            era_forgotten: Moment::ZERO,
            began: now,
            last: now,
            clear: now,
            unmentioned: 0,
            held_until: None,
            note: Box::default(),
            cpu_untold: Span::ZERO,
            in_news: false,
            in_repeats: false,
        }
    }
}

impl Counting {
    /// How much a master has heard of that said its last word at `beat`: whatever came after that may never have reached it.
    fn untold_since(&self, beat: u64) -> Toll {
        if self.beat == beat { self.total_at_beat } else { self.total }
    }
}

impl MasterClock {
    /// A moment of the master's clock, on this gate's.
    fn here(&self, there: Moment) -> Moment {
        Moment::from_nanos(there.as_nanos().saturating_add_signed(self.offset))
    }

    /// A moment of this gate's clock, on the master's.
    fn there(&self, here: Moment) -> Moment {
        Moment::from_nanos(here.as_nanos().saturating_add_signed(self.offset.saturating_neg()))
    }
}

fn offset(here: Moment, there: Moment) -> i64 {
    let difference = i128::from(here.as_nanos()) - i128::from(there.as_nanos());
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}
