//! Responses that the gate makes itself: refusals, malformed requests and failures of the backend. A program gets a
//! problem (RFC 9457), a browser a page, and a gRPC call a gRPC status.

use std::borrow::Cow;

use tollgate_wire::grpc;
use tollgate_wire::http1::fields::tokens;
use tollgate_wire::http1::response::reason;
use tollgate_wire::http1::{Fault, Length, Name, RequestHead, ResponseHead};

use super::pages::PageContent;
use crate::gate::decide::refusal::{Cause, Refusal, jittered_secs};
use crate::settings::ErrorPages;

const HTML: &str = "text/html; charset=utf-8";
const PROBLEM: &str = "application/problem+json";

/// Writes the head of the response to a refused request. Returns the body. `random` varies `Retry-After`, so that
/// clients do not all come back at once.
pub(crate) fn refuse(
    refusal: &Refusal,
    request: &RequestHead,
    response: &mut ResponseHead,
    pages: &ErrorPages,
    random: u64,
) -> Vec<u8> {
    let retry_secs = refusal.retry_after.map(|wait| jittered_secs(wait, random));
    begin(response, refusal.status(), retry_secs);
    if let Some((rules, decision)) = &refusal.by {
        rules.write_limit_headers(decision, |name, value| response.fields.push(name, value));
    }
    response.fields.push(b"cache-control", b"no-store");
    if let Some(content_type) = grpc_of(request) {
        let (status, message) = (grpc_status(refusal.cause), title(refusal.cause));
        return trailers_only(content_type, status, message, retry_secs, response);
    }
    let (content_type, body) = refusal_body(refusal, wants_html(request), is_repeatable(request), retry_secs, pages);
    finish(response, content_type.as_bytes(), body, request.is_head())
}

/// The same for a request that failed, because of itself or of the backend.
pub(crate) fn fail(
    request: &RequestHead,
    status: u16,
    detail: &str,
    retry_secs: Option<u64>,
    response: &mut ResponseHead,
    pages: &ErrorPages,
) -> Vec<u8> {
    begin(response, status, retry_secs);
    let (is_unserved, is_unknown_host) = (matches!(status, 502..=504), status == 421);
    if let Some(content_type) = grpc_of(request).filter(|_| is_unserved) {
        return trailers_only(content_type, grpc::UNAVAILABLE, detail, retry_secs, response);
    }
    if (is_unserved || is_unknown_host) && wants_html(request) {
        response.fields.push(b"cache-control", b"no-store");
        let content = PageContent::of_failure(status, retry_secs, is_repeatable(request));
        return finish(response, HTML.as_bytes(), content.render(pages), request.is_head());
    }
    finish(response, PROBLEM.as_bytes(), failure(status, detail), request.is_head())
}

/// The same for a malformed request.
pub(crate) fn malformed(fault: Fault, response: &mut ResponseHead) -> Vec<u8> {
    begin(response, fault.status(), None);
    finish(response, PROBLEM.as_bytes(), failure(fault.status(), fault.detail()), false)
}

/// Starts a head.
fn begin(response: &mut ResponseHead, status: u16, retry_secs: Option<u64>) {
    response.clear();
    response.status = status;
    if let Some(secs) = retry_secs {
        response.fields.push(b"retry-after", itoa::Buffer::new().format(secs).as_bytes());
    }
}

/// Makes the response to a gRPC call: a head that contains the trailers, without a body. A call without a retry time
/// must not be retried.
fn trailers_only(
    content_type: &[u8],
    status: &str,
    message: &str,
    retry_secs: Option<u64>,
    response: &mut ResponseHead,
) -> Vec<u8> {
    response.status = 200;
    let body = finish(response, content_type, Vec::new(), false);
    response.fields.push(grpc::STATUS.as_bytes(), status.as_bytes());
    response.fields.push(grpc::MESSAGE.as_bytes(), message.as_bytes());
    let mut digits = itoa::Buffer::new();
    let pushback = retry_secs.map_or(grpc::NO_RETRY, |secs| digits.format(secs.saturating_mul(1000)));
    response.fields.push(grpc::PUSHBACK.as_bytes(), pushback.as_bytes());
    body
}

