//! Two listeners cannot have one address.

use std::net::SocketAddr;
use std::ops::Range;

use super::FileTable;
use super::fault::Collector;
use super::table::Placed;
use super::value::Address;

/// An address that a role of the file listens on, and the key that says so.
struct Listener<'file> {
    key: &'static str,
    address: SocketAddr,
    span: &'file Range<usize>,
}

/// Reports each address that an earlier role has taken.
pub(super) fn refuse_clashes(file: &FileTable, faults: &mut Collector) {
    let mut listeners = listeners(file);
    listeners.sort_by_key(|listener| listener.span.start);
    for (index, listener) in listeners.iter().enumerate() {
        if let Some(earlier) = listeners[..index].iter().find(|earlier| clash(earlier.address, listener.address)) {
            let message = format!(
                "`{}` and `{}` cannot both listen on {}: write another port",
                earlier.key, listener.key, listener.address
            );
            faults.fault(listener.span, message);
        }
    }
}

fn listeners(file: &FileTable) -> Vec<Listener<'_>> {
    fn listener<'file>(key: &'static str, address: Option<&'file Placed<Address>>) -> Option<Listener<'file>> {
        address.map(|address| Listener { key, address: address.value.0, span: &address.span })
    }
    let master = file.master.as_ref().map(|master| &master.value);
    let doors = file.doors.as_ref().map(|doors| &doors.value);
    [
        listener("gate.listen", file.gate.as_ref().map(|gate| &gate.value.listen)),
        listener("master.accounting", master.map(|master| &master.accounting)),
        listener("master.control", master.map(|master| &master.control)),
        listener("doors.http", doors.and_then(|doors| doors.http.as_ref())),
        listener("doors.grpc", doors.and_then(|doors| doors.grpc.as_ref())),
        listener("doors.resp", doors.and_then(|doors| doors.resp.as_ref())),
        listener("admin.listen", file.admin.as_ref().map(|admin| &admin.value.listen)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Whether one of two addresses takes the other's place. Port 0 is any free port, and an unspecified address is all of them.
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
