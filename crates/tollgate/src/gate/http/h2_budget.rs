//! Limits the memory of the requests of one HTTP/2 connection before they are forwarded, except while they wait in the
//! queue.
//!
//! A head costs its sender a few bytes, because HPACK refers to earlier fields. A request that is served costs the gate
//! a task, a copy of its head, and buffers, so 128 requests that never become complete would take a thousand times the
//! memory that was sent for them. Therefore a request is charged to its connection:
//!
//! | phase | charged | limit | next |
//! |---|---|---|---|
//! | parked: a table of fields without a task | the table | [`PARKED_MAX`] | served, refused |
//! | served: it has a task, and is neither in the queue nor forwarded | the task, and its head twice | [`SERVED_MAX`]; with an incomplete body, half of [`BASE_BYTES`] and of [`BYTES_PER_RECEIVED_BYTE`] for each byte that the client has sent | queued, forwarded |
//! | queued: it is complete and waits in the queue | nothing: the queue bounds its memory (`hold.memory`) | | served |
//! | forwarded: it is at a backend | its head twice | [`FORWARDED_HEADS_MAX`], and the limits of the backend | |
//!
//! A connection may belong to a proxy, so one client's requests must not delay those of others outside the queue. A
//! complete request passes through `served` without a wait, unless a rule or Redis delays it, so a connection needs
//! little memory for any number of them. A request that does not fit is parked until others of its connection go on
//! or more bytes were received. That happens if bodies, responses, or holds of rules take up the memory. A request that
//! is parked for too long, or does not even fit as a parked one, is refused (REFUSED_STREAM), so that its client sends
//! it again.
//!
//! Heads of responses that the client does not read are kept by the `h2` crate. They are charged too: no further
//! request is served while there are more than [`UNSENT_HEADS_MAX`] bytes of them, and requests whose turn in the queue
//! comes are refused while there are more than [`UNSENT_HEADS_OF_QUEUED_MAX`].
//!
//! Memory beyond [`BASE_BYTES`] is borrowed from the budgets of the address and of all connections
//! ([`CountedConnection::borrow`]). If the client reads its responses, one complete request and one with an incomplete
//! body are served whatever others have borrowed, so that the connection makes progress.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use http::{HeaderMap, HeaderValue};

use super::h2_unsent::tracked;
use crate::gate::net::caps::CountedConnection;

/// Bytes for the requests of a connection that are not borrowed.
const BASE_BYTES: usize = 64 << 10;
/// Bytes for served requests with bodies for each byte that was received on the connection.
const BYTES_PER_RECEIVED_BYTE: u64 = 10;
/// The limit for requests that are served: 128 requests with heads of several kB. It is this large for requests that
/// rules hold, and for uploads: nothing reads the data of parked ones, so they would fill the window of the connection.
const SERVED_MAX: usize = 6 << 20;
/// The limit for parked requests: 128 requests with twenty fields.
const PARKED_MAX: usize = 640 << 10;
/// The limit for heads of forwarded requests, above which no further request is served: 128 heads of 4 kB. Requests
/// that are served or queued may add theirs.
const FORWARDED_HEADS_MAX: usize = 1 << 20;
/// The limit for heads of responses in the `h2` crate, above which no further request is served: 60 heads with twenty
/// fields. Requests in the queue and in flight may add theirs.
const UNSENT_HEADS_MAX: usize = 256 << 10;
/// The limit for heads of responses in the `h2` crate, above which a request that leaves the queue is refused: 128
/// heads with twenty fields. Requests in flight may add theirs.
const UNSENT_HEADS_OF_QUEUED_MAX: usize = 640 << 10;
/// Heads of responses that are larger than this are charged even if the client reads.
const USUAL_HEAD_BYTES: usize = 8 << 10;
/// Bytes that are borrowed at a time.
const BORROWED_STEP: usize = 32 << 10;
/// The memory of a parked request without its fields: the stream in the `h2` crate, and the request.
const PARKED_BYTES: usize = 1536;
/// The memory of a field of a parked request: an entry of a hash table that is up to half empty.
const PARKED_FIELD_BYTES: usize = 160;
/// The memory of a served request without its head: its task and buffers.
const SERVED_BYTES: usize = 16 << 10;

