//! The future that a service behind the tower layer returns for a request: held, running, or refused.

use core::pin::Pin;
use core::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tollgate_core::decision::Decision;
use tower_service::Service;

use super::keeper::RequestGuard;
use super::refusal::add_headers;

pin_project! {
    /// The future of the response of a service behind a keeper.
    pub struct KeeperFuture<S: Service<Request<B>>, B, R> {
        #[pin]
        pub(super) state: State<S, S::Future, B, R>,
        // Settles or refunds the charges when it is dropped; `None` for a refused request.
        pub(super) guard: Option<RequestGuard>,
        // The decision, if the response is to have its rate-limit headers.
        pub(super) sent_decision: Option<Decision>,
    }
}

pin_project! {
    // `Held` goes to `Running` when the hold ends.
    #[project = StateProjection]
    pub(super) enum State<S, F, B, R> {
        Held { sleep: Pin<Box<Sleep>>, held: Option<(S, Request<B>)> },
        Running { #[pin] future: F },
        Refused { response: Option<Response<R>> },
    }
}

impl<S: Service<Request<B>>, B, R> core::fmt::Debug for KeeperFuture<S, B, R> {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("KeeperFuture").finish_non_exhaustive()
    }
}

impl<S, B, R> Future for KeeperFuture<S, B, R>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<R>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProjection::Held { sleep, held } => {
                    ready!(sleep.as_mut().poll(cx));
                    let (mut service, request) = held.take().expect("a future is not polled after its end");
                    if let Some(guard) = this.guard.as_mut() {
                        guard.begin();
                    }
                    let future = service.call(request);
                    this.state.set(State::Running { future });
                }
                StateProjection::Running { future } => {
                    let mut answer = ready!(poll_measured(future, this.guard, cx))?;
                    if let (Some(guard), Some(decision)) = (this.guard.take(), this.sent_decision.take()) {
                        add_headers(&guard.keeper, &decision, answer.headers_mut());
                    }
                    return Poll::Ready(Ok(answer));
                }
                StateProjection::Refused { response } => {
                    return Poll::Ready(Ok(response.take().expect("a future is not polled after its end")));
                }
            }
        }
    }
}

/// Polls, and adds the elapsed time to the request's cost if a budget needs it.
fn poll_measured<F: Future>(
    future: Pin<&mut F>,
    guard: &mut Option<RequestGuard>,
    cx: &mut Context<'_>,
) -> Poll<F::Output> {
    let Some(guard) = guard.as_mut().filter(|guard| guard.keeper.0.has_budget) else { return future.poll(cx) };
    let begin = guard.keeper.now();
    let polled = future.poll(cx);
    guard.spent = guard.spent + guard.keeper.now().since(begin);
    polled
}
