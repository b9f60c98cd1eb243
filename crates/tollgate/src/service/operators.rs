//! The address for operators, put together for whatever role runs.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::shared::SharedFlags;

use crate::admin::{Config, Console, Guard, Subject, Tokens};
use crate::settings::{self, FlagState, Settings, Webhook};
use crate::watch::{Calendar, Feed, Flagged, Watch, WatchMetrics, WebhookSettings, announce_all, share};

/// Who may come in, and what is remembered.
#[derive(Clone, Debug)]
pub(super) struct Operators {
    listen: SocketAddr,
    admin: Option<settings::Admin>,
    watch: settings::Watch,
    /// Where flags are shared.
    redis: Option<settings::Redis>,
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
        let redis = settings.redis.clone().filter(|_| settings.watch.state == FlagState::Redis);
        Ok(Self { listen, admin: settings.admin.clone(), watch: settings.watch.clone(), redis })
    }

    /// Where they connect.
    pub(super) fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// The watch over what is left in `feed`, which says in `flagged` who is flagged. It sends what is to be sent from here on.
    pub(super) fn watch(&self, feed: Arc<Feed>, flagged: Arc<Flagged>, clock: Clock) -> io::Result<Arc<Watch>> {
        let settings = tollgate_core::watch::Settings {
            flag_threshold: self.watch.flag_threshold,
            flag_window: self.watch.flag_window,
            account_class: self.watch.account_class.as_str().into(),
            ..tollgate_core::watch::Settings::default()
        };
        let flags_max = settings.flags_max;
        let webhook = self.watch.webhook.as_ref().map(announced_to).transpose()?;
        let shared =
            self.redis.as_ref().map(|redis| Ok::<_, io::Error>((redis.address()?, &redis.prefix))).transpose()?;
        let mut watch = Watch::new(settings, self.watch.state_dir.clone(), feed, Calendar::new(clock)).marking(flagged);
        if webhook.is_some() {
            watch = watch.announcing();
        }
        if shared.is_some() {
            watch = watch.sharing();
        }
        let watch = Arc::new(watch);
        if let Some(webhook) = webhook {
            tokio::spawn(announce_all(watch.clone(), webhook));
        }
        if let Some((address, prefix)) = shared {
            tokio::spawn(share(watch.clone(), SharedFlags::new(address, prefix, flags_max)));
        }
        Ok(watch)
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
