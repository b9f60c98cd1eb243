//! The command line: parses the arguments and runs the command. The doc comments are the help texts and manual pages.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::output::CommandError;
use crate::{check, demo, doctor, flags, health, import, init, manual, replay, service, settings};

/// Exit code for invalid arguments or settings.
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
    /// Run a gate in front of a site
    ///
    /// Without a settings file the backend is protected by fairness alone. On SIGTERM the gate completes the requests
    /// in flight and exits.
    Gate(service::GateOptions),
    /// Run all roles of a settings file: a gate, a master, and what belongs to them
    Run(service::RunOptions),
    /// Run a master, which tells many gates which clients to delay
    ///
    /// Uses Smockron's protocol: gates send reports to the accounting address (127.0.0.1:10004) and subscribe to the
    /// control address (127.0.0.1:10005). Without a settings file, each client of the domain "default" may send one
    /// request per second, with bursts of ten.
    Master(service::MasterOptions),
    /// Reset the debt of a client at a master
    ///
    /// Asks the master that runs with this settings file, over a socket in its state directory. Its gates admit the
    /// client at once. Smockron's original gatekeepers do not know this message and wait for the end of the delay.
    Pardon(service::PardonOptions),
    /// Create a key pair for links to other machines, or print the public key of one
    ///
    /// Writes the pair to FILE, readable by its owner only, unless the file exists. Prints the public key, for the
    /// settings of the other side: `gates` in `[master]` for the keys of gates, `key` in `[[link.master]]` for the key
    /// of the master.
    Keys(service::KeysOptions),
    /// Apply rules to a recorded log
    ///
    /// Runs the rules of a settings file over a recorded trace or the access log of a web server, in the time of the
    /// recording. Reports which clients would have been held or refused, by which rule, and what that would have saved.
    Replay(replay::ReplayOptions),
    /// Write a settings file with comments
    ///
    /// Asks three questions on a terminal: the purpose of the gate, the address of the backend, and how clients are
    /// identified. Options answer them without asking. An existing file is not overwritten.
    Init(init::InitOptions),
    /// Translate the configuration of another limiter
    ///
    /// Prints a settings file. Notes on standard error list all keys that have no counterpart or another meaning. Exits
    /// 2 if the file is invalid.
    #[command(subcommand)]
    Import(import::ImportCommand),
    /// Check a settings file for errors
    ///
    /// Prints each error as file:line:column: message. Exits 0 if there is none, 2 otherwise. With --hardening, exits 1
    /// if a check fails.
    Check(check::CheckOptions),
    /// Show which clients use the backend's CPU time, live
    ///
    /// Reads from the admin address of a running gate. Keys: c, w, r, x and l sort, tab selects the next class, /
    /// searches, enter opens a client, ? explains the columns, q quits. With --once, and if the output is not a
    /// terminal, it prints the table and exits.
    Doctor(doctor::DoctorOptions),
    /// Check whether a gate or a master is alive
    ///
    /// Connects to its admin address. Exits 0 if it is alive, 1 if not. Meant for the health check of a container: it
    /// needs neither a shell nor a token.
    Health(health::HealthOptions),
    /// List and clear flagged accounts
    #[command(subcommand)]
    Flags(flags::FlagsCommand),
    /// Show the effect of a gate: a site under overload, without one and with one
    ///
    /// Starts a small site, visitors and a crawler on this machine, first without a gate and then with one in front,
    /// and shows the difference.
    Demo(demo::DemoOptions),
    /// Print the JSON schema of settings files
    Schema,
    /// Print the reference page of settings files, in Markdown
    Reference,
    /// Generate a shell completion script
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Write a manual page for each command
    Man {
        /// Directory, such as /usr/local/share/man/man1
        directory: PathBuf,
    },
}

impl Cli {
    /// Runs the command of the arguments.
    pub(crate) fn run(self) -> ExitCode {
        match self.command {
            Command::Gate(options) => service::run_gate(&options),
            Command::Run(options) => service::run_roles(&options),
            Command::Master(options) => service::run_master(&options),
            Command::Pardon(options) => exit_code(service::run_pardon(&options)),
            Command::Keys(options) => exit_code(service::run_keys(&options)),
            Command::Replay(options) => exit_code(replay::run(&options)),
            Command::Init(options) => exit_code(init::run(&options)),
            Command::Import(command) => exit_code(import::run(&command)),
            Command::Check(options) => check::run(&options),
            Command::Demo(arguments) => exit_code(demo::run(&arguments)),
            Command::Doctor(options) => exit_code(doctor::run(&options)),
            Command::Health(options) => exit_code(health::run(&options)),
            Command::Flags(command) => exit_code(flags::run(&command)),
            Command::Schema => manual::print(settings::schema().as_bytes()),
            Command::Reference => manual::print(settings::reference().as_bytes()),
            Command::Completions { shell } => manual::print(&manual::completions(Self::command(), shell)),
            Command::Man { directory } => exit_code(manual::write_man_pages(Self::command(), &directory)),
        }
    }
}

/// Prints the error of a command. Returns its exit code.
fn exit_code(outcome: Result<(), CommandError>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    print_error!("{}", error.message.trim_end());
    if error.is_wrong { ExitCode::from(WRONG) } else { ExitCode::FAILURE }
}
