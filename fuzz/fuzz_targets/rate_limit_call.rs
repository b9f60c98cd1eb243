//! A call of Envoy's rate limit service, as a message and as JSON: any bytes are a call or an error, and a call is the
//! same after it was written as a message and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message as _;

#[allow(dead_code)]
#[path = "../../crates/tollgate/src/doors/grpc/json.rs"]
mod json;
#[allow(dead_code)]
#[path = "../../crates/tollgate/src/doors/grpc/messages.rs"]
mod messages;
#[allow(dead_code)]
#[path = "../../crates/tollgate/src/doors/grpc/unit.rs"]
mod unit;

use messages::RateLimitRequest;

fuzz_target!(|bytes: &[u8]| {
    let calls = [RateLimitRequest::decode(bytes).ok(), json::request(bytes).ok()];
    for call in calls.into_iter().flatten() {
        // Each descriptor and each entry takes bytes of the call.
        let entries: usize = call.descriptors.iter().map(|descriptor| descriptor.entries.len()).sum();
        assert!(call.descriptors.len() + entries <= bytes.len());
        assert_eq!(RateLimitRequest::decode(&*call.encode_to_vec()).as_ref(), Ok(&call));
    }
});
