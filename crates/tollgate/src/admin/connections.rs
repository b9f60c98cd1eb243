//! Bounds the connections to the admin address and selects the one that a new connection replaces.
//!
//! With a fixed bound and no replacement, anybody who can connect could lock out operators by keeping connections open.
//! Therefore, when a bound is reached, a new connection replaces a less useful one:
//!
//! - Networks share the total bound evenly: a network with fewer connections replaces one of the network with the most.
//! - Otherwise a connection is replaced that is idle, or that has transferred no byte for [`STALE_MIN`]. If the network
//!   has reached its own bound, it must be one of the same network.
//! - If no connection can be replaced, the new one is accepted for health checks only, in a separate reserve. If that
//!   is full too, it replaces the oldest connection there.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tollgate_core::network::Network;

/// Connections at once, not counting the reserve.
pub(super) const CONNECTIONS_MAX: usize = 256;
/// Connections of one network: half of all, because all clients of a proxy or tunnel have the same address.
pub(super) const PER_NETWORK_MAX: usize = CONNECTIONS_MAX / 2;
/// Connections in the reserve for health checks. A check takes milliseconds, so these are enough for several checkers.
pub(super) const RESERVE_MAX: usize = 32;
/// A connection that has transferred no byte for this long can be replaced, even while a request is being served. Event
/// streams send an event every second.
pub(super) const STALE_MIN: Duration = Duration::from_secs(3);

/// The network for which connections, permits and wrong tokens are counted: an IPv4 address, or the /64 of an IPv6
/// address.
pub(super) fn network_of(address: IpAddr) -> Network {
    let address = tollgate_core::network::unmapped(address);
    Network::of(address, if address.is_ipv4() { 32 } else { 64 })
}

/// Which requests a connection may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// All requests.
    Everything,
    /// Only `/healthz` and `/readyz`: the connection is in the reserve.
    HealthChecks,
}

/// All connections to the admin address.
#[derive(Default)]
pub(super) struct AdminConnections(Mutex<ConnectionTable>);

/// All connections that count, including those in the reserve.
#[derive(Default)]
struct ConnectionTable {
    by_id: HashMap<u64, AdminEntry>,
    next_id: u64,
}

struct AdminEntry {
    network: Network,
    scope: Scope,
    activity: Arc<Activity>,
}

/// The state of one connection. The task that serves the connection updates it; new connections read it.
#[derive(Debug)]
pub(super) struct Activity {
    began: Instant,
    /// When a byte last moved, in milliseconds since `began`.
    moved_ms: AtomicU64,
    /// Whether a request is being served: it has arrived completely, and its response is not complete.
    is_serving: AtomicBool,
    /// Notified when another connection replaces this one.
    pub(super) replaced: Notify,
}

impl Activity {
    fn new(now: Instant) -> Self {
        let (moved_ms, is_serving) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { began: now, moved_ms, is_serving, replaced: Notify::new() }
    }

