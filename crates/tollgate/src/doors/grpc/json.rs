//! The rate limit service as JSON over HTTP, in the JSON form of its messages (proto3), as envoyproxy/ratelimit serves
//! it at `/json`: names in either spelling, `null` for a default, numbers also as text, enumerations by name.

use serde::{Deserialize, Deserializer, Serializer, de};

use super::messages::{OVER_LIMIT, RateLimitRequest, RateLimitResponse};
use super::unit;

/// Parses a call.
pub(crate) fn request(body: &[u8]) -> Result<RateLimitRequest, String> {
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err("not a JSON object".to_owned());
    }
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

/// The text of an answer, and whether the request is over the limit.
pub(crate) fn response(response: &RateLimitResponse) -> (Vec<u8>, bool) {
    let text = serde_json::to_vec(response).expect("every field has a JSON form");
    (text, response.overall_code == OVER_LIMIT)
}

/// Reads a value; `null` is the default.
pub(super) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(input: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(input)?.unwrap_or_default())
}

/// A number or an enumeration, as a number or as text.
#[derive(Deserialize)]
#[serde(untagged, expecting = "not a whole number or a unit such as \"MINUTE\"")]
enum NumberOrText {
    Number(u64),
    Text(String),
}

/// Reads a whole number.
pub(super) fn number<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u64>, D::Error> {
    Ok(match Option::deserialize(input)? {
        None => None,
        Some(NumberOrText::Number(number)) => Some(number),
        Some(NumberOrText::Text(text)) => Some(text.parse().map_err(|_| de::Error::custom("not a whole number"))?),
    })
}

/// Reads a whole number of 32 bits.
pub(super) fn small_number<'de, D: Deserializer<'de>>(input: D) -> Result<u32, D::Error> {
    let large = number(input)?.unwrap_or_default();
    u32::try_from(large).map_err(|_| de::Error::custom(format!("{large} is larger than {}", u32::MAX)))
}

/// Reads a unit.
pub(super) fn unit<'de, D: Deserializer<'de>>(input: D) -> Result<i32, D::Error> {
    let unit = match Option::deserialize(input)? {
        None => Some(0),
        Some(NumberOrText::Number(number)) => i32::try_from(number).ok(),
        Some(NumberOrText::Text(name)) => unit::of_json_name(&name),
    };
    unit.ok_or_else(|| de::Error::custom("not a unit"))
}

/// Writes a `RateLimitResponse.Code`.
pub(super) fn write_code<S: Serializer>(code: &i32, output: S) -> Result<S::Ok, S::Error> {
    output.serialize_str(if *code == OVER_LIMIT { "OVER_LIMIT" } else { "OK" })
}

/// Writes a unit.
pub(super) fn write_unit<S: Serializer>(number: &i32, output: S) -> Result<S::Ok, S::Error> {
    output.serialize_str(unit::json_name(*number).unwrap_or("UNKNOWN"))
}

/// Writes a duration, such as `1.005s`.
pub(super) fn write_duration<S: Serializer>(
    duration: &Option<prost_types::Duration>,
    output: S,
) -> Result<S::Ok, S::Error> {
    output.collect_str(&duration.unwrap_or_default())
}

/// Whether a number has its default, which is left out.
pub(super) fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

#[cfg(test)]
mod tests {
    use super::super::messages::{DescriptorStatus, RateLimit, RateLimitOverride};
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
    fn an_answer_leaves_defaults_out() {
        let reset = Some(prost_types::Duration { seconds: 1, nanos: 5_000_000 });
        let limit = RateLimit { requests_per_unit: 4, unit: 3, name: String::new() };
        let limited =
            DescriptorStatus { code: 2, current_limit: Some(limit), limit_remaining: 0, duration_until_reset: reset };
        let statuses = vec![limited, DescriptorStatus { code: 1, ..DescriptorStatus::default() }];
        let (text, is_over) =
            response(&RateLimitResponse { overall_code: 2, statuses, ..RateLimitResponse::default() });
        let expected =
            r#"{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","currentLimit":{"requestsPerUnit":4,"#;
        let expected = format!("{expected}{}", r#""unit":"HOUR"},"durationUntilReset":"1.005s"},{"code":"OK"}]}"#);
        assert_eq!((String::from_utf8(text).unwrap(), is_over), (expected, true));
    }
}
