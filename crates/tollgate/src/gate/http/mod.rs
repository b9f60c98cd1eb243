//! HTTP: reading requests, forwarding them, and writing responses.
//!
//! | modules | contents |
//! |---|---|
//! | `h1*`, `h2*` | connections of clients: heads, bodies, and the memory that they may use |
//! | `exchange` | one request from its head to its line in the access log; it uses all others |
//! | `halves`, `body` | the interface between an exchange and both versions of HTTP |
//! | `backend`, `health_check` | the servers behind the gate: selection, health, connections |
//! | `forward`, `upload`, `download`, `spool`, `tunnel` | heads and bodies on their way between client and backend |
//! | `own_answer`, `pages` | responses that the gate makes itself |
//! | `worker`, `scratch` | the state and the reused memory of one thread |
//! | `access_record`, `trace`, `report` | the result of a request for logs and traces; costs that backends report |

pub(super) mod access_record;
pub(super) mod backend;
pub(super) mod body;
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
pub(super) mod h2_refusal;
pub(super) mod h2_unsent;
pub(super) mod halves;
pub(super) mod health_check;
pub(super) mod own_answer;
pub(super) mod pages;
pub(super) mod report;
pub(super) mod scratch;
pub(super) mod spool;
pub(super) mod trace;
pub(super) mod tunnel;
pub(super) mod upload;
pub(super) mod worker;
