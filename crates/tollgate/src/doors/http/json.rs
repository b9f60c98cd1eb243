//! `POST /json`: Envoy's rate limit service for clients without gRPC, as envoyproxy/ratelimit serves it.

use super::door_reply::DoorReply;
use super::problem::DoorProblem;
use crate::doors::grpc::{json, rate_limit};
use crate::doors::station::Station;

/// Answers a call: 200 within the limit, 429 over it.
pub(super) async fn json(station: &Station, bytes: &[u8], reply: &mut DoorReply) -> Result<(), DoorProblem> {
    let request = json::request(bytes).map_err(|error| DoorProblem::malformed(format!("no request: {error}")))?;
    let response = rate_limit::should_rate_limit(station, &request).await;
    let response = response.map_err(DoorProblem::malformed)?;
    let (text, is_over) = json::response(&response);
    if is_over {
        reply.status = 429;
    }
    reply.json(|out| out.extend_from_slice(&text));
    Ok(())
}
