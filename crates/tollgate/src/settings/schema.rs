//! The JSON schema of the settings file, with which editors complete and check it. `tollgate schema` prints it, and
//! docs/tollgate.schema.json contains it. It is generated from the declarations of the tables.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::FileTable;
use super::shape::{FieldShape, Presence, Shape, TableShape};

/// The JSON schema of a settings file.
pub(crate) fn schema() -> String {
    let mut definitions = BTreeMap::new();
    let mut schema = table_schema(&FileTable::SHAPE, &mut definitions);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("Tollgate settings");
    schema["$defs"] = json!(definitions);
    // Sorted, so that the output does not depend on serde_json's feature `preserve_order`, which other crates enable.
    schema.sort_all_objects();
    format!("{schema:#}\n")
}

/// The schemas of all tables, by the name that `$ref` uses.
type Definitions = BTreeMap<String, Value>;

fn table_schema(table: &TableShape, definitions: &mut Definitions) -> Value {
    let required = table.fields.iter().filter(|field| field.presence == Presence::Required);
    let required: Vec<_> = required.map(|field| field.key).collect();
    let properties: Map<_, _> =
        table.fields.iter().map(|field| (field.key.to_string(), field_schema(field, definitions))).collect();
    let mut schema = json!({
        "type": "object",
        "description": prose(table.doc),
        "properties": properties,
        "additionalProperties": false,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn field_schema(field: &FieldShape, definitions: &mut Definitions) -> Value {
    let mut schema = shape_schema(&(field.shape)(), definitions);
    schema["description"] = json!(prose(field.doc));
    if let Presence::Default(text) = field.presence {
        schema["default"] =
            serde_json::from_str(text).expect("the defaults of all tables are JSON too, as a test shows");
    }
    schema
}

fn shape_schema(shape: &Shape, definitions: &mut Definitions) -> Value {
    match shape {
        Shape::Text { example, .. } => json!({ "type": "string", "examples": [example] }),
        Shape::Integer { min, max } => {
            let mut schema = json!({ "type": "integer", "minimum": min });
            // TOML integers are signed 64-bit numbers.
            if i64::try_from(*max).is_ok() {
                schema["maximum"] = json!(max);
            }
            schema
        }
        Shape::Number => json!({ "type": "number", "exclusiveMinimum": 0 }),
        Shape::Flag => json!({ "type": "boolean" }),
        Shape::Choice(words) => json!({ "enum": words }),
        Shape::Table(table) => {
            let word = table.word();
            if !definitions.contains_key(&word) {
                let definition = table_schema(table, definitions);
                definitions.insert(word.clone(), definition);
            }
            json!({ "$ref": format!("#/$defs/{word}") })
        }
        Shape::List(each) => json!({ "type": "array", "items": shape_schema(each, definitions) }),
        Shape::Map { keys, values } => json!({
            "type": "object",
            "propertyNames": shape_schema(keys, definitions),
            "additionalProperties": shape_schema(values, definitions),
        }),
        Shape::Either(shapes) => {
            let shapes: Vec<_> = shapes.iter().map(|shape| shape_schema(shape, definitions)).collect();
            json!({ "anyOf": shapes })
        }
    }
}

/// A doc comment as one paragraph.
pub(super) fn prose(doc: &[&str]) -> String {
    doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}
