//! `tollgate init`: writes a first settings file for one of four purposes. It is made of the templates in the folder
//! `init`.
#![expect(clippy::print_stdout, reason = "its answer is for the person at the terminal")]

use std::fs::OpenOptions;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::import::quoted;
use crate::output::CommandError;
use crate::settings::Settings;

/// The arguments of `tollgate init`.
#[derive(Debug, clap::Args)]
pub(crate) struct InitOptions {
    /// The purpose of the gate
    #[arg(long = "for", value_enum, value_name = "PURPOSE")]
    purpose: Option<Purpose>,
    /// Where requests are forwarded to [default: http://127.0.0.1:8080]
    #[arg(long, value_name = "URL")]
    backend: Option<String>,
    /// Where clients connect [default: 0.0.0.0:8888; behind a proxy 127.0.0.1:8888]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// With --for proxy: the networks of the proxies [default: loopback]
    #[arg(long, value_name = "NETWORK", value_delimiter = ',')]
    proxies: Vec<String>,
    /// With --for api or devices: the header that identifies a client [default: X-Api-Key, X-Device-Id]
    #[arg(long, value_name = "NAME")]
    header: Option<String>,
    /// The file to write
    #[arg(default_value = "tollgate.toml")]
    file: PathBuf,
}

/// The purpose of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Purpose {
    /// In front of an application, with clients that connect directly
    App,
    /// Behind nginx, a load balancer or a CDN
    Proxy,
    /// An API with a quota for each key
    Api,
    /// Devices that stay connected, such as screens and sensors
    Devices,
}

/// The answers to the questions, from which the file is made.
struct Answers {
    purpose: Purpose,
    backend: String,
    listen: String,
    /// Networks of the proxies; empty unless the purpose is [`Purpose::Proxy`].
    proxies: Vec<String>,
    /// Header that identifies a client; empty unless the purpose is [`Purpose::Api`] or [`Purpose::Devices`].
    header: String,
}

/// Writes the file.
pub(crate) fn run(options: &InitOptions) -> Result<(), CommandError> {
    write_file(options).map_err(CommandError::wrong)
}

fn write_file(options: &InitOptions) -> Result<(), String> {
    // Checked first, so that no questions are asked in vain.
    if options.file.exists() {
        return Err(exists(&options.file));
    }
    let answers = Answers::get(options)?;
    let text = answers.settings();
    // A wrong answer is reported as in `tollgate check`, and nothing is written.
    Settings::parse(&options.file.display().to_string(), &text).map_err(|faults| faults.to_string())?;
    let file = OpenOptions::new().write(true).create_new(true).open(&options.file);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(&options.file),
        _ => format!("{}: cannot be written: {error}", options.file.display()),
    })?;
    let file = options.file.display();
    println!("{file} is written. Look through it, then start the gate:\n\n    tollgate gate --config {file}\n");
    println!("The console is at http://127.0.0.1:8889/ on this machine.");
    Ok(())
}

fn exists(file: &Path) -> String {
    format!("{}: exists already, and is not overwritten: name another file", file.display())
}

