//! HTTP: reading requests, forwarding them, and writing responses.

pub(super) mod backend;
pub(super) mod body;
pub(super) mod conversation;
pub(super) mod download;
pub(super) mod exchange;
pub(super) mod forward;
pub(super) mod h1;
pub(super) mod h1_body;
pub(super) mod h1_spill;
pub(super) mod h2;
pub(super) mod h2_body;
pub(super) mod h2_budget;
pub(super) mod h2_connect;
pub(super) mod h2_head;
pub(super) mod h2_io;
pub(super) mod h2_unsent;
pub(super) mod pages;
pub(super) mod report;
pub(super) mod spool;
pub(super) mod trace;
pub(super) mod tunnel;
pub(super) mod worker;
