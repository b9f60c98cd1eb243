//! Limits on uploads: requests that are forwarded before their bodies are complete.
//!
//! A small body is buffered before its request enters the queue. A large one cannot be, so its request is in flight
//! while its client sends, and the client may send slowly, or stop. If such a request kept its permit, a handful of
//! them would block all others. So the permit is released while the upload stalls. The backend may still work on the
//! part that it has, and no permit counts that work. Therefore the number of uploads is limited.
//!
//! A fixed limit per address would be too low for an office while there is room, and would let sixteen addresses
//! exclude all others. So an address may have a part of the free slots: the fewer are free, the fewer it gets, and only
//! many addresses together can take the last one. Networks and blocks, as in the fair queue, may have a part of all
//! slots. A further upload of an address waits until one of the same address ends.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tollgate_core::network::Network;
use tollgate_core::time::Span;

use super::queue::{LEVELS, Refused};
use crate::key_counts::KeyCounts;
use crate::settings::Hold;

/// The minimum of the total limit, which is otherwise the in-flight limit of the backend.
const TOTAL: u64 = 512;
/// An address may have one in this many of the free slots.
const PER_ADDRESS: u64 = 4;
/// The minimum per address, if any slot is free.
const FEW: u64 = 4;
/// A network and a block may have one in this many of all slots.
const PER_NETWORK: [u64; 2] = [4, 2];
/// Uploads of one address that may wait.
const WAITING_PER_ADDRESS_MAX: usize = 16;
/// The retry time if the total limit is reached.
const RETRY_AFTER: Span = Span::from_secs(1);

/// All uploads.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    state: Mutex<UploadState>,
}

#[derive(Debug, Default)]
struct UploadState {
    /// The total limit, as of the last upload.
    total_max: u64,
    total: u64,
    /// An entry for each address with uploads.
    by_address: HashMap<IpAddr, UploadQueue>,
    /// The same for networks and blocks.
    by_network: [KeyCounts<IpAddr>; 2],
}

#[derive(Debug, Default)]
struct UploadQueue {
    under_way: u64,
    waiting: VecDeque<oneshot::Sender<()>>,
}

/// The client of an upload: its address, network and block.
#[derive(Clone, Copy, Debug)]
struct Whose {
    address: IpAddr,
    networks: [IpAddr; 2],
}

impl Whose {
    fn new(client: IpAddr) -> Self {
        let [address, network, block] =
            LEVELS.map(|(v4, v6)| Network::of(client, if client.is_ipv4() { v4 } else { v6 }).address());
        Self { address, networks: [network, block] }
    }
}

/// The fate of an upload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UploadFate {
    Go,
    Wait,
    Refuse(Refused),
}

/// A slot for one upload, until it is dropped.
#[derive(Debug)]
pub(crate) struct Upload {
    uploads: Arc<Uploads>,
    whose: Whose,
}

impl Uploads {
    /// A slot for an upload of `client`, now or when one of the same address ends. `at_once` is the in-flight limit.
    pub(crate) async fn begin(self: &Arc<Self>, client: IpAddr, at_once: u64, hold: Hold) -> Result<Upload, Refused> {
        let whose = Whose::new(client);
        let mut waiting = match self.enter(whose, at_once, hold)? {
            None => return Ok(Upload { uploads: self.clone(), whose }),
            Some(woken) => WaitingUpload { uploads: self, whose, woken },
        };
        match tokio::time::timeout(hold.max.into(), &mut waiting.woken).await {
            Ok(Ok(())) => Ok(Upload { uploads: self.clone(), whose }),
            // The guard passes on a slot that was granted in the same instant.
            _ => Err(Refused { retry_after: hold.max, own: true, by_queue: None }),
        }
    }

    /// A slot for an upload of `client` at once, and the fate that [`Self::begin`] would have given it.
    pub(crate) fn observe(self: &Arc<Self>, client: IpAddr, at_once: u64, hold: Hold) -> (Upload, UploadFate) {
        let whose = Whose::new(client);
        let mut state = self.state.lock();
        let would = state.fate(whose, at_once, hold);
        state.count(whose);
        (Upload { uploads: self.clone(), whose }, would)
    }

