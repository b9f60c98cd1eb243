//! Writes the access log that the README replays: a day of a small site, with a crawler in it.
//!
//! `cargo run --example make-log -- examples/access.log.gz`. The same bytes every time: the dice are seeded.
#![expect(clippy::print_stderr, reason = "it talks to the person at the terminal")]

mod day;

use std::fs::File;
use std::io::{self, Write};
use std::process::ExitCode;

use flate2::{Compression, GzBuilder};

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("name the file to write, such as examples/access.log.gz");
        return ExitCode::from(2);
    };
    match write(&path) {
        Ok(lines) => {
            eprintln!("{lines} lines written to {}", path.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}

fn write(path: &std::ffi::OsStr) -> io::Result<usize> {
    let mut packed = GzBuilder::new().mtime(0).write(File::create(path)?, Compression::best());
    let lines = day::lines();
    for line in &lines {
        writeln!(packed, "{line}")?;
    }
    packed.finish()?;
    Ok(lines.len())
}
