//! What single values of the file mean: durations, rates, sizes, numbers, words, addresses, classes.
//!
//! Every number becomes an integer exactly, or is refused. A float would make `0.1` into something near it, and `1e308` into infinity.

mod address;
mod backend;
mod decimal;
pub(super) mod duration;
mod number;
mod rate;
pub(super) mod size;
mod word;

pub(super) use address::Address;
pub(crate) use backend::{BackendUrl, Protocol};
pub(super) use number::{Millionths, Thousandths};
pub(super) use rate::PerTime;
pub(super) use size::Size;
pub(super) use word::{Choice, Glob, HeaderName, Map, Method, Name, OneOrMany, StatusCode};

use toml::Spanned;
use toml::de::DeValue;

use super::fault::Collector;
use super::shape::Shape;
use super::table::refuse;

/// Reads a text and hands it to `parse`, whose error is the message of a fault.
pub(super) fn read_text<T>(
    value: &Spanned<DeValue<'_>>,
    faults: &mut Collector,
    shape: &Shape,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Option<T> {
    let DeValue::String(text) = value.get_ref() else {
        refuse(value, shape, faults);
        return None;
    };
    parse(text).map_err(|message| faults.fault(&value.span(), message)).ok()
}
