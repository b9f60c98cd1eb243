//! What a settings file may contain, as data.
//!
//! Each table is declared once, with [`table!`](super::table::table): the reader, the JSON schema and the reference page all come from that
//! one declaration, so none of them can know a key that the others do not.

/// A table: what it is for, and its keys.
pub(super) struct TableShape {
    /// What the table is called: the declaration's name.
    pub(super) name: &'static str,
    /// The doc comment, line by line.
    pub(super) doc: &'static [&'static str],
    /// The keys, in the order of the reference page.
    pub(super) fields: &'static [FieldShape],
}

/// One key of a table.
pub(super) struct FieldShape {
    /// The key.
    pub(super) key: &'static str,
    /// The doc comment, line by line.
    pub(super) doc: &'static [&'static str],
    /// What its value looks like.
    pub(super) shape: fn() -> Shape,
    /// What its absence means.
    pub(super) presence: Presence,
}

impl FieldShape {
    /// The key as it is written in TOML, in quotes where it needs them.
    fn quoted_key(&self) -> String {
        let is_bare = self.key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        if is_bare { self.key.to_owned() } else { format!("\"{}\"", self.key) }
    }
}

/// What the absence of a key means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// A fault.
    Required,
    /// What the doc comment says.
    Optional,
    /// The same as this value, in TOML.
    Default(&'static str),
}

/// What a value looks like.
pub(super) enum Shape {
    /// A text of a certain kind.
    Text {
        /// What it is, with its article.
        what: &'static str,
        /// One such text, without quotes.
        example: &'static str,
    },
    /// A whole number.
    Integer {
        /// The least.
        min: u64,
        /// The most.
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
    /// A table whose keys are free.
    Map {
        /// What the keys look like.
        keys: Box<Shape>,
        /// What the values look like.
        values: Box<Shape>,
    },
    /// Any of these.
    Either(Vec<Shape>),
}

impl Shape {
    /// What it is, in words, with an example.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Text { what, example } => format!("{what} such as `\"{example}\"`"),
            Self::Integer { min, max: u64::MAX } => format!("a whole number, at least {min}"),
            Self::Integer { min, max } => format!("a whole number from {min} to {max}"),
            Self::Number => "a number above 0".to_string(),
            Self::Flag => "`true` or `false`".to_string(),
            Self::Choice(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("`\"{word}\"`")).collect();
                words.join(" or ")
            }
            Self::Table(_) => format!("a table such as `{}`", self.example()),
            Self::List(each) => format!("a list such as `[{}]`", each.example()),
            Self::Map { .. } => format!("a table such as `{}`", self.example()),
            Self::Either(shapes) => shapes.iter().map(Self::words).collect::<Vec<_>>().join(", or "),
        }
    }

    /// What it is, in words, without an example.
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

    /// The table that such a value is, or is a list of, or can be.
    pub(super) fn table(&self) -> Option<&'static TableShape> {
        match self {
            Self::Table(table) => Some(table),
            Self::List(each) => each.table(),
            Self::Either(shapes) => shapes.iter().find_map(Self::table),
            Self::Text { .. }
            | Self::Integer { .. }
            | Self::Number
            | Self::Flag
            | Self::Choice(_)
            | Self::Map { .. } => None,
        }
    }

    /// One such value, in TOML.
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
    /// A table with the keys that it must have, or with its first key if it need not have any.
    fn example(&self) -> String {
        let required = self.fields.iter().filter(|field| field.presence == Presence::Required).count();
        let fields: Vec<_> = self
            .fields
            .iter()
            .filter(|field| required == 0 || field.presence == Presence::Required)
            .take(required.max(1))
            .map(|field| match field.presence {
                Presence::Default(text) => format!("{} = {text}", field.quoted_key()),
                Presence::Required | Presence::Optional => {
                    format!("{} = {}", field.quoted_key(), (field.shape)().example())
                }
            })
            .collect();
        format!("{{ {} }}", fields.join(", "))
    }

    /// The keys of tables directly inside this one that have the key `key`.
    pub(super) fn homes_of(&self, key: &str) -> Vec<&'static str> {
        let has = |field: &&FieldShape| {
            (field.shape)().table().is_some_and(|table| table.fields.iter().any(|inner| inner.key == key))
        };
        self.fields.iter().filter(has).map(|field| field.key).collect()
    }

    /// What the table is called where people read it: `hold` for `HoldTable`.
    pub(super) fn word(&self) -> String {
        let name = self.name.strip_suffix("Table").unwrap_or(self.name);
        let parts =
            name.chars().map(|c| if c.is_uppercase() { format!("-{}", c.to_lowercase()) } else { c.to_string() });
        parts.collect::<String>().trim_start_matches('-').to_string()
    }
}
