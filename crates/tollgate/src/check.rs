//! `tollgate check`: is this file right, and if not, what is wrong with it?
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its answer is for the person at the terminal")]

use std::path::Path;
use std::process::ExitCode;

use crate::cli::WRONG;
use crate::settings::Settings;

/// Says that the file is right, or everything that is wrong with it.
pub(crate) fn run(file: &Path) -> ExitCode {
    match Settings::load(file) {
        Ok(settings) => {
            let rules = settings.domains.iter().map(|domain| domain.rules.len()).sum::<usize>();
            let count = |number: usize, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
            println!("{}: ok, {} in {}", file.display(), count(rules, "rule"), count(settings.domains.len(), "domain"));
            if let Some(note) = &settings.watch.why_no_flags {
                println!("note: {note}");
            }
            ExitCode::SUCCESS
        }
        Err(faults) => {
            eprint!("{faults}");
            ExitCode::from(WRONG)
        }
    }
}
