//! Decisions about requests: who the client is, which rules apply, and when the request may go to a backend.
//!
//! [`admission::Admission`] is the interface of this folder for the code that forwards requests.

pub(super) mod admission;
pub(super) mod claims;
pub(super) mod domains;
pub(super) mod exemptions;
pub(super) mod flow;
pub(super) mod holds;
pub(super) mod identify;
pub(super) mod keeper;
pub(super) mod kernel;
pub(super) mod key_text;
pub(super) mod learned_file;
pub(super) mod load;
pub(super) mod masters;
pub(super) mod queue;
pub(super) mod redis;
pub(super) mod refusal;
pub(super) mod remote_state;
pub(super) mod routes;
pub(super) mod rule_engagement;
pub(super) mod rules;
pub(super) mod scaled_limiters;
pub(super) mod uploads;
pub(super) mod waiting_counts;
