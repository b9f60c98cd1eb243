//! `doors.ratelimit`: files with limits in the YAML format of envoyproxy/ratelimit.
//!
//! Each file is a domain of its own, and each limit in it becomes a rule of that domain. A door looks up the limit of a
//! request's descriptor in the [`LimitTree`] of the domain, and then lets the gate decide by the rule of that limit.

use std::path::{Path, PathBuf};

use tollgate_core::class::Class;
use tollgate_core::limit::{Bucket, Limit};
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::time::Span;
use tollgate_gatekeeper::shared::{OnTimeout, SharedRule};
use tollgate_gatekeeper::table::table_bytes_min;
use tollgate_wire::ratelimit_config::{self, Allowance, LimitFile, LimitLeaf, LimitTree};

use super::domain::{DEFAULT_DOMAIN, Domain};
use super::doors::Doors;
use super::error::ConfigErrors;
use super::rule::{RuleSettings, StateLocation};
use super::{FILE_BYTES_MAX, Settings};
use crate::bounded_file;

/// The maximum number of files in a folder.
const FILES_MAX: usize = 256;
/// The maximum number of limits in all files. Each has a table of keys of its own, which takes memory.
const LIMITS_MAX: usize = 10_000;

/// The limits of all files, by domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServedLimits {
    domains: Vec<ServedDomain>,
    /// Keys of the files that have no effect, as `file:line:column: message`.
    pub(crate) notes: Vec<String>,
}

/// The limits of one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServedDomain {
    /// The name in the file, which Envoy sends.
    name: String,
    /// The name of the [`Domain`] with the rules of these limits: the same name, except for `default`.
    pub(crate) rules: String,
    /// Finds the limit of a descriptor.
    pub(crate) tree: LimitTree,
}

impl ServedLimits {
    /// The limits of the domain with this name.
    pub(crate) fn find(&self, domain: &str) -> Option<&ServedDomain> {
        self.domains.iter().find(|known| known.name == domain)
    }
}

/// Whether the rule of a leaf (a limit in the tree) has the class `identifier`, because no class can be written for its
/// entries. The door then computes the key from the descriptor and passes it as the identifier.
pub(crate) fn is_identified(leaf: &LimitLeaf) -> bool {
    class_text(leaf).is_none()
}

/// The class of the rule of a leaf: the entries of the descriptor whose values have counters of their own (`varies`),
/// such as `descriptor:user`. None if there are no such entries, or a class cannot express them.
fn class_text(leaf: &LimitLeaf) -> Option<String> {
    let keys: Vec<&str> = leaf.entries.iter().filter(|entry| entry.varies).map(|entry| entry.key.as_str()).collect();
    let is_plain = |key: &&str| !key.contains(['+', '*']) && key.trim() == *key && *key != "identifier";
    // Of several entries with the same key, a class finds only the first.
    let is_unique = |key: &&str| leaf.entries.iter().filter(|entry| entry.key == **key).count() == 1;
    if keys.is_empty() || !keys.iter().all(|key| is_plain(key) && is_unique(key)) {
        return None;
    }
    Some(keys.iter().map(|key| format!("descriptor:{key}")).collect::<Vec<_>>().join("+"))
}

/// Reads the files that `doors.ratelimit` names, and adds their domains to the settings.
pub(super) fn load(settings: &mut Settings) -> Result<(), ConfigErrors> {
    let Some(doors) = &mut settings.doors else { return Ok(()) };
    let Some(path) = doors.ratelimit.clone() else { return Ok(()) };
    let (mut files, mut errors) = (Vec::new(), ConfigErrors::default());
    for path in files_of(&path)? {
        match read(&path) {
            Ok(file) => files.push((path.display().to_string(), file)),
            Err(more) => errors.0.extend(more.0),
        }
    }
    let mut limits = ServedLimits::default();
    for (name, file) in &files {
        if let Err(more) = add(&mut limits, name, file, &settings.domains) {
            errors.0.extend(more.0);
        }
    }
    if !errors.0.is_empty() {
        return Err(errors);
    }
    let domains =
        domains(&limits, doors).map_err(|message| ConfigErrors::unreadable(path.display().to_string(), message))?;
    doors.limits = limits.into();
    settings.domains.extend(domains);
    Ok(())
}

/// The file itself, or the YAML files of a folder in the order of their names.
fn files_of(path: &Path) -> Result<Vec<PathBuf>, ConfigErrors> {
    let wrong = |message: String| ConfigErrors::unreadable(path.display().to_string(), message);
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let entries = std::fs::read_dir(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let is_yaml = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "yaml" || kind == "yml");
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_yaml).collect();
    files.sort();
    match files.len() {
        0 => Err(wrong("has no file that ends in .yaml or .yml".to_owned())),
        1..=FILES_MAX => Ok(files),
        _ => Err(wrong(format!("has more than {FILES_MAX} files"))),
    }
}