    /// Grants slots to all waiting uploads.
    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        let waiting: Vec<(IpAddr, oneshot::Sender<()>)> = state
            .by_address
            .iter_mut()
            .flat_map(|(address, line)| line.waiting.drain(..).map(move |wake| (*address, wake)))
            .collect();
        for (address, wake) in waiting {
            if wake.send(()).is_ok() {
                state.count(Whose::new(address));
            }
        }
    }

    /// The current limit of one address.
    pub(crate) fn per_address_max(&self) -> u64 {
        self.state.lock().per_address_max()
    }

    /// The total limit, given the in-flight limit `at_once`.
    pub(crate) fn total_max(at_once: u64) -> u64 {
        TOTAL.max(at_once)
    }

    /// Counts an upload, or adds it to the waiting ones.
    fn enter(&self, whose: Whose, at_once: u64, hold: Hold) -> Result<Option<oneshot::Receiver<()>>, Refused> {
        let mut state = self.state.lock();
        match state.fate(whose, at_once, hold) {
            UploadFate::Go => {
                state.count(whose);
                return Ok(None);
            }
            UploadFate::Refuse(refused) => return Err(refused),
            UploadFate::Wait => {}
        }
        let full = Refused { retry_after: hold.max, own: true, by_queue: None };
        let line = state.by_address.get_mut(&whose.address).ok_or(full)?;
        line.waiting.retain(|waiting| !waiting.is_closed());
        if line.waiting.len() >= WAITING_PER_ADDRESS_MAX {
            return Err(full);
        }
        let (wake, woken) = oneshot::channel();
        line.waiting.push_back(wake);
        Ok(Some(woken))
    }

    /// Frees a slot, and grants slots to waiting uploads of the same address, up to its current limit.
    fn leave(&self, whose: Whose) {
        let mut state = self.state.lock();
        state.discount(whose);
        // A waiting upload is not left without another one that wakes it when it ends.
        while state.under_way(whose) == 0 || state.has_room(whose) {
            let Some(line) = state.by_address.get_mut(&whose.address) else { return };
            let Some(next) = line.waiting.pop_front() else { break };
            if next.send(()).is_ok() {
                state.count(whose);
            }
        }
        if state.under_way(whose) == 0 {
            state.by_address.remove(&whose.address);
        }
    }
}

impl UploadState {
    /// The fate of another upload, apart from the bound on waiting ones.
    fn fate(&mut self, whose: Whose, at_once: u64, hold: Hold) -> UploadFate {
        self.total_max = Uploads::total_max(at_once);
        if self.total >= self.total_max {
            UploadFate::Refuse(Refused { retry_after: RETRY_AFTER, own: false, by_queue: None })
        } else if self.has_room(whose) {
            UploadFate::Go
        } else if self.under_way(whose) == 0 {
            // No other upload of the address would wake it when it ends.
            UploadFate::Refuse(Refused { retry_after: hold.max, own: true, by_queue: None })
        } else {
            UploadFate::Wait
        }
    }

    fn per_address_max(&self) -> u64 {
        FEW.max(self.total_max.saturating_sub(self.total) / PER_ADDRESS)
    }

    fn under_way(&self, whose: Whose) -> u64 {
        self.by_address.get(&whose.address).map_or(0, |line| line.under_way)
    }

    fn has_room(&self, whose: Whose) -> bool {
        let has_room = |level: usize| {
            (self.by_network[level].of(&whose.networks[level]) as u64) < self.total_max / PER_NETWORK[level]
        };
        self.total < self.total_max
            && self.under_way(whose) < self.per_address_max()
            && (0..PER_NETWORK.len()).all(has_room)
    }

