//! An original gate, byte by byte, in both versions of ZMTP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tollgate_test_support::master::Master;
use tollgate_test_support::tap::{self, hex};
use tollgate_test_support::wall_ms;

/// A connection that has completed the handshake and verified the master's part of it.
pub(crate) fn meet(address: SocketAddr, minor: u8, own: &str, theirs: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // As libzmq does: the signature first, the rest when the other side has responded.
    let beginning = tap::beginning(minor, own);
    let (signature, rest) = beginning.split_at(10);
    stream.write_all(signature).unwrap();
    let theirs = tap::beginning(1, theirs);
    expect(&mut stream, &theirs[..10]);
    stream.write_all(rest).unwrap();
    expect(&mut stream, &theirs[10..]);
    stream
}

fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut answer = vec![0; bytes.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, bytes, "{} is not {}", answer.escape_ascii(), bytes.escape_ascii());
}

/// `ACCEPTED` of 127.0.0.1 in `default`, as recorded, with this time.
pub(crate) fn accepted(wall_ms: u64) -> Vec<u8> {
    let head = hex("0108 64656661756c7400 0108 4143434550544544 0109 3132372e302e302e31 010d");
    [head, wall_ms.to_string().into_bytes(), hex("0100 0000")].concat()
}

#[test]
fn an_original_gate_is_answered_byte_for_byte_in_both_versions() {
    for (minor, subscribe, subscribed) in [
        (1, hex("0412 09535542534352494245 64656661756c7400"), hex("040a 09535542534352494245")),
        (0, hex("0009 01 64656661756c7400"), hex("0001 01")),
    ] {
        let master = Master::start(&format!("bytes-{minor}"));
        let mut control = meet(master.control, minor, "SUB", "PUB");
        control.write_all(&subscribe).unwrap();
        let mut accounting = meet(master.accounting, minor, "PUB", "SUB");
        expect(&mut accounting, &subscribed);
        let before = wall_ms();
        (0..10).for_each(|_| accounting.write_all(&accepted(wall_ms())).unwrap());
        expect(&mut control, &hex("0108 64656661756c7400 010b 44454c41595f554e54494c 0109 3132372e302e302e31 000d"));
        let mut until = [0; 13];
        control.read_exact(&mut until).unwrap();
        let until: u64 = std::str::from_utf8(&until).unwrap().parse().unwrap();
        assert!((before + 950..=wall_ms() + 1001).contains(&until), "{until} is not a second after {before}");
    }
}

#[test]
fn a_timestamp_a_year_ahead_causes_no_delay_of_a_year() {
    let master = Master::start("future");
    let mut control = meet(master.control, 1, "SUB", "PUB");
    control.write_all(&hex("0412 09535542534352494245 64656661756c7400")).unwrap();
    let mut accounting = meet(master.accounting, 1, "PUB", "SUB");
    (0..10).for_each(|_| accounting.write_all(&accepted(wall_ms() + 31_536_000_000)).unwrap());
    let mut order = [0; 49];
    control.read_exact(&mut order).unwrap();
    let until: u64 = std::str::from_utf8(&order[36..]).unwrap().parse().unwrap();
    assert!(until < wall_ms() + 2000);
}
