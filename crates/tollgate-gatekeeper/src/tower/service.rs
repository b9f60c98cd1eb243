//! A service with a keeper in front.

use core::fmt;
use core::net::IpAddr;
use core::task::{Context, Poll};
use std::sync::Arc;

use http::{Request, Response};
use tollgate_core::decision::Verdict;
use tower_layer::Layer;
use tower_service::Service;

use super::future::KeeperFuture;
use super::keeper::Keeper;
use super::refusal::{grpc_of, refusal};
use super::view::{Extractors, Seen, View, unify};

/// Puts a [`Keeper`] in front of services.
#[derive(Clone)]
pub struct KeeperLayer {
    keeper: Keeper,
    options: Options,
}

#[derive(Clone)]
struct Options {
    extractors: Extractors,
    held_max: u32,
    headers: bool,
}

/// How many requests are held at once, unless it is said otherwise.
const HELD_MAX: u32 = 1024;

impl fmt::Debug for KeeperLayer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("KeeperLayer").field("keeper", &self.keeper).finish_non_exhaustive()
    }
}

impl KeeperLayer {
    /// A layer that knows a client by an [`IpAddr`] in the request's extensions, holds up to 1,024 requests, and tells clients where they stand.
    pub fn new(keeper: Keeper) -> Self {
        let options = Options { extractors: Extractors::default(), held_max: HELD_MAX, headers: true };
        Self { keeper, options }
    }

    /// The keeper.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// How the client's address is found, for `ip/*` classes.
    #[must_use]
    pub fn client(mut self, find: impl Fn(Seen<'_>) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.options.extractors.client = Arc::new(find);
        self
    }

    /// How a caller is named: `find` gets `identifier` for the class of that name, and NAME for `descriptor:NAME`.
    #[must_use]
    pub fn attribute(
        mut self,
        find: impl for<'a> Fn(Seen<'a>, &str) -> Option<&'a [u8]> + Send + Sync + 'static,
    ) -> Self {
        self.options.extractors.attribute = Arc::new(find);
        self
    }

    /// How many requests are held at once; further ones are refused.
    #[must_use]
    pub fn held_max(mut self, held_max: u32) -> Self {
        self.options.held_max = held_max;
        self
    }

    /// Whether answers tell clients where they stand. Refusals always say when to come back.
    #[must_use]
    pub fn headers(mut self, headers: bool) -> Self {
        self.options.headers = headers;
        self
    }
}

impl<S> Layer<S> for KeeperLayer {
    type Service = Kept<S>;

    fn layer(&self, inner: S) -> Kept<S> {
        Kept { inner, keeper: self.keeper.clone(), options: self.options.clone() }
    }
}

/// A service with a keeper in front.
#[derive(Clone)]
pub struct Kept<S> {
    inner: S,
    keeper: Keeper,
    options: Options,
}

impl<S: fmt::Debug> fmt::Debug for Kept<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Kept").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for Kept<S>
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
        unify(request.headers_mut(), self.keeper.inputs());
        let view = View::new(&request, &self.options.extractors);
        let (decision, mut stay) = self.keeper.decide(&view, self.options.held_max);
        let told = self.options.headers.then_some(decision);
        match decision.verdict {
            Verdict::Admit => {
                stay.begin();
                KeeperFuture::running(self.inner.call(request), stay, told)
            }
            Verdict::Hold(until) => {
                // The one that is ready goes with the request, and a copy stays for the next.
                let copy = self.inner.clone();
                let ready = core::mem::replace(&mut self.inner, copy);
                let wait = until.since(self.keeper.now());
                KeeperFuture::held(wait, ready, request, stay, told)
            }
            _ => {
                let response = refusal(&self.keeper, &decision, self.keeper.now(), grpc_of(request.headers()));
                KeeperFuture::refused(response)
            }
        }
    }
}
