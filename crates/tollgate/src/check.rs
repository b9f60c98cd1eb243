//! `tollgate check`: validates a settings file and prints a summary. With `--hardening`, it also checks whether a gate
//! with these settings is safe to expose.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tollgate_core::rule::Mode;

use crate::admin::{Tokens, token_files};
use crate::bounded_file;
use crate::cli::WRONG;
use crate::hardening::{self, CheckOutcome};
use crate::settings::{Settings, Site};
use crate::token::token_bytes_min;

/// Arguments of `tollgate check`.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckOptions {
    /// Settings file
    file: PathBuf,
    /// Also check what makes an exposed gate safe; exits 1 if a check fails
    #[arg(long)]
    hardening: bool,
}

/// Prints a summary of a valid file, or all errors in the file. Returns the exit code.
pub(crate) fn run(options: &CheckOptions) -> ExitCode {
    let settings = match Settings::load(&options.file) {
        Ok(settings) => settings,
        Err(faults) => {
            print_error!("{}", faults.to_string().trim_end());
            return ExitCode::from(WRONG);
        }
    };
    if let Err(fault) = tokens_suffice(&settings) {
        print_error!("{}: {fault}", options.file.display());
        return ExitCode::from(WRONG);
    }
    print_summary(&options.file, &settings);
    if options.hardening { print_hardening(&options.file, &settings) } else { ExitCode::SUCCESS }
}

/// An error if a token file of the admin address is invalid, or if its token is too short for that address. Files that
/// cannot be opened here are skipped: they may be on another machine, or readable only for the gate, which checks them
/// when it starts.
fn tokens_suffice(settings: &Settings) -> io::Result<()> {
    let Some(admin) = &settings.admin else { return Ok(()) };
    let readable = token_files(admin).filter(|(_, file)| bounded_file::open(file).is_ok());
    Tokens::load(readable, token_bytes_min(admin.listen)).map(drop)
}

fn print_summary(file: &Path, settings: &Settings) {
    let rules = settings.domains.iter().map(|domain| domain.rules.len()).sum::<usize>();
    let count = |number: usize, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
    // A domain is a named set of rules. Most files have rules in the default domain only, which always exists.
    let domains = match settings.domains.iter().filter(|domain| !domain.rules.is_empty()).count() {
        0 | 1 => String::new(),
        domains => format!(" in {}", count(domains, "domain")),
    };
    print_line!("{}: ok, {}{domains}", file.display(), count(rules, "rule"));
    for site in settings.gate.iter().flat_map(|gate| &gate.sites) {
        print_line!("{}", summary_of(site, settings));
    }
    if let Some(gate) = settings.gate.as_ref().filter(|gate| !gate.sites.is_empty()) {
        let others = match gate.backends.is_empty() {
            true => "are answered with status 421".to_owned(),
            false => format!("go to {}", list(&gate.backends)),
        };
        print_line!("site: requests for any other host {others}");
    }
    for (name, door) in settings.doors.iter().flat_map(|doors| doors.open()) {
        let token = settings.doors.as_ref().and_then(|doors| doors.token_file.as_ref());
        let credential = match (door.client_ca(), token) {
            (Some(file), _) => format!("a client certificate of an authority in {}", file.display()),
            (None, Some(file)) => format!("the token in {}", file.display()),
            (None, None) => "no token, because it is a loopback address".to_owned(),
        };
        let tls = if door.tls.is_some() { " with TLS" } else { "" };
        print_line!("door: {name} will be open on {}{tls}, and asks for {credential}", door.address);
    }
    for note in settings.doors.iter().flat_map(|doors| &doors.limits.notes) {
        print_line!("note: {note}");
    }
    if settings.gate.as_ref().is_some_and(|gate| gate.mode == Mode::Observe) {
        print_line!(
            "note: `gate.mode` is \"observe\": the gate counts what it would hold or refuse, but forwards every request"
        );
    }
    if let Some(note) = note_of_observing_rules(settings) {
        print_line!("note: {note}");
    }
    if let Some(note) = &settings.watch.why_no_flags {
        print_line!("note: {note}");
    }
    for file in needed_files(settings) {
        if matches!(file.try_exists(), Ok(false)) {
            print_line!("note: {} does not exist on this machine: a gate does not start without it", file.display());
        } else if is_for_root_alone(file) {
            let effect = "a service with a user of its own, such as that of the Debian package, does not start with it";
            print_line!("note: only root can read {}: {effect}", file.display());
        }
    }
}

