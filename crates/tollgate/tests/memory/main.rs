//! Memory that a gate holds for a client, compared with the bytes that the client has sent, in every phase of a
//! connection.
//!
//! Each phase has its own gate, and enough connections for a clear difference in resident memory. The test prints the
//! table of `docs/memory.md` and fails if a client pins more than its phase allows. To measure another build, such as
//! a release build, set its path: `TOLLGATE_BINARY=target/release/tollgate cargo test -p tollgate --test memory --
//! --nocapture`. Memory of the kernel, such as socket buffers, is not counted.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod measured;
mod phases;

use std::io::{Read, Write};

use measured::{Gate, Measured, backend};

/// A client pins at most this many bytes for each byte that it has sent, beyond the constant of its phase.
const BYTES_PER_BYTE_MAX: u64 = 10;

#[test]
fn a_client_pins_at_most_ten_times_what_it_has_sent_beyond_a_constant() {
    let rows: Vec<Measured> = phases::all();
    eprintln!("| phase | connections | sent, bytes per connection | held, bytes per connection | constant |");
    eprintln!("|---|---|---|---|---|");
    for Measured { phase, connections, sent, held, constant } in &rows {
        eprintln!("| {phase} | {connections} | {sent} | {held} | {constant} |");
    }
    let over = |row: &&Measured| row.held > row.constant + BYTES_PER_BYTE_MAX * row.sent;
    let over: Vec<_> = rows.iter().filter(over).map(|row| row.phase).collect();
    assert!(over.is_empty(), "more than the constant and ten times what was sent: {over:?}");
}

const PAGE: &str = include_str!("../../../../docs/memory.md");

/// The megabytes in the last column of the row with this beginning.
fn documented_mb(row: &str) -> u64 {
    let line = PAGE.lines().find(|line| line.starts_with(&format!("| {row} |"))).unwrap();
    line.trim_end_matches(" |").rsplit("| ").next().unwrap().trim_end_matches(" MB").parse().unwrap()
}

#[test]
fn usual_sites_need_no_more_than_the_page_says() {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let rule = |name: &str, class: &str| {
        format!("[[rule]]\nname = '{name}'\nclass = '{class}'\nrate = {{ rate = '1000/s', burst = 1000 }}\n")
    };
    let rules = [rule("a", "ip/32"), rule("b", "ip/24"), rule("c", "user-agent")].concat();
    let gate = Gate::start(backend(answer), &rules);
    let mut clients = Vec::new();
    for (row, connections) in [("no traffic", 0), ("100 connections", 100), ("1,000 connections", 1000)] {
        for number in clients.len()..connections {
            let mut client = gate.connect(number);
            client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: b\r\n\r\n").unwrap();
            client.read_exact(&mut [0; 17]).unwrap();
            clients.push(client);
        }
        let used_mb = gate.settled_rss() / 1_000_000;
        assert!(used_mb <= documented_mb(row), "{row}: {used_mb} MB");
    }
}
