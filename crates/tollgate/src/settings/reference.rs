//! The reference page of the settings file in Markdown, which `tollgate reference` prints and docs/reference.md
//! contains. It is generated from the declarations of the tables and their doc comments.

use super::FileTable;
use super::schema::prose;
use super::shape::{FieldShape, Presence, Shape, TableShape};
use super::value::{duration, size};

/// A table and all places where it can occur in a file.
struct Section {
    table: &'static TableShape,
    /// The headers or keys of these places, such as `[[rule]]` and `[[domain.rule]]`.
    places: Vec<String>,
    /// Whether its first place is inside another table. Its heading is then one level lower.
    is_nested: bool,
}

/// The reference page of the settings file.
pub(crate) fn reference() -> String {
    let mut page = introduction();
    for section in sections() {
        page.push_str(&section.page());
    }
    page
}

fn introduction() -> String {
    let code = |name: &str| format!("`{name}`");
    let times: Vec<_> = duration::unit_names().filter_map(|names| names.first()).map(|name| code(name)).collect();
    let sizes: Vec<_> = size::unit_names().map(code).collect();
    let (times, sizes) = (times.join(", "), sizes.join(", "));
    format!(
        "# Settings

<!-- Generated from the doc comments in crates/tollgate/src/settings by `cargo run -- reference > docs/reference.md` -->

A settings file is TOML in UTF-8, at most 1 MiB. `tollgate check FILE` reports all errors of a file with line and
column, and exits with status 2. A file that contains only comments means the defaults; an empty file is an error.

For completion and documentation in an editor, begin the file with `#:schema` and the path of
[tollgate.schema.json](tollgate.schema.json), which `tollgate schema` prints.
[everything.toml](../examples/everything.toml) is an example with every table.

Syntax of values:

- a duration is a number and a unit: `\"250ms\"`, `\"1.5s\"`, `\"2 days\"`. Units are {times}, and their longer names.
- a rate is a count and a time: `\"5/min\"`, `\"2000/s\"`, `\"1 per 10s\"`, `\"0.5/s\"`.
- a size is a number and a unit: `\"64MiB\"`. Units are {sizes}.
- a path that does not begin with `/` is relative to the directory of the settings file.
- a pattern is a string in which `*` matches any text, also none: `\"/api/*\"`.
- numbers are never rounded. A number that cannot be represented exactly is an error.

Tables, in the order of a file:

{}",
        FileTable::SHAPE.rows()
    )
}

/// Every table once, in the order of the page.
fn sections() -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    collect(&FileTable::SHAPE, "", &mut sections);
    sections
}

/// Adds the tables inside `table` to `sections`. `path` is the dotted key of `table`, empty for the whole file.
fn collect(table: &'static TableShape, path: &str, sections: &mut Vec<Section>) {
    for field in table.fields {
        let shape = (field.shape)();
        let Some(inner) = shape.table() else { continue };
        let dotted = if path.is_empty() { field.key.to_string() } else { format!("{path}.{}", field.key) };
        let place = match shape {
            Shape::List(_) => format!("`[[{dotted}]]`"),
            _ if path.is_empty() => format!("`[{dotted}]`"),
            _ => format!("`{dotted}`"),
        };
        match sections.iter_mut().find(|section| section.table.name == inner.name) {
            Some(known) => known.places.push(place),
            None => {
                sections.push(Section { table: inner, places: vec![place], is_nested: !path.is_empty() });
                collect(inner, &dotted, sections);
            }
        }
    }
}

impl Section {
    fn page(&self) -> String {
        let hashes = if self.is_nested { "###" } else { "##" };
        let (word, doc) = (self.table.word(), prose(self.table.doc));
        format!("\n<a id=\"{word}\"></a>\n\n{hashes} {}\n\n{doc}\n\n{}", self.places.join(", "), self.table.rows())
    }
}

impl TableShape {
    fn rows(&self) -> String {
        let rows: String = self.fields.iter().map(FieldShape::row).collect();
        format!("| key | value | if left out | meaning |\n|---|---|---|---|\n{rows}")
    }
}

impl FieldShape {
    fn row(&self) -> String {
        let shape = (self.shape)();
        let value = match shape.table() {
            Some(table) => format!("[{}](#{})", shape.kind(), table.word()),
            None => shape.kind(),
        };
        let absent = match self.presence {
            Presence::Required => "*required*".to_string(),
            Presence::Optional | Presence::Empty | Presence::Default("{}") => String::new(),
            Presence::Default(text) => format!("`{text}`"),
        };
        let cell = |text: String| text.replace('|', "\\|");
        format!("| `{}` | {} | {} | {} |\n", self.key, cell(value), cell(absent), cell(prose(self.doc)))
    }
}
