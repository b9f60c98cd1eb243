//! Output of commands. Unlike `println!` and `eprintln!`, these macros do not panic if the output is closed or its disk
//! is full, so that the exit code stays the result of the command.

use std::fmt::{self, Arguments};
use std::io::Write;

/// Prints a line to standard output.
macro_rules! print_line {
    ($($text:tt)*) => {
        $crate::output::write_line(std::io::stdout(), format_args!($($text)*))
    };
}

/// Prints text of several lines to standard output.
macro_rules! print_text {
    ($($text:tt)*) => {
        $crate::output::write_text(std::io::stdout(), format_args!($($text)*))
    };
}

/// Prints a line to standard error.
macro_rules! print_error {
    ($($text:tt)*) => {
        $crate::output::write_line(std::io::stderr(), format_args!($($text)*))
    };
}

/// Writes a line with one call. Errors are ignored.
pub(crate) fn write_line(output: impl Write, text: Arguments<'_>) {
    write_text(output, format_args!("{text}\n"));
}

/// Writes text with one call. Errors are ignored.
pub(crate) fn write_text(mut output: impl Write, text: Arguments<'_>) {
    let _ = output.write_all(text.to_string().as_bytes());
}

/// An error message of a command for the user.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommandError {
    pub(crate) message: String,
    /// Whether an argument or a file is invalid, rather than the command failed.
    pub(crate) is_wrong: bool,
}

impl CommandError {
    /// The command failed.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_wrong: false }
    }

    /// An argument or a file is invalid.
    pub(crate) fn wrong(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_wrong: true }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}
