//! Finds a value in a JSON body by its JSON pointer (RFC 6901). The gate uses it for rules whose key is such a value.
//!
//! The body is untrusted, and the backend reads it too. If the two could read different values, a client could show
//! one to the gate and another to the backend. All requests whose value is ambiguous therefore share one key,
//! [`AMBIGUOUS`]. These are bodies that are not valid JSON, and objects with the wanted name twice or in another
//! case: Go's `encoding/json` and ASP.NET match names without regard to case. Arrays and objects in place of the
//! value have that key too: JavaScript converts `["ann"]` to `ann`, and an array of calls is a batch, as in JSON-RPC
//! and GraphQL.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The key of all requests whose value is ambiguous or whose body cannot be parsed.
pub use tollgate_core::form::AMBIGUOUS;

/// The value at `pointer` as text; `None` if there is no value or it is null. Strings are decoded, and numbers are
/// converted to one form: `1`, `1.0` and `1e0` are `1`. The result is [`AMBIGUOUS`] if the body is invalid, if the
/// value is an object or an array, if the pointer has a name where the body has an array, or if an object on the way
/// has the wanted name twice or in another case.
pub fn find(body: &[u8], pointer: &str) -> Option<Vec<u8>> {
    let segments: Vec<String> =
        pointer.split('/').skip(1).map(|segment| segment.replace("~1", "/").replace("~0", "~")).collect();
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let mut found = None;
    let seed = Seed { segments: &segments, found: &mut found };
    // serde_json limits the depth to 128.
    let is_valid = seed.deserialize(&mut deserializer).and_then(|()| deserializer.end()).is_ok();
    if is_valid { found } else { Some(AMBIGUOUS.to_vec()) }
}

