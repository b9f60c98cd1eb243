//! A service behind a keeper, from the point of view of its callers.
#![cfg(feature = "tower")]
#![allow(clippy::unwrap_used)]

use core::net::IpAddr;
use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use http::{Request, Response, StatusCode};
use tollgate_core::class::Class;
use tollgate_core::limit::{Bucket, Budget, InFlight, Limit, Rate};
use tollgate_core::path::PathPattern;
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::hash::Seed;
use tollgate_gatekeeper::limiter::Plan;
use tollgate_gatekeeper::tower::{Keeper, KeeperLayer, RequestView};
use tower::{Layer, ServiceExt, service_fn};

fn rule(class: &str, limit: Limit, hold: Span) -> Rule {
    Rule {
        name: "each".into(),
        when: Default::default(),
        unless: Vec::new(),
        class: Class::parse(class).unwrap(),
        limit,
        escalation: None,
        warmup: None,
        hold_max: hold,
        mode: Mode::Enforce,
    }
}

fn layer(rule: Rule) -> KeeperLayer {
    let plan = Plan { rules: vec![(rule, 1 << 16)], started: Moment::ZERO, seed: Seed::random(), names_max: 16 };
    KeeperLayer::new(Keeper::new(plan).unwrap())
}

fn bucket(size: u32) -> Limit {
    Limit::Bucket(Bucket::new(size, 1, Span::from_secs(30)).unwrap())
}

fn from(client: &str) -> Request<String> {
    let mut request = Request::new(String::new());
    request.extensions_mut().insert(client.parse::<IpAddr>().unwrap());
    request
}

async fn ask(layer: &KeeperLayer, request: Request<String>) -> Response<String> {
    let inner = service_fn(|_: Request<String>| async {
        Ok::<_, core::convert::Infallible>(Response::new("served".to_string()))
    });
    layer.layer(inner).oneshot(request).await.unwrap()
}

