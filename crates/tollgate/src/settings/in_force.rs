//! The effective settings as JSON, for the settings page of the console: each table of the file, and for each of its
//! keys the value in force, the default and the doc comment. Secrets are masked. The tables of `[[link.master]]` are
//! not included.

use serde_json::{Value, json};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::FileTable;
use super::schema::prose;
use super::secret::masked;
use super::shape::{Presence, Shape, TableShape};

/// The tables of a valid file with this text, as a JSON array. Keys that are not in the file have their default. Tables
/// that are not in the file are left out.
pub(crate) fn in_force(text: &str) -> Value {
    let (document, _) = DeTable::parse_recoverable(text);
    let mut tables = Vec::new();
    collect(&FileTable::SHAPE, document.get_ref(), "", text, &mut tables);
    Value::Array(tables)
}

/// Adds the tables inside `table` to `tables`. `path` is the dotted key of `table`, empty for the whole file.
fn collect(shape: &'static TableShape, table: &DeTable<'_>, path: &str, text: &str, tables: &mut Vec<Value>) {
    for field in shape.fields {
        let (kind, value) = ((field.shape)(), table.get(field.key));
        let Some(inner) = kind.table() else { continue };
        let place = if path.is_empty() { field.key.to_owned() } else { format!("{path}.{}", field.key) };
        match (kind, value.map(Spanned::get_ref)) {
            (Shape::List(_), Some(DeValue::Array(list))) => {
                for each in list {
                    let DeValue::Table(each) = each.get_ref() else { continue };
                    tables.push(shown(inner, each, &format!("[[{place}]]"), text));
                    collect(inner, each, &place, text, tables);
                }
            }
            (Shape::List(_), _) => {}
            // Inner tables are shown as values of the outer table.
            (_, Some(DeValue::Table(table))) if path.is_empty() => {
                tables.push(shown(inner, table, &format!("[{place}]"), text));
            }
            _ => {}
        }
    }
}

/// One table as JSON, without the lists of tables in it. `place` is its header, such as `[gate]`.
fn shown(shape: &TableShape, table: &DeTable<'_>, place: &str, text: &str) -> Value {
    let keys =
        shape.fields.iter().filter(|field| !matches!((field.shape)(), Shape::List(each) if each.table().is_some()));
    let keys: Vec<_> = keys
        .map(|field| {
            let written = table.get(field.key).map(|value| verbatim(field.key, value, text));
            let default = if let Presence::Default(text) = field.presence { Some(text.to_owned()) } else { None };
            json!({
                "key": field.key, "written": written.is_some(), "value": written.as_ref().or(default.as_ref()),
                "default": default, "caption": prose(field.doc),
            })
        })
        .collect();
    json!({ "table": place, "caption": prose(shape.doc), "keys": keys })
}

/// A value as written in the file, without passwords and without the path of a webhook or an OpenTelemetry receiver,
/// which can be a secret.
fn verbatim(key: &str, value: &Spanned<DeValue<'_>>, text: &str) -> String {
    match value.get_ref() {
        DeValue::String(url) if matches!(key, "webhook" | "otlp") => format!("\"{}\"", masked(&without_path(url))),
        _ => masked(text.get(value.span()).unwrap_or_default()),
    }
}

fn without_path(url: &str) -> String {
    let host = url.find("://").map_or(0, |at| at + 3);
    match url[host..].find('/').map(|at| url.split_at(host + at + 1)) {
        Some((before, path)) if !path.is_empty() => format!("{before}***"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_tables_in_the_file_is_there_with_its_caption() {
        let text = "[gate]\nbackend = 'http://127.0.0.1:1'\nhold = { max = '1s' }\n\
            [[rule]]\nname = 'a'\nclass = 'ip/32'\nrate = { rate = '1/s', burst = 1 }\n\
            [redis]\nurl = 'redis://user:secret@db:6379'\n";
        let tables = in_force(text);
        let places: Vec<_> = tables.as_array().unwrap().iter().map(|table| table["table"].as_str().unwrap()).collect();
        assert_eq!(places, ["[gate]", "[[rule]]", "[redis]"]);
        let key = |table: usize, name: &str| {
            let keys = tables[table]["keys"].as_array().unwrap();
            keys.iter().find(|key| key["key"] == name).unwrap().clone()
        };
        assert_eq!(key(0, "hold")["value"], "{ max = '1s' }");
        assert_eq!(
            (key(0, "listen")["written"].clone(), key(1, "name")["value"].clone()),
            (json!(false), json!("'a'"))
        );
        assert!(key(0, "listen")["caption"].as_str().unwrap().len() > 10);
        assert_eq!(key(2, "url")["value"], "'redis://***@db:6379'");
        assert!(!tables.to_string().contains("secret"));
    }

    #[test]
    fn a_webhook_is_shown_without_its_path() {
        for (written, shown) in [
            ("'https://hooks.example/secret/x?y=secret'", "\"https://hooks.example/***\""),
            ("\"http://hooks.example:81\\u002fsecret\"", "\"http://hooks.example:81/***\""),
            ("'https://hooks.example/'", "\"https://hooks.example/\""),
            ("'https://hooks.example'", "\"https://hooks.example\""),
        ] {
            let tables = in_force(&format!("[watch]\nwebhook = {written}\nwebhook_secret_file = '/a/file'\n"));
            let keys = tables[0]["keys"].as_array().unwrap();
            let value = |name: &str| keys.iter().find(|key| key["key"] == name).unwrap()["value"].clone();
            assert_eq!((value("webhook"), value("webhook_secret_file")), (json!(shown), json!("'/a/file'")));
        }
    }

    #[test]
    fn a_receiver_of_telemetry_is_shown_without_its_path() {
        let tables = in_force("[telemetry]\notlp = 'https://otlp.example/secret/v1'\n");
        assert_eq!(tables[0]["keys"][0]["value"], "\"https://otlp.example/***\"");
    }
}
