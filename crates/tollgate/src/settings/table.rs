//! Declares a table of the settings file once, for the reader, the schema and the reference page.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fault::{Collector, shown};
use super::shape::{FieldShape, Shape, TableShape};
use super::suggestion::nearest;

/// Something that a value of the file can mean.
pub(super) trait Value: Sized {
    /// What it looks like in the file.
    fn shape() -> Shape;

    /// Reads it, or reports what is wrong.
    fn read(value: &Spanned<DeValue<'_>>, faults: &mut Collector) -> Option<Self>;
}

/// A value, and where it was written.
#[derive(Clone, Debug)]
pub(super) struct Placed<T> {
    pub(super) value: T,
    pub(super) span: Range<usize>,
}

/// Declares a table: a struct whose fields are the keys of the table, whose doc comments are the manual, and which is read from the
/// file. `= required` makes the absence of a key a fault; `= "..."` is the value, in TOML, that absence is the same as. A key that is no
/// identifier of Rust is written after the field's name, as in `address as "ip/32"`.
macro_rules! table {
    (@held $type:ty) => { Option<$crate::settings::table::Placed<$type>> };
    (@held $type:ty, required) => { Option<$crate::settings::table::Placed<$type>> };
    (@held $type:ty, $default:literal) => { $crate::settings::table::Placed<$type> };
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
            $( $(#[doc = $field_doc])* pub(in crate::settings) $field: $crate::settings::table::table!(@held $type $(, $default)?), )*
            /// The keys that the file has, right or wrong.
            #[allow(dead_code, reason = "few tables ask")]
            pub(in crate::settings) written: $crate::settings::table::Written,
        }

        impl $name {
            pub(in crate::settings) const SHAPE: $crate::settings::shape::TableShape = $crate::settings::shape::TableShape {
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
                faults: &mut $crate::settings::fault::Collector,
            ) -> Option<Self> {
                $crate::settings::table::Entries::of(value, &Self::SHAPE, faults).map(Self::read_entries)
            }
        }
    };
}
pub(super) use table;

/// The keys that a table of the file has, right or wrong, or was meant to have: who misspelt one need not hear that it is missing too.
#[derive(Clone, Debug, Default)]
pub(super) struct Written(Vec<&'static str>);

impl Written {
    pub(super) fn has(&self, key: &str) -> bool {
        self.0.contains(&key)
    }
}

/// The keys of one table of the file, about to be read.
pub(super) struct Entries<'read> {
    table: &'read DeTable<'read>,
    span: Range<usize>,
    pub(super) written: Written,
    faults: &'read mut Collector,
}

impl<'read> Entries<'read> {
    pub(super) fn new(table: &'read DeTable<'read>, span: Range<usize>, faults: &'read mut Collector) -> Self {
        Self { table, span, written: Written::default(), faults }
    }

    /// The keys of `value`, if it is a table.
    pub(super) fn of(
        value: &'read Spanned<DeValue<'read>>,
        shape: &'static TableShape,
        faults: &'read mut Collector,
    ) -> Option<Self> {
        match value.get_ref() {
            DeValue::Table(table) => Some(Self::new(table, value.span(), faults)),
            _ => {
                refuse(value, &Shape::Table(shape), faults);
                None
            }
        }
    }

    /// Reports the keys that nobody knows.
    pub(super) fn refuse_unknown(&mut self, shape: &TableShape) {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if let Some(known) = shape.fields.iter().find(|field| field.key == name) {
                self.written.0.push(known.key);
                continue;
            }
            if let Some((_, instead)) = REMOVED.iter().find(|(removed, _)| *removed == name) {
                self.faults.fault(&key.span(), format!("{} was removed: {instead}", shown(name)));
                continue;
            }
            let homes: Vec<_> = shape.homes_of(name).iter().map(|home| format!("`{home}`")).collect();
            let meant = nearest(name, shape.fields.iter().map(|field| field.key)).filter(|_| homes.is_empty());
            let hint = match meant {
                Some(meant) => format!(", did you mean `{meant}`?"),
                None if homes.is_empty() => format!("; known keys are {}", keys(shape.fields)),
                None => format!(": it belongs inside {}", homes.join(" or ")),
            };
            self.written.0.extend(meant);
            self.faults.fault(&key.span(), format!("unknown key {}{hint}", shown(name)));
        }
    }

    pub(super) fn optional<T: Value>(&mut self, key: &str) -> Option<Placed<T>> {
        let value = self.table.get(key)?;
        T::read(value, self.faults).map(|read| Placed { value: read, span: value.span() })
    }

    pub(super) fn required<T: Value>(&mut self, key: &str) -> Option<Placed<T>> {
        if !self.written.has(key) {
            let message = format!("missing key `{key}`: write `{key} = {}`", T::shape().example());
            self.faults.missing(&self.span, message);
        }
        self.optional(key)
    }

    /// A wrong value has been reported and is taken for the default, so that reading can go on.
    pub(super) fn or_default<T: Value>(&mut self, key: &str, default: &'static str) -> Placed<T> {
        self.optional(key).unwrap_or_else(|| {
            let value = DeValue::parse(default).expect("the defaults of all tables are read by a test");
            let read = T::read(&value, &mut Collector::default());
            Placed { value: read.expect("the defaults of all tables are read by a test"), span: self.span.clone() }
        })
    }
}

/// Keys of earlier versions, and what to write instead.
const REMOVED: [(&str, &str); 1] = [(
    "per_key",
    "requests are refused by estimated wait (`max`) instead of by count; `total` and `memory` bound the room for all",
)];

fn keys(fields: &[FieldShape]) -> String {
    fields.iter().map(|field| format!("`{}`", field.key)).collect::<Vec<_>>().join(", ")
}

/// Reports a value of the wrong kind.
pub(super) fn refuse(value: &Spanned<DeValue<'_>>, shape: &Shape, faults: &mut Collector) {
    let found = match value.get_ref() {
        DeValue::String(text) => format!("the text {}", shown(text)),
        DeValue::Integer(number) => format!("the number {}", shown(&number.to_string())),
        DeValue::Float(number) => format!("the number {}", shown(number.as_str())),
        DeValue::Boolean(flag) => format!("`{flag}`"),
        DeValue::Datetime(_) => "a date".to_string(),
        DeValue::Array(_) => "a list".to_string(),
        DeValue::Table(_) => "a table".to_string(),
    };
    faults.fault(&value.span(), format!("expected {}, found {found}", shape.words()));
}

impl<T: Value> Value for Vec<Placed<T>> {
    fn shape() -> Shape {
        Shape::List(Box::new(T::shape()))
    }

    fn read(value: &Spanned<DeValue<'_>>, faults: &mut Collector) -> Option<Self> {
        let array = match (value.get_ref(), T::shape()) {
            (DeValue::Array(array), _) => array,
            (DeValue::Table(_), Shape::Table(_)) => {
                faults.fault(
                    &value.span(),
                    "there can be several of these: write the name in two brackets, as in `[[rule]]`",
                );
                return None;
            }
            _ => {
                refuse(value, &Self::shape(), faults);
                return None;
            }
        };
        let placed = |value: &Spanned<_>, read| Placed { value: read, span: value.span() };
        Some(array.iter().filter_map(|value| Some(placed(value, T::read(value, faults)?))).collect())
    }
}
