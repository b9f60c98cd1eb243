//! Output of commands on the terminal, and their errors. Unlike `println!` and `eprintln!`, the macros of this module
//! do not panic if the output is closed or its disk is full, so that the exit code stays the result of the command.

use std::fmt::{self, Arguments};
use std::io::Write;

/// Prints a line to standard output.
macro_rules! print_line {
    ($($text:tt)*) => {
        $crate::output::write_line(std::io::stdout(), format_args!($($text)*))
    };
}

/// Prints text to standard output, without adding a line end.
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

/// The error with which a command ends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommandError {
    /// Message for the user.
    pub(crate) message: String,
    /// True if an argument or a file is invalid (exit code 2), false if the command failed otherwise (exit code 1).
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
