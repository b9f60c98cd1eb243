//! The types of single values of the settings file: durations, rates, sizes, numbers, words, addresses and classes.
//! Each implements [`Value`](super::table::Value), and is the type of keys in the declarations of tables.
//!
//! Every number is converted to an integer exactly, or is an error. A float would round `0.1`, and overflow to
//! infinity.

mod address;
mod backend;
mod decimal;
pub(super) mod duration;
mod number;
mod rate;
pub(super) mod size;
mod word;

pub(crate) use address::ListenAddress;
pub(super) use backend::split_port;
pub(crate) use backend::{BackendProtocol, BackendUrl};
pub(crate) use duration::PositiveSpan;
pub(crate) use number::{Millionths, Thousandths, WholeNumber};
pub(super) use rate::PerTime;
pub(crate) use size::Size;
pub(crate) use word::{Choice, CookieName, FinalStatus, Glob, HeaderName, Map, Method, Name, OneOrMany, StatusCode};

use toml::Spanned;
use toml::de::DeValue;

use super::error::ErrorCollector;
use super::shape::Shape;
use super::table::refuse;

/// Parses a string with `parse`, whose error is the message to report.
pub(super) fn read_text<T>(
    value: &Spanned<DeValue<'_>>,
    errors: &mut ErrorCollector,
    shape: &Shape,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Option<T> {
    let DeValue::String(text) = value.get_ref() else { return refuse(value, shape, errors) };
    parse(text).map_err(|message| errors.report(&value.span(), message)).ok()
}

/// Implements `Value` for a kind of value that is a string in the file. The arguments are the kind (and after `=>` the
/// type that it is parsed to, if that is another one), a noun for it in messages, an example, and the function that
/// parses the string, whose error is the message to report. The optional last argument names the function that is
/// called instead of [`read_text`].
macro_rules! text_value {
    ($type:ty, $($rest:tt)*) => { $crate::settings::value::text_value!($type => $type, $($rest)*); };
    ($kind:ty => $parsed:ty, $what:literal, $example:literal, $parse:expr) => {
        $crate::settings::value::text_value!($kind => $parsed, $what, $example, $parse, read_text);
    };
    ($kind:ty => $parsed:ty, $what:literal, $example:literal, $parse:expr, $read:ident) => {
        impl $crate::settings::table::Value for $kind {
            type Parsed = $parsed;

            fn shape() -> $crate::settings::shape::Shape {
                $crate::settings::shape::Shape::Text { what: $what, example: $example }
            }

            fn read(
                value: &toml::Spanned<toml::de::DeValue<'_>>,
                errors: &mut $crate::settings::error::ErrorCollector,
            ) -> Option<$parsed> {
                $crate::settings::value::$read(
                    value,
                    errors,
                    &<Self as $crate::settings::table::Value>::shape(),
                    $parse,
                )
            }
        }
    };
}
pub(super) use text_value;

/// As [`read_text`], but also accepts a bare number, so that the message of `parse` can name the missing unit.
fn read_text_or_number<T>(
    value: &Spanned<DeValue<'_>>,
    errors: &mut ErrorCollector,
    shape: &Shape,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Option<T> {
    let number = match value.get_ref() {
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.as_str().to_string(),
        _ => return read_text(value, errors, shape, parse),
    };
    parse(&number).map_err(|message| errors.report(&value.span(), message)).ok()
}
