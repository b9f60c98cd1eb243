//! Limits on uploads: requests that are forwarded before their bodies are complete. [`super::admission`] gets a slot
//! for each of them before the request enters the queue.
//!
//! A small body is buffered before its request enters the queue. A large one cannot be, so its request is in flight
//! while its client sends, and the client may send slowly, or stop. If such a request kept its permit, a handful of
//! them would block all others. So the permit is released while the upload stalls. The backend may still work on the
//! part that it has, and no permit counts that work. Therefore the number of uploads is limited.
//!
//! A fixed limit per address would be too low for an office while there is room, or would let a few addresses take all
//! slots. So an address may have a part of the free slots: the fewer are free, the fewer it gets, and only many
//! addresses together can take the last one. Its network and its block (IPv4: /24 and /16, IPv6: /56 and /48) may have
//! a part of all slots. A further upload of an address waits until one of the same address ends.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tollgate_core::network::Network;
use tollgate_core::time::Span;

use super::queue::LEVELS;
use crate::key_counts::KeyCounts;
use crate::settings::Hold;

/// The minimum of the total limit, which is otherwise the sum of the backends' in-flight limits.
const TOTAL_MIN: u64 = 512;
/// An address may have as many slots as one in this many of the free ones.
const ADDRESS_DIVISOR: u64 = 4;
/// The minimum per address, if any slot is free.
const PER_ADDRESS_MIN: u64 = 4;
/// A network may have one in 4 of all slots, and a block one in 2.
const NETWORK_DIVISORS: [u64; 2] = [4, 2];
/// The number of uploads of one address that may wait.
const WAITING_PER_ADDRESS_MAX: usize = 16;
/// The retry time if the total limit is reached.
const RETRY_AFTER: Span = Span::from_secs(1);

/// The uploads of all clients.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    state: Mutex<UploadState>,
}

#[derive(Debug, Default)]
struct UploadState {
    /// The total limit, as of the last decision about an upload.
    total_max: u64,
    total: u64,
    /// The uploads of each address that has any.
    by_address: HashMap<IpAddr, UploadQueue>,
    /// The number of uploads of each network and of each block.
    by_network: [KeyCounts<IpAddr>; 2],
}

/// The uploads of one address.
#[derive(Debug, Default)]
struct UploadQueue {
    /// The number of uploads with a slot.
    under_way: u64,
    /// Uploads that wait for a slot, the oldest first. A message grants the slot.
    waiting: VecDeque<oneshot::Sender<()>>,
}

/// The client of an upload: its address (IPv6: its /64), and its network and block.
#[derive(Clone, Copy, Debug)]
struct Uploader {
    address: IpAddr,
    networks: [IpAddr; 2],
}

impl Uploader {
    fn new(client: IpAddr) -> Self {
        let [address, network, block] =
            LEVELS.map(|(v4, v6)| Network::of(client, if client.is_ipv4() { v4 } else { v6 }).address());
        Self { address, networks: [network, block] }
    }
}

/// The decision about an upload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UploadFate {
    /// It gets a slot at once.
    Go,
    /// It waits until another upload of its address ends.
    Wait,
    Refuse(UploadRefusal),
}

/// An upload gets no slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UploadRefusal {
    /// When to try again.
    pub(crate) retry_after: Span,
    /// Whether the limit of one client refused it, not that of all together.
    pub(crate) is_own: bool,
}

/// A slot for one upload, until it is dropped.
#[derive(Debug)]
pub(crate) struct Upload {
    uploads: Arc<Uploads>,
    client: Uploader,
    /// Whether it waited for the slot.
    pub(crate) has_waited: bool,
}