/// The budget of one connection.
pub(crate) struct ConnectionBudget {
    counted: RefCell<CountedConnection>,
    /// The charges of parked requests.
    parked: Cell<usize>,
    /// The charges of served requests. Those that wait in the queue are not among them.
    served: Cell<usize>,
    /// The part of `served` for requests with incomplete bodies.
    gathering: Cell<usize>,
    /// The charges of forwarded requests: their heads, which are kept until they end.
    forwarded: Cell<usize>,
    /// The charge for heads of responses in the `h2` crate, which drops them with the last reference to their fields.
    unsent_heads: Arc<AtomicUsize>,
    /// Bytes that were received on the connection.
    received: Rc<Cell<u64>>,
    /// The task of the connection, which starts parked requests when others are released.
    pub(crate) waker: RefCell<Option<Waker>>,
}

/// The memory of a request in each phase, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestSize {
    /// While it is parked.
    parked: usize,
    /// While it is served.
    served: usize,
    /// While it is forwarded: a part of `served` that is kept until the request ends.
    head: usize,
    /// Whether the body was incomplete when the head came, and still may be.
    has_body: bool,
}

impl RequestSize {
    /// `target`: the length of the request target.
    pub(crate) fn of(headers: &HeaderMap, target: usize, has_body: bool) -> Self {
        let text: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        let parked = PARKED_BYTES + headers.len() * PARKED_FIELD_BYTES;
        // The text is copied into the request's head, and again when that is written for the backend.
        let head = 2 * (text + target);
        Self { parked, served: parked + SERVED_BYTES + head, head, has_body }
    }
}

/// A request that is charged, until this is dropped.
pub(crate) struct MemoryCharge {
    budget: Rc<ConnectionBudget>,
    size: RequestSize,
    phase: ChargePhase,
}

/// The phase of a request. A charge may be dropped in any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChargePhase {
    /// It waits without a task. Next: `Served`.
    Parked,
    /// It has a task, and is neither in the queue nor forwarded. Next: `Queued`, `Forwarded`.
    Served,
    /// It is complete and waits in the queue, which bounds its memory. Next: `Served`.
    Queued,
    /// It is at a backend.
    Forwarded,
}

impl ConnectionBudget {
    /// `received` counts the bytes that were received on the connection.
    pub(crate) fn new(counted: CountedConnection, received: Rc<Cell<u64>>) -> Rc<Self> {
        Rc::new(Self {
            counted: RefCell::new(counted),
            parked: Cell::new(0),
            served: Cell::new(0),
            gathering: Cell::new(0),
            forwarded: Cell::new(0),
            unsent_heads: Arc::default(),
            received,
            waker: RefCell::default(),
        })
    }

    /// Charges a new request as a parked one, if it fits, or if the connection has no other one before the backend.
    pub(crate) fn park(self: &Rc<Self>, size: RequestSize) -> Option<MemoryCharge> {
        let parked = self.parked.get() + size.parked;
        let is_only = self.parked.get() + self.served.get() == 0;
        if !is_only && (parked > PARKED_MAX || !self.borrow(size.parked)) {
            return None;
        }
        self.parked.set(parked);
        Some(MemoryCharge { budget: self.clone(), size, phase: ChargePhase::Parked })
    }

    /// Charges the head of a response until the `h2` crate has encoded it, unless it is small and the client reads.
    /// `is_blocked`: the client reads nothing at the moment.
    ///
    /// The crate does not report that. So one value, the shortest, is replaced by a copy that ends the charge when it
    /// is dropped.
    pub(crate) fn charge_head(&self, headers: &mut HeaderMap, is_blocked: bool) {
        let text: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        let bytes = text + headers.len() * PARKED_FIELD_BYTES;
        if !is_blocked && bytes <= USUAL_HEAD_BYTES {
            return;
        }
        let Some(shortest) = headers.values_mut().min_by_key(|value| value.len()) else { return };
        let unsent_heads = self.unsent_heads.clone();
        unsent_heads.fetch_add(bytes, Ordering::Relaxed);
        let end_charge = move || {
            unsent_heads.fetch_sub(bytes, Ordering::Relaxed);
        };
        if let Ok(mut value) = HeaderValue::from_maybe_shared(tracked(shortest.as_bytes(), end_charge)) {
            // HPACK does not put sensitive values into its table, which would keep the copy.
            value.set_sensitive(true);
            *shortest = value;
        }
        // The response is sent even if nothing can be borrowed: a response that waits would need more memory, for the
        // task.
        let _ = self.borrow(0);
    }

