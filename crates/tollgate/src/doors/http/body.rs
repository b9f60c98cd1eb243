//! Bodies of calls and responses.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::problem::DoorProblem;

/// Maximum size of the body of a call, in bytes: enough for a few hundred checks.
const BODY_BYTES_MAX: usize = 128 << 10;
/// Timeout for receiving the body of a call.
const BODY_MAX: Duration = Duration::from_secs(10);

/// Reads the body of a call.
pub(super) async fn read(body: Incoming) -> Result<Vec<u8>, DoorProblem> {
    tokio::time::timeout(BODY_MAX, read_all(body)).await.map_err(|_| DoorProblem::slow())?
}

async fn read_all(mut body: Incoming) -> Result<Vec<u8>, DoorProblem> {
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if expected > BODY_BYTES_MAX {
        return Err(DoorProblem::too_large());
    }
    let mut bytes = Vec::with_capacity(expected);
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|_| DoorProblem::malformed("the body is incomplete"))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > BODY_BYTES_MAX {
            return Err(DoorProblem::too_large());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// A complete body in memory.
pub(super) struct Whole(Option<Bytes>);

impl From<Vec<u8>> for Whole {
    fn from(bytes: Vec<u8>) -> Self {
        Self((!bytes.is_empty()).then(|| bytes.into()))
    }
}

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
