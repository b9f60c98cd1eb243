//! Parses a YAML document to a tree whose nodes have their positions in the text, for error messages.
//!
//! The size of the tree is bounded. An alias (`*a`) is replaced by a copy of its anchor (`&a`) and counts as all
//! nodes of the copy, so that a few lines of nested aliases cannot become gigabytes.

use std::borrow::Cow;
use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle};

use super::ConfigMessage;

/// The maximum number of nodes in a document.
const NODES_MAX: usize = 200_000;
/// The maximum depth of nesting.
const DEPTH_MAX: usize = 64;

/// A position in the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    /// From 1.
    pub(super) line: usize,
    /// From 1.
    pub(super) column: usize,
}

impl Position {
    const START: Self = Self { line: 1, column: 1 };

    fn of(marker: &Marker) -> Self {
        Self { line: marker.line().max(1), column: marker.col() + 1 }
    }

    /// A message about this position.
    pub(super) fn message(self, message: impl Into<String>) -> ConfigMessage {
        ConfigMessage { line: self.line, column: self.column, message: message.into() }
    }
}

/// A value of the document.
#[derive(Clone, Debug)]
pub(super) struct Node<'t> {
    pub(super) kind: NodeKind<'t>,
    pub(super) at: Position,
    /// The number of nodes in it, itself included.
    size: usize,
}

#[derive(Clone, Debug)]
pub(super) enum NodeKind<'t> {
    /// A text; plain if it is not in quotes.
    Scalar {
        text: Cow<'t, str>,
        is_plain: bool,
    },
    List(Vec<Node<'t>>),
    Map(Vec<(Node<'t>, Node<'t>)>),
}

/// A list or a map whose end has not been read.
struct Open<'t> {
    node: Node<'t>,
    /// A key whose value has not been read.
    key: Option<Node<'t>>,
    /// The number of its anchor; 0 for none.
    anchor: usize,
}

#[derive(Default)]
struct Builder<'t> {
    /// The lists and maps that contain the current position, the outermost first.
    open: Vec<Open<'t>>,
    anchors: HashMap<usize, Node<'t>>,
    root: Option<Node<'t>>,
    /// The number of nodes in memory, copies for `anchors` included.
    nodes: usize,
}

/// Reads the only document of `text`.
pub(super) fn parse(text: &str) -> Result<Node<'_>, ConfigMessage> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            Position::of(error.marker()).message(format!("this is not YAML: {}", shown(error.info())))
        })?;
        builder.take(event, Position::of(&span.start))?;
    }
    builder.root.ok_or_else(|| Position::START.message("the file is empty: write `domain` and `descriptors`"))
}

/// Text of the file inside a message: short, and without control characters.
pub(super) fn shown(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let mut shown: String = text.chars().take(CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

impl<'t> Builder<'t> {
    fn take(&mut self, event: Event<'t>, at: Position) -> Result<(), ConfigMessage> {
        match event {
            Event::DocumentStart(_) if self.root.is_some() => {
                Err(at.message("a file has one document: move this one to a file of its own"))
            }
            Event::Scalar(text, style, anchor, _) => {
                let is_plain = style == ScalarStyle::Plain;
                self.add(Node { kind: NodeKind::Scalar { text, is_plain }, at, size: 1 }, anchor)
            }
            Event::SequenceStart(anchor, _) => self.begin(NodeKind::List(Vec::new()), at, anchor),
            Event::MappingStart(anchor, _) => self.begin(NodeKind::Map(Vec::new()), at, anchor),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => {
                let node = self.anchors.get(&anchor);
                // The positions are those of the anchor, where the text is.
                let node = node.ok_or_else(|| at.message("this alias refers to a part that it is in"))?.clone();
                self.add(node, 0)
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, kind: NodeKind<'t>, at: Position, anchor: usize) -> Result<(), ConfigMessage> {
        if self.open.len() == DEPTH_MAX {
            return Err(at.message(format!("the nesting is deeper than {DEPTH_MAX} levels")));
        }
        self.open.push(Open { node: Node { kind, at, size: 1 }, key: None, anchor });
        Ok(())
    }

    fn end(&mut self) -> Result<(), ConfigMessage> {
        let Some(Open { node, anchor, .. }) = self.open.pop() else { return Ok(()) };
        // `add` counts the whole node, but the nodes inside were counted when they were added.
        self.nodes = self.nodes.saturating_sub(node.size - 1);
        self.add(node, anchor)
    }

    fn add(&mut self, node: Node<'t>, anchor: usize) -> Result<(), ConfigMessage> {
        self.nodes += node.size;
        if self.nodes > NODES_MAX {
            return Err(node.at.message(format!("the file has more than {NODES_MAX} values")));
        }
        if anchor > 0 {
            // This node is stored twice: in the tree and in `anchors`.
            self.nodes += node.size;
            self.anchors.insert(anchor, node.clone());
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        open.node.size += node.size;
        match (&mut open.node.kind, open.key.take()) {
            (NodeKind::List(nodes), _) => nodes.push(node),
            (NodeKind::Map(pairs), Some(key)) => pairs.push((key, node)),
            _ => open.key = Some(node),
        }
        Ok(())
    }
}