    /// Records that a byte was received or sent.
    pub(super) fn moved(&self) {
        let since = Instant::now().saturating_duration_since(self.began);
        self.moved_ms.store(u64::try_from(since.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Records whether a request is being served.
    pub(super) fn set_serving(&self, is_serving: bool) {
        self.is_serving.store(is_serving, Ordering::Relaxed);
    }

    fn moved_at(&self) -> Instant {
        self.began + Duration::from_millis(self.moved_ms.load(Ordering::Relaxed))
    }

    fn is_serving(&self) -> bool {
        self.is_serving.load(Ordering::Relaxed)
    }

    /// Whether the connection is idle, or nothing has moved for [`STALE_MIN`] although a request is being served.
    fn is_replaceable(&self, now: Instant) -> bool {
        !self.is_serving() || now.saturating_duration_since(self.moved_at()) >= STALE_MIN
    }
}

/// One connection; it is counted until this is dropped.
pub(super) struct AdminConnection {
    connections: Arc<AdminConnections>,
    id: u64,
    pub(super) scope: Scope,
    pub(super) activity: Arc<Activity>,
}

impl Drop for AdminConnection {
    fn drop(&mut self) {
        self.connections.0.lock().by_id.remove(&self.id);
    }
}

impl AdminConnections {
    /// Adds a new connection from `address`, which may replace another one.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr, now: Instant) -> AdminConnection {
        let (network, mut table) = (network_of(address), self.0.lock());
        let scope = if table.has_room(network) {
            Scope::Everything
        } else if let Some(id) = table.least_useful(network, now) {
            table.replace(id);
            Scope::Everything
        } else {
            if let Some(id) = table.oldest_in_full_reserve() {
                table.replace(id);
            }
            Scope::HealthChecks
        };
        let (id, activity) = (table.next_id, Arc::new(Activity::new(now)));
        table.next_id += 1;
        table.by_id.insert(id, AdminEntry { network, scope, activity: activity.clone() });
        AdminConnection { connections: self.clone(), id, scope, activity }
    }
}

impl ConnectionTable {
    /// The connections of one scope, with their IDs. Later connections have higher IDs.
    fn of_scope(&self, scope: Scope) -> impl Iterator<Item = (&u64, &AdminEntry)> {
        self.by_id.iter().filter(move |(_, entry)| entry.scope == scope)
    }

    fn has_room(&self, network: Network) -> bool {
        self.of_scope(Scope::Everything).count() < CONNECTIONS_MAX && self.count(network) < PER_NETWORK_MAX
    }

    fn count(&self, network: Network) -> usize {
        self.of_scope(Scope::Everything).filter(|(_, entry)| entry.network == network).count()
    }

    /// The network with the most connections of this scope, and their number.
    fn largest(&self, scope: Scope) -> Option<(Network, usize)> {
        let mut counts = HashMap::new();
        for (_, entry) in self.of_scope(scope) {
            *counts.entry(entry.network).or_insert(0) += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count)
    }

    /// The ID of the connection that a new one of `network` replaces, if a bound is reached. See the header.
    fn least_useful(&self, network: Network, now: Instant) -> Option<u64> {
        let own = self.count(network);
        let (largest, count) = self.largest(Scope::Everything)?;
        // Idle connections first, then those on which nothing has moved for the longest time.
        let rank = |entry: &AdminEntry| (entry.activity.is_serving(), entry.activity.moved_at());
        let stalest = |wanted: &dyn Fn(&AdminEntry) -> bool| {
            let candidates = self.of_scope(Scope::Everything).filter(|(_, entry)| wanted(entry));
            candidates.min_by_key(|(_, entry)| rank(entry)).map(|(id, _)| *id)
        };
        if own < PER_NETWORK_MAX && own + 1 < count {
            return stalest(&|entry| entry.network == largest);
        }
        let replaceable = |entry: &AdminEntry| entry.activity.is_replaceable(now);
        if own < PER_NETWORK_MAX {
            stalest(&replaceable)
        } else {
            stalest(&|entry| entry.network == network && replaceable(entry))
        }
    }

    /// The connection that a new one replaces if the reserve is full: the oldest of the network with the most there.
    fn oldest_in_full_reserve(&self) -> Option<u64> {
        if self.of_scope(Scope::HealthChecks).count() < RESERVE_MAX {
            return None;
        }
        let (largest, _) = self.largest(Scope::HealthChecks)?;
        self.of_scope(Scope::HealthChecks).filter(|(_, entry)| entry.network == largest).map(|(id, _)| *id).min()
    }

    /// Closes a connection. It no longer counts, although its task has yet to end.
    fn replace(&mut self, id: u64) {
        if let Some(entry) = self.by_id.remove(&id) {
            entry.activity.replaced.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [203, 0, 113, last].into()
    }

    fn serving(
        connections: &Arc<AdminConnections>,
        address: IpAddr,
        count: usize,
        now: Instant,
    ) -> Vec<AdminConnection> {
        let enter = || {
            let connection = connections.enter(address, now);
            connection.activity.set_serving(true);
            connection
        };
        (0..count).map(|_| enter()).collect()
    }

    fn is_replaced(connection: &AdminConnection) -> bool {
        !connection.connections.0.lock().by_id.contains_key(&connection.id)
    }

    #[test]
    fn a_full_network_replaces_its_own_idle_connection_and_no_other() {
        let (connections, now) = (Arc::default(), Instant::now());
        let other = serving(&connections, address(2), 1, now);
        other[0].activity.set_serving(false);
        let own = serving(&connections, address(1), PER_NETWORK_MAX, now);
        assert!(own.iter().all(|connection| connection.scope == Scope::Everything));
        assert_eq!(connections.enter(address(1), now).scope, Scope::HealthChecks);
        own[7].activity.set_serving(false);
        assert_eq!(connections.enter(address(1), now).scope, Scope::Everything);
        assert!(is_replaced(&own[7]) && !is_replaced(&other[0]));
        assert_eq!(own.iter().filter(|connection| is_replaced(connection)).count(), 1);
    }

    #[test]
    fn a_connection_on_which_nothing_moves_is_replaced_even_while_it_is_served() {
        let (connections, now) = (Arc::default(), Instant::now());
        let own = serving(&connections, address(1), PER_NETWORK_MAX, now);
        let just_before = now + STALE_MIN - Duration::from_millis(1);
        assert_eq!(connections.enter(address(1), just_before).scope, Scope::HealthChecks);
        assert_eq!(connections.enter(address(1), now + STALE_MIN).scope, Scope::Everything);
        assert_eq!(own.iter().filter(|connection| is_replaced(connection)).count(), 1);
    }

    #[test]
    fn networks_share_the_bound_evenly() {
        let (connections, now) = (Arc::default(), Instant::now());
        let hostile: Vec<_> =
            (1..=2).flat_map(|last| serving(&connections, address(last), PER_NETWORK_MAX, now)).collect();
        let operators = serving(&connections, address(9), 60, now);
        assert!(operators.iter().all(|connection| connection.scope == Scope::Everything && !is_replaced(connection)));
        assert_eq!(hostile.iter().filter(|connection| is_replaced(connection)).count(), 60);
        let many = serving(&connections, address(9), 100, now);
        assert!(many.iter().any(|connection| connection.scope == Scope::HealthChecks), "the network has its share");
        assert_eq!(connections.0.lock().of_scope(Scope::Everything).count(), CONNECTIONS_MAX);
    }

    #[test]
    fn the_reserve_is_bounded_and_replaces_its_oldest_connection() {
        let (connections, now) = (Arc::default(), Instant::now());
        let _serving = serving(&connections, address(1), PER_NETWORK_MAX, now);
        let checks: Vec<_> = (0..RESERVE_MAX + 5).map(|_| connections.enter(address(1), now)).collect();
        assert!(checks.iter().all(|connection| connection.scope == Scope::HealthChecks));
        let replaced: Vec<_> = checks.iter().map(is_replaced).collect();
        assert_eq!(replaced.iter().filter(|replaced| **replaced).count(), 5);
        assert!(replaced[..5].iter().all(|replaced| *replaced));
    }

    #[test]
    fn a_closed_connection_leaves_nothing_behind() {
        let (connections, now) = (Arc::default(), Instant::now());
        for round in 0..3 {
            let all = serving(&connections, address(1), PER_NETWORK_MAX + RESERVE_MAX + round, now);
            drop(all);
            assert!(connections.0.lock().by_id.is_empty());
        }
    }
}
