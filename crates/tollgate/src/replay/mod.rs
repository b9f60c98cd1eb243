//! `tollgate replay`: what would these rules have done to yesterday's log?
//!
//! The same limiter that a gate runs is driven by the clock of a recording instead of the machine's. One line at a time goes from
//! the [`input`] through the [`player`] into either a line of JSON per decision, or a [`tally`] that becomes a [`summary`]. Memory is the same
//! for a thousand lines and for a billion.
#![expect(clippy::print_stderr, reason = "it talks to the person at the terminal")]

mod decision_line;
mod ink;
mod input;
mod name;
mod page;
mod player;
mod progress;
mod recorded;
mod shown;
mod suggestion;
mod summary;
mod talkers;
mod tally;
mod timeline;
mod timeline_chart;
mod top;
mod watched;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use tollgate_core::time::{Moment, Span};
use tollgate_core::watch;
use tollgate_gatekeeper::hash::Seed;
use tollgate_gatekeeper::limiter::{Limiter, Plan};
use tollgate_wire::log::{Expected, Format, LINE_BYTES_MAX, Line, LineError, Parser};

use crate::cli::WRONG;
use crate::settings::{DEFAULT_DOMAIN, Settings};

use decision_line::DecisionLine;
use ink::Ink;
use input::{Input, Piece};
use player::{Accounts, Player};
use progress::Progress;
use recorded::{Recorded, Trusted};
use summary::{Source, Summary, Unreadable};
use tally::Tally;
use watched::Watched;

/// A replay must come out the same every time.
const SEED: Seed = Seed::fixed(0x7011_6a7e);
/// The limiter's own list of names is not asked for.
const NAMES_MAX: usize = 16;
/// Decisions are written out in pieces of this size.
const OUTPUT_BYTES: usize = 64 * 1024;

/// What to replay, and how to tell about it.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The rules to try; without them, it is shown who spends most
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Which of the configuration's domains
    #[arg(long, value_name = "NAME", default_value = DEFAULT_DOMAIN)]
    domain: String,
    /// What the file is; by default its first lines tell
    #[arg(long, value_enum, default_value = "auto")]
    format: FormatOption,
    /// Print one JSON line per request instead of a summary
    #[arg(long, conflicts_with = "json")]
    decisions: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// Stop at the first line that cannot be read, and exit 1
    #[arg(long)]
    strict: bool,
    /// The trace or access log, gzip or not; `-` is standard input
    file: PathBuf,
}

/// What a file can be.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatOption {
    /// Look at the first lines
    Auto,
    /// JSON Lines with at_ms and client
    Trace,
    /// Apache's and nginx's combined or common log, with or without a trailing request time
    Combined,
    /// One JSON object per line, as nginx, Caddy, Traefik or Envoy write it
    Json,
}

/// Why a replay ended early.
enum Failure {
    /// The arguments or the configuration are wrong.
    Wrong(String),
    /// Something went wrong on the way.
    Failed(String),
    /// Nobody reads the output any more.
    BrokenPipe,
}

