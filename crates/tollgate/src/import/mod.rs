//! `tollgate import`: translates the configuration of another rate limiter to a settings file of Tollgate.
//!
//! The result is a settings file with comments on standard output. Everything in the other file that has no
//! counterpart, or means something else here, is a note on standard error, so that no key disappears silently.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its answer is for the person at the terminal")]

mod flat_yaml;
mod ratelimit;
mod smockron;
mod tempomat;

use std::path::{Path, PathBuf};

use crate::bounded_file;
use crate::output::CommandError;
use crate::settings::Settings;

/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The limiters whose configurations are translated.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ImportCommand {
    /// Translate /etc/tempomat.json
    Tempomat(ImportOptions),
    /// Translate config/default.yaml of a Smockron master
    Smockron(ImportOptions),
    /// Translate a YAML file of envoyproxy/ratelimit
    ///
    /// Prints the settings of a rate limit service: `[doors]`, and a `[[domain]]` with one rule for each limit. Limits
    /// that rules cannot express are errors: such a file is served as it is with `ratelimit` in `[doors]`.
    Ratelimit(ImportOptions),
}

/// The arguments of one import.
#[derive(Debug, clap::Args)]
pub(crate) struct ImportOptions {
    /// The other limiter's configuration
    file: PathBuf,
}

/// A translated configuration.
#[derive(Debug, Default)]
struct Imported {
    /// The settings file.
    toml: String,
    /// Notes for the operator about keys that have no counterpart or another meaning.
    notes: Vec<String>,
}

/// Translates the text of a configuration, or returns all its errors.
type Translate = fn(&str) -> Result<Imported, Vec<String>>;

/// Translates a file, and prints the result.
pub(crate) fn run(command: &ImportCommand) -> Result<(), CommandError> {
    let imported = match command {
        ImportCommand::Tempomat(options) => imported(&options.file, tempomat::translate),
        ImportCommand::Smockron(options) => imported(&options.file, smockron::translate),
        ImportCommand::Ratelimit(options) => ratelimit::imported(&options.file),
    };
    let Imported { toml, notes } = imported.map_err(CommandError::wrong)?;
    notes.iter().for_each(|note| eprintln!("note: {note}"));
    print!("{toml}");
    Ok(())
}

/// Reads and translates a file, and checks that the translation is valid.
fn imported(file: &Path, translate: Translate) -> Result<Imported, String> {
    let wrong = |message: String| format!("{}: {message}", file.display());
    let text = bounded_file::read_text(file, FILE_BYTES_MAX).map_err(wrong)?;
    let imported = translate(&text).map_err(|errors| errors.into_iter().map(wrong).collect::<Vec<_>>().join("\n"))?;
    // A value that is valid there and not here is reported with its line in the translation.
    Settings::parse("translation", &imported.toml).map_err(|errors| {
        let message = wrong("has a value that is not valid here: change it, or correct this translation".to_owned());
        format!("{message}\n{errors}{}", imported.toml)
    })?;
    Ok(imported)
}

/// A TOML string. It has the escapes of JSON, and must also escape U+007F.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Text for a comment of a TOML file. Control characters, which could end the comment, are escaped.
fn comment(text: &str) -> String {
    let escaped = |char: char| if char.is_control() { char.escape_default().to_string() } else { char.to_string() };
    text.chars().map(escaped).collect()
}

/// A number with at most `decimals` decimals, without trailing zeros.
fn decimal(number: f64, decimals: usize) -> String {
    let text = format!("{number:.decimals$}");
    match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The translation, which is a valid settings file.
    pub(super) fn translation(text: &str, translate: Translate) -> (Settings, Imported) {
        let imported = translate(text).unwrap();
        let settings =
            Settings::parse("test.toml", &imported.toml).unwrap_or_else(|faults| panic!("{faults}{}", imported.toml));
        (settings, imported)
    }

    #[test]
    fn numbers_are_short() {
        for (number, text) in [(0.1, "0.1"), (4.0, "4"), (0.0, "0"), (1.0 / 3.0, "0.333333")] {
            assert_eq!(decimal(number, 6), text);
        }
    }
}
