//! The local part of a decision on a request that shared rules apply to, on which the store decides.
//!
//! If local rules were charged first and refunded when the store refuses, a flood that the store refuses
//! would repeatedly take the local quota of other clients. Local rules are therefore only checked at first: a
//! local refusal makes no call, and a refusal of the store charges nothing locally. Local rules are charged
//! after the store's answer. If another request took the quota in between, the store's charge is refunded.

use core::sync::atomic::Ordering;

use tollgate_core::band::Band;
use tollgate_core::decide::{apply, check_all};
use tollgate_core::decision::{Decision, Verdict};
use tollgate_core::request::Request;
use tollgate_core::time::Moment;
use tollgate_core::toll::Toll;

use crate::limiter::{Claims, Keys, Limiter, Locks, decide_claims};
use crate::ticket::Ticket;

impl Limiter {
    /// Checks the rules whose index `among` accepts, before the store is asked. Returns and records the refusal, if
    /// they refuse. Otherwise nothing changes.
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
        if !summary.refuses {
            return None;
        }
        let unlocked = (!summary.changes)
            .then(|| apply(&mut claims, summary, toll, &situation))
            .filter(|_| claims.iter().all(|claim| claim.record.is_current()));
        let decision = unlocked.or_else(|| {
            let mut locks = Locks::new();
            self.lock_all(&claims, &mut locks);
            for claim in &mut claims {
                claim.record.refresh();
            }
            let summary = check_all(&mut claims, toll, &situation);
            summary.refuses.then(|| apply(&mut claims, summary, toll, &situation))
        })?;
        self.note(request, &decision, &keys, now);
        Some(decision)
    }

    /// Charges the local tables of the shared rules that `among` accepts for a request that the store admitted, so that
    /// its caller is known locally if the store fails. A table without room is already at its limit and is not charged;
    /// this is no violation. The charges are added to `ticket`.
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
            let active = &self.rules[place];
            let mut claims = [active.claim(place, hash, now)];
            if check_all(&mut claims, toll, &situation).refuses {
                continue;
            }
            if ticket.charges.is_full() {
                self.rules_skipped.fetch_add(1, Ordering::Relaxed);
                return;
            }
            decide_claims(&mut claims, toll, &situation, |claims| claims[0].record.lock());
            ticket.charges.extend(active.charge_of(&claims[0], hash));
        }
    }

    /// Records the name of a caller that the store throttled, and its block, if any, so that it stays blocked
    /// without the store.
    pub(super) fn note_decided(&self, request: &impl Request, decision: &Decision, now: Moment) {
        let mut keys = Keys::new();
        self.find_keys(|place| decision.rule == Some(place), request, &mut keys);
        self.note(request, decision, &keys, now);
        let (Verdict::Refuse(until), 1..) = (decision.verdict, decision.level) else { return };
        for (place, hash) in keys {
            self.rules[place].block(hash, decision.level, until, now);
        }
    }
}
