//! The documentation is complete: its index names every page, and the page of metrics every metric of a gate.

use std::path::Path;

use crate::support::{Backend, Gate, closed};

fn docs() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

#[test]
fn the_index_names_every_page_once() {
    let index = std::fs::read_to_string(docs().join("README.md")).unwrap();
    let pages = std::fs::read_dir(docs()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    for page in pages.filter(|page| page.ends_with(".md") && page != "README.md") {
        assert_eq!(index.matches(&format!("]({page})")).count(), 1, "docs/README.md must name {page} once");
    }
}

#[test]
fn the_page_of_metrics_names_every_metric_of_a_gate() {
    let page = std::fs::read_to_string(docs().join("metrics.md")).unwrap();
    let (backend, (_socket, redis), folder) = (Backend::saying("ok"), closed(), tempfile::tempdir().unwrap());
    let gate = Gate::start(&format!(
        "[gate]\nworkers = 1\nbackend = \"{}\"\naccess_log = {{ output = \"{}/access.log\" }}\n\
         [redis]\nurl = \"redis://{redis}\"\n[doors]\nhttp = \"127.0.0.1:0\"\n[[link.master]]\naccounting = \"{redis}\"\n\
         [[rule]]\nname = \"exact\"\nclass = \"ip/32\"\nrate = {{ rate = \"9/s\", burst = 9 }}\nstate = \"redis\"\n\
         [[rule]]\nname = \"fleet\"\nclass = \"ip/32\"\nrate = {{ rate = \"9/s\", burst = 9 }}\nstate = \"master\"\n\
         [watch]\nstate = \"redis\"\n",
        backend.url(),
        folder.path().display(),
    ));
    let metrics = gate.admin("/metrics").text();
    let types: Vec<_> = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert!(types.len() > 60, "{metrics}");
    let name = |(name, kind): (&str, &str)| if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
    let is_named = |name: &String| page.contains(&format!("`{name}`")) || page.contains(&format!("`{name}{{"));
    let names = types.iter().filter_map(|line| line.split_once(' ')).map(name);
    let missing: Vec<_> = names.filter(|name| !is_named(name)).collect();
    assert!(missing.is_empty(), "docs/metrics.md does not name {missing:?}");
}
