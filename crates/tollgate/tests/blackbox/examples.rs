//! All settings in examples and documentation are valid.
//!
//! These are the files in `examples/`, and all blocks of pages that are fenced as plain `toml`. A block that is not a
//! complete settings file is fenced differently, such as `toml cargo`.

use std::path::{Path, PathBuf};

use crate::program::{Scratch, root, tollgate};

fn files_below(directory: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_below(&path, ending, found);
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
}

/// Blocks fenced as `toml`, each with the number of its first line.
fn blocks(page: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut open = None;
    for (index, line) in page.lines().enumerate() {
        match (open, line.trim()) {
            (None, fence) if fence.starts_with("```") => {
                open = Some(fence == "```toml");
                blocks.extend((fence == "```toml").then(|| (index + 2, String::new())));
            }
            (Some(_), "```") => open = None,
            (Some(true), _) => blocks.last_mut().unwrap().1.push_str(&format!("{line}\n")),
            _ => {}
        }
    }
    blocks
}

#[test]
fn every_example_file_is_valid() {
    let mut examples = vec![root().join("contrib/debian/tollgate.toml")];
    files_below(&root().join("examples"), "toml", &mut examples);
    assert!(examples.len() > 3);
    for example in examples {
        let run = tollgate([Path::new("check"), &example]);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
    }
}

#[test]
fn every_settings_block_of_a_page_is_valid() {
    let mut pages = vec![root().join("README.md")];
    files_below(&root().join("docs"), "md", &mut pages);
    for page in pages {
        for (line, block) in blocks(&std::fs::read_to_string(&page).unwrap()) {
            // A file that the page shows, too.
            let limits = Scratch::new("limits", b"domain: api\n");
            let block = block.replace("/etc/tollgate/limits.yaml", &limits.file.display().to_string());
            let scratch = Scratch::new("page", block.as_bytes());
            let run = tollgate([Path::new("check"), &scratch.file]);
            assert_eq!(run.code, Some(0), "{}, block at line {line}:\n{}", page.display(), run.stderr);
        }
    }
}

#[test]
fn no_rule_on_a_page_for_beginners_throttles_everybody_with_the_same_browser() {
    for page in ["README.md", "docs/recipes.md", "docs/start.md"] {
        for (line, block) in blocks(&std::fs::read_to_string(root().join(page)).unwrap()) {
            let scratch = Scratch::new("hardening", block.as_bytes());
            let run = tollgate([Path::new("check"), Path::new("--hardening"), &scratch.file]);
            assert!(!run.stdout.contains("FAIL  every rule"), "{page}, block at line {line}:\n{}", run.stdout);
        }
    }
}

#[test]
fn only_blocks_fenced_as_toml_are_found() {
    let page = "a\n```toml\nx = 1\n```\n```toml cargo\ny = 1\n```\n```\nz\n```\n  ```toml\nw = 1\n  ```\n";
    assert_eq!(blocks(page), [(3, "x = 1\n".to_string()), (12, "w = 1\n".to_string())]);
}
