//! The gatekeeper as a tower layer, for services of axum, hyper and tonic.
//!
//! A [`Keeper`] has the rules with their state, and optionally a link to masters, the processes that share the state
//! of rules. A [`KeeperLayer`] applies it to a service. Every request is decided first: it is forwarded to the
//! service, held and then forwarded, or refused. The service supplies functions that find the client's address or
//! account, because only its framework knows where they are.
//!
//! A budget is charged the time that the service spends on a request, measured around each poll, so waiting
//! for a database is free.

mod future;
mod keeper;
mod refusal;
mod service;
mod view;

pub use future::KeeperFuture;
pub use keeper::{Keeper, KeeperError};
pub use service::{KeeperLayer, KeeperService};
pub use view::RequestView;