/// Replays a file and tells about it.
pub(crate) fn run(options: &Options) -> ExitCode {
    match replay(options) {
        Ok(()) | Err(Failure::BrokenPipe) => ExitCode::SUCCESS,
        Err(Failure::Wrong(message)) => {
            eprintln!("{message}");
            ExitCode::from(WRONG)
        }
        Err(Failure::Failed(message)) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn replay(options: &Options) -> Result<(), Failure> {
    let settings = match &options.config {
        Some(file) => {
            Settings::load(file).map_err(|faults| Failure::Wrong(faults.to_string().trim_end().to_string()))?
        }
        None => Settings::default(),
    };
    let limiter = limiter(&settings, &options.domain)?;
    let account = settings.domains.iter().find(|domain| domain.name == options.domain).and_then(|d| d.account.clone());
    let accounts = account.map(|class| Accounts::new(class, watched(&settings, &limiter)));
    let player = Player::new(limiter, accounts);
    let input = Input::open(&options.file).map_err(|error| Failure::Wrong(complaint(&options.file, &error)))?;
    let format = match options.format {
        FormatOption::Auto => detect(&options.file, &input)?,
        FormatOption::Trace => Format::Trace,
        FormatOption::Combined => Format::Combined,
        FormatOption::Json => Format::Json,
    };
    let progress = Progress::new(&input, !options.decisions);
    let trusted = settings
        .gate
        .as_ref()
        .map(|gate| Trusted { proxies: gate.trusted_proxies.clone(), header: gate.forwarded_header });
    let trusted = trusted.unwrap_or_default();
    let reading =
        Reading { options, trusted, input, format, player, progress, lines: 0, unreadable: Unreadable::default() };
    if options.decisions { reading.print_decisions() } else { reading.print_summary(&settings) }
}

/// The limiter that a gate with these settings would have.
fn limiter(settings: &Settings, domain: &str) -> Result<Limiter, Failure> {
    let Some(rules) = settings.rules(domain) else {
        let names: Vec<_> = settings.domains.iter().map(|domain| domain.name.as_str()).collect();
        return Err(Failure::Wrong(format!("no domain is called {domain:?}: there is {}", names.join(", "))));
    };
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let rules = rules.iter().map(|settings| (settings.rule.clone(), bytes(settings.memory_bytes))).collect();
    let plan = Plan { rules, started: Moment::ZERO, seed: SEED, names_max: NAMES_MAX };
    Limiter::new(plan).map_err(|error| Failure::Wrong(format!("{error}: see gate.memory")))
}

fn detect(file: &Path, input: &Input) -> Result<Format, Failure> {
    // Nothing at all is a recording of nothing, whatever its format.
    if input.head().trim_ascii().is_empty() {
        return Ok(Format::Trace);
    }
    Format::detect(input.head()).ok_or_else(|| {
        let message = "its first lines are neither a trace nor an access log that is known here: name a --format to see what is wrong with them";
        Failure::Failed(format!("{}: {message}", file.display()))
    })
}

fn complaint(file: &Path, error: &io::Error) -> String {
    format!("{}: {error}", file.display())
}

/// A replay on its way.
struct Reading<'a> {
    options: &'a Options,
    /// Proxies whose word about the client is taken.
    trusted: Trusted,
    input: Input,
    format: Format,
    player: Player,
    progress: Progress,
    lines: u64,
    unreadable: Unreadable,
}

impl Reading<'_> {
    fn print_decisions(mut self) -> Result<(), Failure> {
        let names: Vec<_> = self.player.limiter().rules().map(|rule| rule.name.clone()).collect();
        let mut line = DecisionLine::new(names.iter().map(String::as_str));
        let mut output = Vec::with_capacity(2 * OUTPUT_BYTES);
        let mut stdout = io::stdout().lock();
        let outcome = self.read(|request, player| {
            let decision = player.play(request, request.line().cost.unwrap_or(Span::ZERO));
            line.write(&decision, request.line().at, player.now(), &mut output);
            if output.len() >= OUTPUT_BYTES {
                stdout.write_all(&output).map_err(write_failure)?;
                output.clear();
            }
            Ok(())
        });
        // What was decided before something went wrong is still worth having.
        stdout.write_all(&output).and_then(|()| stdout.flush()).map_err(write_failure)?;
        for unreadable in &self.unreadable.first {
            eprintln!("line {}, column {}: expected {}", unreadable.line, unreadable.column, unreadable.expected);
        }
        if self.unreadable.lines > 0 {
            eprintln!(
                "{} of {} could not be read",
                shown::count(self.unreadable.lines),
                shown::plural(self.lines, "line")
            );
        }
        outcome
    }

    fn print_summary(mut self, settings: &Settings) -> Result<(), Failure> {
        let classes: Vec<_> = self.player.limiter().rules().map(|rule| rule.class.clone()).collect();
        let mut tally = Tally::new(classes, watched(settings, self.player.limiter()));
        self.read(|request, player| {
            let decision = player.play(request, request.line().cost.unwrap_or(Span::ZERO));
            tally.add(request, &decision, player);
            Ok(())
        })?;
        self.progress.finish();
        let source = Source {
            file: shown::shown(self.options.file.as_os_str().as_encoded_bytes()),
            format: self.format,
            gzip: self.input.packed(),
            configured: self.options.config.is_some(),
            lines: self.lines,
            unreadable: self.unreadable,
        };
        let nothing_read = source.lines > 0 && source.unreadable.lines == source.lines;
        let summary = Summary::new(source, &self.player, tally);
        let text = match self.options.json {
            true => serde_json::to_string_pretty(&summary).expect("a summary has nothing that JSON cannot say") + "\n",
            false => page::page(&summary, Ink::for_stdout()),
        };
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(write_failure)?;
        match nothing_read {
            true => Err(Failure::Failed("not one line could be read".to_string())),
            false => Ok(()),
        }
    }

    /// Reads all lines and hands over the requests.
    fn read(&mut self, mut play: impl FnMut(&Recorded<'_>, &mut Player) -> Result<(), Failure>) -> Result<(), Failure> {
        let mut parser = Parser::new();
        loop {
            let piece = self.input.next().map_err(|error| Failure::Failed(complaint(&self.options.file, &error)))?;
            let line = match piece {
                Some(Piece::Line(line)) if line.trim_ascii().is_empty() => {
                    self.lines += 1;
                    continue;
                }
                Some(Piece::Line(line)) => parser.parse(self.format, line),
                Some(Piece::TooLong) => {
                    Err(LineError { column: LINE_BYTES_MAX as u32 + 1, expected: Expected::ShorterLine })
                }
                None => return Ok(()),
            };
            self.lines += 1;
            match line {
                Ok(Line::Request(request)) => play(&Recorded::new(&request, &self.trusted), &mut self.player)?,
                Ok(Line::Band { at, band }) => self.player.enter_band(band, at),
                Err(fault) if self.options.strict => {
                    return Err(Failure::Failed(format!(
                        "{}: line {}, {fault}",
                        self.options.file.display(),
                        self.lines
                    )));
                }
                Err(fault) => self.unreadable.add(self.lines, fault),
            }
            self.progress.at(self.lines, &self.input);
        }
    }
}

/// A watch over the rules of a limiter.
fn watched(settings: &Settings, limiter: &Limiter) -> Watched {
    Watched::new(watch_settings(settings), limiter.rules().map(|rule| rule.class.to_string()).collect())
}

fn watch_settings(settings: &Settings) -> watch::WatchSettings {
    watch::WatchSettings {
        flag_threshold: settings.watch.flag_threshold,
        flag_window: settings.watch.flag_window,
        account_class: settings.watch.account_class.as_str().into(),
        ..watch::WatchSettings::default()
    }
}

fn write_failure(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::BrokenPipe,
        _ => Failure::Failed(format!("cannot write to standard output: {error}")),
    }
}
