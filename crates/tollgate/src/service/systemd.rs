//! Notifications to the service manager, systemd, and the sockets that it passes. Without a service manager these
//! functions do nothing.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use sd_notify::NotifyState;

use crate::settings::Gate;

/// Sockets passed by the service manager (`LISTEN_FDS`), which replace the addresses in `gate.listen`. Empty without a
/// socket unit.
pub(crate) fn passed_sockets() -> io::Result<Vec<TcpListener>> {
    let mut sockets = listenfd::ListenFd::from_env();
    let mut listeners = Vec::new();
    for index in 0..sockets.len() {
        listeners.extend(sockets.take_tcp_listener(index)?);
    }
    Ok(listeners)
}

/// Logs the addresses of `gate.listen` that no passed socket serves: while a socket unit is active, `gate.listen` has
/// no effect. There is no warning about the default addresses.
pub(crate) fn warn_of_unused(listen: &[SocketAddr], passed: &[SocketAddr]) {
    let unused = unused(listen, passed);
    if passed.is_empty() || unused.is_empty() || listen == Gate::default().listen {
        return;
    }
    let (unused, passed) = (joined(&unused), joined(passed));
    tracing::warn!(
        %unused,
        %passed,
        "gate.listen is not used: the service manager passed sockets; change ListenStream= of the socket unit, or \
         disable it"
    );
}

/// Addresses of `listen` on which no passed socket accepts connections.
fn unused(listen: &[SocketAddr], passed: &[SocketAddr]) -> Vec<SocketAddr> {
    // A socket on `[::]` accepts connections to all addresses, including IPv4.
    let covers = |socket: &SocketAddr, wanted: &SocketAddr| {
        socket == wanted
            || (socket.port() == wanted.port()
                && socket.ip().is_unspecified()
                && (socket.is_ipv6() || wanted.is_ipv4()))
    };
    listen.iter().filter(|wanted| !passed.iter().any(|socket| covers(socket, wanted))).copied().collect()
}

fn joined(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// Reports that the service is ready.
pub(crate) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// Reports that a reload has started.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(_) => notify(&[NotifyState::Reloading]),
    }
}

/// Reports that the service is stopping.
pub(crate) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Sends a heartbeat: without them, the service manager restarts the service.
pub(crate) fn alive() {
    notify(&[NotifyState::Watchdog]);
}

/// Interval at which to send heartbeats: half of the time after which the service manager misses one. None if it
/// expects none.
pub(crate) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2)
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_unused_if_no_passed_socket_accepts_its_connections() {
        let check = |listen: &str, passed: &str, expect: &str| {
            let parse = |text: &str| text.split_whitespace().map(|word| word.parse().unwrap()).collect::<Vec<_>>();
            assert_eq!(unused(&parse(listen), &parse(passed)), parse(expect), "{listen} with {passed}");
        };
        check("127.0.0.1:8888", "127.0.0.1:8888", "");
        check("127.0.0.1:80", "0.0.0.0:80", "");
        check("0.0.0.0:80 [::]:80", "[::]:80", "");
        check("[::1]:80", "0.0.0.0:80", "[::1]:80");
        check("0.0.0.0:80 0.0.0.0:443", "[::]:80", "0.0.0.0:443");
        check("0.0.0.0:80", "127.0.0.1:80", "0.0.0.0:80");
    }
}
