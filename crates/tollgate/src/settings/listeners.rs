//! Reports two keys of the settings file that would listen on the same address and port.

use std::net::SocketAddr;
use std::ops::Range;

use super::error::ErrorCollector;
use super::table::Entries;

/// A listening address, and its position in the file.
pub(super) struct Listener {
    /// Its key with the table, such as `gate.listen`, for messages.
    pub(super) key: String,
    pub(super) address: SocketAddr,
    pub(super) span: Range<usize>,
}

impl Entries<'_> {
    /// Records a listening address for [`refuse_clashes`]. `key` is the key with its table, such as `admin.listen`; the
    /// value of its last part is the position.
    pub(super) fn listen(&mut self, key: &str, address: SocketAddr) {
        let span = self.span_of(key.rsplit('.').next().unwrap_or_default());
        self.errors.listeners.push(Listener { key: key.to_owned(), address, span });
    }
}

/// Reports each address that another key above it in the file already uses.
pub(super) fn refuse_clashes(errors: &mut ErrorCollector) {
    let mut listeners = std::mem::take(&mut errors.listeners);
    let mut clashes = ErrorCollector::default();
    listeners.sort_by_key(|listener| listener.span.start);
    for (index, listener) in listeners.iter().enumerate() {
        if let Some(earlier) = listeners[..index].iter().find(|earlier| clash(earlier.address, listener.address)) {
            let message = format!(
                "`{}` and `{}` cannot both listen on {}: write another port",
                earlier.key, listener.key, listener.address
            );
            clashes.report(&listener.span, message);
        }
    }
    errors.prepend(clashes);
}

/// Whether two addresses cannot be bound together. Port 0 is any free port; an unspecified address includes all others.
fn clash(a: SocketAddr, b: SocketAddr) -> bool {
    let all = |address: SocketAddr| address.ip().is_unspecified();
    a.port() != 0 && a.port() == b.port() && (a.ip() == b.ip() || all(a) || all(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_listeners_clash_on_one_port_of_one_address() {
        let clashes = |a: &str, b: &str| clash(a.parse().unwrap(), b.parse().unwrap());
        assert!(clashes("127.0.0.1:80", "127.0.0.1:80"));
        assert!(clashes("0.0.0.0:80", "127.0.0.1:80"));
        assert!(clashes("127.0.0.1:80", "[::]:80"));
        assert!(!clashes("127.0.0.1:80", "127.0.0.2:80"));
        assert!(!clashes("127.0.0.1:80", "127.0.0.1:81"));
        assert!(!clashes("127.0.0.1:0", "127.0.0.1:0"));
    }
}
