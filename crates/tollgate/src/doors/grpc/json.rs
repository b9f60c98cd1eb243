//! The rate limit service as JSON over HTTP, in the JSON form of its messages (proto3), as envoyproxy/ratelimit serves
//! it at `/json`.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde_json::{Map, Value, json};

use super::messages::{self, DescriptorEntry, DescriptorStatus, OVER_LIMIT, RateLimitOverride, RateLimitResponse};
use super::unit;

/// `RateLimitRequest`. Fields have their names in lower camel case or as in the definition.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRequest {
    #[serde(default)]
    domain: Option<String>,
    #[serde(default)]
    descriptors: Option<Vec<JsonDescriptor>>,
    #[serde(default, alias = "hits_addend", rename = "hitsAddend")]
    hits_addend: Option<Number>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonDescriptor {
    #[serde(default)]
    entries: Option<Vec<JsonEntry>>,
    #[serde(default)]
    limit: Option<JsonOverride>,
    #[serde(default, alias = "hits_addend", rename = "hitsAddend")]
    hits_addend: Option<Number>,
    #[serde(default, alias = "is_negative_hits", rename = "isNegativeHits")]
    is_negative_hits: Option<bool>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    value: Option<String>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonOverride {
    #[serde(default, alias = "requests_per_unit", rename = "requestsPerUnit")]
    requests_per_unit: Option<Number>,
    #[serde(default)]
    unit: Option<UnitNumber>,
}

/// A whole number, which JSON may have as text.
struct Number(u64);

impl<'de> serde::Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberVisitor;
        impl Visitor<'_> for NumberVisitor {
            type Value = Number;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a whole number")
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Number, E> {
                Ok(Number(number))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
                text.parse().map(Number).map_err(|_| E::custom("not a whole number"))
            }
        }
        deserializer.deserialize_any(NumberVisitor)
    }
}

impl Number {
    fn small(self) -> Result<u32, String> {
        u32::try_from(self.0).map_err(|_| format!("{} is larger than {}", self.0, u32::MAX))
    }
}

/// A unit, by its name or number.
struct UnitNumber(i32);

impl<'de> serde::Deserialize<'de> for UnitNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UnitVisitor;
        impl Visitor<'_> for UnitVisitor {
            type Value = UnitNumber;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a unit such as \"MINUTE\"")
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<UnitNumber, E> {
                i32::try_from(number).map(UnitNumber).map_err(|_| E::custom("not a unit"))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<UnitNumber, E> {
                unit::of_json_name(text).map(UnitNumber).ok_or_else(|| E::custom("not a unit"))
            }
        }
        deserializer.deserialize_any(UnitVisitor)
    }
}

/// The request in a body.
pub(in crate::doors) fn request(body: &[u8]) -> Result<messages::RateLimitRequest, String> {
    // serde reads an array as the fields in their order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err("not a JSON object".to_owned());
    }
    let request: JsonRequest = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let descriptors = request.descriptors.unwrap_or_default().into_iter().map(descriptor);
    Ok(messages::RateLimitRequest {
        domain: request.domain.unwrap_or_default(),
        descriptors: descriptors.collect::<Result<_, _>>()?,
        hits_addend: request.hits_addend.map_or(Ok(0), Number::small)?,
    })
}

fn descriptor(descriptor: JsonDescriptor) -> Result<messages::RateLimitDescriptor, String> {
    let entry = |entry: JsonEntry| DescriptorEntry {
        key: entry.key.unwrap_or_default(),
        value: entry.value.unwrap_or_default(),
    };
    let limit = |limit: JsonOverride| {
        let requests_per_unit = limit.requests_per_unit.map_or(Ok(0), Number::small)?;
        Ok::<_, String>(RateLimitOverride { requests_per_unit, unit: limit.unit.map_or(0, |unit| unit.0) })
    };
    Ok(messages::RateLimitDescriptor {
        entries: descriptor.entries.unwrap_or_default().into_iter().map(entry).collect(),
        limit: descriptor.limit.map(limit).transpose()?,
        hits_addend: descriptor.hits_addend.map(|number| number.0),
        is_negative_hits: descriptor.is_negative_hits.unwrap_or_default(),
    })
}

