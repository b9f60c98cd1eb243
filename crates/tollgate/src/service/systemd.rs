//! What a service manager is told, and what it hands over. Without one, nothing happens.

use std::io;
use std::net::TcpListener;
use std::time::Duration;

use sd_notify::NotifyState;

/// The sockets that were opened for us.
pub(crate) fn handed_over() -> io::Result<Vec<TcpListener>> {
    let mut sockets = listenfd::ListenFd::from_env();
    let mut listeners = Vec::new();
    for index in 0..sockets.len() {
        listeners.extend(sockets.take_tcp_listener(index)?);
    }
    Ok(listeners)
}

/// Says that the service is up.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// Says that the settings are being read again.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// Says that the service is going down.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Says that the service is alive.
pub(crate) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// How often the manager wants to hear that the service is alive, if it does.
pub(crate) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2)
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}
