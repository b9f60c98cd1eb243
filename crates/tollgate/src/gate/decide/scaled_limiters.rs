//! Limiters with scaled limits, for doors.
//!
//! A program that asks a door for a decision may send a factor by which the limits are scaled: 2 halves them, 0.5
//! doubles them, such as for paying users. The limiter of a factor is created when the factor is first used.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tollgate_core::limit::{Factor, LimitError};
use tollgate_gatekeeper::limiter::Limiter;

/// The number of factors whose limiters are kept. An application needs one factor per kind of user. For any further
/// factor, a limiter is created for each decision.
const FACTORS_MAX: usize = 64;

/// The limiters of the factors used so far. All share the tables, and so the state, of the unscaled limiter.
#[derive(Default)]
pub(crate) struct ScaledLimiters(ArcSwap<Vec<(Factor, Arc<Limiter>)>>);

impl ScaledLimiters {
    /// `limiter` with its limits scaled by `factor`.
    pub(crate) fn of(&self, limiter: &Limiter, factor: Factor) -> Result<Arc<Limiter>, LimitError> {
        if let Some((_, known)) = self.0.load().iter().find(|(known, _)| *known == factor) {
            return Ok(known.clone());
        }
        let scaled = Arc::new(limiter.scaled(factor)?);
        self.0.rcu(|all| {
            let mut all = Vec::clone(all);
            if all.len() < FACTORS_MAX && all.iter().all(|(known, _)| *known != factor) {
                all.push((factor, scaled.clone()));
            }
            all
        });
        Ok(scaled)
    }
}
