//! The future of a request: held, running, or refused.

use core::pin::Pin;
use core::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};
use tollgate_core::decision::Decision;
use tollgate_core::time::Span;
use tower_service::Service;

use super::keeper::RequestGuard;
use super::refusal::add_headers;

pin_project! {
    /// The future of the response of a service behind a keeper.
    pub struct KeeperFuture<S: Service<Request<B>>, B, R> {
        #[pin]
        state: State<S, S::Future, B, R>,
        guard: Option<RequestGuard>,
        sent_decision: Option<Decision>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, F, B, R> {
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

impl<S: Service<Request<B>>, B, R> KeeperFuture<S, B, R> {
    pub(super) fn running(future: S::Future, guard: RequestGuard, sent_decision: Option<Decision>) -> Self {
        Self { state: State::Running { future }, guard: Some(guard), sent_decision }
    }

    pub(super) fn held(
        wait: Span,
        service: S,
        request: Request<B>,
        guard: RequestGuard,
        sent_decision: Option<Decision>,
    ) -> Self {
        let state = State::Held { sleep: Box::pin(sleep(wait.into())), held: Some((service, request)) };
        Self { state, guard: Some(guard), sent_decision }
    }

    pub(super) fn refused(response: Response<R>) -> Self {
        Self { state: State::Refused { response: Some(response) }, guard: None, sent_decision: None }
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
                        add_headers(guard.keeper(), &decision, answer.headers_mut());
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
    let Some(guard) = guard.as_mut().filter(|guard| guard.keeper().has_budget()) else { return future.poll(cx) };
    let begin = guard.keeper().now();
    let polled = future.poll(cx);
    guard.spent = guard.spent + guard.keeper().now().since(begin);
    polled
}