impl Uploads {
    /// A slot for an upload of `client`, now or when one of the same address ends, after at most `hold.max`.
    /// `permits` is the sum of the backends' in-flight limits.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        client: IpAddr,
        permits: u64,
        hold: Hold,
    ) -> Result<Upload, UploadRefusal> {
        let client = Uploader::new(client);
        let mut waiting = match self.enter(client, permits, hold)? {
            None => return Ok(Upload { uploads: self.clone(), client, has_waited: false }),
            Some(woken) => WaitingUpload { uploads: self, client, woken },
        };
        match tokio::time::timeout(hold.max.into(), &mut waiting.woken).await {
            Ok(Ok(())) => Ok(Upload { uploads: self.clone(), client, has_waited: true }),
            // Dropping `waiting` frees a slot that was granted in the same instant.
            _ => Err(UploadRefusal { retry_after: hold.max, is_own: true }),
        }
    }

    /// For observe mode: a slot for an upload of `client` at once, and the decision that [`Self::begin`] would have
    /// taken.
    pub(crate) fn observe(self: &Arc<Self>, client: IpAddr, permits: u64, hold: Hold) -> (Upload, UploadFate) {
        let client = Uploader::new(client);
        let mut state = self.state.lock();
        let would = state.fate(client, permits, hold);
        state.count(client);
        (Upload { uploads: self.clone(), client, has_waited: false }, would)
    }

    /// Grants slots to all waiting uploads, when a reload switches the gate to observe mode.
    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        let waiting: Vec<(IpAddr, oneshot::Sender<()>)> = state
            .by_address
            .iter_mut()
            .flat_map(|(address, queue)| queue.waiting.drain(..).map(move |wake| (*address, wake)))
            .collect();
        for (address, wake) in waiting {
            if wake.send(()).is_ok() {
                state.count(Uploader::new(address));
            }
        }
    }

    /// The current limit of one address.
    pub(crate) fn per_address_max(&self) -> u64 {
        self.state.lock().per_address_max()
    }

    /// The total limit, given the sum of the backends' in-flight limits.
    pub(crate) fn total_max(permits: u64) -> u64 {
        TOTAL_MIN.max(permits)
    }

    /// Grants a slot (`None`), or adds the upload to the waiting ones.
    fn enter(
        &self,
        client: Uploader,
        permits: u64,
        hold: Hold,
    ) -> Result<Option<oneshot::Receiver<()>>, UploadRefusal> {
        let mut state = self.state.lock();
        match state.fate(client, permits, hold) {
            UploadFate::Go => {
                state.count(client);
                return Ok(None);
            }
            UploadFate::Refuse(refused) => return Err(refused),
            UploadFate::Wait => {}
        }
        let full = UploadRefusal { retry_after: hold.max, is_own: true };
        let queue = state.by_address.get_mut(&client.address).ok_or(full)?;
        queue.waiting.retain(|waiting| !waiting.is_closed());
        if queue.waiting.len() >= WAITING_PER_ADDRESS_MAX {
            return Err(full);
        }
        let (wake, woken) = oneshot::channel();
        queue.waiting.push_back(wake);
        Ok(Some(woken))
    }

    /// Frees a slot, and grants slots to waiting uploads of the same address, up to its current limit.
    fn leave(&self, client: Uploader) {
        let mut state = self.state.lock();
        state.discount(client);
        // If no upload of the address is left, one is woken above the limit, because none would wake it later.
        while state.under_way(client) == 0 || state.has_room(client) {
            let Some(queue) = state.by_address.get_mut(&client.address) else { return };
            let Some(wake) = queue.waiting.pop_front() else { break };
            if wake.send(()).is_ok() {
                state.count(client);
            }
        }
        if state.under_way(client) == 0 {
            state.by_address.remove(&client.address);
        }
    }
}

impl UploadState {
    /// The decision about another upload, apart from the bound on waiting ones.
    fn fate(&mut self, client: Uploader, permits: u64, hold: Hold) -> UploadFate {
        self.total_max = Uploads::total_max(permits);
        if self.total >= self.total_max {
            UploadFate::Refuse(UploadRefusal { retry_after: RETRY_AFTER, is_own: false })
        } else if self.has_room(client) {
            UploadFate::Go
        } else if self.under_way(client) == 0 {
            // No other upload of the address would wake it when it ends.
            UploadFate::Refuse(UploadRefusal { retry_after: hold.max, is_own: true })
        } else {
            UploadFate::Wait
        }
    }

    fn per_address_max(&self) -> u64 {
        PER_ADDRESS_MIN.max(self.total_max.saturating_sub(self.total) / ADDRESS_DIVISOR)
    }

