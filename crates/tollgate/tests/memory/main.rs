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

use measured::Measured;

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
