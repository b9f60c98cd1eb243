//! The pages of the console, which are compiled into the binary.
//!
//! The script, the style sheet and the icon are served below a folder named after a hash of their contents. Browsers
//! cache them for a year, and a new version takes effect at once.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use axum::Router;
use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;

use super::script::script;

/// Names and texts of the JavaScript modules of the console, each after those that it imports.
const MODULES: &[(&str, &str)] = &[
    ("dom", include_str!("../../console/dom.js")),
    ("format", include_str!("../../console/format.js")),
    ("server", include_str!("../../console/server.js")),
    ("charts", include_str!("../../console/charts.js")),
    ("overview", include_str!("../../console/overview.js")),
    ("spenders", include_str!("../../console/spenders.js")),
    ("episodes", include_str!("../../console/episodes.js")),
    ("flags", include_str!("../../console/flags.js")),
    ("key", include_str!("../../console/key.js")),
    ("explain", include_str!("../../console/explain.js")),
    ("settings", include_str!("../../console/settings.js")),
    ("console", include_str!("../../console/console.js")),
];
const STYLE: &str = include_str!("../../console/style.css");
const ICON: &str = include_str!("../../console/icon.svg");

/// Prefix of the paths of these files. The version follows; in the HTML sources it is left out.
const FOLDER: &str = "/console/";

static PAGES: LazyLock<ConsolePages> = LazyLock::new(ConsolePages::new);

/// The files of the console.
struct ConsolePages {
    /// Hash of the script, the style sheet and the icon.
    version: String,
    /// All modules in one.
    script: String,
    /// The HTML of the console.
    index: String,
    /// The HTML of the login page.
    login: String,
}

impl ConsolePages {
    fn new() -> Self {
        let script = script(MODULES);
        let mut hasher = DefaultHasher::new();
        (&script, STYLE, ICON).hash(&mut hasher);
        let version = format!("{:016x}", hasher.finish());
        let page = |text: &str| text.replace(FOLDER, &format!("{FOLDER}{version}/"));
        let index = page(include_str!("../../console/index.html"));
        let login = page(include_str!("../../console/login.html"));
        Self { script, index, login, version }
    }

    /// Content type and text of a file.
    fn file(&self, name: &str) -> Option<(&'static str, &str)> {
        match name {
            "console.js" => Some(("text/javascript; charset=utf-8", &self.script)),
            "style.css" => Some(("text/css; charset=utf-8", STYLE)),
            "icon.svg" => Some(("image/svg+xml", ICON)),
            _ => None,
        }
    }
}

/// Routes of the console.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/", get(|| async { Html(&*PAGES.index) })).route("/console/{version}/{file}", get(file))
}

/// The login page.
pub(super) fn login() -> &'static str {
    &PAGES.login
}

async fn file(Path((version, name)): Path<(String, String)>) -> Response {
    match PAGES.file(&name).filter(|_| version == PAGES.version) {
        Some((kind, text)) => {
            let cached = "private, max-age=31536000, immutable";
            ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, cached)], text).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_in_import_order_and_the_script_has_no_import_or_export() {
        let pages = ConsolePages::new();
        for (index, (name, text)) in MODULES.iter().enumerate() {
            for other in text.lines().filter_map(|line| line.split_once("from \"./")?.1.strip_suffix(".js\";")) {
                assert!(MODULES[..index].iter().any(|(before, _)| *before == other), "{name} needs {other}");
            }
        }
        assert!(!pages.script.lines().any(|line| line.starts_with("import ") || line.starts_with("export ")));
    }

    #[test]
    fn pages_refer_to_existing_files_of_this_version() {
        let pages = ConsolePages::new();
        for page in [&pages.index, &pages.login] {
            let files: Vec<_> = page.split(FOLDER).skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
            assert!(files.len() >= 2, "{files:?}");
            for file in files {
                let (version, name) = file.split_once('/').unwrap();
                assert!(version == pages.version && pages.file(name).is_some(), "{file}");
            }
        }
    }
}
