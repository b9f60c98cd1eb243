//! `tollgate pardon`: asks a running master, through the control socket in its state directory, to reset the debt of a
//! key.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use crate::output::CommandError;
use crate::{master, settings};

/// Arguments of `tollgate pardon`.
#[derive(Debug, clap::Args)]
pub(crate) struct PardonOptions {
    /// Domain as masters name it, such as default/login
    domain: String,
    /// Key, such as 203.0.113.7
    identifier: String,
    /// Settings file of the master
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Timeout for the answer of the master.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the master of these settings to reset the debt of a key.
pub(crate) fn run_pardon(options: &PardonOptions) -> Result<(), CommandError> {
    let file = settings::Settings::load(&options.config).map_err(|faults| CommandError::wrong(faults.to_string()))?;
    let state_dir = file.master.and_then(|master| master.state_dir).ok_or_else(|| {
        CommandError::wrong(
            "the master has no `state_dir` and therefore no control socket: set `state_dir` in `[master]`",
        )
    })?;
    let socket = master::operator::socket(&state_dir);
    let ask = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(&socket)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(master::operator::request(&options.domain, &options.identifier).as_bytes())?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer)
    };
    let PardonOptions { domain, identifier, .. } = options;
    Err(CommandError::failed(match ask().as_deref().map(str::trim_end) {
        Ok(master::operator::PARDONED) => {
            print_line!("the debt of {identifier} in {domain} was reset");
            return Ok(());
        }
        Ok(master::operator::UNKNOWN) => format!(
            "no state for {identifier} in {domain}: it owes nothing there, or the master has another name for the domain"
        ),
        Ok(other) => format!("unexpected answer of the master: {other}"),
        Err(error) => format!("cannot reach the master at {}: {error}", socket.display()),
    }))
}
