//! Handlers for logging in to the console and out of it. A login exchanges a token for a session, whose ID is in a
//! cookie. It is also recorded in the list of changes.

use std::net::IpAddr;

use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use serde::Deserialize;

use super::body::Body;
use super::guard::{PeerAddress, cookies};
use super::page;
use super::sessions::SESSION_LIFETIME;
use super::tokens::Role;
use super::wrong_tokens::WrongToken;
use super::{Console, ConsoleState};
use crate::session_cookie;
use crate::watch::LOGGED_IN;

/// Placeholder in the page for an error message.
const MESSAGE: &str = "<!-- message -->";
/// Longer names are truncated.
const NAME_CHARS_MAX: usize = 60;

/// The submitted form.
#[derive(Deserialize)]
struct Form {
    #[serde(default)]
    token: String,
    /// Name of the person, for the list of changes; not verified.
    #[serde(default)]
    name: String,
}

/// `GET /login`
pub(super) async fn page() -> Html<&'static str> {
    Html(page::login())
}

/// `POST /login`
pub(super) async fn login(State(console): ConsoleState, peer: Option<Extension<PeerAddress>>, body: Body) -> Response {
    let Ok(form) = serde_urlencoded::from_bytes::<Form>(&body.0) else {
        return refuse(StatusCode::BAD_REQUEST, "The form is invalid. Reload the page and try again.");
    };
    let from = PeerAddress::address(peer);
    match console.guard.role_of(form.token.trim(), from, &console) {
        Ok(Role::Reporter) => refuse(StatusCode::FORBIDDEN, "That token is only for programs that report refusals."),
        Ok(role) => welcome(&console, role, &form.name, from).await,
        Err(problem) => {
            let status = problem.into_response().status();
            let message = match status {
                StatusCode::TOO_MANY_REQUESTS => "Too many wrong tokens. Try again in a minute.",
                _ => "Wrong token.",
            };
            let mut response = refuse(status, message);
            response.extensions_mut().insert(WrongToken);
            response
        }
    }
}

/// `POST /logout`
pub(super) async fn logout(State(console): ConsoleState, headers: HeaderMap) -> Response {
    cookies(&headers).for_each(|session_id| console.guard.sessions.end(session_id));
    let mut response = Redirect::to("/login").into_response();
    response.headers_mut().insert(header::SET_COOKIE, cookie_of("", 0));
    response
}

/// Records the login and starts the session. If the login cannot be recorded, there is no session.
async fn welcome(console: &Console, role: Role, name: &str, from: IpAddr) -> Response {
    let mut name: String = name.trim().chars().filter(|c| !c.is_control()).take(NAME_CHARS_MAX).collect();
    if name.is_empty() {
        role.as_str().clone_into(&mut name);
    }
    let (by, authentication) = (name.clone(), format!("by the {}'s token", role.as_str()));
    let change = format!("{LOGGED_IN} {} from {from}", role.as_str());
    if let Err(problem) = console.run_on_watch(move |watch| watch.record_change(&by, &authentication, &change)).await {
        return problem.into_response();
    }
    let session_id = console.guard.sessions.begin(role, &name, console.watch.calendar.now());
    let mut response = Redirect::to("/").into_response();
    response.headers_mut().insert(header::SET_COOKIE, cookie_of(&session_id, SESSION_LIFETIME.as_secs_ceil()));
    response
}

/// The session cookie. With an age of 0, the browser deletes it.
fn cookie_of(session_id: &str, age_secs: u64) -> HeaderValue {
    let text = format!("{}={session_id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age_secs}", session_cookie::NAME);
    HeaderValue::from_str(&text).expect("a session ID is hexadecimal")
}

/// The login page with an error message.
fn refuse(status: StatusCode, message: &str) -> Response {
    let message = format!("<p class=\"wrong\" role=\"alert\">{message}</p>");
    (status, Html(page::login().replace(MESSAGE, &message))).into_response()
}
