//! The settings in force and the outcome of the last reload, as the API and the console show them.
//!
//! A reload applies most settings at once. Some, such as listening addresses, take effect only after a restart: until
//! then they are shown with the value in force, and the new value of the file beside it (`file_says`).

use serde_json::{Value, json};
use tollgate_core::time::Moment;

use crate::watch::rfc3339;

/// The settings as the admin API returns them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    /// Path of the settings file, if there is one.
    pub(crate) file: Option<String>,
    /// The tables of the file, in the format of [`crate::settings::in_force()`]: an array with an element
    /// `{table, caption, keys: [{key, written, value, default, caption}]}` for each table.
    pub(crate) tables: Value,
    /// Outcome of the last reload; `None` if there was none.
    pub(crate) reloaded: Option<Reloaded>,
}

/// Outcome of a reload.
#[derive(Clone, Debug)]
pub(crate) struct Reloaded {
    /// Time of the reload.
    pub(crate) at: Moment,
    /// Errors in the file; `None` if the reload succeeded.
    pub(crate) faults: Option<String>,
    /// Changed settings that wait for a restart: names of tables, such as `telemetry`, and of keys, such as
    /// `gate.workers`.
    pub(crate) waiting: Vec<&'static str>,
}

impl Config {
    /// The last reload as JSON.
    pub(super) fn reload(&self) -> Value {
        match &self.reloaded {
            None => Value::Null,
            Some(Reloaded { at, faults, waiting }) => json!({
                "at": rfc3339(*at), "ok": faults.is_none(), "faults": faults, "needs_new_start": waiting,
            }),
        }
    }

    /// Notice that the last reload failed, with the first line of the errors.
    pub(super) fn reload_notice(&self) -> Option<Value> {
        let faults = self.reloaded.as_ref()?.faults.as_ref()?;
        let message = format!("settings not reloaded: {}", faults.lines().next().unwrap_or_default());
        Some(json!({ "name": "reload-failed", "message": message, "setting": "" }))
    }

    /// The settings after a successful reload. `new` are those of the file; the `waiting` ones keep the value in force.
    pub(super) fn succeeded_by(&self, mut new: Self, at: Moment, waiting: Vec<&'static str>) -> Self {
        for key in &waiting {
            match key.split_once('.') {
                Some((name, key)) => keep_key(&mut new.tables, &self.tables, &format!("[{name}]"), key),
                None => keep_table(&mut new.tables, &self.tables, &format!("[{key}]")),
            }
        }
        Self { reloaded: Some(Reloaded { at, faults: None, waiting }), ..new }
    }

    /// The settings and the last reload as JSON.
    pub(super) fn shown(&self) -> Value {
        json!({ "file": self.file, "tables": self.tables, "reload": self.reload() })
    }
}

/// Tests whether a table has this header, such as `[gate]`.
fn is_called(name: &str) -> impl Fn(&Value) -> bool {
    move |table| table["table"] == name
}

/// The entry of a key in the table with this header.
fn key_of<'a>(tables: &'a Value, name: &str, key: &str) -> Option<&'a Value> {
    let table = tables.as_array()?.iter().find(|table| is_called(name)(table))?;
    table["keys"].as_array()?.iter().find(|entry| entry["key"] == key)
}

/// Replaces the value of a key in `new` by the one in force, from `old`.
fn keep_key(new: &mut Value, old: &Value, name: &str, key: &str) {
    let kept = key_of(old, name, key).cloned();
    let tables = new.as_array_mut().into_iter().flatten();
    let keys = tables.filter(|table| is_called(name)(table)).filter_map(|table| table["keys"].as_array_mut());
    let Some(entry) = keys.flatten().find(|entry| entry["key"] == key) else {
        // The table is no longer in the file.
        if kept.is_some() {
            keep_table(new, old, name);
        }
        return;
    };
    let file_says = entry["value"].clone();
    match kept {
        Some(kept) => *entry = kept,
        // `old` has no such table: the default is in force.
        None => (entry["written"], entry["value"]) = (json!(false), entry["default"].clone()),
    }
    entry["file_says"] = file_says;
}

/// Replaces a table in `new` by the one in `old`, or removes it if `old` has none.
fn keep_table(new: &mut Value, old: &Value, name: &str) {
    let Some(tables) = new.as_array_mut() else { return };
    tables.retain(|table| !is_called(name)(table));
    tables.extend(old.as_array().into_iter().flatten().filter(|table| is_called(name)(table)).cloned());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config { file: None, tables: crate::settings::in_force(text), reloaded: None }
    }

    #[test]
    fn settings_that_need_a_restart_are_shown_with_the_value_in_force() {
        let old = config("[gate]\nworkers = 2\nbackend = 'http://a'\n[telemetry]\notlp = 'http://t'\n");
        let new = config("[gate]\nworkers = 4\nbackend = 'http://b'\n[admin]\nlisten = '127.0.0.1:7'\n");
        let keys = vec!["gate.workers", "admin.listen", "telemetry"];
        let now = old.succeeded_by(new, Moment::ZERO, keys.clone());
        let key = |config: &Config, table: &str, key: &str| key_of(&config.tables, table, key).unwrap().clone();
        let workers = key(&now, "[gate]", "workers");
        assert_eq!((&workers["value"], &workers["file_says"]), (&json!("2"), &json!("4")));
        assert_eq!(key(&now, "[gate]", "backend")["value"], "'http://b'");
        let listen = key(&now, "[admin]", "listen");
        assert_eq!((&listen["written"], &listen["file_says"]), (&json!(false), &json!("'127.0.0.1:7'")));
        assert_eq!(listen["value"], "\"127.0.0.1:8889\"");
        assert_eq!(key(&now, "[telemetry]", "otlp")["value"], "\"http://t\"");
        assert_eq!(now.reload()["needs_new_start"], json!(keys));
        // After a reload of the same file, the values in force are unchanged.
        let new = config("[gate]\nworkers = 4\nbackend = 'http://b'\n");
        let again = now.succeeded_by(new, Moment::ZERO, vec!["gate.workers"]);
        assert_eq!(key(&again, "[gate]", "workers")["value"], "2");
        let back = again.succeeded_by(config("[gate]\nworkers = 2\n"), Moment::ZERO, Vec::new());
        assert_eq!(key(&back, "[gate]", "workers").get("file_says"), None);
    }
}
