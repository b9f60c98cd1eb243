//! `tollgate replay`: shows the effect of rules on recorded traffic.
//!
//! The limiter of a gate runs on the clock of a recording instead of the machine's. A first pass over an access log
//! determines the cost of its requests ([`pricing`]) and how far its lines are out of order ([`sorted_lines`]). In the
//! second pass, lines go one at a time from the [`input`] through the [`player`], which returns the decision about each
//! request. The output is either a line of JSON per decision ([`decision_line`]), or a [`summary`] of the [`counts`],
//! as text ([`page`]), JSON or HTML ([`report`]). A trace (a recording in Tollgate's own format) has costs and is in
//! order, so it is read once. Memory is bounded for any number of lines.
#![expect(clippy::print_stderr, reason = "it talks to the person at the terminal")]

mod counts;
mod decision_line;
mod heavy_hitters;
mod input;
mod key_name;
mod page;
mod player;
mod pricing;
mod progress;
mod recorded_request;
mod replay_watch;
mod report;
mod sorted_lines;
mod suggestion;
mod summary;
mod talkers;
mod terminal_text;
mod timeline;
mod timeline_chart;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::hash::Seed;
use tollgate_gatekeeper::limiter::{Limiter, Plan};
use tollgate_wire::log::{Expected, Format, LINE_BYTES_MAX, Line, LineError, Parser};

use crate::colours::Colours;
use crate::output::CommandError;
use crate::settings::{DEFAULT_DOMAIN, Settings};

use counts::ReplayCounts;
use decision_line::DecisionLine;
use input::{Input, InputLine};
use player::{Accounts, Player};
use pricing::{CostSource, Pricing, Survey};
use progress::ReplayProgress;
use recorded_request::{RecordedRequest, Trusted};
use replay_watch::ReplayWatch;
use sorted_lines::SortedLines;
use summary::{Recording, Summary, Unreadable};

/// A fixed seed, so that every replay gives the same result.
const SEED: Seed = Seed::fixed(0x7011_6a7e);
/// Size of the limiter's list of the names of throttled keys. It is small, because a replay has lists of its own.
const NAMES_MAX: usize = 16;
/// Bytes of decisions that are collected before each write to standard output.
const OUTPUT_BYTES: usize = 64 * 1024;

/// Options of a replay.
#[derive(Debug, Args)]
pub(crate) struct ReplayOptions {
    /// The rules to try; without them, the heaviest clients are shown
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The domain of the configuration to use
    #[arg(long, value_name = "NAME", default_value = DEFAULT_DOMAIN)]
    domain: String,
    /// The format of the file; by default it is detected from the first lines
    #[arg(long, value_enum, default_value = "auto")]
    format: FormatOption,
    /// Print one JSON line per request instead of a summary
    #[arg(long, conflicts_with = "json")]
    decisions: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// Write a report with charts to this file, as one HTML page without external resources
    #[arg(long, value_name = "FILE", conflicts_with = "decisions")]
    html: Option<PathBuf>,
    /// The CPU cores of the backend that the log comes from; by default they are estimated from the log
    #[arg(long, value_name = "N", value_parser = cores)]
    cores: Option<f64>,
    /// If the log has no durations, estimate costs roughly from method, path and size
    #[arg(long)]
    estimate: bool,
    /// Stop at the first line that cannot be parsed, and exit with 1
    #[arg(long)]
    strict: bool,
    /// The trace or access log, optionally compressed with gzip; `-` is standard input
    file: PathBuf,
}

/// The formats of a recording.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatOption {
    /// Detect the format from the first lines
    Auto,
    /// JSON Lines with at_ms and client
    Trace,
    /// Apache's and nginx's combined or common log, with or without a trailing request time
    Combined,
    /// One JSON object per line, as nginx, Caddy, Traefik or Envoy write it
    Json,
}

/// Replays a file and prints the result.
pub(crate) fn run(options: &ReplayOptions) -> Result<(), CommandError> {
    let settings = match &options.config {
        Some(file) => Settings::load(file).map_err(|faults| CommandError::wrong(faults.to_string()))?,
        None => Settings::default(),
    };
    let limiter = limiter(&settings, &options.domain)?;
    let account = settings.domains.iter().find(|domain| domain.name == options.domain).and_then(|d| d.account.clone());
    let accounts = account.map(|class| Accounts { class, watched: watched(&settings, &limiter) });
    let player = Player::new(limiter, accounts);
    let mut input =
        Input::open(&options.file).map_err(|error| CommandError::wrong(complaint(&options.file, &error)))?;
    let format = match options.format {
        FormatOption::Auto => detect(&options.file, &input)?,
        FormatOption::Trace => Format::Trace,
        FormatOption::Combined => Format::Combined,
        FormatOption::Json => Format::Json,
    };
    let gate = settings.gate.as_ref();
    let trusted = gate.map(|gate| Trusted { proxies: gate.trusted_proxies.clone(), header: gate.forwarded_header });
    let progress = ReplayProgress::new(&input, !options.decisions);
    let (pricing, lateness) = match format {
        Format::Trace => (Pricing::as_recorded(CostSource::Measured), Span::ZERO),
        _ => survey(options, &mut input, format)?,
    };
    let reading = Reading {
        options,
        trusted: trusted.unwrap_or_default(),
        input,
        format,
        player,
        pricing,
        sorted: SortedLines::new(lateness),
        progress,
        lines: 0,
        unreadable: Unreadable::default(),
    };
    if options.decisions { reading.print_decisions() } else { reading.print_summary(&settings) }
}

