//! Words, names and patterns, and lists and maps of values.

use std::path::PathBuf;

use tollgate_core::class::{Class, ClassError, PLAIN_CLASSES};
use tollgate_core::network::Network;
use toml::Spanned;
use toml::de::DeValue;

use super::super::error::{ErrorCollector, shown};
use super::super::shape::Shape;
use super::super::suggestion::did_you_mean;
use super::super::table::{Located, Value, refuse};
use super::{read_text, text_value};

/// One of a few words.
pub(in super::super) trait Choice: Copy + 'static {
    /// The words and their values.
    const WORDS: &'static [(&'static str, Self)];
}

impl<T: Choice> Value for T {
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Name(pub(in super::super) String);

const NAME_MAX: usize = 128;

text_value!(Name, "a name", "api", |text| match text {
    "" => Err("a name must not be empty".to_string()),
    text if text.len() > NAME_MAX => {
        Err(format!("a name has at most {NAME_MAX} bytes, this has {}", text.len()))
    }
    text if text.chars().any(char::is_control) => {
        Err(format!("a name must not contain control characters, as {} does", shown(text)))
    }
    text => Ok(Self(text.to_string())),
});

impl Value for PathBuf {
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
        ClassError::Nameless(part) => format!("{0} needs a name after the colon", shown(&part)),
    })
});

fn unknown_class(part: &str) -> String {
    const NAMED: [&str; 3] = ["header:NAME", "cookie:NAME", "descriptor:NAME"];
    let kind = part.split_once(':').map_or(part, |(kind, _)| kind);
    let plain = did_you_mean(part, PLAIN_CLASSES);
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

/// A pattern in which `*` matches any text.
#[derive(Clone, Debug)]
pub(in super::super) struct Glob(pub(in super::super) String);

text_value!(Glob, "a pattern", "/api/*", |text| match text {
    "" => Err("an empty pattern matches nothing: write `*` for anything, or leave the key out".to_string()),
    text => Ok(Self(text.to_string())),
});

/// A method, in upper case.
#[derive(Clone, Debug)]
pub(in super::super) struct Method(pub(in super::super) String);

text_value!(Method, "a method", "POST", |text| {
    if is_token(text) {
        Ok(Self(text.to_ascii_uppercase()))
    } else {
        Err(format!("{} is not a method: write one such as \"POST\"", shown(text)))
    }
});

/// The name of a header, in lower case.
#[derive(Clone, Debug)]
pub(in super::super) struct HeaderName(pub(in super::super) String);

impl HeaderName {
    fn parse(text: &str) -> Result<Self, String> {
        if is_token(text) {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err(format!("{} is not a header name: write one such as \"x-api-key\"", shown(text)))
        }
    }
}

text_value!(HeaderName, "the name of a header", "x-api-key", Self::parse);

/// The name of a cookie, case-sensitive.
#[derive(Clone, Debug)]
pub(in super::super) struct CookieName(pub(in super::super) String);

text_value!(CookieName, "the name of a cookie", "session", |text| {
    if is_token(text) {
        Ok(Self(text.to_string()))
    } else {
        Err(format!("{} is not a cookie name: write one such as \"session\"", shown(text)))
    }
});

/// Whether the text is a token of HTTP, as required for methods and header names.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// A status from `MIN` to 599.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Status<const MIN: u16>(pub(in super::super) u16);

/// The status of a refusal.
pub(in super::super) type StatusCode = Status<400>;
/// The status of a final response.
pub(in super::super) type FinalStatus = Status<200>;

impl<const MIN: u16> Value for Status<MIN> {
    fn shape() -> Shape {
        Shape::Integer { min: MIN.into(), max: 599 }
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self> {
        let number = value.get_ref().as_integer().and_then(|number| number.as_str().parse().ok());
        match number.filter(|status| (MIN..=599).contains(status)) {
            Some(status) => Some(Self(status)),
            None => refuse(value, &Self::shape(), errors),
        }
    }
}

/// One value, or a list of several.
#[derive(Clone, Debug)]
pub(in super::super) struct OneOrMany<T>(pub(in super::super) Vec<Located<T>>);

impl<T: Value> Value for OneOrMany<T> {
    fn shape() -> Shape {
        Shape::Either(vec![T::shape(), Shape::List(Box::new(T::shape()))])
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self> {
        if !matches!(value.get_ref(), DeValue::Array(_)) {
            return T::read(value, errors).map(|one| Self(vec![Located { value: one, span: value.span() }]));
        }
        Vec::read(value, errors).map(Self)
    }
}

impl<T> OneOrMany<T> {
    /// Whether it is an empty list.
    pub(in super::super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The values without their positions.
    pub(in super::super) fn values(self) -> impl Iterator<Item = T> {
        self.0.into_iter().map(|located| located.value)
    }
}

/// A table with arbitrary keys.
#[derive(Clone, Debug)]
pub(in super::super) struct Map<K, V>(pub(in super::super) Vec<(K, Located<V>)>);

impl<K: Value, V: Value> Value for Map<K, V> {
    fn shape() -> Shape {
        Shape::Map { keys: Box::new(K::shape()), values: Box::new(V::shape()) }
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self> {
        let DeValue::Table(table) = value.get_ref() else { return refuse(value, &Self::shape(), errors) };
        let read = table.iter().filter_map(|(key, value)| {
            let name = Spanned::new(key.span(), DeValue::String(key.get_ref().clone()));
            let name_read = K::read(&name, errors);
            let value_read = V::read(value, errors);
            Some((name_read?, Located { value: value_read?, span: value.span() }))
        });
        Some(Self(read.collect()))
    }
}