    /// Returns all borrowed bytes, if the charges fit into [`BASE_BYTES`]. The connection calls it at each poll,
    /// because the `h2` crate ends the charges of response heads without notice.
    pub(crate) fn trim(&self) {
        if self.held() <= BASE_BYTES {
            self.counted.borrow_mut().give_back();
        }
    }

    /// The charged bytes, of forwarded requests only those above their limit. The part beyond [`BASE_BYTES`] must be
    /// borrowed.
    fn held(&self) -> usize {
        let forwarded = self.forwarded.get().saturating_sub(FORWARDED_HEADS_MAX);
        self.parked.get() + self.served.get() + forwarded + self.unsent_heads.load(Ordering::Relaxed)
    }

    /// The current limit for served requests with incomplete bodies.
    fn gathering_max(&self) -> usize {
        let earned = usize::try_from(self.received.get().saturating_mul(BYTES_PER_RECEIVED_BYTE)).unwrap_or(usize::MAX);
        BASE_BYTES.saturating_add(earned).min(SERVED_MAX) / 2
    }

    /// Borrows enough for the charges and this many more bytes. Returns whether that was possible.
    fn borrow(&self, bytes: usize) -> bool {
        let wanted = self.held() + bytes;
        let mut counted = self.counted.borrow_mut();
        while wanted > BASE_BYTES + counted.borrowed {
            if !counted.borrow(BORROWED_STEP) {
                return false;
            }
        }
        true
    }

