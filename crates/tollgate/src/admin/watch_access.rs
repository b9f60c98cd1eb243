//! Runs operations of the watch for the admin address. The watch records refusals and flags in a journal, so its
//! operations may block on the disk.
//!
//! One thread serves the admin address, handles signals and sends keep-alives to systemd. Operations of the watch
//! therefore run on blocking threads. While the disk hangs, each operation occupies a thread, even after its client has
//! disconnected. Their number is bounded, and further requests wait here.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::OwnedSemaphorePermit;

use super::Console;
use super::problem::AdminProblem;
use crate::watch::Watch;

/// Operations that may run at once.
pub(super) const OPERATIONS_MAX: usize = 32;
/// Longest wait for a permit, and then for the result. An unbounded wait would occupy one of the few connections of the
/// admin address.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Permit for one operation.
pub(super) struct WatchPermit {
    watch: Arc<Watch>,
    permit: OwnedSemaphorePermit,
}

impl Console {
    /// Waits for a permit. A change that has to be recorded acquires its permit first; the record is then written even
    /// if the client disconnects meanwhile.
    pub(super) async fn watch_permit(&self) -> Result<WatchPermit, AdminProblem> {
        let permit = in_time(self.watch_permits.clone().acquire_owned()).await?.map_err(|_| failed())?;
        Ok(WatchPermit { watch: self.watch.clone(), permit })
    }

    /// Runs an operation of the watch.
    pub(super) async fn run_on_watch<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Watch) -> T + Send + 'static,
    ) -> Result<T, AdminProblem> {
        self.watch_permit().await?.run(operation).await
    }
}

impl WatchPermit {
    /// Runs an operation of the watch; it completes even if this future is dropped.
    pub(super) async fn run<T: Send + 'static>(
        self,
        operation: impl FnOnce(&Watch) -> T + Send + 'static,
    ) -> Result<T, AdminProblem> {
        let Self { watch, permit } = self;
        let running = watch.run_blocking(move |watch| {
            let result = operation(watch);
            drop(permit);
            result
        });
        in_time(running).await?.ok_or_else(failed)
    }
}

async fn in_time<T>(wait: impl Future<Output = T>) -> Result<T, AdminProblem> {
    let late =
        |_| AdminProblem::new(StatusCode::SERVICE_UNAVAILABLE, "the disk with the journal of flags does not respond");
    tokio::time::timeout(WAIT_MAX, wait).await.map_err(late)
}

fn failed() -> AdminProblem {
    AdminProblem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error: the operation panicked")
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use prometheus_client::registry::Registry;
    use serde_json::{Value, json};
    use tollgate_core::watch::WatchSettings;
    use tollgate_gatekeeper::clock::Clock;
    use tower_service::Service;

    use super::super::{Config, Guard, MonitoredRole, Tokens, router};
    use super::*;
    use crate::watch::{BlockedDisk, Calendar, Persistence, watch_metrics};

    struct IdleRole;

    impl MonitoredRole for IdleRole {
        fn role(&self) -> &'static str {
            "gate"
        }

        fn is_ready(&self) -> bool {
            true
        }

        fn status(&self) -> Value {
            json!({})
        }
    }

    async fn get(console: &Arc<Console>, path: &str) -> (StatusCode, String) {
        let request = Request::builder().uri(path).header("host", "localhost").body(Body::empty()).unwrap();
        let response = router(console.clone()).call(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_hung_disk_blocks_only_requests_that_need_the_watch() {
        let calendar = Calendar::new(Clock::by_hand().0);
        let (settings, home) = (WatchSettings::default(), Persistence::Memory);
        let watch = Arc::new(Watch::new(settings, home, Arc::default(), Arc::default(), calendar, false));
        let mut registry = Registry::default();
        registry.register_collector(watch_metrics(watch.clone()));
        let guard = Guard::new(Tokens::default(), Vec::new());
        let console = Console::new(registry, Arc::new(IdleRole), watch.clone(), guard, Config::default());

        let blocked = BlockedDisk::begin(watch);
        let begin = Instant::now();
        let paths = ["episodes", "flags", "flags?history=1", "audit", "key?class=user&key=u1"];
        let requests: Vec<_> = paths
            .iter()
            .map(|path| {
                let (console, path) = (console.clone(), format!("/api/v1/{path}"));
                tokio::spawn(async move { get(&console, &path).await.0 })
            })
            .collect();
        for path in ["/healthz", "/readyz", "/metrics", "/api/v1/status", "/api/v1/history"] {
            assert_eq!(get(&console, path).await.0, StatusCode::OK, "{path}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(requests.iter().all(|request| !request.is_finished()));
        assert_eq!(get(&console, "/healthz").await, (StatusCode::OK, "ok\n".to_owned()));
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());

        blocked.end();
        for (request, path) in requests.into_iter().zip(paths) {
            assert_eq!(request.await.unwrap(), StatusCode::OK, "{path}");
        }
    }
}