/// Visits one JSON value. All of the body is visited, so that it is validated.
struct Seed<'a> {
    /// The rest of the pointer, relative to this value; empty if this is the wanted value.
    segments: &'a [String],
    /// The wanted value, if it has been found, or [`AMBIGUOUS`].
    found: &'a mut Option<Vec<u8>>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Seed<'_> {
    /// Records a scalar if it is the wanted value.
    fn value<E>(self, value: impl ToString) -> Result<(), E> {
        if self.segments.is_empty() {
            *self.found = Some(if self.found.is_none() { value.to_string().into_bytes() } else { AMBIGUOUS.to_vec() });
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.value(value)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.value(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.value(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.value(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.value(value)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let wanted = self.segments.split_first();
        if wanted.is_none() {
            *self.found = Some(AMBIGUOUS.to_vec());
        }
        let mut is_seen = false;
        while let Some(name) = map.next_key::<String>()? {
            match wanted {
                Some((first, rest)) if *first == name => {
                    if is_seen {
                        *self.found = Some(AMBIGUOUS.to_vec());
                    }
                    is_seen = true;
                    map.next_value_seed(Seed { segments: rest, found: self.found })?;
                }
                _ => {
                    if wanted.is_some_and(|(first, _)| is_equal_when_folded(first, &name)) {
                        *self.found = Some(AMBIGUOUS.to_vec());
                    }
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let wanted = self.segments.split_first().and_then(|(first, rest)| Some((first.parse::<usize>().ok()?, rest)));
        if wanted.is_none() {
            *self.found = Some(AMBIGUOUS.to_vec());
        }
        for index in 0.. {
            let more = match wanted {
                Some((at, rest)) if at == index => {
                    seq.next_element_seed(Seed { segments: rest, found: self.found })?.is_some()
                }
                _ => seq.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                break;
            }
        }
        Ok(())
    }
}

/// Whether two names are equal without regard to case. Parsers fold in different ways, so this equates more names than
/// any of them: U+017F is an `s`, U+212A a `k`, and `\u{df}` equals `ss`.
fn is_equal_when_folded(one: &str, other: &str) -> bool {
    folded(one).eq(folded(other))
}

fn folded(name: &str) -> impl Iterator<Item = char> {
    name.chars().flat_map(char::to_lowercase).flat_map(char::to_uppercase).flat_map(char::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(body: &str, pointer: &str, expect: Option<&str>) {
        let found = find(body.as_bytes(), pointer);
        assert_eq!(
            found.as_deref().map(|value| String::from_utf8_lossy(value).into_owned()).as_deref(),
            expect,
            "{body}"
        );
    }

    #[test]
    fn a_pointer_finds_strings_numbers_and_booleans() {
        check(r#"{"user": {"id": "u1"}}"#, "/user/id", Some("u1"));
        check(r#"{"a": [1, {"b": -2.5}]}"#, "/a/1/b", Some("-2.5"));
        check(r#"{"a/b": {"m~n": true}}"#, "/a~1b/m~0n", Some("true"));
        check(r#"{"id": "\u0041\n"}"#, "/id", Some("A\n"));
        check(r#""whole""#, "", Some("whole"));
        check("18446744073709551615", "", Some("18446744073709551615"));
        for absent in ["{}", r#"{"id": null}"#, r#"{"i": 1}"#, "1", r#""id""#] {
            check(absent, "/id", None);
        }
        check(r#"{"ID": 1, "user": {"id": 2}}"#, "/user/id", Some("2"));
    }

    #[test]
    fn an_array_or_an_object_has_the_shared_key() {
        for body in
            [r#"{"id": ["ann"]}"#, r#"{"id": {"$ne": ""}}"#, r#"{"id": []}"#, r#"[{"id": "ann"}, {"id": "bob"}]"#]
        {
            check(body, "/id", Some("\0?"));
        }
        check(r#"{"user": [{"id": "ann"}]}"#, "/user/id", Some("\0?"));
        check(r#"[["ann"], {"id": [1]}]"#, "/1/id", Some("\0?"));
        check(r#"[["ann"], {"id": 1}]"#, "/1/id", Some("1"));
    }

    /// Parsers such as Go's `encoding/json` accept a name in any case, and take the last one.
    #[test]
    fn a_name_in_another_case_has_the_shared_key() {
        for body in [
            r#"{"User": {"ID": "x"}}"#,
            r#"{"user": {"ID": "x"}}"#,
            r#"{"user": {"id": "decoy"}, "USER": {"id": "real"}}"#,
            r#"{"USER": {"id": "real"}, "user": {"id": "decoy"}}"#,
            r#"{"user": {"id": "decoy", "iD": null}}"#,
            r#"{"u\u017fer": {"id": "long s"}}"#,
        ] {
            check(body, "/user/id", Some("\0?"));
        }
        check("{\"to\u{212a}en\": 1}", "/token", Some("\0?"));
        for (pointer, name) in [("/\u{e4}", "\u{c4}"), ("/\u{3c3}", "\u{3c2}"), ("/\u{df}", "\u{1e9e}")] {
            check(&format!("{{\"{name}\": 1}}"), pointer, Some("\0?"));
        }
    }

    #[test]
    fn a_body_that_can_be_read_in_two_ways_has_the_shared_key() {
        for body in [
            r#"{"id": 1, "id": 2}"#,
            r#"{"id": 1, "id": 1}"#,
            r#"{"id": {}, "id": 1}"#,
            r#"{"i\u0064": 1, "id": 2}"#,
            r#"{"id": 1"#,
            r#"{"id": 1} {"id": 2}"#,
            r#"{'id': 1}"#,
            r#"{"id": 1,}"#,
            "",
            "\u{feff}{\"id\": 1}",
            &"[".repeat(100_000),
        ] {
            check(body, "/id", Some("\0?"));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_accepted(body in prop::collection::vec(any::<u8>(), 0..200), pointer in "(/[a-z0-9~]{0,3}){0,4}") {
            let _ = find(&body, &pointer);
        }
    }
}