/// Reads an access log once, to price its requests and to find how far its lines are out of order. Rewinds the input.
fn survey(options: &ReplayOptions, input: &mut Input, format: Format) -> Result<(Pricing, Span), CommandError> {
    let failed = |error: io::Error| CommandError::failed(complaint(&options.file, &error));
    input.make_rewindable().map_err(failed)?;
    let (mut survey, mut parser) = (Survey::default(), Parser::new());
    let nobody = Trusted::default();
    while let Some(piece) = input.next().map_err(failed)? {
        if let InputLine::Line(line) = piece
            && let Ok(Line::Request(request)) = parser.parse(format, line)
        {
            survey.add(&RecordedRequest::new(&request, &nobody));
        }
    }
    input.rewind().map_err(failed)?;
    let lateness = survey.lateness;
    Ok((survey.pricing(options.cores, options.estimate), lateness))
}

/// A number of cores on the command line.
fn cores(text: &str) -> Result<f64, String> {
    let cores = text.parse().ok().filter(|cores| (0.001..=100_000.0).contains(cores));
    cores.ok_or_else(|| "write a number of CPU cores, such as 4 or 0.5".to_string())
}

/// A limiter with the rules of a domain, as a gate with these settings has it.
fn limiter(settings: &Settings, domain: &str) -> Result<Limiter, CommandError> {
    let Some(rules) = settings.rules(domain) else {
        let names: Vec<_> = settings.domains.iter().map(|domain| domain.name.as_str()).collect();
        return Err(CommandError::wrong(format!("no domain is called {domain:?}: there is {}", names.join(", "))));
    };
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let rules = rules.iter().map(|settings| (settings.rule.clone(), bytes(settings.memory_bytes))).collect();
    let plan = Plan { rules, started: Moment::ZERO, seed: SEED, names_max: NAMES_MAX };
    Limiter::new(plan).map_err(|error| CommandError::wrong(format!("{error}: see gate.memory")))
}

/// The format of the recording, detected from its first lines.
fn detect(file: &Path, input: &Input) -> Result<Format, CommandError> {
    // An empty file is a valid recording in any format.
    if input.head().trim_ascii().is_empty() {
        return Ok(Format::Trace);
    }
    Format::detect(input.head()).ok_or_else(|| {
        let message = "its format cannot be detected from its first lines: use --format to see the errors in them";
        CommandError::failed(format!("{}: {message}", file.display()))
    })
}

fn complaint(file: &Path, error: &io::Error) -> String {
    format!("{}: {error}", file.display())
}

/// A replay in progress: the second pass over an access log, or the only pass over a trace.
struct Reading<'a> {
    options: &'a ReplayOptions,
    /// The proxies whose forwarded header names the client.
    trusted: Trusted,
    input: Input,
    format: Format,
    player: Player,
    pricing: Pricing,
    /// The lines of an access log that are being sorted.
    sorted: SortedLines,
    progress: ReplayProgress,
    /// The number of lines read so far, empty and unreadable ones included.
    lines: u64,
    unreadable: Unreadable,
}