fn read(path: &Path) -> Result<LimitFile, ConfigErrors> {
    let name = path.display().to_string();
    let text = bounded_file::read_text(path, FILE_BYTES_MAX);
    let text = text.map_err(|message| ConfigErrors::unreadable(&name, message))?;
    ratelimit_config::parse(&text).map_err(|errors| {
        ConfigErrors::at(&name, errors.into_iter().map(|error| (error.line, error.column, error.message)))
    })
}

/// Adds the domain of a file to `limits`. `known` are the domains of the settings, whose names are taken.
fn add(limits: &mut ServedLimits, name: &str, file: &LimitFile, known: &[Domain]) -> Result<(), ConfigErrors> {
    let error = |message: String| ConfigErrors::at(name, [(file.domain_line, 1, message)]);
    let domain = &file.domain;
    if limits.find(domain).is_some() {
        return Err(error(format!("another file has the domain `{domain}`: write all its descriptors in one file")));
    }
    // The name `default` is taken: the gate's own rules are the domain `default` of the settings.
    let rules = if domain == DEFAULT_DOMAIN { format!("{DEFAULT_DOMAIN}/ratelimit") } else { domain.clone() };
    if known.iter().any(|known| known.name == rules) {
        return Err(error(format!("the settings have a `[[domain]]` with the name `{domain}`: rename one of them")));
    }
    let tree = LimitTree::new(&file.descriptors);
    limits.domains.push(ServedDomain { name: domain.clone(), rules, tree });
    let notes = file.notes.iter();
    limits.notes.extend(notes.map(|note| format!("{name}:{}:{}: {}", note.line, note.column, note.message)));
    Ok(())
}

/// The domains with the rules of all limits.
fn domains(limits: &ServedLimits, doors: &Doors) -> Result<Vec<Domain>, String> {
    let leaves = || limits.domains.iter().flat_map(|domain| domain.tree.leaves());
    if leaves().count() > LIMITS_MAX {
        return Err(format!("has more than {LIMITS_MAX} limits"));
    }
    let varying = leaves().filter(|leaf| leaf.entries.iter().any(|entry| entry.varies)).count();
    // The divisor is a power of two, so that adding a limit seldom changes the table size of the others. A table of
    // another size starts empty.
    let memory_bytes = doors.memory_bytes / varying.next_power_of_two() as u64;
    let domain = |served: &ServedDomain| {
        let rules = served.tree.leaves().iter().filter_map(|leaf| rule(leaf, memory_bytes, doors.ratelimit_state));
        let rules = rules.collect::<Result<_, String>>()?;
        Ok(Domain { name: served.rules.clone(), rules, priorities: Vec::new(), account: None })
    };
    limits.domains.iter().map(domain).collect()
}

/// The rule of a limit; none for one that is unlimited or refuses all, which need no state. A leaf of which no entry
/// varies has a single counter, so its table is as small as possible; `memory_bytes` is for the others.
fn rule(leaf: &LimitLeaf, memory_bytes: u64, state: StateLocation) -> Option<Result<RuleSettings, String>> {
    let Allowance::PerUnit(requests @ 1.., unit) = leaf.limit.allowance else { return None };
    let bucket = Bucket::new(requests, requests, Span::from_secs(unit.secs())).expect("a unit is at most a year");
    let class = class_text(leaf).unwrap_or_else(|| "identifier".to_owned());
    let class = Class::parse(&class).expect("the keys are plain and not empty");
    let mode = if leaf.is_shadow { Mode::Observe } else { Mode::Enforce };
    let rule = Rule { mode, ..Rule::new(&leaf.path, class, Limit::Bucket(bucket)) };
    if state == StateLocation::Redis
        && let Err(unshareable) = SharedRule::new("", "", rule.clone())
    {
        return Some(Err(format!("has a limit on line {} that Redis cannot keep: {unshareable}", leaf.line)));
    }
    let bytes_min = table_bytes_min(&rule) as u64;
    let varies = leaf.entries.iter().any(|entry| entry.varies);
    Some(Ok(RuleSettings {
        rule,
        state,
        wire_domain: None,
        status: None,
        headers: true,
        lease_millionths: None,
        on_timeout: OnTimeout::default(),
        memory_bytes: if varies { memory_bytes.max(bytes_min) } else { bytes_min },
    }))
}
