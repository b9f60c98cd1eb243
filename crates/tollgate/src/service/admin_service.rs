//! The admin address and the watch of a role: makes them from the settings, and reloads them.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::shared::SharedFlags;

use super::log::log_metrics;
use super::state_home::{state_home, would_be_ours};
use zeroize::Zeroizing;

use crate::admin::{self, Config, Console, Guard, MonitoredRole, Role, Tokens};
use crate::bounded_file;
use crate::settings::{self, FlagState, Settings, WebUrl};
use crate::token::token_bytes_min;
use crate::watch::{Calendar, Feed, Flagged, Persistence, Watch, WebhookSettings, announce_all, share, watch_metrics};

/// Largest secret of a webhook, in bytes: longer than any key used with HMAC.
const SECRET_BYTES_MAX: u64 = 4096;

/// Settings of the admin address and the watch that are in force.
#[derive(Clone, Debug)]
pub(super) struct AdminService {
    /// The admin address, from an argument or the settings.
    pub(crate) listen: SocketAddr,
    /// The table `[admin]`, if there is one.
    admin: Option<settings::Admin>,
    watch: settings::WatchSettings,
    /// Redis server through which gates share flags; none if flags are local.
    redis: Option<settings::Redis>,
}

impl AdminService {
    /// Takes the settings from a file. An address that is not on loopback requires a token.
    pub(super) fn new(listen: SocketAddr, settings: &Settings) -> Result<Self, String> {
        let has_token = settings.admin.as_ref().is_some_and(|admin| admin.token_file.is_some());
        if !listen.ip().is_loopback() && !has_token {
            return Err(format!("{listen} is not on loopback, so a token is required: set `token_file` in [admin]"));
        }
        let redis = settings.redis.clone().filter(|_| settings.watch.state == FlagState::Redis);
        Ok(Self { listen, admin: settings.admin.clone(), watch: settings.watch.clone(), redis })
    }

    /// Creates the watch, which counts the refusals in `feed` and publishes flags in `flagged`, and starts its tasks.
    pub(super) fn watch(&self, feed: Arc<Feed>, flagged: Arc<Flagged>, clock: Clock) -> io::Result<Arc<Watch>> {
        if let Some(note) = &self.watch.why_no_flags {
            tracing::info!("{note}");
        }
        let settings = self.watch.of_core();
        let flags_max = settings.flags_max;
        let webhook = self.webhook()?;
        let shared =
            self.redis.as_ref().map(|redis| Ok::<_, io::Error>((redis.address()?, &redis.prefix))).transpose()?;
        let home = match self.watch.state_dir.clone() {
            Some(directory) => Persistence::Directory(directory),
            None => state_home(self.listen, |name| std::env::var_os(name), would_be_ours)
                .map_or(Persistence::Memory, Persistence::IfPossible),
        };
        let watch = Watch::new(settings, home, feed, flagged, Calendar::new(clock), shared.is_some());
        watch.set_webhook(webhook);
        let watch = Arc::new(watch);
        tokio::spawn(announce_all(watch.clone()));
        if let Some((address, prefix)) = shared {
            tokio::spawn(share(watch.clone(), SharedFlags::new(address, prefix, flags_max)));
        }
        Ok(watch)
    }

    /// Serves the admin address of a role without a gate.
    pub(super) async fn serve(
        &self,
        registry: Registry,
        monitored: Arc<dyn MonitoredRole>,
        file: Option<&Path>,
    ) -> io::Result<Arc<Console>> {
        // Bind first: of two processes with the same admin address, the second must fail before it opens the journal of
        // the first.
        let listener = admin::bind(self.listen).await?;
        let guard = self.guard()?;
        let watch = self.watch(Arc::default(), Arc::default(), Clock::start())?;
        let console = console_of(registry, monitored, watch, guard, config_of(file));
        tokio::spawn(admin::serve(listener, console.clone()));
        Ok(console)
    }

    /// Creates the authentication; reads the token files.
    pub(super) fn guard(&self) -> io::Result<Guard> {
        Ok(Guard::new(Tokens::load(self.token_files(), token_bytes_min(self.listen))?, self.hosts()))
    }

