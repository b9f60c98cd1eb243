//! Joins the JavaScript modules of the console into one script, because loading them one after the other takes visibly
//! longer.
//!
//! A bundler is not needed, because the console uses a small subset of modules: imports and exports on lines of their
//! own, no cycles, and top-level `await` only in the last module. Each module but the last becomes a function that is
//! called at once and returns the exports; its result is the constant `$name`.

use std::fmt::Write;

/// Joins modules, given as pairs of name and text, each after those that it imports. The last one runs at the top
/// level.
pub(super) fn script(modules: &[(&str, &str)]) -> String {
    let mut script = String::new();
    for (index, (name, text)) in modules.iter().enumerate() {
        let is_last = index + 1 == modules.len();
        let (lines, exports) = scoped(text);
        let written = if is_last {
            write!(script, "{lines}")
        } else {
            write!(script, "const ${name} = (() => {{\n{lines}return {{ {} }};\n}})();\n", exports.join(", "))
        };
        written.expect("writing into a string cannot fail");
    }
    script
}

/// The text of a module, in which imports refer to the constants of other modules, and the names that it exports.
fn scoped(text: &str) -> (String, Vec<&str>) {
    let (mut lines, mut exports) = (String::new(), Vec::new());
    for line in text.lines() {
        if let Some((names, from)) = import(line) {
            lines += &format!("const {names} = ${from};");
        } else if let Some(declaration) = line.strip_prefix("export ") {
            exports.extend(declared(declaration));
            lines += declaration;
        } else {
            lines += line;
        }
        lines.push('\n');
    }
    (lines, exports)
}

/// The names that a line imports, and the name of the module from which it imports them.
fn import(line: &str) -> Option<(&str, &str)> {
    let (names, from) = line.strip_prefix("import ")?.split_once(" from ")?;
    let from = from.strip_prefix("\"./")?.strip_suffix(".js\";")?;
    Some((names.strip_prefix("* as ").unwrap_or(names), from))
}

/// The name of the function or constant that a line declares.
fn declared(line: &str) -> Option<&str> {
    let line = line.strip_prefix("async ").unwrap_or(line);
    let name = line.strip_prefix("function ").or_else(|| line.strip_prefix("const "))?;
    name.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_become_scopes_and_the_last_one_runs_at_the_top_level() {
        let modules = [
            (
                "dom",
                "// Text.\nconst hidden = 1;\nexport function h(tag) { return tag + hidden; }\nexport const s = 2;\n",
            ),
            ("server", "import { h, s } from \"./dom.js\";\nexport async function get() { return h(s); }\n"),
            ("console", "import * as server from \"./server.js\";\nawait server.get();\n"),
        ];
        let expect = "const $dom = (() => {\n// Text.\nconst hidden = 1;\nfunction h(tag) { return tag + hidden; }\nconst s = 2;\n\
            return { h, s };\n})();\n\
            const $server = (() => {\nconst { h, s } = $dom;\nasync function get() { return h(s); }\nreturn { get };\n})();\n\
            const server = $server;\nawait server.get();\n";
        assert_eq!(script(&modules), expect);
    }
}
