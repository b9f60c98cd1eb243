//! The laws of the queue, in virtual time: clients, the fair queue with default settings, and backends of several
//! kinds. No socket, no sleep; one seed reproduces any run.
//!
//! | law | claim | file |
//! |---|---|---|
//! | L1 | alone, the gate is invisible | `alone` |
//! | L2 | refuse by time, not by count | `refuse` |
//! | L3 | in order within a client | `refuse`, and a property of `tollgate_core::queue` |
//! | L4 | overruns count at once | `exposure` |
//! | L5 | storms | `storm` |
//! | L7 | bounded exposure to unproven work | `exposure` |
//! | L8 | no gain by splitting | `split` |
//! | L9 | every page is served at last | `recovery` |
//! | L10 | co-tenants of an address take turns | `split` |
//! | L11 | recovery of the backend | `recovery` |
//! | L12 | several gates, several backends | `several` |
//!
//! A bound that is not met yet is marked with `not_met`, which says what holds instead.
//!
//! `TOLLGATE_SEEDS=10` runs ten times as many random seeds, `TOLLGATE_MISSES=1` prints every run that misses a bound.

mod alone;
mod backend;
mod exposure;
mod gate;
mod random;
mod recovery;
mod refuse;
mod results;
mod several;
mod split;
mod storm;
mod sweep;
mod world;