/// Completes the head for this body. Returns the body; none in response to a HEAD.
fn finish(response: &mut ResponseHead, content_type: &[u8], body: Vec<u8>, to_head: bool) -> Vec<u8> {
    response.fields.push(b"content-type", content_type);
    if to_head {
        response.length = Length::Empty;
        response.would_be_length = Some(body.len() as u64);
        return Vec::new();
    }
    response.length = Length::Fixed(body.len() as u64);
    body
}

/// The problem of a request that cannot be served.
fn failure(status: u16, detail: &str) -> Vec<u8> {
    let title = reason(status);
    format!("{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{status},\"detail\":\"{detail}\"}}\n").into()
}

/// The reason in a sentence for programs. It contains nothing that needs escaping.
fn detail(refusal: &Refusal) -> Cow<'static, str> {
    match (&refusal.by, refusal.cause) {
        (None, _) => queue_detail(refusal),
        (Some(_), Cause::ReducedCapacity) => "The limits of your requests cannot be checked now.".into(),
        (Some(_), _) => "There have been too many requests from this client.".into(),
    }
}

/// The reason of the queue or of the limits on uploads, for programs and browsers: whether the requests of the client
/// or those of others are in the way.
fn queue_detail(refusal: &Refusal) -> Cow<'static, str> {
    let is_own = refusal.cause != Cause::ReducedCapacity;
    let (why, secs) = match (is_own, refusal.wait_secs) {
        (true, None) => return "You have too many uploads in progress.".into(),
        (false, None) => return "The site is busy: too many uploads of all clients are in progress.".into(),
        (true, Some(secs)) => ("Too many requests from you or your network are waiting or were served just now.", secs),
        (false, Some(secs)) => ("The site is busy: other requests come before yours.", secs),
    };
    format!("{why} The estimated wait is {secs} s.").into()
}

/// The page for a browser. An address or a key of a rule may have many users, so a page does not blame the reader
/// alone.
fn page(refusal: &Refusal, retry_secs: Option<u64>, is_repeatable: bool) -> PageContent {
    let (title, detail) = match (&refusal.by, refusal.cause) {
        (None, Cause::ReducedCapacity) => ("The site is busy", queue_detail(refusal)),
        (None, _) => ("Too many requests", queue_detail(refusal)),
        (Some(_), Cause::ReducedCapacity) => {
            ("One moment, please", "The site cannot take your request right now.".into())
        }
        (Some(_), _) => (
            "One moment, please",
            "More requests have come from your connection or network than the site allows for now.".into(),
        ),
    };
    PageContent { status: refusal.status(), title, detail, retry_secs, is_repeatable }
}

/// The content type and the body of a refusal: a page for a browser, a problem for a program. Doors use it too.
pub(crate) fn refusal_body(
    refusal: &Refusal,
    wants_html: bool,
    is_repeatable: bool,
    retry_secs: Option<u64>,
    pages: &ErrorPages,
) -> (&'static str, Vec<u8>) {
    if wants_html {
        return (HTML, page(refusal, retry_secs, is_repeatable).render(pages));
    }
    let violated = refusal.rule().filter(|_| refusal.cause != Cause::ReducedCapacity);
    let body = problem((refusal.cause, &detail(refusal)), refusal.status(), violated.map(|rule| &rule.name[..]));
    (PROBLEM, body)
}

/// The URI of the problem type.
fn problem_type(cause: Cause) -> &'static str {
    match cause {
        Cause::QuotaExceeded => "https://iana.org/assignments/http-problem-types#quota-exceeded",
        Cause::ReducedCapacity => "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
        Cause::AbnormalUsage => "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
    }
}

/// The title of the problem type.
fn title(cause: Cause) -> &'static str {
    match cause {
        Cause::QuotaExceeded => "Request cannot be satisfied as assigned quota has been exceeded",
        Cause::ReducedCapacity => "Request cannot be satisfied due to temporary server capacity constraints",
        Cause::AbnormalUsage => "Request not satisfied due to detection of abnormal request pattern",
    }
}

