//! The commands and their arguments.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::{check, demo, doctor, flags, health, manual, replay, service, settings};

/// The exit code for wrong arguments or a wrong configuration.
pub(crate) const WRONG: u8 = 2;

/// Keeps a service usable when some of its clients would take all of it.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Stand in front of a site and keep it usable
    ///
    /// With no file the backend is protected by fairness alone. Ends on SIGTERM once the requests in flight are done.
    Gate(service::GateOptions),
    /// Run every role that a file names: a gate, a master, and what belongs to them
    Run(service::RunOptions),
    /// Keep the books for many gates, and tell them whom to delay
    ///
    /// Speaks Smockron's protocol: gates report to the accounting address (127.0.0.1:10004) and listen at the control
    /// address (127.0.0.1:10005). With no file, callers of the domain "default" may have one request a second, ten at once.
    Master(service::MasterOptions),
    /// Forgive what a caller owes to a master's rule
    ///
    /// Asks the master that runs with this configuration, over a socket in its state directory. Its gates let the caller through at once;
    /// original gatekeepers know no such word and wait as long as they were told.
    Pardon(service::PardonOptions),
    /// Make a key pair for links beyond this machine, or show the public key of one
    ///
    /// Writes the pair to FILE, which nobody else may read, unless it is there already, and prints the public key, for the settings of the other
    /// side: `gates` in `[master]` takes those of the gates, `key` in `[[link.master]]` the master's.
    Keys(service::KeysOptions),
    /// See what rules would have done to a log
    ///
    /// Runs the rules of a configuration over a recorded trace or a web server's access log, in the time of the recording, and says who would
    /// have been held or refused, by which rule, and what that would have saved.
    Replay(replay::ReplayOptions),
    /// Look for faults in a configuration file
    ///
    /// Prints every fault as file:line:column: message. Exits 0 if there is none, 2 if there are some. With --hardening, exits 1 if a check fails.
    Check(check::CheckOptions),
    /// See who spends the backend's time, live
    ///
    /// Asks the address for operators of a running gate. Keys: c, w, r, x and l sort, tab goes to another class, / searches, enter opens a
    /// caller, ? explains the columns, q leaves. Away from a terminal, and with --once, it prints the table and ends.
    Doctor(doctor::Options),
    /// Check whether a gate or a master is alive
    ///
    /// Asks its admin address. Exits 0 if it is alive, 1 if it is not. Meant for the health check of a container: it
    /// needs neither a shell nor a token.
    Health(health::HealthOptions),
    /// See and clear flagged accounts
    #[command(subcommand)]
    Flags(flags::Command),
    /// See what it does: a site in a storm, without a gate and with one
    ///
    /// Starts a small site, people and a crawler on this machine, first without a gate and then with one in front, and shows
    /// the difference.
    Demo(demo::DemoOptions),
    /// Print the JSON schema of configuration files
    Schema,
    /// Print the reference page of configuration files, in Markdown
    Reference,
    /// Print what completes these commands in a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write a manual page for each command
    Man {
        /// Where to, such as /usr/local/share/man/man1
        directory: PathBuf,
    },
}

impl Cli {
    /// Runs the command that the arguments name.
    pub(crate) fn run(self) -> ExitCode {
        match self.command {
            Command::Gate(options) => service::run_gate(&options),
            Command::Run(options) => service::run_roles(&options),
            Command::Master(options) => service::run_master(&options),
            Command::Pardon(options) => service::run_pardon(&options),
            Command::Keys(options) => service::run_keys(&options),
            Command::Replay(options) => replay::run(&options),
            Command::Check(options) => check::run(&options),
            Command::Demo(arguments) => demo::run(&arguments),
            Command::Doctor(options) => doctor::run(&options),
            Command::Health(options) => health::run(&options),
            Command::Flags(command) => flags::run(&command),
            Command::Schema => manual::print(settings::schema().as_bytes()),
            Command::Reference => manual::print(settings::reference().as_bytes()),
            Command::Completions { shell } => manual::print(&manual::completions(Self::command(), shell)),
            Command::Man { directory } => manual::write_man_pages(Self::command(), &directory),
        }
    }
}
