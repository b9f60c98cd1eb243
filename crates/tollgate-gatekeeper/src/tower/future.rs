//! A request on its way through: held, at work, or refused.

use core::pin::Pin;
use core::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};
use tollgate_core::decision::Decision;
use tollgate_core::time::Span;
use tower_service::Service;

use super::keeper::Stay;
use super::refusal::tell;

pin_project! {
    /// The answer of a service with a keeper in front, when it comes.
    pub struct KeeperFuture<S: Service<Request<B>>, B, R> {
        #[pin]
        state: State<S, S::Future, B, R>,
        stay: Option<Stay>,
        told: Option<Decision>,
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
    pub(super) fn running(future: S::Future, stay: Stay, told: Option<Decision>) -> Self {
        Self { state: State::Running { future }, stay: Some(stay), told }
    }

    pub(super) fn held(wait: Span, service: S, request: Request<B>, stay: Stay, told: Option<Decision>) -> Self {
        let state = State::Held { sleep: Box::pin(sleep(wait.into())), held: Some((service, request)) };
        Self { state, stay: Some(stay), told }
    }

    pub(super) fn refused(response: Response<R>) -> Self {
        Self { state: State::Refused { response: Some(response) }, stay: None, told: None }
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
                    if let Some(stay) = this.stay.as_mut() {
                        stay.begin();
                    }
                    let future = service.call(request);
                    this.state.set(State::Running { future });
                }
                StateProjection::Running { future } => {
                    let mut answer = ready!(poll_measured(future, this.stay, cx))?;
                    if let (Some(stay), Some(decision)) = (this.stay.take(), this.told.take()) {
                        tell(stay.keeper(), &decision, answer.headers_mut());
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

/// Polls, and adds the time that takes to what the request has spent, where that matters.
fn poll_measured<F: Future>(future: Pin<&mut F>, stay: &mut Option<Stay>, cx: &mut Context<'_>) -> Poll<F::Output> {
    let Some(stay) = stay.as_mut().filter(|stay| stay.keeper().has_budget()) else { return future.poll(cx) };
    let begin = stay.keeper().now();
    let polled = future.poll(cx);
    stay.spent = stay.spent + stay.keeper().now().since(begin);
    polled
}
