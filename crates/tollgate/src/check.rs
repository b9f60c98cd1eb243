//! `tollgate check`: is this file right, and if not, what is wrong with it?
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its answer is for the person at the terminal")]

use std::path::Path;
use std::process::ExitCode;

use tollgate_core::rule::Mode;

use crate::cli::WRONG;
use crate::settings::Settings;

/// Says that the file is right, or everything that is wrong with it.
pub(crate) fn run(file: &Path) -> ExitCode {
    match Settings::load(file) {
        Ok(settings) => {
            let rules = settings.domains.iter().map(|domain| domain.rules.len()).sum::<usize>();
            let count = |number: usize, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
            println!("{}: ok, {} in {}", file.display(), count(rules, "rule"), count(settings.domains.len(), "domain"));
            if settings.gate.as_ref().is_some_and(|gate| gate.mode == Mode::Observe) {
                println!(
                    "note: `gate.mode` is \"observe\": nothing is held or refused, and what would have been is only counted"
                );
            }
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
