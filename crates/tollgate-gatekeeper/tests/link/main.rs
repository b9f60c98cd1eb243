//! The link, as masters meet it: peers that speak the recorded frames of an original, and peers that do not.
#![allow(clippy::unwrap_used)]

mod peer;
mod scenarios;
