//! Any bytes from a peer, with or without keys, before and after the handshake: no panic, and no more memory
//! than one message.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tollgate_wire::zmtp::{Connection, ENTROPY_BYTES, Entropy, Identity, KeyPair, SocketKind, MESSAGE_BYTES_MAX};

fn keys(number: u8) -> Arc<KeyPair> {
    Arc::new(KeyPair::from_secret([number; 32]))
}

fn entropy(number: u8) -> Entropy {
    Entropy([number; ENTROPY_BYTES])
}

/// Transfers the output of one side to the other.
fn carry(from: &mut Connection, to: &mut Connection) {
    let bytes = std::mem::take(from.output());
    to.input().extend_from_slice(&bytes);
    while let Ok(Some(_)) = to.poll() {}
}

fuzz_target!(|data: (bool, bool, u8, Vec<Vec<u8>>)| {
    let (secured, is_server, turns, chunks) = data;
    let known = [keys(2).public()].into();
    let (mut server, mut client) = if secured {
        (
            Connection::secured(SocketKind::Sub, Identity::Server { keys: keys(1), known }, entropy(3)),
            Connection::secured(SocketKind::Pub, Identity::Client { keys: keys(2), server: keys(1).public() }, entropy(4)),
        )
    } else {
        (Connection::new(SocketKind::Sub), Connection::new(SocketKind::Pub))
    };
    for turn in 0..turns % 8 {
        if turn % 2 == 0 { carry(&mut client, &mut server) } else { carry(&mut server, &mut client) }
    }
    let victim = if is_server { &mut server } else { &mut client };
    for chunk in chunks {
        victim.input().extend_from_slice(&chunk);
        let held = loop {
            match victim.poll() {
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        if !held {
            return;
        }
        assert!(victim.input().len() <= MESSAGE_BYTES_MAX + 64);
    }
});
