//! Parses the settings file (TOML) into [`Settings`], and reports all errors of the file together.
//!
//! Every command that takes a settings file calls [`Settings::load`]. Each table of the file is declared with the macro
//! of [`mod@table`], and read into the struct that it declares, with the position of its values. A function `resolve`
//! converts the structs that are not yet in the form that the roles (gate, master, doors and so on) use. Errors are
//! collected on the way and do not stop the parser. The JSON schema ([`mod@schema`]) and the reference page
//! ([`mod@reference`]) are generated from the same declarations and their doc comments.

mod access_log;
mod bounds;
mod buffer;
mod condition;
mod domain;
mod doors;
mod error;
mod escalation;
mod fairness;
mod gate;
mod health;
mod in_force;
mod limit;
mod link;
mod listeners;
mod pages;
mod priority;
mod ratelimit;
mod reference;
mod roles;
mod rule;
mod schema;
mod secret;
mod shape;
mod site;
mod suggestion;
mod syntax;
mod table;
mod telemetry;
mod timeouts;
mod trusted;
mod value;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use tollgate_core::class::Class;
use tollgate_core::watch::NEVER;
use toml::de::DeTable;

pub(crate) use access_log::{AccessLog, LogFormat, LogOutput};
pub(crate) use buffer::ResponseBuffer;
pub(crate) use domain::{DEFAULT_DOMAIN, Domain};
pub(crate) use doors::{DoorListener, DoorLog, DoorTls, Doors};
pub(crate) use error::ConfigErrors;
pub(crate) use fairness::{Fairness, UserPlace};
pub(crate) use gate::{CertificateFiles, ForwardedHeader, Gate, Hold, TollSource, WAITING_BYTES_MAX};
pub(crate) use health::HealthCheck;
pub(crate) use in_force::in_force;
pub(crate) use link::MasterLink;
pub(crate) use pages::{ErrorPages, Page, PagePart};
pub(crate) use priority::{Precedence, Priority};
pub(crate) use ratelimit::{ServedDomain, ServedLimits, is_identified};
pub(crate) use reference::reference;
pub(crate) use roles::{Admin, FlagState, Graphite, Master, Redis, WatchSettings, WebUrl};
pub(crate) use rule::{RuleSettings, StateLocation};
pub(crate) use schema::schema;
pub(crate) use site::Site;
pub(crate) use telemetry::TelemetrySettings;
pub(crate) use value::{BackendProtocol, BackendUrl, ListenAddress};

use domain::{Domains, Rules};
use error::ErrorCollector;
use link::LinkTable;
use priority::Priorities;
use rule::RuleContext;
use site::Sites;
use table::{Entries, table};

/// The contents of a settings file. A role that the file does not configure is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The reverse proxy.
    pub(crate) gate: Option<Gate>,
    /// The rules by domain. The first is always [`DEFAULT_DOMAIN`].
    pub(crate) domains: Vec<Domain>,
    /// The master.
    pub(crate) master: Option<Master>,
    /// The connections to masters for the rules of the default domain. None without `[link]`, unless a rule needs the
    /// `[master]` of the same file and that master has no keys.
    pub(crate) link: Option<MasterLink>,
    /// The doors.
    pub(crate) doors: Option<Doors>,
    /// The admin address.
    pub(crate) admin: Option<Admin>,
    /// The watch.
    pub(crate) watch: WatchSettings,
    /// The Graphite server that receives the metrics.
    pub(crate) graphite: Option<Graphite>,
    /// The OpenTelemetry receiver.
    pub(crate) telemetry: Option<TelemetrySettings>,
    /// Redis or Valkey.
    pub(crate) redis: Option<Redis>,
}

/// Maximum size of a settings file, in bytes. A larger file is a mistake, such as the wrong path.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;

table! {
    /// A settings file. Every table is optional.
    struct FileTable {
        /// The reverse proxy.
        gate: Gate,
        /// Rules of the domain `default`. Written `[[rule]]`, once for each.
        rule: Rules = empty,
        /// Weights of requests in the queue, other than 1. Written `[[priority]]`, once for each.
        priority: Priorities = empty,
        /// More domains, each with its own rules. Written `[[domain]]`, once for each.
        domain: Domains = empty,
        /// Sites with their own backends, rules and certificates. Written `[[site]]`, once for each.
        site: Sites = empty,
        /// The master of a fleet of gates.
        master: Master,
        /// The masters that this gate reports to.
        link: LinkTable,
        /// Interfaces for programs and proxies that are not behind this gate.
        doors: Doors,
        /// The admin address.
        admin: Admin,
        /// The watch: it records refusals and flags accounts.
        watch: WatchSettings = "{}",
        /// The Graphite server that receives the metrics.
        metrics: Graphite,
        /// The OpenTelemetry receiver of metrics and traces.
        telemetry: TelemetrySettings,
        /// Redis or Valkey, for rules with `state = "redis"` and a master's `books`.
        redis: Redis,
    }
}

#[cfg(test)]
mod tests;

