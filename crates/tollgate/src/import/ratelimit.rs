//! Translates a YAML file of envoyproxy/ratelimit to rules, one for each limit.
//!
//! Envoy sends one or more descriptors for a request. Each is a list of entries with a key and a value, and is decided
//! separately. In the file, the most specific descriptor that matches decides alone. In Tollgate, all rules that apply
//! decide. So the `when` of a rule matches descriptors with exactly the keys of its limit, and its `unless` excludes
//! those for which another descriptor of the file takes precedence.
//!
//! The file also matches the order of entries. Rules do not: a rule applies to descriptors with its keys in any order.
//! Two limits with the same keys in different orders are therefore an error.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

use tollgate_wire::ratelimit_config::{self, Allowance, DescriptorSpec, LeafEntry, LimitLeaf, LimitTree, LimitUnit};

use super::{FILE_BYTES_MAX, Imported, comment, quoted};
use crate::bounded_file;

/// The port on which envoyproxy/ratelimit serves gRPC, and the translated settings do too.
const SERVICE_PORT: u16 = 8081;
/// The class of a limit whose descriptors share one counter. A rule needs a class, and a descriptor without the key
/// `method` has an empty method.
const METHOD_CLASS: &str = "method";

/// The settings for a file, or all its errors, among them everything that rules cannot express. Keys without effect are
/// comments in the settings, not notes.
pub(super) fn imported(file: &Path) -> Result<Imported, String> {
    let text = bounded_file::read_text(file, FILE_BYTES_MAX).map_err(|message| vec![format!("1:1: {message}")]);
    let rules = text.and_then(|text| rules(&file.display().to_string(), &text));
    let located = |error: &String| format!("{}:{error}", file.display());
    let toml = rules.map_err(|errors| errors.iter().map(located).collect::<Vec<_>>().join("\n"))?;
    Ok(Imported { toml, notes: Vec::new() })
}

/// A descriptor of the file, on the path from the top level to a limit.
#[derive(Clone, Copy)]
struct Step<'f> {
    descriptor: &'f DescriptorSpec,
    /// All descriptors of its level, in file order, itself included.
    level: &'f [DescriptorSpec],
}

/// The settings for a file with this name and text, or all its errors, as `line:column: message`.
fn rules(name: &str, text: &str) -> Result<String, Vec<String>> {
    let shown = |error: ratelimit_config::ConfigMessage| format!("{}:{}: {}", error.line, error.column, error.message);
    let file = ratelimit_config::parse(text).map_err(|errors| errors.into_iter().map(shown).collect::<Vec<_>>())?;
    let tree = LimitTree::new(&file.descriptors);
    let mut writer =
        Writer { out: String::new(), errors: Vec::new(), leaves: tree.leaves().iter(), orders: HashMap::new() };
    let _ = writeln!(
        writer.out,
        "# From {}, for Envoy's rate limit service. `tollgate run --config FILE` serves it.\n\
         [doors]\ngrpc = \"127.0.0.1:{SERVICE_PORT}\"\n",
        comment(name)
    );
    let _ = writeln!(writer.out, "[[domain]]\nname = {}", quoted(&file.domain));
    if file.domain == "default" {
        writer.errors.push(format!(
            "{}:1: the domain `default` is the gate's own: rename it here and in Envoy",
            file.domain_line
        ));
    }
    for note in &file.notes {
        let _ = writeln!(writer.out, "# line {}: {}", note.line, comment(&note.message));
    }
    writer.level(&file.descriptors, &mut Vec::new());
    if writer.errors.is_empty() { Ok(writer.out) } else { Err(writer.errors) }
}

/// Writes the rules of a file.
struct Writer<'f> {
    /// The settings file so far.
    out: String,
    errors: Vec<String>,
    /// The limits that are not written yet, in file order.
    leaves: std::slice::Iter<'f, LimitLeaf>,
    /// The keys of limits in the order of their entries, by the same keys sorted.
    orders: HashMap<Vec<&'f str>, Vec<&'f str>>,
}

