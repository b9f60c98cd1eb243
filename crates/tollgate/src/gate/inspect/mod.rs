//! The status and the metrics of a running gate, for operators. The admin address, the doctor and Graphite read them.

pub(super) mod master_metrics;
pub(super) mod metrics;
pub(super) mod remote_status;
pub(super) mod view;
