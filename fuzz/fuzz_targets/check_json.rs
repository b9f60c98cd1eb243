//! The JSON of `POST /v1/check`: any bytes are checks within their bounds, or an error; a described request answers
//! every question of a rule.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::request::Request as _;

#[path = "../../crates/tollgate/src/doors/http/check_json.rs"]
mod check_json;
#[allow(dead_code)]
#[path = "../../crates/tollgate/src/doors/request.rs"]
mod request;

use check_json::{ATTRIBUTES_MAX, CHECKS_MAX, Check, Checks};

fuzz_target!(|bytes: &[u8]| {
    match Checks::parse(bytes) {
        Ok(Checks::One(check)) => look(&check),
        Ok(Checks::Many(checks)) => {
            assert!(checks.len() <= CHECKS_MAX);
            checks.iter().for_each(look);
        }
        // An error may quote a name of the input, and is escaped where it is shown. It is not much longer than the
        // input.
        Err(error) => assert!(error.len() <= 3 * bytes.len() + 400, "{error:?}"),
    }
});

fn look(check: &Check<'_>) {
    assert!(check.attributes.0.len() <= ATTRIBUTES_MAX);
    let (rule, key) = (check.rule.as_ref().map(|rule| &*rule.0), check.key.as_ref().map(|key| &*key.0));
    let Ok(request) = request::DescribedRequest::new(rule, key, &check.attributes.0) else { return };
    assert!(request.path().len() <= request.target().len());
    let _ = (request.client(), request.method(), request.host(), request.normal_path());
    let _ = (request.header("x-api-key"), request.cookie("sid"), request.attribute("user"));
    let _ = (check.domain.as_ref().map(|domain| domain.0.len()), check.toll, check.toll_ms, check.factor);
    let _ = (check.hold, check.queue, check.deadline_ms);
}