impl<'f> Writer<'f> {
    /// Writes the rules of all descriptors of a level and below it. `path` leads to the level.
    fn level<'d>(&mut self, level: &'d [DescriptorSpec], path: &mut Vec<Step<'d>>) {
        for descriptor in level {
            path.push(Step { descriptor, level });
            // The leaves are in file order too, so the next one is the limit of this descriptor.
            if let Some(leaf) = descriptor.limit.as_ref().and_then(|_| self.leaves.next()) {
                self.limit(leaf, path);
            }
            self.level(&descriptor.children, path);
            path.pop();
        }
    }

    /// Writes the rule of a limit, or reports that rules cannot express it.
    fn limit(&mut self, leaf: &'f LimitLeaf, path: &[Step<'_>]) {
        let line = leaf.line;
        let mut refuse = |message: &str| {
            self.errors.push(format!("{line}:1: {message}: serve the file as it is, with `ratelimit` in [doors]"));
        };
        if !leaf.limit.replaces.is_empty() {
            refuse("rules do not replace each other");
        }
        if leaf.is_quota {
            refuse("rules have no quota mode");
        }
        let keys: Vec<&str> = leaf.entries.iter().map(|entry| entry.key.as_str()).collect();
        // `+` joins the parts of a class, whose trailing spaces are ignored. In the file, `*` in a key is a wildcard.
        let is_plain = |key: &str| !key.contains(['+', '*']) && key.trim_end() == key;
        if keys.iter().enumerate().any(|(index, key)| keys[..index].contains(key) || !is_plain(key)) {
            refuse("rules need a plain key for each entry, and each once");
        }
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        if *self.orders.entry(sorted).or_insert_with(|| keys.clone()) != keys {
            refuse("another limit has the same keys in another order, which rules do not distinguish");
        }
        match leaf.limit.allowance {
            Allowance::PerUnit(0, _) => refuse("rules have no limit of 0"),
            Allowance::PerUnit(..) if shares_methods(leaf) => {
                refuse("rules cannot count the values of the key `method` together");
            }
            Allowance::PerUnit(requests, unit) => self.rule(leaf, &more_specific(path), requests, unit),
            Allowance::Unlimited => {
                let name = comment(&leaf.path);
                let _ = writeln!(self.out, "\n# line {line}: unlimited, so there is no rule for {name}");
            }
        }
    }

    fn rule(&mut self, leaf: &LimitLeaf, unless: &[String], requests: u32, unit: LimitUnit) {
        let out = &mut self.out;
        let _ = writeln!(out, "\n[[domain.rule]]\nname   = {}", quoted(&leaf.path));
        let when = entries_table(leaf.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_deref())));
        let _ = writeln!(out, "when   = {{ descriptor = {when} }}");
        if !unless.is_empty() {
            let _ = writeln!(out, "unless = {{ descriptor = [{}] }}", unless.join(", "));
        }
        let class = class(leaf);
        let note = if class == METHOD_CLASS { " # equal for all of them, so they share one counter" } else { "" };
        let _ = writeln!(out, "class  = {}{note}", quoted(&class));
        let _ = writeln!(out, "bucket = {{ size = {requests}, drip = {requests}, every = \"{}s\" }}", unit.secs());
        if leaf.is_shadow {
            out.push_str("mode   = \"observe\"\n");
        }
    }
}

/// Whether descriptors with different methods share one counter, which [`METHOD_CLASS`] would count separately.
fn shares_methods(leaf: &LimitLeaf) -> bool {
    let is_wildcard = |value: &String| value.contains('*');
    let has_methods = |entry: &LeafEntry| entry.key == "method" && entry.value.as_ref().is_some_and(is_wildcard);
    class(leaf) == METHOD_CLASS && leaf.entries.iter().any(has_methods)
}

/// The class of a limit's rule: the keys whose values have counters of their own, such as `descriptor:user`.
fn class(leaf: &LimitLeaf) -> String {
    let varying = leaf.entries.iter().filter(|entry| entry.varies);
    let class: Vec<String> = varying.map(|entry| format!("descriptor:{}", entry.key)).collect();
    if class.is_empty() { METHOD_CLASS.to_owned() } else { class.join("+") }
}

/// The descriptors that take precedence over the one at the end of `path` for a request that matches both, as TOML
/// tables for `unless`. At each level, exact values come before wildcards, wildcards in file order, and any value last.
fn more_specific(path: &[Step<'_>]) -> Vec<String> {
    let mut tables = Vec::new();
    for (depth, step) in path.iter().enumerate() {
        for other in step.level.iter().filter(|other| other.key == step.descriptor.key) {
            if !comes_before(other, step) || !may_overlap(other, step.descriptor) {
                continue;
            }
            let above =
                path[..depth].iter().map(|step| (step.descriptor.key.as_str(), step.descriptor.value.as_deref()));
            // The lookup does not return from the other branch, so its values below are excluded whatever they are.
            let below = path[depth + 1..].iter().map(|step| (step.descriptor.key.as_str(), None));
            let entries = above.chain([(other.key.as_str(), other.value.as_deref())]).chain(below);
            tables.push(entries_table(entries));
        }
    }
    tables
}

/// The precedence of a descriptor among those of its level and key; the lowest decides.
fn rank(descriptor: &DescriptorSpec) -> u8 {
    match &descriptor.value {
        Some(value) if !value.contains('*') => 0,
        Some(_) => 1,
        None => 2,
    }
}

/// Whether `other` takes precedence over the descriptor of `step`, in the same level.
fn comes_before(other: &DescriptorSpec, step: &Step<'_>) -> bool {
    let place = |descriptor: &DescriptorSpec| step.level.iter().position(|known| std::ptr::eq(known, descriptor));
    let (one, own) = (rank(other), rank(step.descriptor));
    one < own || (one == 1 && own == 1 && place(other) < place(step.descriptor))
}

/// Whether a value may match both. An exact value is matched against a wildcard; two wildcards are assumed to overlap.
fn may_overlap(other: &DescriptorSpec, own: &DescriptorSpec) -> bool {
    match (&other.value, &own.value) {
        (Some(other), Some(own)) if !other.contains('*') && own.contains('*') => {
            tollgate_core::condition::Pattern::new(own.clone()).matches(other.as_bytes())
        }
        _ => true,
    }
}

/// Keys with patterns for their values as a TOML table. No value means any value.
fn entries_table<'f>(entries: impl Iterator<Item = (&'f str, Option<&'f str>)>) -> String {
    let entry = |(key, value): (&str, Option<&str>)| format!("{} = {}", quoted(key), quoted(value.unwrap_or("*")));
    format!("{{ {} }}", entries.map(entry).collect::<Vec<_>>().join(", "))
}
