//! The fair queue in front of one backend.
//!
//! First come, first served gives the backend to the client that asks most. A limit on requests or connections cannot
//! tell a crawler from an office behind one address. Fair queuing can: every client has a tag in virtual time that
//! advances by the cost of its requests divided by its share, and the request with the smallest tag goes next. A
//! request answers for its address, its network and its block: its tag is the largest of the three, so a crawler gains
//! little from many addresses.
//!
//! Order alone is not enough. The backend shares its cores among all requests in flight, so ten requests of a crawler
//! make a page ten times slower, however soon it was dispatched. Therefore requests in flight are limited, and a
//! request waits only for its peers: those of the same or a better standing that are not much heavier. The standing is
//! whether the client was behind or ahead of its share. The weight is the octave of the price: prices are classed by
//! factors of two. A client that is behind does not wait for requests of clients that are ahead, and a light request
//! does not wait for a heavy one ([`Queue::may_go`]). Requests go beyond the limit while that does no harm: all in
//! flight cost little together, or no more than in ordinary operation ([`Queue::is_harmless`]). While light clients are
//! there, heavy ones have an in-flight limit of their own ([`Contention`]), which follows the times of the light ones. A
//! backend with one worker gets one request at a time, the lightest first ([`InFlightLimit::is_serial`]).
//!
//! | state | event | next |
//! |---|---|---|
//! | new | may go, and no better request that may go waits | in flight |
//! | new | the wait is estimated above `hold_max`, or the room is full and its client is furthest ahead | refused |
//! | new | otherwise | waiting |
//! | new | is exempt ([`Queue::pass`]) | exempt: uncounted (table of `observe.rs`) |
//! | waiting | first in order that may go | in flight |
//! | waiting | the client disconnects | gone |
//! | waiting | the wait is estimated far above `hold_max` and it is the newest; displaced; waited too long | refused |
//! | in flight | its cost exceeds its price | in flight, higher octave |
//! | in flight, exempt | its client stalls the upload | paused |
//! | paused | the upload flows again | in flight, or exempt if it was |
//! | in flight, exempt, paused | the backend has finished | settled |
//!
//! Virtual time:
//!
//! ```text
//!      CREDIT before        BEHIND before              now
//!   ---------+--------------------+---------------------+----------------> tags
//!            |<-- behind the share ------>|  ahead of the share
//!    no tag is further back, so nobody can save up more
//! ```

mod admit;
mod charge;
mod client;
mod contention;
mod estimate;
mod in_flight;
mod knee;
mod learned;
mod ledger;
mod limit;
mod log2;
mod observe;
mod price;
mod results;
#[cfg(test)]
mod tests;
mod tree;
mod waiting;

pub use client::{Client, Shares};
pub use learned::{Learned, LearnedPrice};
pub use price::{Price, RouteKey};
pub use results::{Arrival, Event, Fate, Forecast, Refusal, RefusedBy, Standing};

use crate::time::{Moment, Span};
use crate::virtual_clock::{Cores, Reading, Stay, VirtualClock};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use contention::Contention;
use estimate::ServiceRate;
use in_flight::InFlightRequests;
use ledger::Ledger;
use limit::InFlightLimit;
use log2::log2;
use price::Prices;
use tree::Tree;

/// Prices are classed by factors of two (octaves), from half a millisecond up. Waiting requests of one octave are in
/// one lane, so that a heavy request at the front does not block light ones.
const OCTAVES: usize = 16;
const OCTAVE_BASE_NS: u64 = 500_000;
/// How often waiting requests are compared with the estimated wait.
const TRIM_EVERY: Span = Span::from_millis(100);
/// If no more requests than this wait, the first price of a route counts for them within one tick.
const PROMPTLY_PRICED_MAX: usize = 1000;
/// Keys whose tags are remembered.
const KEYS_MAX: usize = 32_768;

/// How a queue behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Each client's share.
    pub shares: Shares,
    /// The backend's cores, as far as the operator knows.
    pub cores: Cores,
    /// A fixed in-flight limit instead of one that is found.
    pub in_flight: Option<u32>,
    /// Requests that would wait longer are refused.
    pub hold_max: Span,
    /// How many requests may wait.
    pub total: usize,
    /// How many bytes waiting requests may hold.
    pub memory: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            shares: Shares { address_milli: 100, network_milli: 250, block_milli: 500 },
            cores: Cores::whole(1),
            in_flight: None,
            hold_max: Span::from_secs(10),
            total: 16_384,
            memory: 64 << 20,
        }
    }
}

