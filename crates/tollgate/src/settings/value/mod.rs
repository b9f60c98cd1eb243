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
pub(super) use backend::split_port;
pub(crate) use backend::{BackendUrl, Protocol};
pub(super) use number::{Millionths, Thousandths};
pub(super) use rate::PerTime;
pub(super) use size::Size;
pub(super) use word::{Choice, CookieName, Glob, HeaderName, Map, Method, Name, OneOrMany, StatusCode};

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

/// Reads a text as [`read_text`] does, and a bare number as if it had been written as one: `parse` then says what it lacks.
fn read_text_or_number<T>(
    value: &Spanned<DeValue<'_>>,
    faults: &mut Collector,
    shape: &Shape,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Option<T> {
    let number = match value.get_ref() {
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.as_str().to_string(),
        _ => return read_text(value, faults, shape, parse),
    };
    parse(&number).map_err(|message| faults.fault(&value.span(), message)).ok()
}
