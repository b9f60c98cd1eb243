//! The macro `table!`, which declares a table of the settings file, and the parser of such tables.
//!
//! One declaration gives the struct with the parsed values, the code that reads it, and the description
//! ([`TableShape`]) for error messages, the JSON schema and the reference page.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ErrorCollector, shown};
use super::shape::{FieldShape, Presence, Shape, TableShape};
use super::suggestion::nearest;

/// A kind of value in the file. The types of fields in `table!` implement it; some are only markers for the kind, such
/// as `Name`, whose values are parsed to `String`.
pub(crate) trait Value {
    /// The type that the value is parsed to.
    type Parsed;

    /// The description of the kind, for error messages, the schema and the reference page.
    fn shape() -> Shape;

    /// Parses the value, or reports an error and returns `None`.
    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self::Parsed>;
}

/// A value and its position in the file, in bytes.
#[derive(Clone, Debug)]
pub(crate) struct Located<T> {
    pub(super) value: T,
    pub(super) span: Range<usize>,
}

/// Declares a table: a struct whose fields are the keys, and whose doc comments are the text of the reference page.
///
/// ```text
/// address_milli as "ip/32": Thousandths = "0.10" where ..=1000 => "a share is at most 1",
/// ```
///
/// This field has the key `ip/32`; without `as`, the key is the name of the field. [`Value::read`] of `Thousandths`
/// parses the value. A value outside of the range after `where` is reported with the message. The default after `=` is
/// one of these:
/// - `= "..."`: this value, in TOML.
/// - `= empty`: an empty list.
/// - `= required`: there is none, and an absent key is an error.
/// - `= (...)`: this expression, which depends on the machine. The doc comment of the key describes it.
/// - nothing: the field is an `Option`, which is `None` if the key is absent.
///
/// There are two forms:
/// - `struct` is a table that a function `resolve` converts to settings. Each field is [`Located`], with its position
///   in the file. A field without a default is `None` after an error, a required one too.
/// - `pub(crate) struct` is a table that is part of the settings as it is. If a required key is absent or has an error,
///   the whole table is absent. Only this form may have `= (...)`, a name for the reference page after the name of the
///   struct (as in `TollSource as "toll"`), fields that are not in the file (after `beside`; they start with
///   `Default::default()`), and a function that checks the table as a whole (after `check`).
///
/// The rules that begin with `@` are internal steps of the macro.
macro_rules! table {
    (@located $kind:ty) => { Option<$crate::settings::table::table!(@located $kind, "")> };
    (@located $kind:ty, required) => { $crate::settings::table::table!(@located $kind) };
    (@located $kind:ty, $default:tt) => {
        $crate::settings::table::Located<<$kind as $crate::settings::table::Value>::Parsed>
    };
    (@plain $kind:ty) => { Option<<$kind as $crate::settings::table::Value>::Parsed> };
    (@plain $kind:ty, $default:tt) => { <$kind as $crate::settings::table::Value>::Parsed };
    (@word $name:ident) => { stringify!($name) };
    (@word $name:ident, $word:literal) => { $word };
    (@presence) => { $crate::settings::shape::Presence::Optional };
    (@presence required) => { $crate::settings::shape::Presence::Required };
    (@presence ($default:expr)) => { $crate::settings::shape::Presence::Optional };
    (@presence empty) => { $crate::settings::shape::Presence::Empty };
    (@presence $default:literal) => { $crate::settings::shape::Presence::Default($default) };
    (@error) => { |_| None };
    (@error $range:expr => $message:expr) => { |value| (!($range).contains(value)).then_some($message) };
    (@read $entries:ident, $kind:ty, $key:expr, [$($default:tt)?], [$($range:expr => $message:expr)?]) => {
        $entries.read::<$kind>(
            $key,
            $crate::settings::table::table!(@presence $($default)?),
            $crate::settings::table::table!(@error $($range => $message)?),
        )
    };
    (@take $read:ident) => { $read };
    (@take $read:ident, required) => { $read };
    (@take $read:ident, $default:tt) => { $read.expect("the key has a default") };
    (@value $read:ident) => { $read.map(|read| read.value) };
    (@value $read:ident, required) => { $read?.value };
    (@value $read:ident, ($default:expr)) => { $read.map_or_else(|| $default, |read| read.value) };
    (@value $read:ident, $default:tt) => { $read.expect("the key has a default").value };
    (@shape $name:expr, [$($doc:literal)*], $([$($field_doc:literal)*] $key:expr, $kind:ty, [$($default:tt)?];)*) => {
        pub(in crate::settings) const SHAPE: $crate::settings::shape::TableShape =
            $crate::settings::shape::TableShape {
                name: $name,
                doc: &[$($doc),*],
                fields: &[$( $crate::settings::shape::FieldShape {
                    key: $key,
                    doc: &[$($field_doc),*],
                    shape: <$kind as $crate::settings::table::Value>::shape,
                    presence: $crate::settings::table::table!(@presence $($default)?),
                } ),*],
            };
    };
    (@kind $name:ident, $read:expr) => {
        impl $crate::settings::table::Value for $name {
            type Parsed = Self;

            fn shape() -> $crate::settings::shape::Shape {
                $crate::settings::shape::Shape::Table(&Self::SHAPE)
            }

            fn read(
                value: &toml::Spanned<toml::de::DeValue<'_>>,
                errors: &mut $crate::settings::error::ErrorCollector,
            ) -> Option<Self> {
                $crate::settings::table::Entries::of(value, &Self::SHAPE, errors).and_then($read)
            }
        }
    };
    (
        $(#[doc = $doc:literal])*
        struct $name:ident {
            $(
                $(#[doc = $field_doc:literal])*
                $field:ident $(as $key:literal)? : $kind:ty $(= $default:tt)? $(where $range:expr => $message:expr)?,
            )*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug)]
        pub(in crate::settings) struct $name {
            $(
                $(#[doc = $field_doc])*
                pub(in crate::settings) $field: $crate::settings::table::table!(@located $kind $(, $default)?),
            )*
            /// The keys that are present in the file, valid or not.
            #[allow(dead_code, reason = "few tables use it")]
            pub(in crate::settings) written: $crate::settings::table::Written,
        }

        impl $name {
            $crate::settings::table::table!(
                @shape stringify!($name), [$($doc)*],
                $([$($field_doc)*] $crate::settings::table::table!(@word $field $(, $key)?), $kind, [$($default)?];)*
            );

            pub(in crate::settings) fn read_entries(mut entries: $crate::settings::table::Entries<'_>) -> Self {
                $( let $field = $crate::settings::table::table!(
                    @read entries, $kind, $crate::settings::table::table!(@word $field $(, $key)?),
                    [$($default)?], [$($range => $message)?]
                ); )*
                Self {
                    $( $field: $crate::settings::table::table!(@take $field $(, $default)?), )*
                    written: entries.written,
                }
            }
        }

        $crate::settings::table::table!(@kind $name, |entries| Some(Self::read_entries(entries)));
    };
    (
        $(#[doc = $doc:literal])*
        pub(crate) struct $name:ident $(as $word:literal)? {
            $(
                $(#[doc = $field_doc:literal])*
                $field:ident $(as $key:literal)? : $kind:ty $(= $default:tt)? $(where $range:expr => $message:expr)?,
            )*
        }
        $(beside { $( $(#[doc = $extra_doc:literal])* $extra:ident : $extra_type:ty, )* })?
        $(check $check:path;)?
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct $name {
            $(
                $(#[doc = $field_doc])*
                pub(crate) $field: $crate::settings::table::table!(@plain $kind $(, $default)?),
            )*
            $( $( $(#[doc = $extra_doc])* pub(crate) $extra: $extra_type, )* )?
        }

        impl $name {
            $crate::settings::table::table!(
                @shape $crate::settings::table::table!(@word $name $(, $word)?), [$($doc)*],
                $([$($field_doc)*] $crate::settings::table::table!(@word $field $(, $key)?), $kind, [$($default)?];)*
            );
        }

        $crate::settings::table::table!(@kind $name, |mut entries| {
            // All keys are read, and their errors reported, before a `?` below returns because of a required key.
            $( let $field = $crate::settings::table::table!(
                @read entries, $kind, $crate::settings::table::table!(@word $field $(, $key)?),
                [$($default)?], [$($range => $message)?]
            ); )*
            let table = Self {
                $( $field: $crate::settings::table::table!(@value $field $(, $default)?), )*
                $( $( $extra: Default::default(), )* )?
            };
            $( $check(&table, &mut entries); )?
            Some(table)
        });
    };
}
pub(super) use table;

/// The keys that are present in a table of the file, valid or not. A misspelt key counts as the key that it resembles,
/// so that it is not also reported as missing.
#[derive(Clone, Debug, Default)]
pub(super) struct Written(Vec<&'static str>);

impl Written {
    pub(super) fn of(table: &DeTable<'_>, shape: &TableShape) -> Self {
        Self(table.keys().filter_map(|key| meant(key.get_ref(), shape)).collect())
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.0.contains(&key)
    }
}

/// The unparsed keys and values of one table.
pub(super) struct Entries<'read> {
    table: &'read DeTable<'read>,
    /// The position of the table.
    pub(super) span: Range<usize>,
    pub(super) written: Written,
    pub(super) errors: &'read mut ErrorCollector,
}

impl<'read> Entries<'read> {
    /// The entries of `table`. Reports unknown keys.
    pub(super) fn new(
        table: &'read DeTable<'read>,
        span: Range<usize>,
        shape: &TableShape,
        errors: &'read mut ErrorCollector,
    ) -> Self {
        let mut entries = Self { table, span, written: Written::of(table, shape), errors };
        entries.refuse_unknown(shape);
        entries
    }

    /// The entries of `value`. Reports an error if it is not a table.
    pub(super) fn of(
        value: &'read Spanned<DeValue<'read>>,
        shape: &'static TableShape,
        errors: &'read mut ErrorCollector,
    ) -> Option<Self> {
        match value.get_ref() {
            DeValue::Table(table) => Some(Self::new(table, value.span(), shape, errors)),
            _ => refuse(value, &Shape::Table(shape), errors),
        }
    }

    fn refuse_unknown(&mut self, shape: &TableShape) {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if let Some((_, instead)) = REMOVED.iter().find(|(removed, _)| *removed == name) {
                self.errors.report(&key.span(), format!("{} was removed: {instead}", shown(name)));
                continue;
            }
            let tables: Vec<_> = shape.tables_with(name).iter().map(|table| format!("`{table}`")).collect();
            let hint = match meant(name, shape) {
                Some(known) if known == name => continue,
                Some(meant) => format!(", did you mean `{meant}`?"),
                None if tables.is_empty() => format!("; known keys are {}", keys(shape.fields)),
                None => format!(": it belongs inside {}", tables.join(" or ")),
            };
            self.errors.report(&key.span(), format!("unknown key {}{hint}", shown(name)));
        }
    }

    /// The value of `key`, or the default if the key is absent or its value was reported as an error. Reports a
    /// required key that is absent, and the message of `error_of` if the value is outside of the accepted range.
    pub(super) fn read<K: Value>(
        &mut self,
        key: &str,
        presence: Presence,
        error_of: fn(&K::Parsed) -> Option<&'static str>,
    ) -> Option<Located<K::Parsed>> {
        if presence == Presence::Required && !self.written.has(key) {
            let message = format!("missing key `{key}`: write `{key} = {}`", K::shape().example());
            self.errors.missing(&self.span, message);
        }
        let default = match presence {
            Presence::Required | Presence::Optional => None,
            Presence::Empty => Some("[]"),
            Presence::Default(text) => Some(text),
        };
        let Some(read) = self.table.get(key).and_then(|value| Located::<K>::read(value, self.errors)) else {
            return default.map(|text| Located { value: parse_default::<K>(text), span: self.span.clone() });
        };
        if let Some(message) = error_of(&read.value) {
            self.errors.report(&read.span, message);
        }
        Some(read)
    }

    /// The value of `key`, parsed as another kind than it was declared with. Its errors are not reported again.
    pub(super) fn read_again<K: Value>(&self, key: &str) -> Option<K::Parsed> {
        K::read(self.value(key)?, &mut ErrorCollector::default())
    }

    /// The unparsed value of `key`.
    pub(super) fn value(&self, key: &str) -> Option<&'read Spanned<DeValue<'read>>> {
        self.table.get(key)
    }

    /// The position of the value of `key`, or of the table if the key is absent.
    pub(super) fn span_of(&self, key: &str) -> Range<usize> {
        self.value(key).map_or(self.span.clone(), Spanned::span)
    }

    /// Reports an invalid value of `key`.
    pub(super) fn report(&mut self, key: &str, message: impl Into<String>) {
        self.errors.report(&self.span_of(key), message);
    }

    /// Reports that `key` needs another key, which is absent.
    pub(super) fn missing(&mut self, key: &str, message: impl Into<String>) {
        self.errors.missing(&self.span_of(key), message);
    }
}

/// Parses the default of a key.
fn parse_default<K: Value>(text: &str) -> K::Parsed {
    let value = DeValue::parse(text).expect("a test parses the defaults of all tables");
    K::read(&value, &mut ErrorCollector::default()).expect("a test parses the defaults of all tables")
}

/// The table `K` with the defaults of all its keys.
pub(super) fn defaults<K: Value>() -> K::Parsed {
    parse_default::<K>("{}")
}

/// Keys that were removed, and their replacements.
const REMOVED: [(&str, &str); 1] = [(
    "per_key",
    "requests are refused by estimated wait (`max`) instead of by count; `total` and `memory` bound all waiting \
     requests",
)];

/// The key of the table that is equal to `name`, or that `name` resembles and probably misspells.
fn meant(name: &str, shape: &TableShape) -> Option<&'static str> {
    let known = shape.fields.iter().map(|field| field.key);
    let is_elsewhere = || REMOVED.iter().any(|(removed, _)| *removed == name) || !shape.tables_with(name).is_empty();
    known.clone().find(|key| *key == name).or_else(|| nearest(name, known).filter(|_| !is_elsewhere()))
}

/// A list of all keys, for error messages.
fn keys(fields: &[FieldShape]) -> String {
    fields.iter().map(|field| format!("`{}`", field.key)).collect::<Vec<_>>().join(", ")
}

/// Reports a value of the wrong type. Always returns `None`.
pub(super) fn refuse<T>(value: &Spanned<DeValue<'_>>, shape: &Shape, errors: &mut ErrorCollector) -> Option<T> {
    let found = match value.get_ref() {
        DeValue::String(text) => format!("the text {}", shown(text)),
        DeValue::Integer(number) => format!("the number {}", shown(&number.to_string())),
        DeValue::Float(number) => format!("the number {}", shown(number.as_str())),
        DeValue::Boolean(flag) => format!("`{flag}`"),
        DeValue::Datetime(_) => "a date".to_string(),
        DeValue::Array(_) => "a list".to_string(),
        DeValue::Table(_) => "a table".to_string(),
    };
    errors.refuse(&value.span(), format!("expected {}, found {found}", shape.words()))
}

impl<K: Value> Value for Located<K> {
    type Parsed = Located<K::Parsed>;

    fn shape() -> Shape {
        K::shape()
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self::Parsed> {
        K::read(value, errors).map(|read| Located { value: read, span: value.span() })
    }
}

impl<K: Value> Value for Vec<K> {
    type Parsed = Vec<K::Parsed>;

    fn shape() -> Shape {
        Shape::List(Box::new(K::shape()))
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self::Parsed> {
        match (value.get_ref(), K::shape()) {
            (DeValue::Array(array), _) => Some(array.iter().filter_map(|value| K::read(value, errors)).collect()),
            (DeValue::Table(_), Shape::Table(_)) => {
                let message = "there can be several of these: write the name in two brackets, as in `[[rule]]`";
                errors.refuse(&value.span(), message)
            }
            _ => refuse(value, &Self::shape(), errors),
        }
    }
}
