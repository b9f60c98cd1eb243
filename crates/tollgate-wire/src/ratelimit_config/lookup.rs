//! Finds the limit that applies to a descriptor, a list of keys and values that Envoy sends about a request.
//!
//! The original service, envoyproxy/ratelimit, matches the joined text `key_value`, so an entry `a_b` with the value
//! `c` and an entry `a` with the value `b_c` match the same descriptors. Files rely on that only by accident, but the
//! same file must give the same limits, so it is the same here. These two entries do not share a counter, because the key
//! of a counter has separate parts.

use std::collections::{HashMap, HashSet};

use super::{DescriptorSpec, LimitSpec, joined};

/// The limits of one domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitTree {
    root: Level,
    leaves: Vec<LimitLeaf>,
}

/// A limit, and the descriptor that it applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitLeaf {
    /// The path of the descriptor: `key_value` of each level, joined by dots. No other leaf of the domain has it.
    pub path: String,
    /// The limit.
    pub limit: LimitSpec,
    /// Whether it is only evaluated and counted, and refuses nothing.
    pub is_shadow: bool,
    /// Whether a request is refused only if all limits with this mode are exceeded.
    pub is_quota: bool,
    /// The levels of the path, one for each entry of a matching request descriptor.
    pub entries: Vec<LeafEntry>,
    /// The line of the descriptor in the file, from 1.
    pub line: usize,
}

/// One level of the path of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafEntry {
    /// The key.
    pub key: String,
    /// The value in the file, in which `*` matches any text; `None` matches every value.
    pub value: Option<String>,
    /// Whether each value that requests have here has its own counter. Otherwise all of them share one.
    pub varies: bool,
}

/// The descriptors of one level, which one entry of a request can match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Level {
    /// By `key_value`, or by `key` if there is no value.
    by_text: HashMap<String, Branch>,
    /// The descriptors with wildcards, in file order: the parts between the stars, and the key in `by_text`.
    wildcards: Vec<(Vec<String>, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Branch {
    /// The index of its limit in [`LimitTree::leaves`], if it has one.
    leaf: Option<usize>,
    /// The descriptors for the next entry.
    below: Level,
}

impl LimitTree {
    /// The limits of these descriptors.
    pub fn new(descriptors: &[DescriptorSpec]) -> Self {
        let mut leaves = Vec::new();
        let root = Level::new(descriptors, &mut Vec::new(), &mut leaves);
        make_unique(&mut leaves);
        Self { root, leaves }
    }

    /// All limits, in file order.
    pub fn leaves(&self) -> &[LimitLeaf] {
        &self.leaves
    }

    /// The index of the limit for a descriptor with these entries; `None` if no limit applies. `scratch` avoids an
    /// allocation per call.
    pub fn find<'e>(&self, entries: impl Iterator<Item = (&'e str, &'e str)>, scratch: &mut String) -> Option<usize> {
        let mut branch: Option<&Branch> = None;
        for (key, value) in entries {
            let level = branch.map_or(&self.root, |branch| &branch.below);
            branch = Some(level.find(key, value, scratch)?);
        }
        branch?.leaf
    }
}

impl Level {
    fn new(descriptors: &[DescriptorSpec], path: &mut Vec<LeafEntry>, leaves: &mut Vec<LimitLeaf>) -> Self {
        let mut level = Self::default();
        for descriptor in descriptors {
            let text = joined(&descriptor.key, descriptor.value.as_deref());
            let has_wildcard = text.contains('*');
            let varies = descriptor.value.is_none() && !has_wildcard || has_wildcard && !descriptor.shares_threshold;
            path.push(LeafEntry { key: descriptor.key.clone(), value: descriptor.value.clone(), varies });
            let leaf = descriptor.limit.as_ref().map(|limit| {
                leaves.push(LimitLeaf {
                    path: path_text(path),
                    limit: limit.clone(),
                    is_shadow: descriptor.is_shadow,
                    is_quota: descriptor.is_quota,
                    entries: path.clone(),
                    line: descriptor.line,
                });
                leaves.len() - 1
            });
            let below = Self::new(&descriptor.children, path, leaves);
            path.pop();
            if has_wildcard {
                level.wildcards.push((text.split('*').map(str::to_owned).collect(), text.clone()));
            }
            level.by_text.insert(text, Branch { leaf, below });
        }
        level
    }

    fn find(&self, key: &str, value: &str, scratch: &mut String) -> Option<&Branch> {
        scratch.clear();
        scratch.push_str(key);
        scratch.push('_');
        scratch.push_str(value);
        if let Some(branch) = self.by_text.get(scratch.as_str()) {
            return Some(branch);
        }
        let by_wildcard = self.wildcards.iter().find(|(parts, _)| matches(parts, scratch));
        self.by_text.get(by_wildcard.map_or(key, |(_, text)| text))
    }
}

fn path_text(path: &[LeafEntry]) -> String {
    let parts: Vec<String> = path.iter().map(|entry| joined(&entry.key, entry.value.as_deref())).collect();
    parts.join(".")
}

/// Appends `~2`, `~3` and so on to paths that are equal to an earlier one, because keys contain dots.
fn make_unique(leaves: &mut [LimitLeaf]) {
    let mut known = HashSet::new();
    for leaf in leaves {
        let mut number = 1;
        while !known.insert(leaf.path.clone()) {
            number += 1;
            let base = leaf.path.rsplit_once('~').filter(|_| number > 2).map_or(&*leaf.path, |(base, _)| base);
            leaf.path = format!("{base}~{number}");
        }
    }
}

/// Whether `text` consists of the parts in order, with any text between them.
pub(super) fn matches(parts: &[String], text: &str) -> bool {
    let [first, middle @ .., last] = parts else { return false };
    let fixed: usize = parts.iter().map(String::len).sum();
    if text.len() < fixed || !text.starts_with(first.as_str()) || !text.ends_with(last.as_str()) {
        return false;
    }
    let mut rest = &text[first.len()..text.len() - last.len()];
    for part in middle {
        let Some(at) = rest.find(part.as_str()) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}
