//! Handlers for logging in and out.

use std::net::IpAddr;

use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use serde::Deserialize;

use super::body::Body;
use super::guard::{PeerAddress, cookies};
use super::page;
use super::tokens::Role;
use super::wrong_tokens::WrongToken;
use super::{Console, ConsoleState};
use crate::session_cookie;
use crate::watch::LOGGED_IN;

/// Placeholder in the page for an error message.
const MESSAGE: &str = "<!-- message -->";
const NAME_CHARS_MAX: usize = 60;

/// The submitted form.
#[derive(Deserialize)]
struct Form {
    #[serde(default)]
    token: String,
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
    cookies(&headers).for_each(|word| console.guard.sessions.end(word));
    let mut response = Redirect::to("/login").into_response();
    response.headers_mut().insert(header::SET_COOKIE, cookie_of("", 0));
    response
}

async fn welcome(console: &Console, role: Role, name: &str, from: IpAddr) -> Response {
    let mut name: String = name.trim().chars().filter(|c| !c.is_control()).take(NAME_CHARS_MAX).collect();
    if name.is_empty() {
        role.as_str().clone_into(&mut name);
    }
    let (by, let_in) = (name.clone(), format!("by the {}'s token", role.as_str()));
    let what = format!("{LOGGED_IN} {} from {from}", role.as_str());
    if let Err(problem) = console.run_on_watch(move |watch| watch.record_change(&by, &let_in, &what)).await {
        return problem.into_response();
    }
    let word = console.guard.sessions.begin(role, &name, console.watch.calendar.now());
    let mut response = Redirect::to("/").into_response();
    response.headers_mut().insert(header::SET_COOKIE, cookie_of(&word, 12 * 3600));
    response
}

fn cookie_of(word: &str, age_secs: u32) -> HeaderValue {
    let text = format!("{}={word}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age_secs}", session_cookie::NAME);
    HeaderValue::from_str(&text).expect("a session ID is hexadecimal")
}

fn refuse(status: StatusCode, message: &str) -> Response {
    let message = format!("<p class=\"wrong\" role=\"alert\">{message}</p>");
    (status, Html(page::login().replace(MESSAGE, &message))).into_response()
}