    /// Reads all files that a reload to `new` needs, without changing anything. [`take_over`](Self::take_over) applies
    /// it.
    pub(super) fn read(&self, new: Self, console: &Console) -> Result<AdminReload, String> {
        if !self.listen.ip().is_loopback() && new.token_files().all(|(role, _)| role != Role::Operator) {
            return Err(format!(
                "the admin address stays {} until a restart, where a token is required: set `token_file` in [admin]",
                self.listen
            ));
        }
        let tokens = console.guard.tokens.load().renewed(new.token_files(), token_bytes_min(self.listen));
        let tokens = tokens.map_err(|error| error.to_string())?;
        let webhook = new.webhook().map_err(|error| error.to_string())?;
        Ok(AdminReload { new, tokens, webhook })
    }

    /// Reads the files that [`read`](Self::read) needs, and discards them. Called on another thread than `read`: if
    /// this returns, the disk responds, and `read` is unlikely to block the main thread.
    pub(super) fn read_ahead(&self) {
        for file in self.token_files().map(|(_, file)| file).chain(self.watch.webhook_secret_file.as_deref()) {
            let _ = bounded_file::read(file, SECRET_BYTES_MAX).map(Zeroizing::new);
        }
    }

    /// Applies a reload. Returns the settings that wait for a restart.
    pub(super) fn take_over(&mut self, reload: AdminReload, console: &Console) -> Vec<&'static str> {
        let AdminReload { new, tokens, webhook } = reload;
        let changed = [
            (self.listen != new.listen, "admin.listen"),
            (self.watch.state_dir != new.watch.state_dir, "watch.state_dir"),
            (self.watch.state != new.watch.state, "watch.state"),
            (self.redis != new.redis && self.watch.state == new.watch.state, "redis for flags"),
        ];
        console.guard.renew(tokens, new.hosts());
        console.watch.set_flagging(new.watch.of_core());
        console.watch.set_webhook(webhook);
        let (state_dir, state) = (self.watch.state_dir.clone(), self.watch.state);
        let watch = settings::WatchSettings { state_dir, state, ..new.watch };
        *self = Self { listen: self.listen, admin: new.admin, watch, redis: self.redis.clone() };
        changed.into_iter().filter_map(|(has_changed, key)| has_changed.then_some(key)).collect()
    }

    fn token_files(&self) -> impl Iterator<Item = (Role, &Path)> {
        self.admin.iter().flat_map(admin::token_files)
    }

    fn hosts(&self) -> Vec<String> {
        self.admin.as_ref().map_or_else(Vec::new, |admin| admin.hosts.clone())
    }

    fn webhook(&self) -> io::Result<Option<WebhookSettings>> {
        let webhook = self.watch.webhook.as_ref().zip(self.watch.webhook_secret_file.as_deref());
        webhook.map(|(url, secret_file)| announced_to(url, secret_file)).transpose()
    }
}

/// A validated reload of the admin address and the watch.
pub(super) struct AdminReload {
    new: AdminService,
    /// The new tokens; `None` if they have not changed.
    tokens: Option<Tokens>,
    webhook: Option<WebhookSettings>,
}

/// The settings of a webhook. Reads its secret.
fn announced_to(url: &WebUrl, secret_file: &Path) -> io::Result<WebhookSettings> {
    let wrong = |message: String| io::Error::other(format!("the secret file {}: {message}", secret_file.display()));
    let read = bounded_file::read(secret_file, SECRET_BYTES_MAX);
    let secret = Zeroizing::new(read.map_err(|error| wrong(error.to_string()))?);
    let secret = Zeroizing::new(secret.trim_ascii().to_vec());
    if secret.is_empty() {
        return Err(wrong("is empty".to_owned()));
    }
    Ok(WebhookSettings { url: url.clone(), secret })
}

/// Creates the state of the admin address.
pub(super) fn console_of(
    mut registry: Registry,
    monitored: Arc<dyn MonitoredRole>,
    watch: Arc<Watch>,
    guard: Guard,
    config: Config,
) -> Arc<Console> {
    registry.register_collector(watch_metrics(watch.clone()));
    registry.register_collector(log_metrics());
    Console::new(registry, monitored, watch, guard, config)
}

/// The settings of a file as the admin API returns them.
pub(super) fn config_of(file: Option<&Path>) -> Config {
    let read = |file: &Path| bounded_file::read(file, settings::FILE_BYTES_MAX).ok();
    // A pipe can be read only once, which already happened at startup.
    let text = file.and_then(read).and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    Config { file: file.map(|file| file.display().to_string()), tables: settings::in_force(&text), reloaded: None }
}
