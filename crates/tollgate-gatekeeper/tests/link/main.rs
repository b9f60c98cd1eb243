//! The link from the point of view of masters: peers that replay an original's frames, and peers that
//! misbehave.
#![allow(clippy::unwrap_used)]

mod peer;
mod scenarios;
