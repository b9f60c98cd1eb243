//! Records of the gate's work, for operators and the watch: counters, logs, and statistics of clients.

pub(super) mod access_log;
pub(super) mod counters;
pub(super) mod engagement;
pub(super) mod engagement_log;
pub(super) mod failure_log;
pub(super) mod proxy_detector;
pub(super) mod rates;
pub(super) mod refusal_history;
pub(super) mod reloads;
pub(super) mod request_stats;
pub(super) mod spenders;
