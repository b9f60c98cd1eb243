//! The configurations and commands of the pages in `docs` that belong to no other test, run as they are written there.
//!
//! `tests/tidy/pages.rs` lists all blocks of all pages with the test that runs each.
#![allow(clippy::unwrap_used)]

mod commands;
mod configurations;
mod originals;
mod rows;

use std::path::PathBuf;

use tollgate_test_support::root;

fn page(name: &str) -> String {
    let path = root().join("docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The blocks of a page in this language, each with the number of its first line.
fn numbered_blocks(page: &str, language: &str) -> Vec<(usize, String)> {
    let fence = format!("```{language}");
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut is_open = None;
    for (index, line) in page.lines().enumerate() {
        match is_open {
            None if line.starts_with("```") => {
                is_open = Some(line == fence);
                blocks.extend((line == fence).then(|| (index + 2, String::new())));
            }
            Some(_) if line == "```" => is_open = None,
            Some(true) => blocks.last_mut().unwrap().1 += &format!("{line}\n"),
            _ => {}
        }
    }
    blocks
}

fn blocks(name: &str, language: &str) -> Vec<String> {
    numbered_blocks(&page(name), language).into_iter().map(|(_, block)| block).collect()
}

/// All pages, as paths from `docs`.
fn pages() -> Vec<String> {
    let docs = root().join("docs");
    let folders = ["", "coming-from/", "decisions/"];
    let mut pages: Vec<_> = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(docs.join(folder)).unwrap().map(move |entry| (folder, entry)))
        .map(|(folder, entry)| format!("{folder}{}", entry.unwrap().file_name().into_string().unwrap()))
        .filter(|name| name.ends_with(".md"))
        .collect();
    pages.sort_unstable();
    pages
}

/// The directory of the binary, so that a shell finds `tollgate`.
fn path_with_tollgate() -> std::ffi::OsString {
    let mut path = PathBuf::from(env!("CARGO_BIN_EXE_tollgate")).parent().unwrap().as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}
