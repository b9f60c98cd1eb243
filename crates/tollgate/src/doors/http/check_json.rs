//! The JSON of `POST /v1/check`. This file depends on no other module, so that it can be fuzzed.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};

/// Maximum number of checks in one call.
pub(super) const CHECKS_MAX: usize = 256;
/// Maximum number of attributes of a check.
pub(super) const ATTRIBUTES_MAX: usize = 64;

/// One check, before its values are validated.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Check<'a> {
    /// The domain whose rules decide.
    #[serde(borrow)]
    pub(super) domain: Option<Text<'a>>,
    /// The only rule that decides; without it, all rules that apply.
    #[serde(borrow)]
    pub(super) rule: Option<Text<'a>>,
    /// The key of that rule.
    #[serde(borrow)]
    pub(super) key: Option<Text<'a>>,
    /// A description of the request, instead of a key.
    #[serde(borrow, default)]
    pub(super) attributes: Attributes<'a>,
    /// The number of requests that the check counts as.
    pub(super) toll: Option<u64>,
    /// The expected CPU time, in milliseconds.
    pub(super) toll_ms: Option<f64>,
    /// Scales the limits: 2 halves them, 0 means no limit.
    pub(super) factor: Option<f64>,
    /// False: a request that a rule would hold is refused.
    pub(super) hold: Option<bool>,
    /// True: the response is delayed until the request leaves the fair queue.
    #[serde(default)]
    pub(super) queue: bool,
    /// The time after which the ticket expires, in milliseconds.
    pub(super) deadline_ms: Option<u64>,
}

/// A string, or an integer as a string: ids are often numbers.
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a text or a whole number")
            }
            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }
        }
        deserializer.deserialize_any(TextVisitor)
    }
}

/// The attributes of a check, in the order of the call.
#[derive(Default)]
pub(super) struct Attributes<'a>(pub(super) Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AttributesVisitor;
        impl<'de> Visitor<'de> for AttributesVisitor {
            type Value = Attributes<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of texts")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Attributes<'de>, A::Error> {
                let mut pairs = Vec::new();
                while let Some((name, value)) = map.next_entry::<Text<'de>, Option<Text<'de>>>()? {
                    if pairs.len() == ATTRIBUTES_MAX {
                        return Err(de::Error::custom(format_args!("more than {ATTRIBUTES_MAX} attributes")));
                    }
                    // An attribute without a value is left out.
                    pairs.extend(value.map(|value| (name.0, value.0)));
                }
                Ok(Attributes(pairs))
            }
        }
        deserializer.deserialize_map(AttributesVisitor)
    }
}

/// One check, or several.
pub(super) enum Checks<'a> {
    One(Box<Check<'a>>),
    Many(Vec<Check<'a>>),
}

impl<'a> Checks<'a> {
    /// Parses the body of a call. The error is the message of the response.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        let wrong = |error: serde_json::Error| format!("no check: {error}");
        if bytes.trim_ascii_start().first() != Some(&b'[') {
            return serde_json::from_slice(bytes).map(|check| Self::One(Box::new(check))).map_err(wrong);
        }
        let many: Vec<Check<'a>> = serde_json::from_slice(bytes).map_err(wrong)?;
        if many.len() > CHECKS_MAX {
            return Err(format!("more than {CHECKS_MAX} checks in one call"));
        }
        Ok(Self::Many(many))
    }
}
