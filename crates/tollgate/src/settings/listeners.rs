//! Reports two listeners with the same address.

use std::net::SocketAddr;
use std::ops::Range;

use super::FileTable;
use super::doors::DoorsTable;
use super::error::ErrorCollector;
use super::gate::LISTEN_MAX;
use super::value::ListenAddress;

/// A listening address and its key in the file.
struct Listener<'file> {
    key: &'static str,
    address: SocketAddr,
    span: &'file Range<usize>,
}

/// Reports each address that another key above it in the file already uses.
pub(super) fn refuse_clashes(file: &FileTable, errors: &mut ErrorCollector) {
    let mut listeners = listeners(file);
    listeners.sort_by_key(|listener| listener.span.start);
    for (index, listener) in listeners.iter().enumerate() {
        if let Some(earlier) = listeners[..index].iter().find(|earlier| clash(earlier.address, listener.address)) {
            let message = format!(
                "`{}` and `{}` cannot both listen on {}: write another port",
                earlier.key, listener.key, listener.address
            );
            errors.report(listener.span, message);
        }
    }
}

fn listeners(file: &FileTable) -> Vec<Listener<'_>> {
    let mut listeners = Vec::new();
    let mut add = |key, address: &ListenAddress, span| listeners.push(Listener { key, address: address.0, span });
    if let Some(gate) = &file.gate {
        let listen = &gate.value.listen;
        for address in listen.value.0.iter().take(LISTEN_MAX) {
            // A default has no position in the file; the position of the table is used.
            let span = if gate.value.written.has("listen") { &address.span } else { &listen.span };
            add("gate.listen", &address.value, span);
        }
    }
    if let Some(master) = &file.master {
        add("master.accounting", &master.value.accounting.value, &master.value.accounting.span);
        add("master.control", &master.value.control.value, &master.value.control.span);
    }
    if let Some(doors) = &file.doors {
        let DoorsTable { http, grpc, resp, .. } = &doors.value;
        for (key, door) in [("doors.http", http), ("doors.grpc", grpc), ("doors.resp", resp)] {
            if let Some(listen) = door.as_ref().and_then(|door| door.value.listen.as_ref()) {
                add(key, &listen.value.0, &listen.span);
            }
        }
    }
    if let Some(admin) = &file.admin {
        add("admin.listen", &admin.value.listen.value, &admin.value.listen.span);
    }
    listeners
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
