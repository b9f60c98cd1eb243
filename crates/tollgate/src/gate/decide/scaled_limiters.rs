//! Limiters with scaled limits, created when a factor is first used.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tollgate_core::limit::{Factor, LimitError};
use tollgate_gatekeeper::limiter::Limiter;

/// Factors with a limiter of their own. An application has one per kind of user. Any other factor gets a new limiter
/// for each call.
const FACTORS_MAX: usize = 64;

/// A limiter for each factor. All share the tables of one.
#[derive(Default)]
pub(crate) struct ScaledLimiters(ArcSwap<Vec<(Factor, Arc<Limiter>)>>);

impl ScaledLimiters {
    /// `limiter` under `factor`.
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
