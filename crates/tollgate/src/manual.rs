//! The commands `schema`, `reference`, `completions` and `man`: pages that are generated from the declarations of the
//! settings and of the command line.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use crate::output::CommandError;

/// Prints a page. A reader that closes the pipe early is not an error.
pub(crate) fn print(page: &[u8]) -> ExitCode {
    match std::io::stdout().lock().write_all(page) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Completion script of `command` for a shell.
pub(crate) fn completions(mut command: Command, shell: Shell) -> Vec<u8> {
    let (name, mut script) = (command.get_name().to_string(), Vec::new());
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

/// The end of the manual page of the whole command, in the format of man(7).
const MORE: &str = r#".SH "EXIT STATUS"
0 after success, 2 for invalid arguments or settings, and 1 for any other failure.
.SH SIGNALS
SIGHUP reloads the settings. SIGUSR1 opens the access log again, after it was renamed. After SIGTERM or SIGINT, the requests in flight
are completed first.
.SH ENVIRONMENT
.TP
TOLLGATE_LOG
The level of the log: \fBwarn\fR, \fBinfo\fR or \fBdebug\fR.
.TP
TOLLGATE_TOKEN
The token for the admin address, for commands without \fB\-\-token\-file\fR.
.TP
NO_COLOR
No colours, if it is not empty.
.SH FILES
As the Debian package installs them:
.TP
/etc/tollgate/tollgate.toml
The settings. \fBtollgate check\fR validates them.
.TP
/var/lib/tollgate
Flags, and what was learned about the backends.
.TP
/var/log/tollgate
The access log, if the settings have one.
.TP
/usr/share/doc/tollgate
The documentation, with the reference of all settings.
.SH "SEE ALSO"
\fBtollgate\-gate\fR(1), \fBtollgate\-run\fR(1), \fBtollgate\-check\fR(1), \fBtollgate\-doctor\fR(1)
"#;

/// Writes a manual page for `command` and each of its subcommands into a directory, which is created if necessary.
pub(crate) fn write_man_pages(command: Command, directory: &Path) -> Result<(), CommandError> {
    let main_page = directory.join(format!("{}.1", command.get_name()));
    let append = || fs::OpenOptions::new().append(true).open(&main_page)?.write_all(MORE.as_bytes());
    let written = fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(command, directory));
    written.and_then(|()| append()).map_err(|error| CommandError::failed(format!("{}: {error}", directory.display())))
}