/// The response as JSON, and whether the request is over the limit. Fields with their default value are left out.
pub(in crate::doors) fn response(response: &RateLimitResponse) -> (Vec<u8>, bool) {
    let mut object = Map::new();
    object.insert("overallCode".to_owned(), code(response.overall_code));
    object.insert("statuses".to_owned(), response.statuses.iter().map(status).collect());
    if !response.response_headers_to_add.is_empty() {
        let header = |header: &messages::HeaderValue| json!({"key": header.key, "value": header.value});
        let headers = response.response_headers_to_add.iter().map(header).collect();
        object.insert("responseHeadersToAdd".to_owned(), headers);
    }
    (Value::Object(object).to_string().into_bytes(), response.overall_code == OVER_LIMIT)
}

fn code(code: i32) -> Value {
    if code == OVER_LIMIT { "OVER_LIMIT".into() } else { "OK".into() }
}

fn status(status: &DescriptorStatus) -> Value {
    let mut object = Map::new();
    object.insert("code".to_owned(), code(status.code));
    if let Some(limit) = &status.current_limit {
        let mut inner = Map::new();
        if limit.requests_per_unit > 0 {
            inner.insert("requestsPerUnit".to_owned(), limit.requests_per_unit.into());
        }
        if let Some(name) = unit::json_name(limit.unit) {
            inner.insert("unit".to_owned(), name.into());
        }
        if !limit.name.is_empty() {
            inner.insert("name".to_owned(), limit.name.as_str().into());
        }
        object.insert("currentLimit".to_owned(), inner.into());
    }
    if status.limit_remaining > 0 {
        object.insert("limitRemaining".to_owned(), status.limit_remaining.into());
    }
    if let Some(duration) = &status.duration_until_reset {
        object.insert("durationUntilReset".to_owned(), seconds(duration).into());
    }
    object.into()
}

/// A duration in the JSON form of protocol buffers: seconds with 0, 3, 6 or 9 digits.
fn seconds(duration: &prost_types::Duration) -> String {
    let prost_types::Duration { seconds, nanos } = *duration;
    match nanos {
        0 => format!("{seconds}s"),
        _ if nanos % 1_000_000 == 0 => format!("{seconds}.{:03}s", nanos / 1_000_000),
        _ if nanos % 1_000 == 0 => format!("{seconds}.{:06}s", nanos / 1_000),
        _ => format!("{seconds}.{nanos:09}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_in_both_spellings() {
        let text = br#"{"domain": "d", "hits_addend": "3", "descriptors": [{"entries": [{"key": "a", "value": "b"}, {"key": "c"}],
            "limit": {"requestsPerUnit": 4, "unit": "HOUR"}, "hitsAddend": 0, "isNegativeHits": true}]}"#;
        let request = request(text).unwrap();
        assert_eq!((request.domain.as_str(), request.hits_addend), ("d", 3));
        let descriptor = &request.descriptors[0];
        assert_eq!((descriptor.entries[0].value.as_str(), descriptor.entries[1].value.as_str()), ("b", ""));
        assert_eq!(descriptor.limit, Some(RateLimitOverride { requests_per_unit: 4, unit: 3 }));
        assert_eq!((descriptor.hits_addend, descriptor.is_negative_hits), (Some(0), true));
    }

    #[test]
    fn what_is_no_request_is_an_error() {
        for text in [&b"{"[..], b"[]", b"{\"other\": 1}", b"{\"hitsAddend\": -1}", b"{\"hitsAddend\": 4294967296}"] {
            assert!(request(text).is_err(), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn durations_have_as_many_digits_as_they_need() {
        let shown = |seconds, nanos| super::seconds(&prost_types::Duration { seconds, nanos });
        assert_eq!([shown(60, 0), shown(1, 5_000_000), shown(0, 7)], ["60s", "1.005s", "0.000000007s"]);
    }
}
