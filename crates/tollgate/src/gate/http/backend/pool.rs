//! Idle HTTP/1.1 connections to backends, kept for further requests. Each worker thread has its own, so that no lock is
//! needed and the events of a connection wake the thread that uses it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;

use super::h1::H1Connection;

struct IdleConnection {
    connection: H1Connection,
    /// The end of its last request, in milliseconds since the start of the worker.
    since_ms: u64,
}

/// The idle connections of one worker, by the id of the backend.
#[derive(Default)]
pub(crate) struct Pool {
    by_backend: RefCell<HashMap<u64, Vec<IdleConnection>, RandomState>>,
}

/// The connection that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Any open one.
    Any,
    /// One that was used very recently, so that the backend is unlikely to be closing it. For requests that must not be
    /// sent twice.
    Recent,
    /// A new one.
    New,
}

/// The idle time up to which a connection counts as recent, in milliseconds.
const RECENT_MS: u64 = 1000;

impl Pool {
    /// The most recently used connection that is still open, if it is recent enough for the request.
    pub(crate) fn take(&self, backend: u64, wanted: Wanted, now_ms: u64) -> Option<H1Connection> {
        if wanted == Wanted::New {
            return None;
        }
        let mut by_backend = self.by_backend.borrow_mut();
        let idle = by_backend.get_mut(&backend)?;
        while let Some(waiting) = idle.pop() {
            if wanted == Wanted::Recent && now_ms.saturating_sub(waiting.since_ms) > RECENT_MS {
                idle.push(waiting);
                return None;
            }
            if !waiting.connection.socket.has_stirred() {
                return Some(waiting.connection);
            }
        }
        None
    }

    /// Keeps a connection for the next request, unless the backend has `bound` idle ones.
    pub(crate) fn give(&self, backend: u64, connection: H1Connection, bound: usize, now_ms: u64) {
        let mut by_backend = self.by_backend.borrow_mut();
        let idle = by_backend.entry(backend).or_default();
        if idle.len() < bound {
            idle.push(IdleConnection { connection, since_ms: now_ms });
        }
    }

    /// Closes connections that have been idle for too long, that the backend has closed, or whose backend was removed.
    pub(crate) fn sweep(&self, now_ms: u64, wait_max: Duration, is_backend: impl Fn(u64) -> bool) {
        let oldest_ms = now_ms.saturating_sub(wait_max.as_millis() as u64);
        self.by_backend.borrow_mut().retain(|backend, idle| {
            idle.retain(|waiting| waiting.since_ms >= oldest_ms && !waiting.connection.socket.has_stirred());
            is_backend(*backend)
        });
    }
}
