//! Uploads under way: requests that went to the backend before their bodies were here.
//!
//! A small body is read before its request asks for a place at the backend. A large one cannot be, so its request is at the backend
//! while its client sends, and a client may send slowly, or stop. If such a request kept its place, a handful of them would keep everybody
//! else waiting; so its place is for others while it waits for its client. But a backend may be at work all the same, on what it has of
//! the request, and that work would be in nobody's count. So there are only so many uploads at once, of one address and in all. One more
//! of an address waits until one of its own has been sent.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tollgate_core::network::Network;
use tollgate_core::time::Span;

use super::queue::Refused;
use crate::settings::Hold;

/// Uploads of one address: at least so many, and otherwise half of what may be at the backend at once.
const PER_ADDRESS: u64 = 32;
/// Uploads in all: at least so many, and otherwise what may be at the backend at once.
const TOTAL: u64 = 512;
/// When to try again if there are too many in all.
const RETRY_AFTER: Span = Span::from_secs(1);

/// All uploads under way.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    total: u64,
    /// An entry for each address that has any.
    by_address: HashMap<IpAddr, Line>,
}

#[derive(Debug, Default)]
struct Line {
    under_way: u64,
    waiting: VecDeque<oneshot::Sender<()>>,
}

/// Leave for one upload, until this is dropped.
#[derive(Debug)]
pub(crate) struct Upload {
    uploads: Arc<Uploads>,
    address: IpAddr,
}

impl Uploads {
    /// Leave for an upload of `client`, now or when one of its own has ended, where `at_once` requests may be at the backend at once.
    pub(crate) async fn begin(self: &Arc<Self>, client: IpAddr, at_once: u64, hold: Hold) -> Result<Upload, Refused> {
        let address = Network::of(client, if client.is_ipv4() { 32 } else { 64 }).address();
        let mut waiting = match self.enter(address, at_once, hold)? {
            None => return Ok(Upload { uploads: self.clone(), address }),
            Some(woken) => Waiting { uploads: self, address, woken },
        };
        match tokio::time::timeout(hold.max.into(), &mut waiting.woken).await {
            Ok(Ok(())) => Ok(Upload { uploads: self.clone(), address }),
            // Leave that came in the same instant is passed on by the guard.
            _ => Err(Refused { retry_after: hold.max, own: true }),
        }
    }

    /// How many uploads there may be of one address, where `at_once` requests may be at the backend at once.
    pub(crate) fn per_address_max(at_once: u64) -> u64 {
        PER_ADDRESS.max(at_once / 2)
    }

    /// The same of all together.
    pub(crate) fn total_max(at_once: u64) -> u64 {
        TOTAL.max(at_once)
    }

    /// Counts an upload, or lets it wait.
    fn enter(&self, address: IpAddr, at_once: u64, hold: Hold) -> Result<Option<oneshot::Receiver<()>>, Refused> {
        let mut state = self.state();
        if state.total >= Self::total_max(at_once) {
            return Err(Refused { retry_after: RETRY_AFTER, own: false });
        }
        let line = state.by_address.entry(address).or_default();
        if line.under_way < Self::per_address_max(at_once) {
            line.under_way += 1;
            state.total += 1;
            return Ok(None);
        }
        line.waiting.retain(|waiting| !waiting.is_closed());
        if line.waiting.len() >= hold.per_key as usize {
            return Err(Refused { retry_after: hold.max, own: true });
        }
        let (wake, woken) = oneshot::channel();
        line.waiting.push_back(wake);
        Ok(Some(woken))
    }

    /// An upload has ended. The next of the same address has its leave.
    fn leave(&self, address: IpAddr) {
        let mut state = self.state();
        let Some(line) = state.by_address.get_mut(&address) else { return };
        while let Some(next) = line.waiting.pop_front() {
            if next.send(()).is_ok() {
                return;
            }
        }
        line.under_way -= 1;
        if line.under_way == 0 {
            state.by_address.remove(&address);
        }
        state.total -= 1;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.uploads.leave(self.address);
    }
}

/// An upload that waits for its leave.
struct Waiting<'a> {
    uploads: &'a Uploads,
    address: IpAddr,
    woken: oneshot::Receiver<()>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.woken.close();
        if self.woken.try_recv().is_ok() {
            // It came for somebody who has gone.
            self.uploads.leave(self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    const HOLD: Hold = Hold { max: Span::from_secs(60), per_key: 2, total: 8 };

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn begin(uploads: &Arc<Uploads>, last: u8, at_once: u64) -> Poll<Result<Upload, Refused>> {
        let begun = std::pin::pin!(uploads.begin(address(last), at_once, HOLD));
        begun.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn leave(uploads: &Arc<Uploads>, last: u8, at_once: u64) -> Upload {
        match begin(uploads, last, at_once) {
            Poll::Ready(Ok(upload)) => upload,
            other => panic!("{other:?}"),
        }
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    #[test]
    fn one_more_of_an_address_waits_for_its_own_and_others_do_not() {
        run(async {
            let uploads = Arc::new(Uploads::default());
            let mut own: Vec<_> = (0..PER_ADDRESS).map(|_| leave(&uploads, 1, 4)).collect();
            let mut next = Box::pin(uploads.begin(address(1), 4, HOLD));
            assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            let other = leave(&uploads, 2, 4);
            drop(other);
            assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            own.pop();
            own.push(next.await.unwrap());
            drop(own);
            assert!(uploads.state().by_address.is_empty() && uploads.state().total == 0);
        });
    }

    #[test]
    fn who_stops_waiting_holds_nobody_up_and_no_more_wait_than_may() {
        run(async {
            let uploads = Arc::new(Uploads::default());
            let own: Vec<_> = (0..PER_ADDRESS).map(|_| leave(&uploads, 1, 4)).collect();
            let mut waits: Vec<_> = (0..2).map(|_| Box::pin(uploads.begin(address(1), 4, HOLD))).collect();
            let mut cx = Context::from_waker(Waker::noop());
            assert!(waits.iter_mut().all(|wait| wait.as_mut().poll(&mut cx).is_pending()));
            assert!(matches!(begin(&uploads, 1, 4), Poll::Ready(Err(Refused { own: true, .. }))));
            drop(waits.remove(0));
            assert!(begin(&uploads, 1, 4).is_pending(), "there is room to wait again");
            // One ends, and the one whose turn it is has gone without looking.
            drop(own);
            drop(waits);
            assert!(uploads.state().by_address.is_empty() && uploads.state().total == 0);
        });
    }

    /// As many uploads as an address gets.
    fn all(uploads: &Arc<Uploads>, last: u8, at_once: u64) -> Vec<Upload> {
        let more = || match begin(uploads, last, at_once) {
            Poll::Ready(Ok(upload)) => Some(upload),
            Poll::Ready(Err(_)) | Poll::Pending => None,
        };
        std::iter::from_fn(more).collect()
    }

    #[test]
    fn a_backend_with_room_for_more_has_room_for_more_uploads() {
        run(async {
            let uploads = Arc::new(Uploads::default());
            assert_eq!(all(&uploads, 1, 4).len(), 32);
            let many = [1, 2].map(|last| all(&uploads, last, 1000));
            assert_eq!(many.each_ref().map(Vec::len), [500, 500]);
            assert!(matches!(begin(&uploads, 9, 1000), Poll::Ready(Err(Refused { own: false, .. }))));
            drop(many);
            assert!(uploads.state().by_address.is_empty() && uploads.state().total == 0);
        });
    }
}