impl Answers {
    /// Takes each answer from its option. Without the option, asks the person at the terminal; without a terminal, uses
    /// the default. The purpose has no default.
    fn get(options: &InitOptions) -> Result<Self, String> {
        let is_asking = io::stdin().is_terminal() && io::stdout().is_terminal();
        let ask = |given: Option<&str>, question: &str, default: &str| match given {
            Some(given) => Ok(given.to_owned()),
            None if is_asking => asked(question, default),
            None => Ok(default.to_owned()),
        };
        let purpose = match options.purpose {
            Some(purpose) => purpose,
            None if is_asking => asked_purpose()?,
            None => return Err("there is no terminal to ask on: write --for app, proxy, api or devices".to_owned()),
        };
        let backend = ask(options.backend.as_deref(), "Where is the application?", "http://127.0.0.1:8080")?;
        let given_proxies = (!options.proxies.is_empty()).then(|| options.proxies.join(","));
        let (mut listen, mut proxies, mut header) = (options.listen.clone(), String::new(), String::new());
        match purpose {
            Purpose::App => listen = Some(ask(listen.as_deref(), "Where do clients connect?", "0.0.0.0:8888")?),
            Purpose::Proxy => {
                let question = "From which addresses or networks does the proxy connect?";
                proxies = ask(given_proxies.as_deref(), question, "loopback")?;
            }
            Purpose::Api => header = ask(options.header.as_deref(), "Which header has the API key?", "X-Api-Key")?,
            Purpose::Devices => {
                header = ask(options.header.as_deref(), "Which header identifies a device?", "X-Device-Id")?;
            }
        }
        let default_listen = if purpose == Purpose::Proxy { "127.0.0.1:8888" } else { "0.0.0.0:8888" };
        Ok(Self {
            purpose,
            backend,
            listen: listen.unwrap_or_else(|| default_listen.to_owned()),
            proxies: proxies
                .split(',')
                .map(|proxy| proxy.trim().to_owned())
                .filter(|proxy| !proxy.is_empty())
                .collect(),
            header: header.to_ascii_lowercase(),
        })
    }

    /// The text of the settings file.
    fn settings(&self) -> String {
        let proxies: Vec<_> = self.proxies.iter().map(|proxy| quoted(proxy)).collect();
        let (gate, rules) = match self.purpose {
            Purpose::App => ("", APP_RULES),
            Purpose::Proxy => (PROXY_GATE, APP_RULES),
            Purpose::Api => ("", API_RULES),
            Purpose::Devices => (DEVICE_GATE, DEVICE_RULES),
        };
        [HEAD, gate, rules, TAIL]
            .concat()
            .replace("{listen}", &quoted(&self.listen))
            .replace("{backend}", &quoted(&self.backend))
            .replace("{proxies}", &proxies.join(", "))
            .replace("{class}", &quoted(&format!("header:{}", self.header)))
            .replace("{header}", &quoted(&self.header))
    }
}

/// Asks a question on the terminal. An empty answer is the default.
fn asked(question: &str, default: &str) -> Result<String, String> {
    let line = prompt(&format!("{question} [{default}] "))?;
    Ok(if line.is_empty() { default.to_owned() } else { line })
}

fn asked_purpose() -> Result<Purpose, String> {
    println!("What is the gate for?");
    for (number, purpose) in Purpose::value_variants().iter().enumerate() {
        let value = purpose.to_possible_value();
        let help = value.as_ref().and_then(|value| value.get_help()).map(ToString::to_string).unwrap_or_default();
        println!("  {}  {help}", number + 1);
    }
    loop {
        let line = prompt("[1] ")?;
        let number = if line.is_empty() { Some(1) } else { line.parse::<usize>().ok() };
        let purpose = number.and_then(|number| Purpose::value_variants().get(number.checked_sub(1)?));
        match purpose {
            Some(purpose) => return Ok(*purpose),
            None => println!("Enter a number from 1 to {}.", Purpose::value_variants().len()),
        }
    }
}

/// Prints a text and reads a line, without white space at its ends.
fn prompt(text: &str) -> Result<String, String> {
    let unanswered = |error: &dyn std::fmt::Display| format!("the question was not answered: {error}");
    print!("{text}");
    io::stdout().flush().map_err(|error| unanswered(&error))?;
    let mut line = String::new();
    match io::stdin().lock().read_line(&mut line) {
        Ok(0) => Err(unanswered(&"end of input")),
        Ok(_) => Ok(line.trim().to_owned()),
        Err(error) => Err(unanswered(&error)),
    }
}

// The parts of a settings file, with placeholders in braces.
const HEAD: &str = include_str!("init/head.toml.in");
const PROXY_GATE: &str = include_str!("init/proxy_gate.toml.in");
const DEVICE_GATE: &str = include_str!("init/device_gate.toml.in");
const APP_RULES: &str = include_str!("init/app_rules.toml.in");
const API_RULES: &str = include_str!("init/api_rules.toml.in");
const DEVICE_RULES: &str = include_str!("init/device_rules.toml.in");
const TAIL: &str = include_str!("init/tail.toml.in");
