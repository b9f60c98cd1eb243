//! The console: pages that are part of this program, so that they work without anything else.

use axum::Router;
use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;

/// Files of the console, by name, with their types.
const FILES: &[(&str, &str, &str)] = &[
    ("style.css", "text/css; charset=utf-8", include_str!("../../console/style.css")),
    ("console.js", SCRIPT, include_str!("../../console/console.js")),
    ("dom.js", SCRIPT, include_str!("../../console/dom.js")),
    ("server.js", SCRIPT, include_str!("../../console/server.js")),
    ("figures.js", SCRIPT, include_str!("../../console/figures.js")),
    ("charts.js", SCRIPT, include_str!("../../console/charts.js")),
    ("overview.js", SCRIPT, include_str!("../../console/overview.js")),
    ("spenders.js", SCRIPT, include_str!("../../console/spenders.js")),
    ("episodes.js", SCRIPT, include_str!("../../console/episodes.js")),
    ("flags.js", SCRIPT, include_str!("../../console/flags.js")),
    ("key.js", SCRIPT, include_str!("../../console/key.js")),
    ("explain.js", SCRIPT, include_str!("../../console/explain.js")),
    ("settings.js", SCRIPT, include_str!("../../console/settings.js")),
    ("icon.svg", "image/svg+xml", include_str!("../../console/icon.svg")),
];
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The ways to the console.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/", get(|| async { Html(include_str!("../../console/index.html")) }))
        .route("/console/{file}", get(file))
}

async fn file(Path(name): Path<String>) -> Response {
    match FILES.iter().find(|(known, ..)| *known == name) {
        // Asked about each time, so that a new version is seen at once; it is all on this machine.
        Some((_, kind, text)) => {
            ([(header::CONTENT_TYPE, *kind), (header::CACHE_CONTROL, "no-cache")], *text).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
