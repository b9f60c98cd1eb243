//! The import graph of a crate, read from its source: `use` trees and paths in code, macros included. Test modules are
//! left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A path without the leading `crate`, such as `["gate", "http", "h1"]`.
pub(crate) type ModulePath = Vec<String>;

/// The paths that each module of a crate imports from its own crate.
pub(crate) struct Imports(BTreeMap<ModulePath, BTreeSet<ModulePath>>);

impl Imports {
    /// Reads the source of a crate.
    pub(crate) fn of_crate(source: &Path) -> Self {
        let mut reader = Reader::default();
        reader.read_folder(source, &mut Vec::new());
        let Reader { mut imports, tests, .. } = reader;
        imports.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        Self(imports)
    }

    /// The imports of modules below `root` from other modules below it, each module named by its first `depth` segments
    /// below `root`. Imports of `root` itself have an empty name.
    pub(crate) fn below(&self, root: &[&str], depth: usize) -> BTreeMap<String, BTreeSet<String>> {
        let is_below = |path: &[String]| path.iter().zip(root).filter(|(a, b)| a == b).count() == root.len();
        let name = |path: &[String]| path.iter().skip(root.len()).take(depth).cloned().collect::<Vec<_>>().join("::");
        let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (module, imported) in self.0.iter().filter(|(module, _)| is_below(module) && module.len() > root.len()) {
            let own = name(module);
            let others = imported.iter().filter(|path| is_below(path)).map(|path| name(path));
            graph.entry(own.clone()).or_default().extend(others.filter(|other| *other != own));
        }
        graph
    }
}

/// A cycle of the graph, if there is one.
pub(crate) fn cycle(graph: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    fn visit(
        node: &str,
        graph: &BTreeMap<String, BTreeSet<String>>,
        trail: &mut Vec<String>,
        finished: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        if let Some(start) = trail.iter().position(|seen| seen == node) {
            return Some(trail[start..].to_vec());
        }
        if finished.contains(node) {
            return None;
        }
        trail.push(node.to_owned());
        let found = graph.get(node).into_iter().flatten().find_map(|next| visit(next, graph, trail, finished));
        trail.pop();
        finished.insert(node.to_owned());
        found
    }
    let mut finished = BTreeSet::new();
    graph.keys().find_map(|node| visit(node, graph, &mut Vec::new(), &mut finished))
}

#[derive(Default)]
struct Reader {
    imports: BTreeMap<ModulePath, BTreeSet<ModulePath>>,
    /// Modules that exist in tests only.
    tests: Vec<ModulePath>,
}

impl Reader {
    fn read_folder(&mut self, folder: &Path, module: &mut ModulePath) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                module.push(name);
                self.read_folder(&path, module);
                module.pop();
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let is_root = matches!(name.as_str(), "mod" | "lib" | "main");
                let own: ModulePath = module.iter().cloned().chain((!is_root).then_some(name)).collect();
                self.read(&fs::read_to_string(&path).unwrap(), &own);
            }
        }
    }

    fn read(&mut self, text: &str, module: &[String]) {
        let tokens = text.parse().unwrap_or_else(|error| panic!("{module:?} cannot be read: {error}"));
        self.imports.entry(module.to_vec()).or_default();
        self.walk(tokens, module, module);
    }

    /// Finds the paths in some tokens. They stand in the module `here`, which is in the file of the module `file`.
    fn walk(&mut self, tokens: TokenStream, here: &[String], file: &[String]) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            if is_test_attribute(&tokens[at..]) {
                at += 2;
                if word(&tokens, at) == Some("mod".to_owned()) {
                    self.tests.push(here.iter().cloned().chain(word(&tokens, at + 1)).collect());
                }
                while at < tokens.len() && !ends_item(&tokens[at]) {
                    at += 1;
                }
                at += 1;
                continue;
            }
            match &tokens[at] {
                TokenTree::Ident(ident) if *ident == "mod" => {
                    if let (Some(name), Some(TokenTree::Group(group))) = (word(&tokens, at + 1), tokens.get(at + 2)) {
                        let inner: ModulePath = here.iter().cloned().chain([name]).collect();
                        self.walk(group.stream(), &inner, file);
                        at += 2;
                    }
                }
                // `use<'a>` is no import but a bound of a type.
                TokenTree::Ident(ident) if *ident == "use" && !is_punct(&tokens[at + 1], '<') => {
                    let end = (at..tokens.len()).find(|end| is_punct(&tokens[*end], ';')).unwrap_or(tokens.len());
                    let mut paths = Vec::new();
                    use_tree(&tokens[at + 1..end], Vec::new(), &mut paths);
                    for path in paths {
                        self.add(&path, here, file);
                    }
                    at = end;
                }
                TokenTree::Ident(ident) if *ident == "crate" || *ident == "super" || *ident == "self" => {
                    let (path, length) = inline_path(&tokens[at..]);
                    if path.len() > 1 {
                        self.add(&path, here, file);
                    }
                    at += length - 1;
                }
                TokenTree::Group(group) => self.walk(group.stream(), here, file),
                _ => {}
            }
            at += 1;
        }
    }

    /// Adds a path as it is written in the module `here`.
    fn add(&mut self, path: &[String], here: &[String], file: &[String]) {
        let mut base: ModulePath = match path[0].as_str() {
            "crate" => Vec::new(),
            "super" | "self" => here.to_vec(),
            _ => return,
        };
        let mut rest = path.iter();
        for segment in rest.by_ref() {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => {
                    base.pop();
                }
                name => {
                    base.push(name.to_owned());
                    break;
                }
            }
        }
        base.extend(rest.filter(|segment| *segment != "self" && *segment != "*").cloned());
        self.imports.entry(file.to_vec()).or_default().insert(base);
    }
}