#[tokio::test]
async fn a_caller_over_the_limit_is_refused_with_retry_after() {
    let layer = layer(rule("ip/32", bucket(2), Span::ZERO));
    let first = ask(&layer, from("203.0.113.7")).await;
    assert_eq!((first.status(), first.body().as_str()), (StatusCode::OK, "served"));
    assert_eq!(first.headers()["x-ratelimit-remaining"], "1");
    assert!(first.headers().contains_key("ratelimit") && first.headers().contains_key("ratelimit-policy"));
    ask(&layer, from("203.0.113.7")).await;
    let refused = ask(&layer, from("203.0.113.7")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["retry-after"], "30");
    assert_eq!(ask(&layer, from("203.0.113.8")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn without_rate_limit_headers_a_refusal_keeps_retry_after() {
    let layer = layer(rule("ip/32", bucket(1), Span::ZERO)).headers(false);
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let response = ask(&layer, from("203.0.113.7")).await;
        assert_eq!(response.status(), status);
        assert_eq!(response.headers().contains_key("retry-after"), status != StatusCode::OK);
        assert!(!response.headers().keys().any(|name| name.as_str().contains("ratelimit")), "{response:?}");
    }
}

#[tokio::test]
async fn a_spelling_of_a_path_does_not_bypass_its_rule() {
    let mut login = rule("ip/32", bucket(1), Span::ZERO);
    login.when.paths.push(PathPattern::new("/login"));
    let layer = layer(login);
    let at = |path: &str| {
        let mut request = from("203.0.113.7");
        *request.uri_mut() = path.parse().unwrap();
        request
    };
    assert_eq!(ask(&layer, at("/login")).await.status(), StatusCode::OK);
    for path in ["/%6cogin", "//login", "/x/../login", "/login;x", "/login/?y", "http://a//login"] {
        assert_eq!(ask(&layer, at(path)).await.status(), StatusCode::TOO_MANY_REQUESTS, "{path}");
    }
    assert_eq!(ask(&layer, at("/logout")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn the_service_sees_the_value_that_rules_used() {
    let layer = layer(rule("header:x-key+cookie:sid", bucket(1), Span::ZERO));
    let request = |keys: [&str; 2], cookies: [&str; 2]| {
        let mut request = Request::builder().header("x_key", "z");
        for key in keys {
            request = request.header("x-key", key);
        }
        for cookie in cookies {
            request = request.header("cookie", cookie);
        }
        request.body(String::new()).unwrap()
    };
    let seen = layer.layer(service_fn(|request: Request<String>| async move {
        let names = ["x-key", "cookie", "x_key"];
        let values = names.map(|name| request.headers().get_all(name).iter().map(|v| v.to_str().unwrap()).collect());
        Ok::<_, core::convert::Infallible>(Response::new(Vec::<String>::from(values).join("|")))
    }));
    let answer = seen.clone().oneshot(request(["a", "b"], ["q=1; sid=2", "sid=3"])).await.unwrap();
    assert_eq!(answer.body(), "a, b|q=1; sid=2|");
    let again = seen.oneshot(request(["a", "b"], ["sid=2", "sid=9"])).await.unwrap();
    assert_eq!(again.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn white_space_around_a_header_value_is_no_part_of_the_key() {
    let layer = layer(rule("header:x-key", bucket(1), Span::ZERO));
    let request = |key: &str| Request::builder().header("x-key", key).body(String::new()).unwrap();
    assert_eq!(ask(&layer, request("a")).await.status(), StatusCode::OK);
    for key in [" a", "a ", "\ta", "  a\t"] {
        assert_eq!(ask(&layer, request(key)).await.status(), StatusCode::TOO_MANY_REQUESTS, "{key:?}");
    }
    assert_eq!(ask(&layer, request("b")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_grpc_refusal_has_a_grpc_status() {
    let layer = layer(rule("ip/32", bucket(1), Span::ZERO));
    let grpc = || {
        let mut request = from("203.0.113.7");
        request.headers_mut().insert("content-type", "application/grpc+proto".parse().unwrap());
        request
    };
    ask(&layer, grpc()).await;
    let refused = ask(&layer, grpc()).await;
    assert_eq!(refused.status(), StatusCode::OK);
    assert_eq!(
        ["grpc-status", "content-type", "retry-after", "grpc-retry-pushback-ms"].map(|name| &refused.headers()[name]),
        ["8", "application/grpc+proto", "30", "30000"]
    );
}

#[tokio::test]
async fn the_service_identifies_callers() {
    let account = |seen: RequestView<'_>| seen.headers.get("x-forwarded-for")?.to_str().ok()?.parse().ok();
    let by_address = layer(rule("ip/32", bucket(1), Span::ZERO)).client(account);
    let request = |address: &str| Request::builder().header("x-forwarded-for", address).body(String::new()).unwrap();
    assert_eq!(ask(&by_address, request("203.0.113.1")).await.status(), StatusCode::OK);
    assert_eq!(ask(&by_address, request("203.0.113.1")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask(&by_address, request("203.0.113.2")).await.status(), StatusCode::OK);
    let by_account = layer(rule("identifier", bucket(1), Span::ZERO)).attribute(|seen, name| {
        (name == "identifier").then(|| seen.headers.get("x-account").map(|value| value.as_bytes())).flatten()
    });
    let request = |account: &str| Request::builder().header("x-account", account).body(String::new()).unwrap();
    assert_eq!(ask(&by_account, request("a")).await.status(), StatusCode::OK);
    assert_eq!(ask(&by_account, request("a")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask(&by_account, request("b")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn requests_slightly_over_the_limit_are_held_in_intervals() {
    let rate = Limit::Rate(Rate::new(20, Span::from_secs(1), 1).unwrap());
    let layer = layer(rule("ip/32", rate, Span::from_secs(5))).held_max(3);
    let begin = Instant::now();
    let answers = futures_of(&layer, 5).await;
    let served = answers.iter().filter(|status| **status == StatusCode::OK).count();
    assert_eq!(served, 4, "one at once, three held, and no place for the fifth");
    assert!(begin.elapsed() >= Duration::from_millis(145), "{:?}", begin.elapsed());
}

async fn futures_of(layer: &KeeperLayer, count: usize) -> Vec<StatusCode> {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..count {
        let layer = layer.clone();
        tasks.spawn(async move { ask(&layer, from("203.0.113.7")).await.status() });
    }
    tasks.join_all().await
}

#[tokio::test]
async fn a_held_request_that_is_dropped_is_refunded() {
    let rate = Limit::Rate(Rate::new(1, Span::from_secs(1), 1).unwrap());
    let layer = layer(rule("ip/32", rate, Span::from_secs(5))).held_max(1);
    ask(&layer, from("203.0.113.7")).await;
    for _ in 0..10 {
        let waited = tokio::time::timeout(Duration::from_millis(20), ask(&layer, from("203.0.113.7"))).await;
        assert!(waited.is_err(), "it is held each time, and takes neither place nor rate with it");
    }
}

#[tokio::test]
async fn requests_in_flight_are_counted_until_they_end_or_are_dropped() {
    let layer = layer(rule("ip/32", Limit::InFlight(InFlight::new(1).unwrap()), Span::ZERO));
    let begun = Arc::new(AtomicU32::new(0));
    let slow = {
        let begun = begun.clone();
        service_fn(move |_: Request<String>| {
            begun.fetch_add(1, Ordering::Relaxed);
            async {
                tokio::time::sleep(Duration::from_secs(60)).await;
                Ok::<_, core::convert::Infallible>(Response::new(String::new()))
            }
        })
    };
    let in_flight = tokio::spawn(layer.layer(slow).oneshot(from("203.0.113.7")));
    while begun.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ask(&layer, from("203.0.113.7")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    in_flight.abort();
    let _ = in_flight.await;
    assert_eq!(ask(&layer, from("203.0.113.7")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_budget_is_charged_for_work_and_not_for_waiting() {
    // A thousandth of a core, with a burst of 50 ms.
    let layer = layer(rule("ip/32", Limit::Budget(Budget::new(1_000, Span::from_millis(50)).unwrap()), Span::ZERO));
    let run = |work: Duration, wait: Duration| {
        let service = service_fn(move |_: Request<String>| async move {
            let begin = Instant::now();
            while begin.elapsed() < work {}
            tokio::time::sleep(wait).await;
            Ok::<_, core::convert::Infallible>(Response::new(String::new()))
        });
        layer.layer(service).oneshot(from("203.0.113.7"))
    };
    for _ in 0..3 {
        assert_eq!(run(Duration::ZERO, Duration::from_millis(60)).await.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(run(Duration::from_millis(80), Duration::ZERO).await.unwrap().status(), StatusCode::OK);
    assert_eq!(run(Duration::ZERO, Duration::ZERO).await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
}