    /// A request was released: wakes the task of the connection, so that it serves parked requests that fit now.
    fn released(&self) {
        self.trim();
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

impl MemoryCharge {
    /// Charges the request as a served one, if it fits, or if no other one is served; for a complete request, if no
    /// other complete one is. Returns whether it did. It does not if the heads of forwarded requests or of unread
    /// responses take too much memory.
    ///
    /// Requests with incomplete bodies may use half of the budget: a client that stalls its uploads does not block its
    /// other requests.
    pub(crate) fn serve(&mut self) -> bool {
        let (budget, RequestSize { parked, served, head, has_body }) = (&self.budget, self.size);
        if budget.forwarded.get() > 0 && budget.forwarded.get() + head > FORWARDED_HEADS_MAX {
            return false;
        }
        let unsent_heads = budget.unsent_heads.load(Ordering::Relaxed);
        if unsent_heads > UNSENT_HEADS_MAX || (unsent_heads > 0 && !budget.borrow(served)) {
            return false;
        }
        let (all, gathering) = (budget.served.get(), budget.gathering.get());
        let others = if has_body { all } else { all - gathering };
        if others > 0 {
            let fits_half = !has_body || gathering == 0 || gathering + served <= budget.gathering_max();
            if !fits_half || all + served > SERVED_MAX || !budget.borrow(served) {
                return false;
            }
        }
        budget.parked.set(budget.parked.get() - parked);
        self.phase = ChargePhase::Served;
        self.add_served();
        true
    }

    /// Ends the charge of a complete request that enters the queue.
    pub(crate) fn enter_queue(&mut self) {
        self.release();
        self.phase = ChargePhase::Queued;
        self.size.has_body = false;
        self.budget.released();
    }

    /// Charges a request as a served one again, if it was in the queue. Its memory is in use, so it is charged even if
    /// it does not fit; further requests are parked then.
    pub(crate) fn leave_queue(&mut self) {
        if self.phase == ChargePhase::Queued {
            self.phase = ChargePhase::Served;
            self.add_served();
            let _ = self.budget.borrow(0);
        }
    }

    /// Whether unsent heads of responses leave no memory for another response.
    pub(crate) fn lacks_room_for_response(&self) -> bool {
        let unsent_heads = self.budget.unsent_heads.load(Ordering::Relaxed);
        unsent_heads > UNSENT_HEADS_OF_QUEUED_MAX || (unsent_heads > 0 && !self.budget.borrow(0))
    }

    /// Charges the request as a forwarded one.
    pub(crate) fn forward(&mut self) {
        self.release();
        self.phase = ChargePhase::Forwarded;
        self.budget.forwarded.set(self.budget.forwarded.get() + self.size.head);
        self.budget.released();
    }

    fn add_served(&self) {
        let (budget, RequestSize { served, has_body, .. }) = (&self.budget, self.size);
        budget.served.set(budget.served.get() + served);
        if has_body {
            budget.gathering.set(budget.gathering.get() + served);
        }
    }

    /// Ends the charge of the current phase.
    fn release(&self) {
        let (budget, RequestSize { parked, served, head, has_body }) = (&self.budget, self.size);
        match self.phase {
            ChargePhase::Parked => budget.parked.set(budget.parked.get() - parked),
            ChargePhase::Served => {
                budget.served.set(budget.served.get() - served);
                if has_body {
                    budget.gathering.set(budget.gathering.get() - served);
                }
            }
            ChargePhase::Queued => {}
            ChargePhase::Forwarded => budget.forwarded.set(budget.forwarded.get() - head),
        }
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.release();
        self.budget.released();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::net::caps::Caps;

    fn budget(received: u64) -> Rc<ConnectionBudget> {
        let counted = Caps::new(100).count([203, 0, 113, 7].into(), Some(100)).unwrap();
        ConnectionBudget::new(counted, Rc::new(Cell::new(received)))
    }

    fn size(fields: usize, value: usize, has_body: bool) -> RequestSize {
        let mut headers = HeaderMap::new();
        for number in 0..fields {
            let name = http::HeaderName::from_bytes(format!("x-{number}").as_bytes()).unwrap();
            headers.insert(name, "v".repeat(value).parse().unwrap());
        }
        RequestSize::of(&headers, 1, has_body)
    }

    /// Parks requests and serves those that fit. Returns the charges, and how many are served.
    fn burst(budget: &Rc<ConnectionBudget>, size: RequestSize, count: usize) -> (Vec<MemoryCharge>, usize) {
        let mut charges: Vec<_> = (0..count).filter_map(|_| budget.park(size)).collect();
        let served = charges.iter_mut().filter_map(|charge| charge.serve().then_some(())).count();
        (charges, served)
    }

    #[test]
    fn requests_with_incomplete_bodies_and_usual_heads_are_parked_and_not_refused() {
        let budget = budget(10_000);
        let (charges, served) = burst(&budget, size(20, 50, true), 128);
        assert_eq!(charges.len(), 128);
        assert!((2..10).contains(&served), "{served}");
    }

    #[test]
    fn complete_requests_are_served_however_few_bytes_they_cost_their_sender() {
        let (charges, served) = burst(&budget(2000), size(20, 50, false), 128);
        assert_eq!((charges.len(), served), (128, 128));
    }

    #[test]
    fn requests_in_the_queue_are_not_charged_and_those_that_leave_it_are() {
        let (budget, large) = (budget(2000), size(8, 3800, false));
        let mut charges = Vec::new();
        for _ in 0..100 {
            let mut charge = budget.park(large).unwrap();
            assert!(charge.serve());
            charge.enter_queue();
            charges.push(charge);
        }
        assert_eq!((budget.held(), budget.counted.borrow().borrowed), (0, 0));
        for charge in &mut charges {
            charge.leave_queue();
        }
        assert_eq!(budget.held(), 100 * large.served);
        assert!(!budget.park(large).unwrap().serve(), "refused requests whose responses are not read");
        for charge in &mut charges[..50] {
            charge.forward();
        }
        assert_eq!(budget.held(), 50 * (large.served + large.head) - FORWARDED_HEADS_MAX);
        drop(charges);
        assert_eq!((budget.held(), budget.counted.borrow().borrowed), (0, 0));
    }

    #[test]
    fn large_heads_that_cost_their_sender_nothing_are_served_one_at_a_time() {
        let budget = budget(6000);
        let (charges, served) = burst(&budget, size(8, 3800, true), 128);
        assert_eq!(served, 1);
        assert!(budget.parked.get() + budget.served.get() < (512 << 10) + (100 << 10), "{}", budget.parked.get());
        drop(charges);
        assert_eq!((budget.parked.get(), budget.served.get(), budget.gathering.get()), (0, 0, 0));
        assert_eq!(budget.counted.borrow().borrowed, 0);
    }

    #[test]
    fn a_client_that_sends_is_served_in_full() {
        let budget = budget(1 << 20);
        let (charges, served) = burst(&budget, size(20, 50, true), 100);
        assert_eq!((charges.len(), served), (100, 100));
    }

    #[test]
    fn stalled_uploads_leave_half_of_the_budget_to_other_requests() {
        let budget = budget(20_000);
        let (_uploads, served) = burst(&budget, size(5, 50, true), 100);
        assert!((2..10).contains(&served), "{served}");
        let mut get = budget.park(size(5, 50, false)).unwrap();
        assert!(get.serve());
    }

    #[test]
    fn large_heads_of_forwarded_requests_are_bounded_and_usual_ones_are_not_held_up() {
        for (size, expected) in [(size(8, 3800, false), 15..20), (size(20, 50, false), 128..129)] {
            let (budget, mut forwarded) = (budget(10_000), 0);
            let mut charges: Vec<_> = (0..128).map(|_| budget.park(size).unwrap()).collect();
            for charge in &mut charges {
                if charge.serve() {
                    charge.forward();
                    forwarded += 1;
                }
            }
            assert!(expected.contains(&forwarded), "{forwarded}");
            drop(charges);
            assert_eq!((budget.parked.get(), budget.served.get(), budget.forwarded.get()), (0, 0, 0));
        }
    }

    fn response(fields: usize, value: usize) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for number in 0..fields {
            let name = http::HeaderName::from_bytes(format!("x-{number}").as_bytes()).unwrap();
            headers.insert(name, "v".repeat(value).parse().unwrap());
        }
        headers
    }

    #[test]
    fn heads_of_responses_that_are_not_read_keep_further_requests_from_being_served() {
        let budget = budget(10_000);
        let serves = |budget: &Rc<ConnectionBudget>| budget.park(size(5, 50, false)).unwrap().serve();
        let mut held = Vec::new();
        while serves(&budget) {
            let mut headers = response(20, 300);
            budget.charge_head(&mut headers, true);
            assert!(headers.values().all(|value| value.len() == 300));
            held.push(headers);
            assert!(held.len() < 100, "no bound");
        }
        assert!((20..40).contains(&held.len()), "{}", held.len());
        assert!(budget.counted.borrow().borrowed > 0);
        let mut queued = held.pop().map(|_| budget.park(size(5, 50, false)).unwrap()).unwrap();
        assert!(queued.serve());
        queued.enter_queue();
        for _ in 0..100 {
            queued.leave_queue();
            if queued.lacks_room_for_response() {
                break;
            }
            queued.enter_queue();
            let mut headers = response(20, 300);
            budget.charge_head(&mut headers, true);
            held.push(headers);
        }
        assert!((60..80).contains(&held.len()), "{}", held.len());
        drop(queued);
        held.clear();
        assert!(serves(&budget));
        budget.trim();
        assert_eq!((budget.held(), budget.counted.borrow().borrowed), (0, 0));
        budget.charge_head(&mut response(20, 50), false);
        assert_eq!(budget.held(), 0, "usual heads that are sent at once are not charged");
    }

    #[test]
    fn one_request_is_served_whatever_its_size_and_whatever_others_have_borrowed() {
        let budget = budget(0);
        let mut first = budget.park(size(100, 10_000, true)).unwrap();
        assert!(first.serve());
        let mut second = budget.park(size(1, 1, true)).unwrap();
        assert!(!second.serve());
        let mut complete = budget.park(size(100, 10_000, false)).unwrap();
        assert!(complete.serve(), "a body that does not come blocks no complete request");
        drop((first, complete));
        assert!(second.serve());
    }
}