fn word(tokens: &[TokenTree], at: usize) -> Option<String> {
    match tokens.get(at) {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    }
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

/// Whether the tokens begin with `#[cfg(test)]`.
fn is_test_attribute(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [hash, TokenTree::Group(group), ..]
        if is_punct(hash, '#') && group.stream().to_string().replace(' ', "") == "cfg(test)")
}

/// Whether a token is the last one of an item.
fn ends_item(token: &TokenTree) -> bool {
    is_punct(token, ';') || matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

/// The path at the start of some tokens, and the number of its tokens.
fn inline_path(tokens: &[TokenTree]) -> (ModulePath, usize) {
    let (mut path, mut at) = (vec![tokens[0].to_string()], 1);
    while tokens.get(at).is_some_and(|token| is_punct(token, ':'))
        && tokens.get(at + 1).is_some_and(|token| is_punct(token, ':'))
        && let Some(segment) = word(tokens, at + 2)
    {
        path.push(segment);
        at += 3;
    }
    (path, at)
}

/// Collects the paths of a `use` tree.
fn use_tree(tokens: &[TokenTree], mut prefix: ModulePath, paths: &mut Vec<ModulePath>) {
    let mut renamed = false;
    for (index, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Ident(ident) if *ident == "as" => renamed = true,
            TokenTree::Ident(ident) if !renamed => prefix.push(ident.to_string()),
            TokenTree::Punct(punct) if punct.as_char() == '*' => prefix.push("*".to_owned()),
            TokenTree::Punct(punct) if punct.as_char() == ',' => {
                unreachable!("a comma outside of braces: {tokens:?}")
            }
            TokenTree::Group(group) => {
                let inner: Vec<_> = group.stream().into_iter().collect();
                for branch in inner.split(|token| is_punct(token, ',')).filter(|branch| !branch.is_empty()) {
                    use_tree(branch, prefix.clone(), paths);
                }
                assert_eq!(index + 1, tokens.len(), "something follows the braces");
                return;
            }
            _ => {}
        }
    }
    paths.push(prefix);
}

#[test]
fn imports_are_found_however_they_are_written() {
    let source = r##"
        //! use crate::comment;
        use crate::{a, b::{self, c::{D as E, F}, *}};
        use super::{sibling::G, super::uncle};
        use std::fmt::{self, Display};
        pub(crate) use self::child::H;
        const TEXT: &str = "use crate::text; crate::text::T";
        fn f(x: crate::inline::I) { log!("{}", super::in_macro::j(r#"crate::raw"#)); }
        mod inner { use super::from_inner::K; }
        #[cfg(test)]
        mod tests { use crate::only_in_tests::L; }
        fn g<'a>() -> impl Iterator + use<'a> {}
        fn h() -> crate::after::M {}
    "##;
    let mut reader = Reader::default();
    reader.read(source, &["here".to_owned(), "file".to_owned()]);
    let found: Vec<_> = reader.imports.values().flatten().map(|path| path.join("::")).collect();
    let expected = [
        "a",
        "after::M",
        "b",
        "b::c::D",
        "b::c::F",
        "here::file::child::H",
        "here::file::from_inner::K",
        "here::in_macro::j",
        "here::sibling::G",
        "inline::I",
        "uncle",
    ];
    assert_eq!(found, expected);
    assert_eq!(reader.tests, [["here", "file", "tests"]]);
}

#[test]
fn a_cycle_is_found() {
    let graph = |edges: &[(&str, &str)]| {
        let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, to) in edges {
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        graph
    };
    assert_eq!(cycle(&graph(&[("a", "b"), ("b", "c"), ("a", "c")])), None);
    let found = cycle(&graph(&[("a", "b"), ("b", "c"), ("c", "b")]));
    assert_eq!(found, Some(vec!["b".to_owned(), "c".to_owned()]));
}
