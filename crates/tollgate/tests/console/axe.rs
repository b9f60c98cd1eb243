//! Accessibility checks with axe-core.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::browser::Browser;

const VERSION: &str = "4.11.1";

/// The script, fetched once by npm.
fn script() -> String {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("axe-core");
    let file = folder.join("package/axe.min.js");
    if !file.exists() {
        std::fs::create_dir_all(&folder).unwrap();
        let package = format!("axe-core@{VERSION}");
        let packed = Command::new("npm").args(["pack", "--silent", &package]).current_dir(&folder).output();
        let packed = packed.expect("npm is there: ./test installs it");
        assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
        let archive = String::from_utf8(packed.stdout).unwrap();
        let unpacked = Command::new("tar").arg("xzf").arg(archive.trim()).current_dir(&folder).status().unwrap();
        assert!(unpacked.success());
    }
    std::fs::read_to_string(file).unwrap()
}

/// Fails on any violation.
pub(crate) fn check(browser: &Browser, page: &str) {
    browser.run(&format!("{}; return true", script()));
    let found = browser.run_async(
        "const done = arguments[arguments.length - 1];\n\
        axe.run(document).then((all) => done(all.violations), (error) => done(String(error)))",
    );
    let grave = |violation: &&Value| matches!(violation["impact"].as_str(), Some("serious" | "critical"));
    let found = found.as_array().unwrap_or_else(|| panic!("{page}: {found}"));
    let grave: Vec<_> =
        found.iter().filter(grave).map(|one| format!("{} {}", one["id"], one["nodes"][0]["html"])).collect();
    assert!(grave.is_empty(), "{page}: {grave:#?}");
}
