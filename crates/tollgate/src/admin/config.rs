//! The settings in force, and what came of the last reload.

use serde_json::{Value, json};
use tollgate_core::time::Moment;

use crate::watch::rfc3339;

/// What operators are shown of the settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    /// The file, if there is one.
    pub(crate) file: Option<String>,
    /// The tables in force, with captions.
    pub(crate) tables: Value,
    /// The last reload.
    pub(crate) reloaded: Option<Reloaded>,
}

/// A reload.
#[derive(Clone, Debug)]
pub(crate) struct Reloaded {
    /// When.
    pub(crate) at: Moment,
    /// What was wrong with the file; none when it was taken over.
    pub(crate) faults: Option<String>,
}

impl Config {
    /// What came of the last reload.
    pub(super) fn reload(&self) -> Value {
        match &self.reloaded {
            None => Value::Null,
            Some(Reloaded { at, faults }) => json!({ "at": rfc3339(*at), "ok": faults.is_none(), "faults": faults }),
        }
    }

    /// Everything.
    pub(super) fn shown(&self) -> Value {
        json!({ "file": self.file, "tables": self.tables, "reload": self.reload() })
    }
}