impl Settings {
    /// Reads and parses a file, and the files that it names. An empty file is an error.
    pub(crate) fn load(path: &Path) -> Result<Self, ConfigErrors> {
        let file = path.display().to_string();
        let bytes = read_file(path).map_err(|message| ConfigErrors::unreadable(&file, message))?;
        match String::from_utf8(bytes) {
            // A truncated file, or the wrong one, must not silently remove all rules.
            Ok(text) if text.trim_start_matches('\u{feff}').trim().is_empty() => {
                let message = "is empty: for the defaults leave `--config` away, or write a comment";
                Err(ConfigErrors::unreadable(&file, message))
            }
            Ok(text) => {
                let mut settings = Self::parse(&file, &text)?;
                ratelimit::load(&mut settings)?;
                Ok(settings)
            }
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                let mut errors = ErrorCollector::default();
                errors.syntax(at..at, "this byte is not UTF-8: save the file as UTF-8");
                Err(errors.place(&file, &String::from_utf8_lossy(error.as_bytes())))
            }
        }
    }

    /// Parses the text of a file. `file` is its path: error messages begin with it, and relative paths in the text are
    /// relative to its directory. The files of `doors.ratelimit` are not read.
    pub(crate) fn parse(file: &str, text: &str) -> Result<Self, ConfigErrors> {
        let mut errors = ErrorCollector::of(Path::new(file));
        let (document, syntax_errors) = DeTable::parse_recoverable(text);
        for error in syntax_errors {
            syntax::report(&error, text, &mut errors);
        }
        let entries = Entries::new(document.get_ref(), document.span(), &FileTable::SHAPE, &mut errors);
        entries.errors.has_redis = entries.written.has("redis");
        let settings = FileTable::read_entries(entries).resolve(&mut errors);
        if errors.is_empty() { Ok(settings) } else { Err(errors.place(file, text)) }
    }

    /// The rules of the domain with this name.
    pub(crate) fn rules(&self, domain: &str) -> Option<&[RuleSettings]> {
        self.domains.iter().find(|candidate| candidate.name == domain).map(|domain| domain.rules.as_slice())
    }
}

impl Default for Settings {
    /// The settings of an empty file.
    fn default() -> Self {
        Self::parse("", "").expect("an empty text has no error, as a test shows")
    }
}

/// The bytes of a file of at most [`FILE_BYTES_MAX`] bytes. The error is a message that continues the name of the file.
fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err("is a directory: name a file".to_string());
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("is larger than {FILE_BYTES_MAX} bytes, too large for a settings file"));
    }
    Ok(bytes)
}

impl FileTable {
    /// Converts the tables to settings. Values with an error have been reported and count as absent.
    fn resolve(self, errors: &mut ErrorCollector) -> Settings {
        let mut gate = self.gate.map(|gate| gate.value);
        let site_rules = match self.site.value.is_empty() {
            true => Vec::new(),
            false => site::resolve(self.site.value, gate.get_or_insert_default(), errors),
        };
        let (rules, priorities, domains) = (self.rule.value, self.priority.value, self.domain.value);
        let gate_or_default = gate.clone().unwrap_or_default();
        let mut watch = self.watch.value;
        if !watch.flags {
            watch.flag_threshold = NEVER;
        }
        let context = RuleContext {
            cores: gate_or_default.all_cores(),
            site: None,
            hold_max: gate_or_default.hold.max,
            // The divisor is a power of two, so that adding a rule seldom changes the table size of the other rules. A
            // table of another size starts empty.
            memory_bytes: gate_or_default.memory_bytes
                / domain::tables(&rules, &site_rules, &domains).next_power_of_two() as u64,
            has_master: self.written.has("link") || self.written.has("master"),
            account: Class::parse(&watch.account_class).ok(),
        };
        let domains = domain::resolve((rules, site_rules, priorities), domains, &context, errors);
        // Without `[watch]`, the operator did not ask for flags.
        watch.why_no_flags = why_no_flags(&watch, &domains).filter(|_| self.written.has("watch"));
        let master = self.master.map(|master| master.value);
        let settings = Settings {
            link: link::resolve(self.link, master.as_ref(), &domains, errors),
            domains,
            gate,
            master,
            doors: self.doors.map(|doors| doors.value),
            admin: self.admin.map(|admin| admin.value),
            watch,
            graphite: self.metrics.map(|metrics| metrics.value),
            telemetry: self.telemetry.map(|telemetry| telemetry.value),
            redis: self.redis.map(|redis| redis.value),
        };
        listeners::refuse_clashes(errors);
        settings
    }
}

/// A note for the operator if no refusal by this process can lead to a flag, because no rule has the class of accounts.
/// None if one can, if there are no rules, or if flags are off.
fn why_no_flags(watch: &WatchSettings, domains: &[Domain]) -> Option<String> {
    let class = &watch.account_class;
    let mut rules = domains.iter().flat_map(|domain| &domain.rules).peekable();
    let has_rules = rules.peek().is_some();
    // The fair queue also refuses addresses, which are keys of the class `ip/32`.
    let can_flag = class == "ip/32" || rules.any(|settings| settings.rule.class.to_string() == *class);
    (has_rules && !can_flag && watch.flag_threshold != NEVER).then(|| {
        format!(
            "no rule has the class `{class}`: only refusals reported by other programs lead to flags, \
             unless `account_class` in [watch] is the class of a rule"
        )
    })
}
