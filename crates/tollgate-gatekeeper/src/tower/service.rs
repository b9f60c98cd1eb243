//! The tower layer, and the service behind it: decides on each request before it reaches the inner service.

use core::net::IpAddr;
use core::task::{Context, Poll};
use std::sync::Arc;

use http::{Request, Response};
use tokio::time::sleep;
use tollgate_core::decision::Verdict;
use tower_layer::Layer;
use tower_service::Service;

use super::future::{KeeperFuture, State};
use super::keeper::Keeper;
use super::refusal::{add_headers, grpc_of, refusal};
use super::view::{Extractors, RequestView, View, unify};

/// Applies a [`Keeper`] to services.
#[must_use]
#[derive(Clone, Debug)]
pub struct KeeperLayer {
    keeper: Keeper,
    extractors: Extractors,
    held_max: u32,
    /// Whether responses get rate-limit headers.
    headers: bool,
}

/// The default maximum of held requests.
const HELD_MAX: u32 = 1024;

impl KeeperLayer {
    /// A layer that finds the client's [`IpAddr`] in the request's extensions, holds up to 1,024 requests,
    /// and sends rate-limit headers.
    pub fn new(keeper: Keeper) -> Self {
        Self { keeper, extractors: Extractors::default(), held_max: HELD_MAX, headers: true }
    }

    /// The keeper.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Sets the function that finds the client's address, for `ip/*` classes.
    pub fn client(mut self, find: impl Fn(RequestView<'_>) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.extractors.client = Arc::new(find);
        self
    }

    /// Sets the function that finds a caller's name. Its second argument is `identifier` for the class of that name,
    /// and NAME for the class `descriptor:NAME`.
    pub fn attribute(
        mut self,
        find: impl for<'a> Fn(RequestView<'a>, &str) -> Option<&'a [u8]> + Send + Sync + 'static,
    ) -> Self {
        self.extractors.attribute = Arc::new(find);
        self
    }

    /// Sets the maximum number of held requests; further ones are refused.
    pub fn held_max(mut self, held_max: u32) -> Self {
        self.held_max = held_max;
        self
    }

    /// Sets whether responses get rate-limit headers. Without them, refusals still have `Retry-After`.
    pub fn headers(mut self, headers: bool) -> Self {
        self.headers = headers;
        self
    }
}

impl<S> Layer<S> for KeeperLayer {
    type Service = KeeperService<S>;

    fn layer(&self, inner: S) -> KeeperService<S> {
        KeeperService { inner, layer: self.clone() }
    }
}

/// A service behind a keeper.
#[derive(Clone, Debug)]
pub struct KeeperService<S> {
    inner: S,
    layer: KeeperLayer,
}

impl<S, B, R> Service<Request<B>> for KeeperService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: Default,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = KeeperFuture<S, B, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        unify(request.headers_mut(), &self.layer.keeper.0.inputs);
        let view = View::new(&request, &self.layer.extractors);
        let (decision, mut guard) = self.layer.keeper.decide(&view, self.layer.held_max);
        let sent_decision = self.layer.headers.then_some(decision);
        let (state, guard) = match decision.verdict {
            Verdict::Admit => {
                guard.begin();
                (State::Running { future: self.inner.call(request) }, Some(guard))
            }
            Verdict::Hold(until) => {
                // The ready service is used for this request, and a clone stays for the next.
                let copy = self.inner.clone();
                let ready = core::mem::replace(&mut self.inner, copy);
                let wait = until.since(self.layer.keeper.now());
                (State::Held { sleep: Box::pin(sleep(wait.into())), held: Some((ready, request)) }, Some(guard))
            }
            _ => {
                let keeper = &self.layer.keeper;
                let mut response = refusal(decision.verdict, keeper.now(), grpc_of(request.headers()));
                if let Some(decision) = &sent_decision {
                    add_headers(keeper, decision, response.headers_mut());
                }
                (State::Refused { response: Some(response) }, None)
            }
        };
        KeeperFuture { state, guard, sent_decision }
    }
}
