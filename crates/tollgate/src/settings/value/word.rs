//! Values of the settings file that are words, names or patterns (and HTTP status codes), and the forms "one value or a
//! list" and "a table with arbitrary keys".

use std::marker::PhantomData;
use std::path::PathBuf;

use tollgate_core::class::{Class, ClassError, PLAIN_CLASSES};
use tollgate_core::network::Network;
use toml::Spanned;
use toml::de::DeValue;

use super::super::error::{ErrorCollector, shown};
use super::super::shape::Shape;
use super::super::suggestion::did_you_mean;
use super::super::table::{Value, refuse};
use super::{read_text, text_value};

/// A type, usually an enum, whose values are each written as one word in the file.
pub(crate) trait Choice: Copy + 'static {
    /// The words and their values.
    const WORDS: &'static [(&'static str, Self)];
}

impl<T: Choice> Value for T {
    type Parsed = Self;

    fn shape() -> Shape {
        Shape::Choice(T::WORDS.iter().map(|(word, _)| *word).collect())
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self> {
        read_text(value, errors, &Self::shape(), |text| {
            let choice = T::WORDS.iter().find(|(word, _)| *word == text).map(|(_, choice)| *choice);
            choice.ok_or_else(|| {
                let hint = did_you_mean(text, T::WORDS.iter().map(|(word, _)| *word));
                format!("unknown word {}, expected {}{hint}", shown(text), Self::shape().words())
            })
        })
    }
}

/// A name: not empty, at most [`NAME_MAX`] bytes, without control characters.
pub(crate) enum Name {}

const NAME_MAX: usize = 128;

impl Name {
    pub(in super::super) fn parse(text: &str) -> Result<String, String> {
        match text {
            "" => Err("a name must not be empty".to_string()),
            text if text.len() > NAME_MAX => {
                Err(format!("a name has at most {NAME_MAX} bytes, this has {}", text.len()))
            }
            text if text.chars().any(char::is_control) => {
                Err(format!("a name must not contain control characters, as {} does", shown(text)))
            }
            text => Ok(text.to_string()),
        }
    }
}

text_value!(Name => String, "a name", "api", Self::parse);

impl Value for PathBuf {
    type Parsed = Self;