/// A note about the rules in observe mode, if there are any. It lists their names if they are few.
fn note_of_observing_rules(settings: &Settings) -> Option<String> {
    const NAMED_MAX: usize = 5;
    let rules = settings.domains.iter().flat_map(|domain| &domain.rules).map(|settings| &settings.rule);
    // A set, because a `legacy` limit can be two rules with the same name.
    let names: BTreeSet<_> =
        rules.filter(|rule| rule.mode == Mode::Observe).map(|rule| format!("`{}`", rule.name)).collect();
    let named = if names.len() <= NAMED_MAX { format!(" ({})", list(&Vec::from_iter(&names))) } else { String::new() };
    let subject = if names.len() == 1 { "1 rule".to_owned() } else { format!("{} rules", names.len()) };
    let verb = if names.len() == 1 { "observes" } else { "observe" };
    let effect = "requests over the limit are counted and logged, but not held or refused";
    (!names.is_empty()).then(|| format!("{subject}{named} only {verb}: {effect}"))
}

/// Files without which a gate does not start: its certificates and keys, the tokens of the admin address and doors, the
/// TLS files of doors, and the secret of the webhook.
fn needed_files(settings: &Settings) -> impl Iterator<Item = &Path> {
    let pairs = settings.gate.iter().flat_map(|gate| gate.all_tls());
    let certificates = pairs.flat_map(|pair| [&*pair.chain, &*pair.key]);
    let admin = settings.admin.iter().flat_map(token_files).map(|(_, file)| file);
    let doors = settings.doors.iter().filter_map(|doors| doors.token_file.as_deref());
    let tls = settings.doors.iter().flat_map(|doors| doors.open()).filter_map(|(_, door)| door.tls.as_ref());
    let tls = tls.flat_map(|tls| [Some(&*tls.chain), Some(&*tls.key), tls.client_ca.as_deref()]).flatten();
    certificates.chain(admin).chain(doors).chain(tls).chain(settings.watch.webhook_secret_file.as_deref())
}

fn is_for_root_alone(file: &Path) -> bool {
    file.metadata().is_ok_and(|file| file.uid() == 0 && file.mode() & 0o077 == 0)
}

/// A line about a site: its hosts, backends, number of rules, and certificates.
fn summary_of(site: &Site, settings: &Settings) -> String {
    let Site { name, hosts, backends, tls, .. } = site;
    // The rules of sites are in the default domain, the first one. Their names start with that of the site.
    let prefix = format!("{name}/");
    let rules = settings.domains[0].rules.iter().map(|settings| settings.rule.name.as_str());
    let rules = rules.filter(|rule| rule.starts_with(&prefix)).count();
    let certificates: Vec<_> = tls.iter().map(|files| files.chain.display()).collect();
    let certificates = if tls.is_empty() { String::new() } else { format!(", certificate {}", list(&certificates)) };
    let rules = format!("{rules} rule{} of its own", if rules == 1 { "" } else { "s" });
    format!("site: {name} serves {} from {}, with {rules}{certificates}", list(hosts), list(backends))
}

/// The elements, separated by commas.
fn list(elements: &[impl std::fmt::Display]) -> String {
    elements.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Prints the results of `--hardening`. Returns the exit code: 1 if a check failed.
fn print_hardening(file: &Path, settings: &Settings) -> ExitCode {
    print_line!("\nHardening:");
    let checks = hardening::checks(file, settings);
    for check in &checks {
        let word = match check.outcome {
            CheckOutcome::Pass => "pass",
            CheckOutcome::Fail(_) => "FAIL",
            CheckOutcome::NotUsed => "-",
        };
        print_line!("  {word:<4}  {}", check.subject);
        if let CheckOutcome::Fail(advice) = &check.outcome {
            print_line!("        {advice}");
        }
    }
    let count = |is: fn(&CheckOutcome) -> bool| checks.iter().filter(|check| is(&check.outcome)).count();
    let failed = count(|outcome| matches!(outcome, CheckOutcome::Fail(_)));
    let passed = count(|outcome| *outcome == CheckOutcome::Pass);
    match count(|outcome| *outcome == CheckOutcome::NotUsed) {
        0 => print_line!("{passed} passed, {failed} failed"),
        unused => print_line!("{passed} passed, {failed} failed, {unused} not in use (-)"),
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