/// The status of a refused gRPC call.
fn grpc_status(cause: Cause) -> &'static str {
    match cause {
        Cause::QuotaExceeded | Cause::AbnormalUsage => grpc::RESOURCE_EXHAUSTED,
        Cause::ReducedCapacity => grpc::UNAVAILABLE,
    }
}

/// The content type of a gRPC call; none for other requests.
fn grpc_of(request: &RequestHead) -> Option<&[u8]> {
    request.fields.find(b"content-type").filter(|content_type| grpc::is_grpc(content_type))
}

/// Whether the client is a browser.
fn wants_html(request: &RequestHead) -> bool {
    request.fields.all(Name::Accept).flat_map(tokens).any(|range| range.starts_with(b"text/html"))
}

/// Whether a browser may send the request again by itself.
fn is_repeatable(request: &RequestHead) -> bool {
    request.method == b"GET" || request.is_head()
}

/// A problem for a program (RFC 9457), with the violated rule, if there is one.
fn problem((cause, detail): (Cause, &str), status: u16, rule: Option<&str>) -> Vec<u8> {
    let mut out = Vec::with_capacity(PROBLEM_BYTES);
    let mut write = |parts: &[&[u8]]| parts.iter().for_each(|part| out.extend_from_slice(part));
    let mut digits = itoa::Buffer::new();
    let status = digits.format(status);
    write(&[b"{\"type\":\"", problem_type(cause).as_bytes(), b"\",\"title\":\"", title(cause).as_bytes()]);
    write(&[b"\",\"status\":", status.as_bytes()]);
    write(&[b",\"detail\":\"", detail.as_bytes(), b"\""]);
    if let Some(rule) = rule {
        write(&[b",\"violated-policies\":["]);
        serde_json::to_writer(&mut out, rule).expect("a text can be written to memory");
        out.push(b']');
    }
    out.extend_from_slice(b"}\n");
    out
}

