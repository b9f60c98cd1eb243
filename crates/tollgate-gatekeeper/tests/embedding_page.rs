//! The code of `docs/embedding.md` is code that the tests compile and run.
#![cfg(all(feature = "redis", feature = "tower"))]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use tollgate_gatekeeper::link::{Endpoint, LinkSettings};
use tollgate_gatekeeper::tower::{Keeper, KeeperLayer};
use tollgate_gatekeeper::{Limiter, per_second};

/// The lines of the page that are in no example.
#[test]
fn a_service_joins_a_master_in_three_lines() -> Result<(), Box<dyn core::error::Error>> {
    let plan = Limiter::builder().rule(per_second(5).by("header:x-api-key").named("api")).plan()?;
    let link = LinkSettings::new(Endpoint::parse("127.0.0.1:10004")?, Endpoint::parse("127.0.0.1:10005")?, ["api"]);
    let layer = KeeperLayer::new(Keeper::linked(plan, link)?);
    let masters = &layer.keeper().link().unwrap().settings.masters;
    // The name under which a gate reports the rule `api` of its default domain.
    assert_eq!(masters[0].rules[0].domain, "default/api");
    Ok(())
}

#[test]
fn every_line_of_code_on_the_page_is_in_an_example_or_a_test() {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(crate_root.join("../../docs/embedding.md")).unwrap();
    let mut code = fs::read_to_string(file!())
        .or_else(|_| fs::read_to_string(crate_root.join("tests/embedding_page.rs")))
        .unwrap();
    for entry in fs::read_dir(crate_root.join("examples")).unwrap() {
        code += &fs::read_to_string(entry.unwrap().path()).unwrap();
    }
    // Formatting may break lines differently.
    let bare = |text: &str| text.chars().filter(|symbol| !symbol.is_whitespace()).collect::<String>();
    let code = bare(&code).replace(
        "Ok(SharedLimiter::with_gates(plan,store,Clock::start())?)",
        "letlimiter=SharedLimiter::with_gates(plan,store,Clock::start())?;",
    );
    let code = code
        .replace("Ok(Router::new()", "letsite=Router::new()")
        .replace("Address::parse(redis,None)", "Address::parse(\"redis://127.0.0.1:6379\",None)");
    let code = code.replace("limiter.decide(call,", "limiter.decide(&request,");
    let blocks: Vec<_> = page.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 4, "{}", blocks.len());
    for line in blocks.iter().flat_map(|block| block.lines()).map(bare).filter(|line| line.len() > 4) {
        let line = line.trim_end_matches(';').trim_end_matches(')');
        assert!(code.contains(line), "no example has {line}");
    }
}

/// The version of a dependency in a line such as `axum = "0.8"` or `axum = { version = "0.8", ... }`.
fn version<'a>(manifest: &'a str, name: &str) -> Option<&'a str> {
    let line = manifest.lines().find(|line| line.split(" = ").next() == Some(name))?;
    let (_, value) = line.split_once(" = ")?;
    value.split_once("version = ").map_or(value, |(_, rest)| rest).split('"').nth(1)
}

#[test]
fn the_dependencies_of_the_page_are_those_of_the_workspace() {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(crate_root.join("../../docs/embedding.md")).unwrap();
    let workspace = fs::read_to_string(crate_root.join("../../Cargo.toml")).unwrap();
    let features = fs::read_to_string(crate_root.join("Cargo.toml")).unwrap();
    let blocks: Vec<_> = page.split("```toml cargo\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 2);
    for line in blocks.iter().flat_map(|block| block.lines()).filter(|line| line.contains(" = ")) {
        let name = line.split(" = ").next().unwrap();
        let (shown, ours) = (version(line, name).unwrap(), version(&workspace, name).unwrap());
        assert!(ours.starts_with(shown), "{name} is {ours} here and {shown} on the page");
        let Some((_, list)) = line.split_once("features = [").filter(|_| name == "tollgate-gatekeeper") else {
            continue;
        };
        for feature in list.split('"').skip(1).step_by(2) {
            assert!(features.contains(&format!("\n{feature} = [")), "no feature {feature}");
        }
    }
}