    fn shape() -> Shape {
        Shape::Text { what: "a path", example: "/path/to/file" }
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self> {
        let path = read_text(value, errors, &Self::shape(), |text| match text {
            "" => Err("a path must not be empty".to_string()),
            text if text.contains('\0') => Err("a path must not contain NUL".to_string()),
            text => Ok(Self::from(text)),
        });
        path.map(|path| errors.resolved(&path))
    }
}

text_value!(Class, "a class", "ip/32", |text| {
    Self::parse(text).map_err(|no_class| match no_class {
        ClassError::Unknown(part) => unknown_class(&part),
        ClassError::Prefix(part) => format!(
            "{} is not a network: write `ip/32`, `ip/24`, `ip/16`, or prefix lengths for IPv4 and IPv6 as in \
                 `ip/20,52`",
            shown(&part)
        ),
        ClassError::Nameless(part) if part.starts_with("json:") => {
            format!("{} needs a JSON pointer after the colon, such as `json:/user/id`", shown(&part))
        }
        ClassError::Nameless(part) => format!("{} needs a name after the colon", shown(&part)),
    })
});

fn unknown_class(part: &str) -> String {
    const NAMED: [&str; 5] = ["header:NAME", "cookie:NAME", "query:NAME", "json:/POINTER", "descriptor:NAME"];
    let kind = part.split_once(':').map_or(part, |(kind, _)| kind);
    // `ip` is too short to resemble `ip/32`, but means it.
    let plain = did_you_mean(if part == "ip" { "ip/32" } else { part }, PLAIN_CLASSES);
    let hint = if plain.is_empty() { did_you_mean(&format!("{kind}:NAME"), NAMED) } else { plain };
    let hint = match hint.as_str() {
        "" => format!("; classes are {}, {}, and several joined by `+`", PLAIN_CLASSES.join(", "), NAMED.join(", ")),
        _ => hint,
    };
    format!("unknown class {}{hint}", shown(part))
}

text_value!(Network, "an address or network", "10.0.0.0/8", |text| {
    let message = || format!("{} is not an address or network: write one such as \"10.0.0.0/8\"", shown(text));
    Self::parse(text).ok_or_else(message)
});

/// A pattern in which `*` matches any text. It is not empty.
pub(crate) enum Glob {}

impl Glob {
    pub(in super::super) fn parse(text: &str) -> Result<String, String> {
        match text {
            "" => Err("an empty pattern matches nothing: write `*` for anything, or leave the key out".to_string()),
            text => Ok(text.to_string()),
        }
    }
}

text_value!(Glob => String, "a pattern", "/api/*", Self::parse);

/// A method, in upper case.
pub(crate) enum Method {}

text_value!(Method => String, "a method", "POST", |text| {
    token(text, "a method", "POST").map(str::to_ascii_uppercase)
});

/// The name of a header, in lower case.
pub(crate) enum HeaderName {}

text_value!(HeaderName => String, "the name of a header", "x-api-key", |text| {
    token(text, "a header name", "x-api-key").map(str::to_ascii_lowercase)
});

/// The name of a cookie, case-sensitive.
pub(crate) enum CookieName {}

text_value!(CookieName => String, "the name of a cookie", "session", |text| {
    token(text, "a cookie name", "session").map(str::to_owned)
});

/// The text, if it is a token of HTTP.
fn token<'text>(text: &'text str, what: &str, example: &str) -> Result<&'text str, String> {
    let is_in_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_in_token) {
        return Ok(text);
    }
    Err(format!("{} is not {what}: write one such as \"{example}\"", shown(text)))
}

/// An HTTP status code from `MIN` to 599.
pub(crate) enum Status<const MIN: u16> {}

/// The status of a refusal, from 400 to 599.
pub(crate) type StatusCode = Status<400>;
/// The status of a final response, from 200 to 599.
pub(crate) type FinalStatus = Status<200>;

impl<const MIN: u16> Value for Status<MIN> {
    type Parsed = u16;

    fn shape() -> Shape {
        Shape::Integer { min: MIN.into(), max: 599 }
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<u16> {
        let number = value.get_ref().as_integer().and_then(|number| number.as_str().parse().ok());
        let status = number.filter(|status| (MIN..=599).contains(status));
        status.or_else(|| refuse(value, &Self::shape(), errors))
    }
}

/// One value, or a list of several.
pub(crate) struct OneOrMany<K>(PhantomData<K>);

impl<K: Value> Value for OneOrMany<K> {
    type Parsed = Vec<K::Parsed>;

    fn shape() -> Shape {
        Shape::Either(vec![K::shape(), Vec::<K>::shape()])
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Vec<K::Parsed>> {
        match value.get_ref() {
            DeValue::Array(_) => Vec::<K>::read(value, errors),
            _ => K::read(value, errors).map(|one| vec![one]),
        }
    }
}

/// A table with arbitrary keys, parsed to a list of keys and values.
pub(crate) struct Map<K, V>(PhantomData<(K, V)>);

impl<K: Value, V: Value> Value for Map<K, V> {
    type Parsed = Vec<(K::Parsed, V::Parsed)>;

    fn shape() -> Shape {
        Shape::Map { keys: Box::new(K::shape()), values: Box::new(V::shape()) }
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self::Parsed> {
        let DeValue::Table(table) = value.get_ref() else { return refuse(value, &Self::shape(), errors) };
        let read = table.iter().filter_map(|(key, value)| {
            let name = Spanned::new(key.span(), DeValue::String(key.get_ref().clone()));
            let (name_read, value_read) = (K::read(&name, errors), V::read(value, errors));
            name_read.zip(value_read)
        });
        Some(read.collect())
    }
}
