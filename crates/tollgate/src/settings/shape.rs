//! The structure of the settings file as data: tables, keys and the types of their values.
//!
//! Each table is declared once, with [`table!`](super::table::table). The parser, the JSON schema and the reference
//! page use that declaration, so they always agree on the keys.

/// A table and its keys.
pub(crate) struct TableShape {
    /// The name of the declaring struct, such as `RuleTable`, or the word that the declaration has instead of it.
    pub(super) name: &'static str,
    /// The doc comment, line by line.
    pub(super) doc: &'static [&'static str],
    /// The keys, in the order of the reference page.
    pub(super) fields: &'static [FieldShape],
}

/// One key of a table.
pub(crate) struct FieldShape {
    /// The name of the key in the file.
    pub(super) key: &'static str,
    /// The doc comment, line by line.
    pub(super) doc: &'static [&'static str],
    /// The type of the value.
    pub(super) shape: fn() -> Shape,
    /// Whether the key is required, and its default.
    pub(super) presence: Presence,
}

impl FieldShape {
    /// The key in TOML syntax, quoted if necessary.
    fn quoted_key(&self) -> String {
        let is_bare = self.key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        if is_bare { self.key.to_owned() } else { format!("\"{}\"", self.key) }
    }
}

/// The meaning of an absent key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// An error.
    Required,
    /// No value. The doc comment of the key describes the effect.
    Optional,
    /// The same as an empty list.
    Empty,
    /// The same as this value, in TOML.
    Default(&'static str),
}

/// The type of a value.
pub(crate) enum Shape {
    /// A string with a syntax of its own.
    Text {
        /// A noun for the value, with its article, such as `a duration`.
        what: &'static str,
        /// An example without quotes.
        example: &'static str,
    },
    /// A whole number.
    Integer {
        /// Minimum value.
        min: u64,
        /// Maximum value.
        max: u64,
    },
    /// A decimal number above zero.
    Number,
    /// True or false.
    Flag,
    /// One of these words.
    Choice(Vec<&'static str>),
    /// A table of its own.
    Table(&'static TableShape),
    /// A list.
    List(Box<Shape>),
    /// A table with arbitrary keys.
    Map {
        /// The type of the keys.
        keys: Box<Shape>,
        /// The type of the values.
        values: Box<Shape>,
    },
    /// One of several types.
    Either(Vec<Shape>),
}

impl Shape {
    /// A description with an example, for error messages.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Text { what, example } => format!("{what} such as `\"{example}\"`"),
            Self::Integer { min, max: u64::MAX } => format!("a whole number, at least {min}"),
            Self::Integer { min, max } => format!("a whole number from {min} to {max}"),
            Self::Number => "a number above 0".to_string(),
            Self::Flag => "`true` or `false`".to_string(),
            Self::Choice(words) => format!("`\"{}\"`", words.join("\"` or `\"")),
            Self::Table(_) | Self::Map { .. } => format!("a table such as `{}`", self.example()),
            Self::List(_) => format!("a list such as `{}`", self.example()),
            Self::Either(shapes) => shapes.iter().map(Self::words).collect::<Vec<_>>().join(", or "),
        }
    }

    /// A description without an example, for the reference page.
    pub(super) fn kind(&self) -> String {
        match self {
            Self::Text { what, .. } => (*what).to_string(),
            Self::Integer { min: 1, max } if *max >= u64::from(u32::MAX) => "a whole number".to_string(),
            Self::List(each) => format!("a list, each {}", each.kind()),
            Self::Map { keys, values } => format!("a table from {} to {}", keys.kind(), values.kind()),
            Self::Either(shapes) => match shapes.as_slice() {
                [one, Self::List(_)] => format!("{}, or a list of such", one.kind()),
                shapes => shapes.iter().map(Self::kind).collect::<Vec<_>>().join(", or "),
            },
            Self::Table(_) => "a table".to_string(),
            Self::Integer { .. } | Self::Number | Self::Flag | Self::Choice(_) => self.words(),
        }
    }

    /// The table type inside this type: the type itself, the element of a list, or one of several alternatives.
    pub(super) fn table(&self) -> Option<&'static TableShape> {
        match self {
            Self::Table(table) => Some(table),
            Self::List(each) => each.table(),
            Self::Either(shapes) => shapes.iter().find_map(Self::table),
            _ => None,
        }
    }

    /// An example in TOML.
    pub(super) fn example(&self) -> String {
        match self {
            Self::Text { example, .. } => format!("\"{example}\""),
            Self::Integer { min, max } => (*min).max(10).min(*max).to_string(),
            Self::Number => "0.5".to_string(),
            Self::Flag => "true".to_string(),
            Self::Choice(words) => format!("\"{}\"", words.first().unwrap_or(&"")),
            Self::Table(table) => table.example(),
            Self::List(each) => format!("[{}]", each.example()),
            Self::Map { keys, values } => format!("{{ {} = {} }}", keys.example(), values.example()),
            Self::Either(shapes) => shapes.first().map(Self::example).unwrap_or_default(),
        }
    }
}

impl TableShape {
    /// An example with the required keys, or with the first key if none is required.
    fn example(&self) -> String {
        let required = self.fields.iter().filter(|field| field.presence == Presence::Required).count();
        let fields: Vec<_> = self
            .fields
            .iter()
            .filter(|field| required == 0 || field.presence == Presence::Required)
            .take(required.max(1))
            .map(|field| match field.presence {
                Presence::Default(text) => format!("{} = {text}", field.quoted_key()),
                _ => format!("{} = {}", field.quoted_key(), (field.shape)().example()),
            })
            .collect();
        format!("{{ {} }}", fields.join(", "))
    }

    /// The keys of the tables directly inside this one that contain `key`.
    pub(super) fn tables_with(&self, key: &str) -> Vec<&'static str> {
        let has = |field: &&FieldShape| {
            (field.shape)().table().is_some_and(|table| table.fields.iter().any(|inner| inner.key == key))
        };
        self.fields.iter().filter(has).map(|field| field.key).collect()
    }

    /// The name of the table in the reference page and the schema: `site-fairness` for `SiteFairnessTable`.
    pub(super) fn word(&self) -> String {
        let name = self.name.strip_suffix("Table").unwrap_or(self.name);
        let parts =
            name.chars().map(|c| if c.is_uppercase() { format!("-{}", c.to_lowercase()) } else { c.to_string() });
        parts.collect::<String>().trim_start_matches('-').to_string()
    }
}
