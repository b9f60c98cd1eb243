//! Asking the watch, which may be waiting for a disk.
//!
//! One thread serves all operators, hears signals and tells systemd that the process is alive. So whatever looks at the watch, or changes it, is
//! done aside. While a disk hangs, those who ask hold threads, also when they have left: so there are not many at once, and others wait here.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Console;
use super::problem::Problem;
use crate::watch::Watch;

/// How many ask at once.
const ASKING_MAX: usize = 32;
/// How long anybody waits: who waited for ever would keep a connection for as long, of which there are not many either.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The places of those who ask.
pub(super) struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ASKING_MAX)))
    }
}

/// A place among those who ask.
pub(super) struct Place {
    watch: Arc<Watch>,
    permit: OwnedSemaphorePermit,
}

impl Console {
    /// A place. Who changes something that is to be written down gets one before: then it is written down also if they leave meanwhile.
    pub(super) async fn place(&self) -> Result<Place, Problem> {
        let permit = in_time(self.places.0.clone().acquire_owned()).await?.map_err(|_| failed())?;
        Ok(Place { watch: self.watch.clone(), permit })
    }

    /// What the watch answers to this.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Watch) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        self.place().await?.ask(question).await
    }
}

impl Place {
    /// What the watch answers to this.
    pub(super) async fn ask<T: Send + 'static>(
        self,
        question: impl FnOnce(&Watch) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let Self { watch, permit } = self;
        let asked = watch.aside(move |watch| {
            let answer = question(watch);
            drop(permit);
            answer
        });
        in_time(asked).await?.ok_or_else(failed)
    }
}

async fn in_time<T>(wait: impl Future<Output = T>) -> Result<T, Problem> {
    let late = |_| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the disk that flags are kept on does not answer");
    tokio::time::timeout(WAIT_MAX, wait).await.map_err(late)
}

fn failed() -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "that could not be done")
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

    use super::super::{Config, Guard, Subject, Tokens, router};
    use super::*;
    use crate::watch::{Calendar, Hanging, Home, WatchMetrics};

    struct Nobody;

    impl Subject for Nobody {
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
    async fn a_disk_that_hangs_holds_up_only_those_who_ask_for_what_it_has() {
        let calendar = Calendar::new(Clock::by_hand().0);
        let watch = Arc::new(Watch::new(WatchSettings::default(), Home::Memory, Arc::default(), calendar));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(WatchMetrics(watch.clone())));
        let guard = Guard::new(Tokens::none(), Vec::new());
        let console = Console::new(registry, Arc::new(Nobody), watch.clone(), guard, Config::default());

        let hanging = Hanging::begin(watch);
        let begin = Instant::now();
        let asks = ["episodes", "flags", "flags?history=1", "audit", "key?class=user&key=u1"];
        let asking: Vec<_> = asks
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
        assert!(asking.iter().all(|asked| !asked.is_finished()));
        assert_eq!(get(&console, "/healthz").await, (StatusCode::OK, "ok\n".to_owned()));
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());

        hanging.end();
        for (asked, path) in asking.into_iter().zip(asks) {
            assert_eq!(asked.await.unwrap(), StatusCode::OK, "{path}");
        }
    }
}
