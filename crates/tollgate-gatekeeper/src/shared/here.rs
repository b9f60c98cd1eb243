//! What a limiter does with some of its rules while a store is asked about the others.
//!
//! Charging here first, and giving back when the store refuses, would let a flood that the store stops take the room of others
//! here, again and again for a moment. So rules of this process are first only looked at: what they refuse costs the store
//! nothing, and what the store refuses costs nothing here. They are charged when the store has answered, and should somebody have
//! taken the room meanwhile, which happens once and not for the length of a flood, the store gets back what it took.

use core::sync::atomic::Ordering;

use tollgate_core::band::Band;
use tollgate_core::decide::{apply, check_all};
use tollgate_core::decision::{Decision, Verdict};
use tollgate_core::request::Request;
use tollgate_core::time::Moment;
use tollgate_core::toll::Toll;

use crate::limiter::{Claims, Keys, Limiter, Locks, carry_through};
use crate::ticket::Ticket;

impl Limiter {
    /// The refusal by the rules among those given, carried out, if they refuse. Otherwise nothing changes.
    pub(super) fn turn_away(
        &self,
        among: impl Fn(usize) -> bool,
        request: &impl Request,
        toll: Toll,
        band: Band,
        now: Moment,
    ) -> Option<Decision> {
        let situation = self.situation(band, now);
        let (mut keys, mut claims) = (Keys::new(), Claims::new());
        self.find_keys(among, request, &mut keys);
        self.claim_all(&keys, now, &mut claims);
        let summary = check_all(&mut claims, toll, &situation);
        if !summary.refuses() {
            return None;
        }
        let unlocked = (!summary.changes())
            .then(|| apply(&mut claims, summary, toll, &situation))
            .filter(|_| claims.iter().all(|claim| claim.record().is_current()));
        let decision = unlocked.or_else(|| {
            let mut locks = Locks::new();
            self.lock_all(&claims, &mut locks);
            for claim in &mut claims {
                claim.record_mut().refresh();
            }
            let summary = check_all(&mut claims, toll, &situation);
            summary.refuses().then(|| apply(&mut claims, summary, toll, &situation))
        })?;
        self.note(request, &decision, &keys, now);
        Some(decision)
    }

    /// Charges the rules among those given for a request that the store let in, so that its caller is no stranger here when the store
    /// is gone. A rule that has no room for it here is as full as it can be; nobody is punished for that.
    pub(super) fn remember(
        &self,
        among: impl Fn(usize) -> bool,
        request: &impl Request,
        (band, now): (Band, Moment),
        ticket: &mut Ticket,
    ) {
        let (situation, toll) = (self.situation(band, now), ticket.toll);
        let mut keys = Keys::new();
        self.find_keys(among, request, &mut keys);
        for (place, hash) in keys {
            let post = &self.posts[place];
            let mut claims = [post.claim(place, hash, now)];
            if check_all(&mut claims, toll, &situation).refuses() {
                continue;
            }
            if ticket.stubs.is_full() {
                self.passed_over.fetch_add(1, Ordering::Relaxed);
                return;
            }
            carry_through(&mut claims, toll, &situation, |claims| claims[0].record().lock());
            ticket.stubs.extend(post.stub(&claims[0], hash));
        }
    }

    /// Keeps the name of a caller whom the store held or refused, and that it is blocked, if it is: without the store it is blocked all the same.
    pub(super) fn note_decided(&self, request: &impl Request, decision: &Decision, now: Moment) {
        let mut keys = Keys::new();
        self.find_keys(|place| decision.rule == Some(place), request, &mut keys);
        self.note(request, decision, &keys, now);
        let (Verdict::Refuse(until), 1..) = (decision.verdict, decision.level) else { return };
        for (place, hash) in keys {
            self.posts[place].block(hash, decision.level, until, now);
        }
    }
}