    fn under_way(&self, client: Uploader) -> u64 {
        self.by_address.get(&client.address).map_or(0, |queue| queue.under_way)
    }

    fn has_room(&self, client: Uploader) -> bool {
        let has_network_room = |level: usize| {
            (self.by_network[level].of(&client.networks[level]) as u64) < self.total_max / NETWORK_DIVISORS[level]
        };
        self.total < self.total_max
            && self.under_way(client) < self.per_address_max()
            && (0..NETWORK_DIVISORS.len()).all(has_network_room)
    }

    fn count(&mut self, client: Uploader) {
        self.total += 1;
        self.by_address.entry(client.address).or_default().under_way += 1;
        for (counts, network) in self.by_network.iter_mut().zip(client.networks) {
            counts.add(network);
        }
    }

    /// The entry of the address stays, because uploads may wait there.
    fn discount(&mut self, client: Uploader) {
        self.total -= 1;
        if let Some(queue) = self.by_address.get_mut(&client.address) {
            queue.under_way -= 1;
        }
        for (counts, network) in self.by_network.iter_mut().zip(client.networks) {
            counts.remove(&network);
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.uploads.leave(self.client);
    }
}

/// An upload that waits for a slot. Dropping it passes on a slot that was granted already.
struct WaitingUpload<'a> {
    uploads: &'a Uploads,
    client: Uploader,
    woken: oneshot::Receiver<()>,
}

impl Drop for WaitingUpload<'_> {
    fn drop(&mut self) {
        self.woken.close();
        if self.woken.try_recv().is_ok() {
            // The slot was granted, but the upload is dropped before it could take it.
            self.uploads.leave(self.client);
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

    fn begin(uploads: &Arc<Uploads>, client: IpAddr, permits: u64) -> Poll<Result<Upload, UploadRefusal>> {
        let begun = std::pin::pin!(uploads.begin(client, permits, HOLD));
        begun.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn uploads_that_are_only_observed_all_begin() {
        let uploads = Arc::new(Uploads::default());
        let begun: Vec<_> = (0..600).map(|_| uploads.observe(address(1), 8, HOLD)).collect();
        assert!(begun[..100].iter().all(|(_, would)| matches!(would, UploadFate::Go)), "a quarter of what is free");
        assert!(matches!(begun[400].1, UploadFate::Wait));
        assert!(matches!(begun[599].1, UploadFate::Refuse(UploadRefusal { is_own: false, .. })));
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
    fn all(uploads: &Arc<Uploads>, client: IpAddr, permits: u64) -> Vec<Upload> {
        let more = || match begin(uploads, client, permits) {
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
            assert!(matches!(begin(&uploads, address(1), 4), Poll::Ready(Err(UploadRefusal { is_own: true, .. }))));
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
            assert!(all(&uploads, address(99), 4).len() >= PER_ADDRESS_MIN as usize);
            drop(greedy);
            assert!(is_empty(&uploads));
        });
    }

    #[test]
    fn a_network_has_a_quarter_and_a_block_half_of_all_however_many_addresses_they_have() {
        run(async {
            for permits in [4, 2000] {
                let uploads = Arc::new(Uploads::default());
                let total = Uploads::total_max(permits) as usize;
                let take = |network: u8| -> Vec<Upload> {
                    (0..=255).flat_map(|last| all(&uploads, [10, 9, network, last].into(), permits)).collect()
                };
                let taken = [1, 2, 3].map(take);
                assert_eq!(taken.each_ref().map(Vec::len), [total / 4, total / 4, 0]);
                let refused = begin(&uploads, [10, 9, 4, 4].into(), permits);
                assert!(matches!(refused, Poll::Ready(Err(UploadRefusal { is_own: true, .. }))));
                let of_v6 = all(&uploads, "2001:db8::1".parse().unwrap(), permits);
                assert!(of_v6.len() >= total / 16);
                let again = begin(&uploads, "2001:db8::2".parse().unwrap(), permits);
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
            assert!(matches!(
                begin(&uploads, [10; 4].into(), 4),
                Poll::Ready(Err(UploadRefusal { is_own: false, .. }))
            ));
            drop(taken);
            assert!(is_empty(&uploads));
        });
    }
}
