//! Converts the YAML tree of a file of envoyproxy/ratelimit to [`DescriptorSpec`]s, and checks it. Reading continues
//! after an error, so that all errors are reported together.

use std::collections::HashSet;

use super::yaml::{Node, NodeKind, Position, shown};
use super::{Allowance, ConfigMessage, DescriptorSpec, ERRORS_MAX, LimitFile, LimitSpec, LimitUnit, joined};

/// The keys of a file.
const FILE_KEYS: [&str; 2] = ["domain", "descriptors"];
/// The keys of a descriptor.
const DESCRIPTOR_KEYS: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "share_threshold",
    "detailed_metric",
    "value_to_metric",
    "metadata",
];
/// The keys of a limit.
const LIMIT_KEYS: [&str; 5] = ["requests_per_unit", "unit", "unlimited", "name", "replaces"];
/// The keys of an element of `replaces`.
const REPLACES_KEYS: [&str; 1] = ["name"];
/// Keys of descriptors that have no effect here, each with the reason.
const WITHOUT_EFFECT: [(&str, &str); 3] = [
    ("detailed_metric", "metrics are per rule, and the console shows the values"),
    ("value_to_metric", "metrics are per rule, and the console shows the values"),
    ("metadata", "answers carry no dynamic metadata"),
];

/// Reads the root of a file.
pub(super) fn file(root: &Node<'_>) -> Result<LimitFile, Vec<ConfigMessage>> {
    let mut reader = Reader::default();
    let fields = reader.fields(root, &FILE_KEYS, "a file");
    let domain = reader.text(&fields, "domain").filter(|domain| !domain.is_empty());
    let domain_line = fields.find("domain").map_or(root.at.line, |node| node.at.line);
    if domain.is_none() {
        reader.error(root.at, "the file has no domain: write `domain: NAME`, as in Envoy's filter");
    }
    let descriptors = reader.descriptors(fields.find("descriptors"));
    let Reader { errors, notes } = reader;
    match domain {
        Some(domain) if errors.is_empty() => Ok(LimitFile { domain, domain_line, descriptors, notes }),
        _ => Err(errors),
    }
}

#[derive(Default)]
struct Reader {
    errors: Vec<ConfigMessage>,
    notes: Vec<ConfigMessage>,
}

