//! What operators see of a running gate.

pub(super) mod master_metrics;
pub(super) mod metrics;
pub(super) mod remote_status;
pub(super) mod view;