/// Never more requests in flight than this, whatever is found.
pub const IN_FLIGHT_MAX: u32 = 4096;

/// A request that arrives.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// The client that sent it.
    pub client: Client,
    /// The route that it asks for.
    pub route: RouteKey,
    /// Its priority in thousandths: with 4000 its client pays a quarter of the cost.
    pub weight_milli: u32,
    /// Memory that it holds while it waits.
    pub bytes: u32,
}

/// Identifies a request in the queue until it is settled, refused or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    slot: u32,
    generation: u32,
}

/// Where one request is. See the table at the top of the module. The clock is read when its present stay at the backend
/// begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Not at the backend, which waits for the rest of the request. Also a new request that has not started.
    #[default]
    Paused,
    /// In one of [`Queue::lanes`]; at the backend as well if the queue only observes, and would have held it.
    Waiting(Option<Reading>),
    /// At the backend. Its place in the order of [`Queue::in_flight`].
    InFlight(u64, Reading),
    /// At the backend, but not counted in [`Queue::in_flight`]: because it is exempt, or because the queue only
    /// observes, and would have refused it.
    Uncounted(Reading),
}

impl State {
    /// The clock when the present stay at the backend began, if the request is there.
    const fn reading(self) -> Option<Reading> {
        match self {
            Self::Paused => None,
            Self::Waiting(reading) => reading,
            Self::InFlight(_, reading) | Self::Uncounted(reading) => Some(reading),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    generation: u32,
    state: State,
    request: Request,
    arrived: Moment,
    /// Its place in the order of arrival.
    turn: u64,
    /// The lane in which it waits: its octave when it entered that lane. A new price changes `octave` first.
    lane: u8,
    /// The cost with which it counts while it waits: [`Price::usual`] on arrival, or since [`Queue::update_prices`].
    mean: Span,
    /// The cost that its client is charged in advance: [`Price::estimate`], or more once it exceeds that.
    cost: Span,
    /// The octave of `cost`.
    octave: u8,
    /// Whether its client was ahead of its share on arrival; from dispatch on, whether it was then.
    is_ahead: bool,
    /// Whether its price is reliable ([`Price::is_settled`]).
    is_settled: bool,
    /// Whether it passes the limit and costs its client nothing.
    is_exempt: bool,
    /// Whether a request of its route has ended.
    is_seen: bool,
    /// Whether nothing is known about its route.
    is_unseen: bool,
    /// Whether it exceeds its price, and so raises that of its route.
    has_overrun: bool,
    /// The charge to its client so far.
    charged: Span,
    /// The cost of earlier stays. A stay is the time at the backend between two stalls of the upload.
    toll: Span,
    /// The period between two changes of the in-flight limit in which it started (`limit.rs`).
    wave: u32,
    /// The last stay that has ended.
    stay: Option<Stay>,
}

/// The waiting requests of one address: the sum of their [`Slot::mean`] in nanoseconds, and their number.
#[derive(Clone, Copy, Debug, Default)]
struct Backlog {
    cost: u64,
    count: u32,
}

/// Requests that wait for one backend or are in flight at it, and what was learned about it.
#[derive(Clone, Debug)]
pub struct Queue {
    settings: Settings,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The waiting requests, by octave.
    lanes: [Tree; OCTAVES],
    waiting: usize,
    waiting_bytes: u64,
    /// The price of what waits, in nanoseconds, by standing on arrival and octave.
    waiting_costs: [[u64; OCTAVES]; 2],
    /// By address.
    backlogs: BTreeMap<u64, Backlog>,
    in_flight: InFlightRequests,
    ledger: Ledger,
    /// Virtual time, and when it was last advanced.
    time: u64,
    at: Moment,
    /// When a request of a client that was ahead last went.
    ahead_at: Moment,
    /// When a request of each octave last went.
    went_at: [Moment; OCTAVES],
    contention: Contention,
    /// The probe: a request in flight that did not wait, because it shows what its unseen route costs. One at a time.
    probe: Option<u32>,
    clock: VirtualClock,
    prices: Prices,
    limit: InFlightLimit,
    rate: ServiceRate,
    overruns_at: Moment,
    /// Whether a route has got its first price since waiting requests were last priced.
    is_price_new: bool,
    trimmed_at: Moment,
    /// Waiting requests that were refused, until [`Self::poll`] returns them.
    refusals: Vec<Event>,
    /// Counts arrivals and dispatches.
    turns: u64,
    jitter: u64,
}

impl Queue {
    /// An empty queue in front of a backend of which nothing is known.
    pub fn new(settings: Settings, now: Moment) -> Self {
        Self {
            settings,
            slots: Vec::new(),
            free: Vec::new(),
            lanes: Default::default(),
            waiting: 0,
            waiting_bytes: 0,
            waiting_costs: [[0; OCTAVES]; 2],
            backlogs: BTreeMap::new(),
            in_flight: InFlightRequests::default(),
            ledger: Ledger::new(KEYS_MAX),
            time: 2 * charge::CREDIT.as_nanos(),
            at: now,
            ahead_at: now,
            went_at: [now; OCTAVES],
            contention: Contention::default(),
            probe: None,
            clock: VirtualClock::new(settings.cores),
            prices: Prices::new(Self::PRICES_MAX),
            limit: InFlightLimit::new(settings.cores, now),
            rate: ServiceRate::default(),
            overruns_at: now,
            is_price_new: false,
            trimmed_at: now,
            refusals: Vec::new(),
            turns: 0,
            jitter: 0,
        }
    }

    /// How the queue behaves.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// How many requests wait.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many requests are in flight.
    pub const fn in_flight(&self) -> u32 {
        self.clock.in_service
    }

    /// The in-flight limit.
    pub fn limit(&self) -> u32 {
        self.settings.in_flight.unwrap_or(self.limit.in_force())
    }

    /// The backend's cores, as far as is known.
    pub fn cores(&self) -> Cores {
        self.limit.cores()
    }

    /// The price of a request of this route.
    pub fn price(&self, route: RouteKey) -> Price {
        self.prices.price(route)
    }

    /// A request arrives. If it is to wait, others are displaced where that is needed to make room for it.
    pub fn arrive(&mut self, request: Request, now: Moment) -> Arrival {
        self.advance(now);
        self.check_overruns(now);
        let slot = self.slot_for(request, now);
        if self.goes_at_once(&slot, now) {
            let ticket = self.insert(slot);
            self.start(ticket.slot, now);
            return Arrival::Go(ticket);
        }
        self.limit.note_wait(now);
        if self.waiting > 0 && !self.contention.is_on(now) {
            self.update_contention(now);
        }
        let standing = self.standing(&slot);
        if self.waits_too_long(&slot, standing) {
            return Arrival::Refuse(self.refusal(RefusedBy::WaitTooLong, standing));
        }
        if !self.make_room(&request) {
            return Arrival::Refuse(self.refusal(RefusedBy::Full, standing));
        }
        self.turns += 1;
        let ticket = self.insert(Slot { turn: self.turns, ..slot });
        self.wait(ticket.slot);
        Arrival::Wait(ticket, standing)
    }

    /// Whether a request is refused because of its estimated wait. Nothing is refused for the price of a route that
    /// nobody knows.
    fn waits_too_long(&self, slot: &Slot, standing: Standing) -> bool {
        let is_certain = self.settings.in_flight.is_some() || self.limit.is_certain_for(slot.mean);
        standing.wait > self.settings.hold_max && is_certain && !slot.is_unseen
    }

    fn goes_at_once(&self, slot: &Slot, now: Moment) -> bool {
        (self.is_probe(slot) || !self.has_better(slot)) && self.may_go(slot, now)
    }

    fn slot_for(&self, request: Request, now: Moment) -> Slot {
        let price = self.prices.price(request.route);
        Slot {
            mean: price.usual,
            cost: price.estimate,
            octave: octave(price.estimate),
            is_ahead: self.is_ahead(&request.client),
            is_settled: price.is_settled,
            is_seen: price.is_seen,
            is_unseen: price.is_unseen,
            request,
            arrived: now,
            ..Slot::default()
        }
    }

    /// The next event of a waiting request. Call it after every other call until it returns `None`.
    pub fn poll(&mut self, now: Moment) -> Option<Event> {
        if self.waiting == 0 || !self.refusals.is_empty() {
            return self.refusals.pop();
        }
        let at = self.first_that_may_go(now)?;
        self.unwait(at);
        self.turns += 1;
        let client = self.slots[at as usize].request.client;
        self.lanes.iter_mut().for_each(|lane| lane.served(&client, self.turns));
        self.start(at, now);
        Some(Event::Go(self.ticket(at)))
    }

    /// The client of a waiting request has disconnected. False if the request does not wait any more.
    pub fn leave(&mut self, ticket: Ticket, now: Moment) -> bool {
        self.advance(now);
        let is_held = self.slot(ticket).is_some_and(|slot| slot.state == State::Waiting(None));
        if is_held {
            self.unwait(ticket.slot);
            self.remove(ticket.slot);
        }
        is_held
    }

    /// A request has waited too long. `None` if it does not wait any more. The refusal has its whole wait.
    pub fn give_up(&mut self, ticket: Ticket, now: Moment) -> Option<Refusal> {
        let slot = *self.slot(ticket)?;
        let standing = self.standing(&slot);
        let mut refusal = self.leave(ticket, now).then(|| self.refusal(RefusedBy::WaitTooLong, standing))?;
        refusal.standing.wait = standing.wait + now.since(slot.arrived);
        Some(refusal)
    }

    /// The backend waits for the rest of a request, which does not count against the limit until [`Self::resume`].
    pub fn pause(&mut self, ticket: Ticket, now: Moment) {
        self.advance(now);
        if self.slot(ticket).is_some() {
            self.stop(ticket.slot, now);
        }
    }

    /// The rest of the request comes.
    pub fn resume(&mut self, ticket: Ticket, now: Moment) {
        self.advance(now);
        if self.slot(ticket).is_some_and(|slot| slot.state == State::Paused) {
            self.run(ticket.slot, now);
        }
    }

    /// The cost of a request in flight so far.
    pub fn so_far(&mut self, ticket: Ticket, now: Moment) -> Span {
        let Some(&Slot { state, toll, .. }) = self.slot(ticket) else { return Span::ZERO };
        toll + state.reading().map_or(Span::ZERO, |reading| self.clock.so_far(reading, now))
    }

    /// The backend has finished a request that has cost `toll`. The queue learns from it if it `teaches` something
    /// about its route.
    pub fn done(&mut self, ticket: Ticket, toll: Span, teaches: bool, now: Moment) {
        self.advance(now);
        if self.slot(ticket).is_none_or(|slot| slot.state == State::Waiting(None)) {
            return;
        }
        self.record_spare(ticket.slot, now);
        self.record_usual(ticket.slot, now);
        self.stop(ticket.slot, now);
        let slot = self.slots[ticket.slot as usize];
        if !slot.is_exempt {
            self.charge(ticket.slot, toll);
        }
        self.remove(ticket.slot);
        if !slot.is_settled {
            self.limit.allowed_at = now;
        }
        self.is_price_new |= !self.prices.price(slot.request.route).is_seen;
        let dominant = self.dominant();
        if let (true, Some(stay)) = (teaches, slot.stay)
            && let Some(times) = self.prices.record(slot.request.route, toll)
            && !slot.is_exempt
        {
            let took = log2(stay.wall.as_nanos());
            let longer = times.longer_than_calm(took);
            self.contention.record(&slot, longer, stay.wall, now);
            let is_unaffected = self.limit.is_roomy && longer.is_some_and(|longer| longer < contention::SLOW);
            if !slot.is_ahead && (self.waiting == 0 || is_unaffected || self.contention.is_calm(stay.wall, now)) {
                times.record_calm(took);
            }
            self.limit.record(times, stay, toll, dominant, now);
            self.limit.follow_dominant_cost(self.dominant(), now);
            self.clock.set_cores(self.limit.cores(), now);
            if self.limit.is_serial && !self.clock.is_serial {
                self.prices.follow_turns();
                // Clients have paid for the time in which others were served.
                self.ledger = Ledger::new(KEYS_MAX);
            }
            self.clock.is_serial = self.limit.is_serial;
        }
    }

    /// Raises the cost of requests that exceed their price, changes limits, and refuses waiting requests whose
    /// estimated wait has become too long. Call it every few milliseconds while requests wait.
    pub fn tick(&mut self, now: Moment) {
        self.advance(now);
        if self.waiting == 0 {
            return;
        }
        self.check_overruns(now);
        self.limit.note_wait(now);
        self.update_contention(now);
        if core::mem::take(&mut self.is_price_new) && self.waiting <= PROMPTLY_PRICED_MAX {
            self.update_prices();
        }
        if self.limit.has_light && self.contention.is_slowed() {
            self.limit.allowance = 0;
        } else {
            self.limit.allow_more(self.in_flight.all().unsettled, now);
        }
        self.limit.tick(self.dominant(), now);
        if now.since(self.trimmed_at) >= TRIM_EVERY {
            self.trimmed_at = now;
            self.trim();
        }
    }

    /// The CPU time that requests are thought to have taken since the last call of [`Self::measure`], in nanoseconds.
    pub fn unmeasured_nanos(&mut self, now: Moment) -> u64 {
        self.clock.unmeasured_nanos(now)
    }

    /// The backend has used `cpu` since the last call; `None` if that is not measured.
    pub fn measure(&mut self, cpu: Option<Span>, now: Moment) {
        self.clock.measure(cpu, now);
    }

    /// Takes over other settings. Waiting requests go on waiting and tags stay where they are.
    pub fn set_settings(&mut self, settings: Settings, now: Moment) {
        if settings.cores != self.settings.cores {
            self.limit = InFlightLimit::new(settings.cores, now);
            self.clock.set_cores(settings.cores, now);
        }
        self.settings = settings;
    }

    /// Adds a request that goes to the backend, charges its client, and moves virtual time on.
    fn start(&mut self, at: u32, now: Moment) {
        let tag = self.tag_of(at);
        let is_ahead = tag > self.front();
        let slot = &mut self.slots[at as usize];
        self.went_at[usize::from(slot.octave)] = now;
        slot.is_ahead = is_ahead;
        if is_ahead {
            self.ahead_at = now;
        } else if slot.arrived == now {
            self.contention.serve(slot.request.client, slot.mean, now);
        }
        // A request that goes before its turn, because it is light, does not make the turn later for others.
        let firsts = self.lanes.iter().filter_map(Tree::first).map(|first| self.tag_of(first.request));
        self.time = self.time.max(firsts.fold(tag, u64::min));
        self.run(at, now);
        self.charge(at, self.slots[at as usize].cost);
    }

    /// Begins a request's stay at the backend, or counts a request that is there already.
    fn run(&mut self, at: u32, now: Moment) {
        let is_probe = self.is_probe(&self.slots[at as usize]);
        let slot = &mut self.slots[at as usize];
        let reading = slot.state.reading().unwrap_or_else(|| self.clock.start(now));
        if slot.is_exempt {
            slot.state = State::Uncounted(reading);
        } else {
            self.probe = is_probe.then_some(at).or(self.probe);
            slot.wave = self.limit.start();
            slot.state = State::InFlight(self.in_flight.add(at, slot), reading);
        }
    }

    /// Ends a request's stay at the backend.
    fn stop(&mut self, at: u32, now: Moment) {
        let Some(reading) = self.slots[at as usize].state.reading() else { return };
        let oldest = self.slots_in_flight().next().and_then(|slot| slot.state.reading());
        let slot = &mut self.slots[at as usize];
        let stay = self.clock.end(reading, now);
        (slot.toll, slot.stay) = (slot.toll + stay.toll, Some(stay));
        match core::mem::take(&mut slot.state) {
            State::Paused | State::Uncounted(_) => {}
            State::Waiting(_) => self.unwait(at),
            State::InFlight(start, _) => {
                self.probe = self.probe.filter(|probe| *probe != at);
                if core::mem::take(&mut slot.has_overrun) {
                    self.prices.lower(slot.request.route);
                }
                self.limit.end(slot.wave);
                self.in_flight.remove(start, slot);
                if let Some(oldest) = oldest.filter(|_| !self.in_flight.requests.is_empty()) {
                    self.limit.record_order(oldest.at(), reading.at(), now);
                }
            }
        }
    }

    fn slot(&self, ticket: Ticket) -> Option<&Slot> {
        self.slots.get(ticket.slot as usize).filter(|slot| slot.generation == ticket.generation)
    }

    fn ticket(&self, at: u32) -> Ticket {
        Ticket { slot: at, generation: self.slots[at as usize].generation }
    }

    fn insert(&mut self, slot: Slot) -> Ticket {
        let at = self.free.pop().unwrap_or(self.slots.len() as u32);
        match self.slots.get_mut(at as usize) {
            Some(free) => *free = Slot { generation: free.generation, ..slot },
            None => self.slots.push(slot),
        }
        self.ticket(at)
    }

    fn remove(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        *slot = Slot { generation: slot.generation.wrapping_add(1), ..Slot::default() };
        self.free.push(at);
    }
}

fn octave(cost: Span) -> u8 {
    (cost.as_nanos() / OCTAVE_BASE_NS).max(1).ilog2().min(OCTAVES as u32 - 1) as u8
}
