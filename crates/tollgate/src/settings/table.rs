//! The macro that declares a table of the settings file, and the parser of such tables.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ErrorCollector, shown};
use super::shape::{FieldShape, Shape, TableShape};
use super::suggestion::nearest;

/// A type that a value of the file is parsed to.
pub(super) trait Value: Sized {
    /// The description of the type, for error messages, the schema and the reference page.
    fn shape() -> Shape;

    /// Parses the value, or reports an error and returns `None`.
    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self>;
}

/// A value and its position in the file, in bytes.
#[derive(Clone, Debug)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) span: Range<usize>,
}

/// Declares a table: a struct whose fields are the keys and whose doc comments are the reference page. `= required`
/// makes an absent key an error; `= "..."` is the default, in TOML. A key that is not a Rust identifier follows the
/// name of the field, as in `address as "ip/32"`.
macro_rules! table {
    (@held $type:ty) => { Option<$crate::settings::table::Located<$type>> };
    (@held $type:ty, required) => { Option<$crate::settings::table::Located<$type>> };
    (@held $type:ty, $default:literal) => { $crate::settings::table::Located<$type> };
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident, $key:literal) => { $key };
    (@presence) => { $crate::settings::shape::Presence::Optional };
    (@presence required) => { $crate::settings::shape::Presence::Required };
    (@presence $default:literal) => { $crate::settings::shape::Presence::Default($default) };
    (@read $entries:ident, $key:expr) => { $entries.optional($key) };
    (@read $entries:ident, $key:expr, required) => { $entries.required($key) };
    (@read $entries:ident, $key:expr, $default:literal) => { $entries.or_default($key, $default) };
    (
        $(#[doc = $doc:literal])*
        struct $name:ident {
            $( $(#[doc = $field_doc:literal])* $field:ident $(as $key:literal)? : $type:ty $(= $default:tt)?, )*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug)]
        pub(in crate::settings) struct $name {
            $(
                $(#[doc = $field_doc])*
                pub(in crate::settings) $field: $crate::settings::table::table!(@held $type $(, $default)?),
            )*
            /// The keys that are present in the file, valid or not.
            #[allow(dead_code, reason = "few tables use it")]
            pub(in crate::settings) written: $crate::settings::table::Written,
        }

        impl $name {
            pub(in crate::settings) const SHAPE: $crate::settings::shape::TableShape =
                $crate::settings::shape::TableShape {
                    name: stringify!($name),
                    doc: &[$($doc),*],
                    fields: &[$( $crate::settings::shape::FieldShape {
                        key: $crate::settings::table::table!(@key $field $(, $key)?),
                        doc: &[$($field_doc),*],
                        shape: <$type as $crate::settings::table::Value>::shape,
                        presence: $crate::settings::table::table!(@presence $($default)?),
                    } ),*],
                };

            pub(in crate::settings) fn read_entries(mut entries: $crate::settings::table::Entries<'_>) -> Self {
                entries.refuse_unknown(&Self::SHAPE);
                Self {
                    $( $field: $crate::settings::table::table!(
                        @read entries, $crate::settings::table::table!(@key $field $(, $key)?) $(, $default)?
                    ), )*
                    written: entries.written,
                }
            }
        }

        impl $crate::settings::table::Value for $name {
            fn shape() -> $crate::settings::shape::Shape {
                $crate::settings::shape::Shape::Table(&Self::SHAPE)
            }

            fn read(
                value: &toml::Spanned<toml::de::DeValue<'_>>,
                errors: &mut $crate::settings::error::ErrorCollector,
            ) -> Option<Self> {
                $crate::settings::table::Entries::of(value, &Self::SHAPE, errors).map(Self::read_entries)
            }
        }
    };
}
pub(super) use table;

/// The keys that are present in a table of the file, valid or not. A misspelt key counts as the key that it resembles,
/// so that it is not also reported as missing.
#[derive(Clone, Debug, Default)]
pub(super) struct Written(Vec<&'static str>);

impl Written {
    pub(super) fn has(&self, key: &str) -> bool {
        self.0.contains(&key)
    }
}

/// The unparsed keys and values of one table.
pub(super) struct Entries<'read> {
    table: &'read DeTable<'read>,
    span: Range<usize>,
    pub(super) written: Written,
    errors: &'read mut ErrorCollector,
}

impl<'read> Entries<'read> {
    pub(super) fn new(table: &'read DeTable<'read>, span: Range<usize>, errors: &'read mut ErrorCollector) -> Self {
        Self { table, span, written: Written::default(), errors }
    }

    /// The entries of `value`. Reports an error if it is not a table.
    pub(super) fn of(
        value: &'read Spanned<DeValue<'read>>,
        shape: &'static TableShape,
        errors: &'read mut ErrorCollector,
    ) -> Option<Self> {
        match value.get_ref() {
            DeValue::Table(table) => Some(Self::new(table, value.span(), errors)),
            _ => refuse(value, &Shape::Table(shape), errors),
        }
    }

    /// Reports unknown keys.
    pub(super) fn refuse_unknown(&mut self, shape: &TableShape) {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if let Some(known) = shape.fields.iter().find(|field| field.key == name) {
                self.written.0.push(known.key);
                continue;
            }
            if let Some((_, instead)) = REMOVED.iter().find(|(removed, _)| *removed == name) {
                self.errors.report(&key.span(), format!("{} was removed: {instead}", shown(name)));
                continue;
            }
            let tables: Vec<_> = shape.tables_with(name).iter().map(|table| format!("`{table}`")).collect();
            let meant = nearest(name, shape.fields.iter().map(|field| field.key)).filter(|_| tables.is_empty());
            let hint = match meant {
                Some(meant) => format!(", did you mean `{meant}`?"),
                None if tables.is_empty() => format!("; known keys are {}", keys(shape.fields)),
                None => format!(": it belongs inside {}", tables.join(" or ")),
            };
            self.written.0.extend(meant);
            self.errors.report(&key.span(), format!("unknown key {}{hint}", shown(name)));
        }
    }

    pub(super) fn optional<T: Value>(&mut self, key: &str) -> Option<Located<T>> {
        let value = self.table.get(key)?;
        T::read(value, self.errors).map(|read| Located { value: read, span: value.span() })
    }

    pub(super) fn required<T: Value>(&mut self, key: &str) -> Option<Located<T>> {
        if !self.written.has(key) {
            let message = format!("missing key `{key}`: write `{key} = {}`", T::shape().example());
            self.errors.missing(&self.span, message);
        }
        self.optional(key)
    }

    /// The value, or the default if the key is absent or its value was reported as an error.
    pub(super) fn or_default<T: Value>(&mut self, key: &str, default: &'static str) -> Located<T> {
        self.optional(key).unwrap_or_else(|| Located { value: parse_default(default), span: self.span.clone() })
    }
}

/// Parses the default of a key.
fn parse_default<T: Value>(text: &str) -> T {
    let value = DeValue::parse(text).expect("a test parses the defaults of all tables");
    T::read(&value, &mut ErrorCollector::default()).expect("a test parses the defaults of all tables")
}

/// An empty table: the defaults of its keys.
pub(super) fn defaults<T: Value>() -> T {
    parse_default("{}")
}

/// Keys that were removed, and their replacements.
const REMOVED: [(&str, &str); 1] = [(
    "per_key",
    "requests are refused by estimated wait (`max`) instead of by count; `total` and `memory` bound all waiting \
     requests",
)];

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
    errors.report(&value.span(), format!("expected {}, found {found}", shape.words()));
    None
}

impl<T: Value> Value for Vec<Located<T>> {
    fn shape() -> Shape {
        Shape::List(Box::new(T::shape()))
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self> {
        let array = match (value.get_ref(), T::shape()) {
            (DeValue::Array(array), _) => array,
            (DeValue::Table(_), Shape::Table(_)) => {
                errors.report(
                    &value.span(),
                    "there can be several of these: write the name in two brackets, as in `[[rule]]`",
                );
                return None;
            }
            _ => return refuse(value, &Self::shape(), errors),
        };
        let located = |value: &Spanned<_>, read| Located { value: read, span: value.span() };
        Some(array.iter().filter_map(|value| Some(located(value, T::read(value, errors)?))).collect())
    }
}
