//! `tollgate pardon`: an operator forgives what a caller owes.
#![expect(clippy::print_stderr, clippy::print_stdout, reason = "it is a person who asks")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::cli::WRONG;
use crate::{master, settings};

/// The arguments of `tollgate pardon`.
#[derive(Debug, clap::Args)]
pub(crate) struct PardonOptions {
    /// The domain as masters know it, such as default/login
    domain: String,
    /// The caller, such as 203.0.113.7
    identifier: String,
    /// The master's configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// How long a master may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks the master of the configuration to forgive what is owed.
pub(crate) fn run_pardon(options: &PardonOptions) -> ExitCode {
    let state_dir = match settings::Settings::load(&options.config) {
        Err(faults) => Err(faults.to_string()),
        Ok(file) => file.master.and_then(|master| master.state_dir).ok_or_else(|| {
            "the master has no `state_dir`, and so no socket to ask it on: write one in `[master]`".to_owned()
        }),
    };
    let state_dir = match state_dir {
        Ok(state_dir) => state_dir,
        Err(message) => {
            eprintln!("{}", message.trim_end());
            return ExitCode::from(WRONG);
        }
    };
    let socket = master::operator::socket(&state_dir);
    let ask = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(&socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(master::operator::request(&options.domain, &options.identifier).as_bytes())?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer)
    };
    match ask().as_deref().map(str::trim_end) {
        Ok(master::operator::PARDONED) => {
            println!("{} owes nothing in {} any more", options.identifier, options.domain);
            ExitCode::SUCCESS
        }
        Ok(master::operator::UNKNOWN) => {
            eprintln!("nothing is known of {} in {}", options.identifier, options.domain);
            ExitCode::FAILURE
        }
        Ok(other) => {
            eprintln!("the master does not understand: {other}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("no master answers at {}: {error}", socket.display());
            ExitCode::FAILURE
        }
    }
}