/// The pairs of a map whose keys are known.
struct KnownFields<'n, 't>(Vec<(&'static str, &'n Node<'t>)>);

impl<'n, 't> KnownFields<'n, 't> {
    /// The value of this key, unless it is null.
    fn find(&self, key: &str) -> Option<&'n Node<'t>> {
        self.0.iter().find(|(known, _)| *known == key).map(|(_, node)| *node).filter(|node| !is_null(node))
    }
}

fn is_null(node: &Node<'_>) -> bool {
    matches!(&node.kind, NodeKind::Scalar { text, is_plain: true } if matches!(&**text, "" | "~" | "null" | "Null" | "NULL"))
}

impl Reader {
    fn error(&mut self, at: Position, message: impl Into<String>) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(at.message(message));
        }
    }

    /// The fields of a map. `known` are its allowed keys, and `of` names the map in errors. Unknown and repeated keys
    /// are errors.
    fn fields<'n, 't>(&mut self, node: &'n Node<'t>, known: &'static [&'static str], of: &str) -> KnownFields<'n, 't> {
        let NodeKind::Map(pairs) = &node.kind else {
            self.error(node.at, format!("{of} is a map of keys and values: write `{}: ...`", known[0]));
            return KnownFields(Vec::new());
        };
        let mut fields: Vec<(&'static str, &Node<'t>)> = Vec::new();
        for (key, value) in pairs {
            let NodeKind::Scalar { text, .. } = &key.kind else {
                self.error(key.at, "a key is a text");
                continue;
            };
            let Some(name) = known.iter().find(|name| **name == text) else {
                let message = format!("`{}` is no key of {of}: it has `{}`", shown(text), known.join("`, `"));
                self.error(key.at, message);
                continue;
            };
            if fields.iter().any(|(earlier, _)| earlier == name) {
                self.error(key.at, format!("`{name}` is there twice: remove one"));
                continue;
            }
            fields.push((name, value));
        }
        KnownFields(fields)
    }

    fn text(&mut self, fields: &KnownFields<'_, '_>, key: &str) -> Option<String> {
        let node = fields.find(key)?;
        let NodeKind::Scalar { text, .. } = &node.kind else {
            self.error(node.at, format!("`{key}` is a text"));
            return None;
        };
        Some(text.clone().into_owned())
    }

    /// A boolean, `false` if it is absent.
    fn truth(&mut self, fields: &KnownFields<'_, '_>, key: &str) -> bool {
        let Some(node) = fields.find(key) else { return false };
        let word = match &node.kind {
            NodeKind::Scalar { text, is_plain: true } => text.to_ascii_lowercase(),
            _ => String::new(),
        };
        match word.as_str() {
            "true" | "yes" | "on" | "y" => true,
            "false" | "no" | "off" | "n" => false,
            _ => {
                self.error(node.at, format!("`{key}` is true or false"));
                false
            }
        }
    }

    fn list<'n, 't>(&mut self, node: Option<&'n Node<'t>>, key: &str) -> &'n [Node<'t>] {
        match node.map(|node| (&node.kind, node.at)) {
            None => &[],
            Some((NodeKind::List(nodes), _)) => nodes,
            Some((_, at)) => {
                self.error(at, format!("`{key}` is a list: write each element after a `-`"));
                &[]
            }
        }
    }

    /// The descriptors of one level.
    fn descriptors(&mut self, node: Option<&Node<'_>>) -> Vec<DescriptorSpec> {
        let mut known = HashSet::new();
        let mut descriptors = Vec::new();
        for node in self.list(node, "descriptors") {
            let Some(descriptor) = self.descriptor(node) else { continue };
            let text = joined(&descriptor.key, descriptor.value.as_deref());
            if known.contains(&text) {
                let message = format!("another descriptor of this level is `{}`: join the two", shown(&text));
                self.error(node.at, message);
            }
            known.insert(text);
            descriptors.push(descriptor);
        }
        descriptors
    }

    fn descriptor(&mut self, node: &Node<'_>) -> Option<DescriptorSpec> {
        let fields = self.fields(node, &DESCRIPTOR_KEYS, "a descriptor");
        let key = self.text(&fields, "key").filter(|key| !key.is_empty());
        let value = self.text(&fields, "value").filter(|value| !value.is_empty());
        if key.is_none() && matches!(node.kind, NodeKind::Map(_)) {
            self.error(node.at, "the descriptor has no key: write `key: NAME`");
        }
        let (is_shadow, is_quota) = (self.truth(&fields, "shadow_mode"), self.truth(&fields, "quota_mode"));
        let shares_threshold = self.truth(&fields, "share_threshold");
        for (name, reason) in WITHOUT_EFFECT {
            if let Some(node) = fields.find(name) {
                self.notes.push(node.at.message(format!("`{name}` has no effect: {reason}")));
            }
        }
        let limit = fields.find("rate_limit").and_then(|node| self.limit(node));
        if limit.is_none() && fields.find("rate_limit").is_none() {
            for name in ["shadow_mode", "quota_mode"] {
                if let Some(node) = fields.find(name) {
                    self.notes.push(node.at.message(format!("`{name}` has no effect without `rate_limit`")));
                }
            }
        }
        let children = self.descriptors(fields.find("descriptors"));
        let has_wildcard = [key.as_deref(), value.as_deref()].into_iter().flatten().any(|text| text.contains('*'));
        if shares_threshold && !has_wildcard {
            self.error(node.at, "`share_threshold` is for values with a `*`: add one, or remove `share_threshold`");
        }
        let (key, line) = (key?, node.at.line);
        Some(DescriptorSpec { key, value, limit, is_shadow, is_quota, shares_threshold, children, line })
    }

    fn limit(&mut self, node: &Node<'_>) -> Option<LimitSpec> {
        let fields = self.fields(node, &LIMIT_KEYS, "a `rate_limit`");
        let is_unlimited = self.truth(&fields, "unlimited");
        let name = self.text(&fields, "name").filter(|name| !name.is_empty());
        let replaces = self.replaces(&fields, name.as_deref());
        let requests = fields.find("requests_per_unit").and_then(|node| self.requests(node));
        let allowance = match (is_unlimited, fields.find("unit")) {
            (true, None) => Some(Allowance::Unlimited),
            (true, Some(unit)) => {
                self.error(unit.at, "an unlimited `rate_limit` has no unit: remove `unit`, or `unlimited`");
                None
            }
            (false, None) => {
                self.error(node.at, "the limit has no unit: write `unit: minute`");
                None
            }
            // In envoyproxy/ratelimit, an absent number is 0, which refuses all.
            (false, Some(unit)) => self.unit(unit).map(|unit| Allowance::PerUnit(requests.unwrap_or(0), unit)),
        };
        Some(LimitSpec { allowance: allowance?, name, replaces })
    }

    fn unit(&mut self, node: &Node<'_>) -> Option<LimitUnit> {
        let unit = match &node.kind {
            NodeKind::Scalar { text, .. } => LimitUnit::parse(text),
            _ => None,
        };
        if unit.is_none() {
            self.error(node.at, "this is no unit: write second, minute, hour, day, week, month or year");
        }
        unit
    }

    fn requests(&mut self, node: &Node<'_>) -> Option<u32> {
        let number = match &node.kind {
            NodeKind::Scalar { text, is_plain: true } => text.parse().ok(),
            _ => None,
        };
        if number.is_none() {
            self.error(node.at, format!("`requests_per_unit` is a whole number from 0 to {}", u32::MAX));
        }
        number
    }

    /// The names in `replaces`. `own` is the name of the limit itself.
    fn replaces(&mut self, fields: &KnownFields<'_, '_>, own: Option<&str>) -> Vec<String> {
        let mut replaces = Vec::new();
        for node in self.list(fields.find("replaces"), "replaces") {
            let inner = self.fields(node, &REPLACES_KEYS, "an element of `replaces`");
            match self.text(&inner, "name").filter(|name| !name.is_empty()) {
                None => self.error(node.at, "an element of `replaces` names a limit: write `name: NAME`"),
                Some(name) if own == Some(&name) => self.error(node.at, "a limit cannot replace itself"),
                Some(name) => replaces.push(name),
            }
        }
        replaces
    }
}
