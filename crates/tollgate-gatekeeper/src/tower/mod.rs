//! The gatekeeper as a tower layer: in front of any service of axum, hyper or tonic, in its own process.
//!
//! A [`Keeper`] has the rules and their state, and the link to masters if there is one. A [`KeeperLayer`] puts it in front of a service. What tells
//! callers apart comes from functions that the service gives: a request here is whatever the framework made of it, so only the
//! framework knows where the client's address or the account is.
//!
//! A request that goes on costs what its rules say; for a budget that is the time that the service spends at work on it, measured around
//! each poll, so that waiting for a database is free.

mod future;
mod keeper;
mod refusal;
mod service;
mod view;

pub use future::KeeperFuture;
pub use keeper::{Keeper, NoKeeper};
pub use service::{KeeperLayer, Kept};
pub use view::Seen;