impl Reading<'_> {
    fn print_decisions(mut self) -> Result<(), CommandError> {
        let names: Vec<_> = self.player.limiter.rules().map(|rule| rule.name.clone()).collect();
        let mut line = DecisionLine::new(names.iter().map(String::as_str));
        let mut output = Vec::with_capacity(2 * OUTPUT_BYTES);
        let mut stdout = io::stdout().lock();
        let outcome = self.read(|request, cost, player| {
            let decision = player.play(request, cost.unwrap_or(Span::ZERO));
            line.write(&decision, request.line.at, player.now, &mut output);
            if output.len() >= OUTPUT_BYTES {
                stdout.write_all(&output).map_err(write_failure)?;
                output.clear();
            }
            Ok(())
        });
        // Decisions before an error are still printed.
        stdout.write_all(&output).and_then(|()| stdout.flush()).map_err(write_failure)?;
        for unreadable in &self.unreadable.first {
            eprintln!("line {}, column {}: expected {}", unreadable.line, unreadable.column, unreadable.expected);
        }
        if self.unreadable.lines > 0 {
            eprintln!(
                "{} of {} could not be read",
                terminal_text::count(self.unreadable.lines),
                terminal_text::plural(self.lines, "line")
            );
        }
        if self.sorted.moved > 0 {
            eprintln!("{} out of order, sorted by time", terminal_text::plural(self.sorted.moved, "line"));
        }
        outcome
    }

    fn print_summary(mut self, settings: &Settings) -> Result<(), CommandError> {
        let classes: Vec<_> = self.player.limiter.rules().map(|rule| rule.class.clone()).collect();
        let mut tally = ReplayCounts::new(classes, watched(settings, &self.player.limiter));
        self.read(|request, cost, player| {
            let decision = player.play(request, cost.unwrap_or(Span::ZERO));
            tally.add(request, cost, &decision, player);
            Ok(())
        })?;
        self.progress.finish();
        let nothing_read = self.lines > 0 && self.unreadable.lines == self.lines;
        let recording = Recording {
            file: terminal_text::shown(self.options.file.as_os_str().as_encoded_bytes()),
            format: self.format.as_str(),
            gzip: self.input.packed,
            configured: self.options.config.is_some(),
            lines: self.lines,
            unreadable: self.unreadable,
        };
        let summary = Summary::new(recording, self.sorted.moved, &self.player, self.pricing.summary, tally);
        let text = match self.options.json {
            true => serde_json::to_string_pretty(&summary).expect("every field of a summary has a JSON form") + "\n",
            false => page::page(&summary, Colours::for_stdout()),
        };
        if let Some(file) = &self.options.html {
            let written = std::fs::write(file, report::report(&summary));
            written.map_err(|error| CommandError::failed(format!("cannot write {}: {error}", file.display())))?;
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(write_failure)?;
        match nothing_read {
            true => Err(CommandError::failed("not one line could be read")),
            false => Ok(()),
        }
    }

    /// Reads all lines and calls `play` for each request, with its cost (`None` if it is unknown) and the player.
    fn read(
        &mut self,
        mut play: impl FnMut(&RecordedRequest<'_>, Option<Span>, &mut Player) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        let (mut parser, mut sorted_parser) = (Parser::new(), Parser::new());
        let failed = |error: io::Error| CommandError::failed(complaint(&self.options.file, &error));
        while let Some(piece) = self.input.next().map_err(failed)? {
            self.lines += 1;
            let (line, text) = match piece {
                InputLine::Line(text) if text.trim_ascii().is_empty() => continue,
                InputLine::Line(text) => (parser.parse(self.format, text), text),
                InputLine::TooLong => {
                    let column = LINE_BYTES_MAX as u32 + 1;
                    (Err(LineError { column, expected: Expected::ShorterLine }), &b""[..])
                }
            };
            match line {
                Ok(Line::Request(request)) if self.sorted.is_needed() => self.sorted.push(request.at, text),
                Ok(Line::Request(request)) => {
                    let request = RecordedRequest::new(&request, &self.trusted);
                    play(&request, self.pricing.cost(&request), &mut self.player)?;
                }
                Ok(Line::Band { at, band }) => self.player.enter_band(band, at),
                Err(fault) if self.options.strict => {
                    let (file, line) = (self.options.file.display(), self.lines);
                    return Err(CommandError::failed(format!("{file}: line {line}, {fault}")));
                }
                Err(fault) => self.unreadable.add(self.lines, fault),
            }
            self.read_sorted(false, &mut sorted_parser, &mut play)?;
            self.progress.at(self.lines, &self.input);
        }
        self.read_sorted(true, &mut sorted_parser, &mut play)
    }

    /// Calls `play` for the buffered lines that no later line can precede, or for all of them if `at_end`.
    fn read_sorted(
        &mut self,
        at_end: bool,
        parser: &mut Parser,
        play: &mut impl FnMut(&RecordedRequest<'_>, Option<Span>, &mut Player) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        while let Some(line) = self.sorted.pop(at_end) {
            if let Ok(Line::Request(request)) = parser.parse(self.format, &line.text) {
                let request = RecordedRequest::new(&request, &self.trusted);
                play(&request, self.pricing.cost(&request), &mut self.player)?;
            }
            self.sorted.recycle(line);
        }
        Ok(())
    }
}

/// An empty watch for the rules of a limiter.
fn watched(settings: &Settings, limiter: &Limiter) -> ReplayWatch {
    ReplayWatch::new(settings.watch.of_core(), limiter.rules().map(|rule| rule.class.to_string()).collect())
}

/// The error of a write to standard output. Ends the process if the reader has closed it: nobody wants the rest.
fn write_failure(error: io::Error) -> CommandError {
    if error.kind() == io::ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    CommandError::failed(format!("cannot write to standard output: {error}"))
}