    fn count(&mut self, whose: Whose) {
        self.total += 1;
        self.by_address.entry(whose.address).or_default().under_way += 1;
        for (counts, network) in self.by_network.iter_mut().zip(whose.networks) {
            counts.add(network);
        }
    }

    /// The entry of the address stays, because uploads may wait there.
    fn discount(&mut self, whose: Whose) {
        self.total -= 1;
        if let Some(line) = self.by_address.get_mut(&whose.address) {
            line.under_way -= 1;
        }
        for (counts, network) in self.by_network.iter_mut().zip(whose.networks) {
            counts.remove(&network);
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.uploads.leave(self.whose);
    }
}

/// An upload that waits for a slot.
struct WaitingUpload<'a> {
    uploads: &'a Uploads,
    whose: Whose,
    woken: oneshot::Receiver<()>,
}

impl Drop for WaitingUpload<'_> {
    fn drop(&mut self) {
        self.woken.close();
        if self.woken.try_recv().is_ok() {
            // The slot was granted to an upload that has been dropped.
            self.uploads.leave(self.whose);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    const HOLD: Hold = Hold { max: Span::from_secs(60), total: 8, memory: 0 };

    /// An address in a block of its own.
    fn address(block: u8) -> IpAddr {
        [192, block, 2, 1].into()
    }

    fn begin(uploads: &Arc<Uploads>, client: IpAddr, at_once: u64) -> Poll<Result<Upload, Refused>> {
        let begun = std::pin::pin!(uploads.begin(client, at_once, HOLD));
        begun.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn uploads_that_are_only_observed_all_begin() {
        let uploads = Arc::new(Uploads::default());
        let begun: Vec<_> = (0..600).map(|_| uploads.observe(address(1), 8, HOLD)).collect();
        assert!(begun[..100].iter().all(|(_, would)| matches!(would, UploadFate::Go)), "a quarter of what is free");
        assert!(matches!(begun[400].1, UploadFate::Wait));
        assert!(matches!(begun[599].1, UploadFate::Refuse(Refused { own: false, .. })));
        drop(begun);
        assert!(begin(&uploads, address(1), 8).is_ready());
    }

    #[test]
    fn uploads_that_wait_are_released() {
        let uploads = Arc::new(Uploads::default());
        run(async {
            let _under_way = all(&uploads, address(1), 8);
            let mut waiting = Box::pin(uploads.begin(address(1), 8, HOLD));
            assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            uploads.release();
            assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        });
    }

    /// As many uploads as an address may have.
    fn all(uploads: &Arc<Uploads>, client: IpAddr, at_once: u64) -> Vec<Upload> {
        let more = || match begin(uploads, client, at_once) {
            Poll::Ready(Ok(upload)) => Some(upload),
            Poll::Ready(Err(_)) | Poll::Pending => None,
        };
        std::iter::from_fn(more).collect()
    }

    fn is_empty(uploads: &Uploads) -> bool {
        let state = uploads.state.lock();
        state.total == 0 && state.by_address.is_empty() && state.by_network.iter().all(|counts| counts.total() == 0)
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    #[test]
    fn one_more_of_an_address_waits_for_its_own_and_others_do_not() {
        run(async {
            let uploads = Arc::new(Uploads::default());
            let mut own = all(&uploads, address(1), 4);
            assert_eq!(own.len(), 102, "a quarter of what is left of 512");
            let mut next = Box::pin(uploads.begin(address(1), 4, HOLD));
            assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            let other = all(&uploads, address(2), 4);
            assert!(other.len() >= 80);
            drop(other);
            assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            own.pop();
            own.push(next.await.unwrap());
            drop(own);
            assert!(is_empty(&uploads));
        });
    }

    #[test]
    fn a_dropped_upload_blocks_no_other_and_the_number_of_waiting_ones_is_limited() {
        run(async {
            let uploads = Arc::new(Uploads::default());
            let own = all(&uploads, address(1), 4);
            let waiting = 0..WAITING_PER_ADDRESS_MAX;
            let mut waits: Vec<_> = waiting.map(|_| Box::pin(uploads.begin(address(1), 4, HOLD))).collect();
            let mut cx = Context::from_waker(Waker::noop());
            assert!(waits.iter_mut().all(|wait| wait.as_mut().poll(&mut cx).is_pending()));
            assert!(matches!(begin(&uploads, address(1), 4), Poll::Ready(Err(Refused { own: true, .. }))));
            drop(waits.remove(0));
            assert!(begin(&uploads, address(1), 4).is_pending(), "there is room to wait again");
            // One ends, and the next one in turn is dropped without being polled.
            drop(own);
            drop(waits);
            assert!(is_empty(&uploads));
        });
    }

    #[test]
    fn a_few_addresses_do_not_shut_out_everybody_else() {
        run(async {
            let uploads = Arc::new(Uploads::default());
            let greedy: Vec<_> = (1..17).map(|block| all(&uploads, address(block), 4)).collect();
            assert!(all(&uploads, address(99), 4).len() >= FEW as usize);
            drop(greedy);
            assert!(is_empty(&uploads));
        });
    }

    #[test]
    fn a_network_has_a_quarter_and_a_block_half_of_all_however_many_addresses_they_have() {
        run(async {
            for at_once in [4, 2000] {
                let uploads = Arc::new(Uploads::default());
                let total = Uploads::total_max(at_once) as usize;
                let take = |network: u8| -> Vec<Upload> {
                    (0..=255).flat_map(|last| all(&uploads, [10, 9, network, last].into(), at_once)).collect()
                };
                let taken = [1, 2, 3].map(take);
                assert_eq!(taken.each_ref().map(Vec::len), [total / 4, total / 4, 0]);
                let refused = begin(&uploads, [10, 9, 4, 4].into(), at_once);
                assert!(matches!(refused, Poll::Ready(Err(Refused { own: true, .. }))));
                let of_v6 = all(&uploads, "2001:db8::1".parse().unwrap(), at_once);
                assert!(of_v6.len() >= total / 16);
                let again = begin(&uploads, "2001:db8::2".parse().unwrap(), at_once);
                assert!(again.is_pending(), "of the same network, which is one client");
                drop((taken, of_v6));
                assert!(is_empty(&uploads));
            }
        });
    }

    /// An address above its current limit passes on no more than that limit, and does not strand its waiting uploads.
    #[test]
    fn an_address_with_many_uploads_gets_fewer_when_others_come_and_no_upload_waits_without_end() {
        run(async {
            let uploads = Arc::new(Uploads::default());
            let mut own = all(&uploads, address(1), 4);
            let mut cx = Context::from_waker(Waker::noop());
            let waiting = 0..WAITING_PER_ADDRESS_MAX;
            let mut waits: Vec<_> = waiting.map(|_| Box::pin(uploads.begin(address(1), 4, HOLD))).collect();
            assert!(waits.iter_mut().all(|wait| wait.as_mut().poll(&mut cx).is_pending()));
            let others: Vec<_> = (2..9).map(|block| all(&uploads, address(block), 4)).collect();
            own.pop();
            assert!(waits.iter_mut().all(|wait| wait.as_mut().poll(&mut cx).is_pending()), "it has its part");
            drop(own);
            for wait in waits {
                drop(wait.await.unwrap());
            }
            drop(others);
            assert!(is_empty(&uploads));
        });
    }

    #[test]
    fn no_more_are_under_way_than_may_be() {
        run(async {
            let uploads = Arc::new(Uploads::default());
            let taken: Vec<_> = (0..=255).map(|block| all(&uploads, address(block), 4)).collect();
            assert_eq!(taken.iter().map(Vec::len).sum::<usize>(), 512);
            assert!(matches!(begin(&uploads, [10; 4].into(), 4), Poll::Ready(Err(Refused { own: false, .. }))));
            drop(taken);
            assert!(is_empty(&uploads));
        });
    }
}
