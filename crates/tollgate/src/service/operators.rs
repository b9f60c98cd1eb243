//! The address for operators, put together for whatever role runs.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use serde_json::Value;
use tollgate_gatekeeper::clock::Clock;

use crate::admin::{Config, Console, Guard, Subject, Tokens};
use crate::settings::{self, Settings, Webhook};
use crate::watch::{Calendar, Feed, Watch, WatchMetrics, WebhookSettings, open_webhook};

/// Who may come in, and what is remembered.
#[derive(Clone, Debug)]
pub(super) struct Operators {
    listen: SocketAddr,
    admin: Option<settings::Admin>,
    watch: settings::Watch,
}

impl Operators {
    /// What a file and the arguments say. Beyond loopback, a token is needed.
    pub(super) fn new(listen: SocketAddr, settings: &Settings) -> Result<Self, String> {
        let has_token = settings.admin.as_ref().is_some_and(|admin| admin.token_file.is_some());
        if !listen.ip().is_loopback() && !has_token {
            return Err(format!(
                "{listen} is beyond loopback, where a token is needed: write `token_file` in [admin], or listen on 127.0.0.1"
            ));
        }
        Ok(Self { listen, admin: settings.admin.clone(), watch: settings.watch.clone() })
    }

    /// Where they connect.
    pub(super) fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// The watch over what is left in `feed`.
    pub(super) fn watch(&self, feed: Arc<Feed>, clock: Clock) -> io::Result<Arc<Watch>> {
        let settings = tollgate_core::watch::Settings {
            flag_threshold: self.watch.flag_threshold,
            flag_window: self.watch.flag_window,
            account_class: self.watch.account_class.as_str().into(),
            ..tollgate_core::watch::Settings::default()
        };
        let watch = Watch::new(settings, self.watch.state_dir.clone(), feed, Calendar::new(clock));
        let Some(webhook) = &self.watch.webhook else { return Ok(Arc::new(watch)) };
        let (announcer, announced, sending) = open_webhook(announced_to(webhook)?);
        tokio::spawn(sending);
        Ok(Arc::new(watch.announcing(announcer, announced)))
    }

    /// Everything, ready to be served.
    pub(super) fn console(
        &self,
        mut registry: Registry,
        subject: Arc<dyn Subject>,
        watch: Arc<Watch>,
        config: Config,
    ) -> io::Result<Arc<Console>> {
        let (tokens, hosts) = match &self.admin {
            Some(admin) => {
                let tokens = Tokens::load(admin.token_file.as_deref(), admin.viewer_token_file.as_deref())?;
                (tokens, admin.hosts.clone())
            }
            None => (Tokens::none(), Vec::new()),
        };
        registry.register_collector(Box::new(WatchMetrics(watch.clone())));
        Ok(Console::new(registry, subject, watch, Guard::new(tokens, hosts), config))
    }
}

fn announced_to(webhook: &Webhook) -> io::Result<WebhookSettings> {
    let Webhook { tls, authority, path, secret_file } = webhook.clone();
    let wrong = |message: String| io::Error::other(format!("the secret file {}: {message}", secret_file.display()));
    let secret = std::fs::read(&secret_file).map_err(|error| wrong(error.to_string()))?;
    let secret = secret.trim_ascii().to_vec();
    if secret.is_empty() {
        return Err(wrong("is empty".to_owned()));
    }
    Ok(WebhookSettings { tls, authority, path, secret })
}

/// A file as operators see it.
pub(super) fn config_of(file: Option<&Path>) -> Config {
    let text = file.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    Config { file: file.map(|file| file.display().to_string()), tables: settings::in_force(&text), reloaded: None }
}

/// A role of which operators see nothing but its metrics.
pub(super) struct Plain(pub(super) &'static str);

impl Subject for Plain {
    fn role(&self) -> &'static str {
        self.0
    }

    fn is_ready(&self) -> bool {
        true
    }

    fn status(&self) -> Value {
        Value::Null
    }
}