/// Most problems have no more than this many bytes.
const PROBLEM_BYTES: usize = 400;

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use tollgate_core::time::Span;

    use super::*;

    fn request(fields: &str) -> RequestHead {
        let mut head = RequestHead::default();
        head.parse(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes()).unwrap();
        head
    }

    fn refusal() -> Refusal {
        Refusal {
            cause: Cause::QuotaExceeded,
            reason: "wait-too-long",
            retry_after: Some(Span::from_millis(2500)),
            wait_secs: NonZeroU32::new(12),
            by: None,
        }
    }

    #[test]
    fn a_program_gets_a_problem_and_a_browser_a_page() {
        let mut response = ResponseHead::default();
        let answer = refuse(&refusal(), &request(""), &mut response, &ErrorPages::default(), 0);
        assert_eq!(response.status, 429);
        assert_eq!(response.fields.find(b"retry-after"), Some(&b"3"[..]));
        let text = String::from_utf8(answer).unwrap();
        assert!(text.contains("#quota-exceeded\"") && text.contains("\"status\":429,"), "{text}");
        let answer =
            refuse(&refusal(), &request("Accept: text/html,*/*\r\n"), &mut response, &ErrorPages::default(), 0);
        let text = String::from_utf8(answer).unwrap();
        assert!(text.contains("<meta http-equiv=\"refresh\" content=\"3\">"), "{text}");
    }

    #[test]
    fn a_grpc_call_gets_a_grpc_status() {
        let call = request("Content-Type: application/grpc+proto\r\n");
        let mut response = ResponseHead::default();
        let fields = |response: &ResponseHead| {
            let field = |name: &str| {
                response.fields.find(name.as_bytes()).map(|value| String::from_utf8_lossy(value).into_owned())
            };
            ["grpc-status", "grpc-retry-pushback-ms", "retry-after", "content-type"].map(field)
        };
        let some = |text: &str| Some(text.to_owned());
        let answer = refuse(&refusal(), &call, &mut response, &ErrorPages::default(), 0);
        assert!(response.status == 200 && answer.is_empty() && response.length == Length::Fixed(0));
        assert_eq!(fields(&response), [some("8"), some("3000"), some("3"), some("application/grpc+proto")]);
        let busy = Refusal { cause: Cause::ReducedCapacity, ..refusal() };
        refuse(&busy, &call, &mut response, &ErrorPages::default(), 0);
        assert_eq!(fields(&response)[0], some("14"));
        let never = Refusal { retry_after: None, ..refusal() };
        refuse(&never, &call, &mut response, &ErrorPages::default(), 0);
        assert_eq!(fields(&response)[..3], [some("8"), some("-1"), None]);
        fail(&call, 503, "no backend is up", Some(2), &mut response, &ErrorPages::default());
        assert_eq!(
            (response.status, fields(&response)[..3].to_vec()),
            (200, vec![some("14"), some("2000"), some("2")])
        );
        fail(&call, 400, "no", None, &mut response, &ErrorPages::default());
        assert_eq!((response.status, &fields(&response)[0]), (400, &None));
    }

    #[test]
    fn problem_and_page_state_whether_the_client_or_others_are_the_reason() {
        let busy = Refusal { cause: Cause::ReducedCapacity, ..refusal() };
        let own_uploads = Refusal { wait_secs: None, ..refusal() };
        let uploads = Refusal { wait_secs: None, ..busy.clone() };
        let own = "Too many requests from you or your network are waiting or were served just now. \
                   The estimated wait is 12 s.";
        for (refusal, status, title, detail) in [
            (refusal(), 429, "Too many requests", own),
            (
                busy,
                503,
                "The site is busy",
                "The site is busy: other requests come before yours. The estimated wait is 12 s.",
            ),
            (own_uploads, 429, "Too many requests", "You have too many uploads in progress."),
            (uploads, 503, "The site is busy", "The site is busy: too many uploads of all clients are in progress."),
        ] {
            let text = |accept: &str| {
                let mut response = ResponseHead::default();
                let answer = refuse(&refusal, &request(accept), &mut response, &ErrorPages::default(), 0);
                assert_eq!(response.status, status);
                String::from_utf8(answer).unwrap()
            };
            assert!(text("").contains(&format!("\"detail\":\"{detail}\"")), "{}", text(""));
            let page = text("Accept: text/html,*/*\r\n");
            assert!(page.contains(&format!("<h1>{title}</h1><p>{detail} ")), "{page}");
        }
    }

    #[test]
    fn a_browser_gets_a_page_for_a_failure_of_the_backend_and_a_program_does_not() {
        for status in [502, 503, 504] {
            let mut response = ResponseHead::default();
            let mut answer = |accept: &str| {
                let answer = fail(&request(accept), status, "why", Some(2), &mut response, &ErrorPages::default());
                let kind = response.fields.find(b"content-type").unwrap().to_vec();
                assert_eq!((response.status, response.length), (status, Length::Fixed(answer.len() as u64)));
                (String::from_utf8(kind).unwrap(), String::from_utf8(answer).unwrap())
            };
            let (kind, page) = answer("Accept: text/html\r\n");
            assert!(kind == "text/html; charset=utf-8" && page.contains("<b id=\"s\">2</b>"), "{kind} {page}");
            let (kind, problem) = answer("Accept: */*\r\n");
            assert!(kind == "application/problem+json" && problem.contains("\"detail\":\"why\""), "{kind} {problem}");
        }
    }

    #[test]
    fn a_problem_is_json_whatever_the_rule_is_called() {
        for name in ["api", "a\"b\\c", "tab\tand\u{7f}", "na\u{ef}ve \u{1f600}", ""] {
            let problem: serde_json::Value =
                serde_json::from_slice(&problem((Cause::AbnormalUsage, "Why."), 503, Some(name))).unwrap();
            assert_eq!(problem["violated-policies"], serde_json::json!([name]));
            assert_eq!((&problem["status"], &problem["title"]), (&503.into(), &title(Cause::AbnormalUsage).into()));
        }
    }
}
