//! Limits the response bytes that the `h2` crate keeps for one connection of a client until they are sent.
//!
//! The crate limits them per stream only, by the client's window and 64 KiB. A client that opens its windows and does
//! not read could make it keep 64 KiB for each of 128 streams, for a few bytes per request. Here a connection has
//! [`FREE_BYTES`]; more is borrowed from the memory of the response buffer ([`Buffers`]), which is limited per address
//! and in total. Without room, the stream waits, and its backend with it.
//!
//! The crate does not report which bytes it has sent. So the bytes are passed to it with an owner that is notified when
//! the crate drops them.

use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use parking_lot::Mutex;

use super::spool::{BLOCK_BYTES, Buffers};

/// Unsent bytes of a connection for which nothing is borrowed: as many as the crate keeps for one stream, so that a
/// client with one download at a time seldom borrows.
const FREE_BYTES: usize = 64 * 1024;
/// The part of [`FREE_BYTES`] that may be filled with last pieces of responses whose windows the client keeps closed
/// ([`UnsentBytes::has_room_behind_window`]). They may stay for long; the other half is left for streams that can send.
const FREE_BEHIND_WINDOW_BYTES: usize = FREE_BYTES / 2;

/// The unsent bytes of one connection.
pub(crate) struct UnsentBytes {
    buffers: Arc<Buffers>,
    /// The client that is charged; none for a trusted proxy, which has many clients.
    client: Option<IpAddr>,
    state: Mutex<UnsentState>,
}

#[derive(Default)]
struct UnsentState {
    /// Bytes that the crate has and has not dropped yet.
    held: usize,
    /// Bytes that are borrowed, a multiple of [`BLOCK_BYTES`].
    borrowed: usize,
    /// The tasks of streams that wait for room.
    waiters: Vec<Waker>,
}

impl UnsentBytes {
    pub(crate) fn new(buffers: Arc<Buffers>, client: Option<IpAddr>) -> Arc<Self> {
        Arc::new(Self { buffers, client, state: Mutex::default() })
    }

    /// How many of `wanted` bytes may be passed to the crate now. If it is 0, the task is woken when there is room.
    pub(crate) fn room(&self, wanted: usize, cx: &mut Context<'_>) -> usize {
        let mut state = self.state.lock();
        let room = self.borrow_for(&mut state, wanted, FREE_BYTES);
        if room == 0 && !state.waiters.iter().any(|waiter| waiter.will_wake(cx.waker())) {
            state.waiters.push(cx.waker().clone());
        }
        room
    }

    /// Whether this many bytes may be passed to the crate although the client's window is closed, so that it cannot
    /// send them yet.
    pub(crate) fn has_room_behind_window(&self, bytes: usize) -> bool {
        self.borrow_for(&mut self.state.lock(), bytes, FREE_BEHIND_WINDOW_BYTES) >= bytes
    }

    /// A copy of the bytes for the crate. They are counted until it drops them.
    pub(crate) fn hand_over(self: &Arc<Self>, data: &[u8]) -> Bytes {
        if data.is_empty() {
            return Bytes::new();
        }
        self.state.lock().held += data.len();
        let (unsent, length) = (self.clone(), data.len());
        tracked(data, move || unsent.released(length))
    }

    /// Borrows for `wanted` more bytes, beyond the `free` ones. Returns how many of them fit.
    fn borrow_for(&self, state: &mut UnsentState, wanted: usize, free: usize) -> usize {
        while state.held + wanted > free + state.borrowed && self.buffers.borrow(self.client) {
            state.borrowed += BLOCK_BYTES;
        }
        (free + state.borrowed).saturating_sub(state.held).min(wanted)
    }

    /// The crate has dropped this many bytes.
    fn released(&self, bytes: usize) {
        let waiters = {
            let mut state = self.state.lock();
            state.held -= bytes;
            // One block more than the bytes need is kept, so that a fast download does not return and borrow the same
            // block again and again.
            let kept = match state.held.saturating_sub(FREE_BEHIND_WINDOW_BYTES) {
                0 => 0,
                over => over.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES,
            };
            while state.borrowed > kept {
                state.borrowed -= BLOCK_BYTES;
                self.buffers.give_back(self.client);
            }
            std::mem::take(&mut state.waiters)
        };
        waiters.into_iter().for_each(Waker::wake);
    }
}

/// A copy of `data` for the `h2` crate. `on_drop` is called when the crate drops it.
pub(super) fn tracked(data: &[u8], on_drop: impl FnMut() + Send + 'static) -> Bytes {
    Bytes::from_owner(Tracked { data: data.into(), on_drop })
}

struct Tracked<F: FnMut()> {
    data: Box<[u8]>,
    on_drop: F,
}

impl<F: FnMut()> AsRef<[u8]> for Tracked<F> {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl<F: FnMut()> Drop for Tracked<F> {
    fn drop(&mut self) {
        (self.on_drop)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ResponseBuffer;

    fn buffers(memory_bytes_max: u64) -> Arc<Buffers> {
        let dir = std::env::temp_dir();
        let settings =
            ResponseBuffer { memory_bytes_max, spool_bytes_max: 0, per_address_bytes_max: memory_bytes_max, dir };
        Arc::new(Buffers::new(&settings).unwrap())
    }

    fn room(unsent: &UnsentBytes, wanted: usize) -> usize {
        unsent.room(wanted, &mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_connection_holds_its_own_bytes_and_borrows_more_until_the_memory_is_used_up() {
        let buffers = buffers(4 * BLOCK_BYTES as u64);
        let unsent = UnsentBytes::new(buffers.clone(), Some([192, 0, 2, 1].into()));
        let piece = vec![0; FREE_BYTES];
        let first = unsent.hand_over(&piece);
        assert_eq!((room(&unsent, 1000), buffers.budget.used().0), (1000, BLOCK_BYTES as u64));
        let second = unsent.hand_over(&piece);
        let third = unsent.hand_over(&piece[..room(&unsent, FREE_BYTES)]);
        assert_eq!(third.len(), FREE_BYTES, "half of the memory is for this");
        assert_eq!((room(&unsent, 1), buffers.budget.used().0), (0, 2 * BLOCK_BYTES as u64));
        drop((first, second));
        assert!(room(&unsent, FREE_BYTES) > 0);
        drop(third);
        assert_eq!(buffers.budget.used().0, 0);
    }

    #[test]
    fn bytes_behind_a_closed_window_leave_room_for_other_streams() {
        let unsent = UnsentBytes::new(buffers(0), Some([192, 0, 2, 1].into()));
        let held: Vec<_> =
            std::iter::from_fn(|| unsent.has_room_behind_window(4096).then(|| unsent.hand_over(&[0; 4096]))).collect();
        assert_eq!(held.len(), FREE_BEHIND_WINDOW_BYTES / 4096);
        assert_eq!(room(&unsent, FREE_BYTES), FREE_BYTES - FREE_BEHIND_WINDOW_BYTES);
    }
}
