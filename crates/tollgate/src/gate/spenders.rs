//! Who spends the backend's time, by address, network, block and user agent: the figures for people and for the doctor.
//!
//! The fair queue knows what everybody spends, but not who they are: it keeps hashes, and forgets who is idle. A request leaves its cost here
//! when it ends, in a small map that is emptied once a second into a ledger of rates. Networks and blocks are added up then, from the
//! addresses. Everything is bounded; the ledger keeps who spends most.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use tollgate_core::network::Network;
use tollgate_core::time::{Moment, Span};

use super::rates::Rates;

/// How many shards requests leave their costs in.
const SHARDS: usize = 16;
/// How many addresses, or user agents, a shard tells apart until it is emptied.
const SHARD_NAMES_MAX: usize = 2048;
/// How many of each class the ledger keeps.
const LEDGER_MAX: usize = 10_000;
/// User agents are cut after so many bytes.
const AGENT_BYTES_MAX: usize = 120;

/// The classes that are told apart, with their prefixes in IPv4 and IPv6.
const NETWORKS: [(&str, u8, u8); 3] = [("ip/32", 32, 64), ("ip/24", 24, 56), ("ip/16", 16, 48)];
/// The class of user agents.
const USER_AGENT: &str = "user-agent";

/// Where requests leave what they cost.
pub(crate) struct Spenders {
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
    ledger: Mutex<Ledger>,
    unnamed: AtomicU64,
}

#[derive(Default)]
struct Shard {
    addresses: HashMap<Network, Spent, RandomState>,
    agents: HashMap<u64, Agent, RandomState>,
}

#[derive(Default)]
struct Agent {
    name: Option<Box<[u8]>>,
    spent: Spent,
}

/// What was spent since the last time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    pub(super) requests: u64,
    pub(super) refused: u64,
    pub(super) held: u64,
    pub(super) toll_ns: u64,
    pub(super) wait_ns: u64,
}

/// Who made a request, as far as costs are concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spender {
    network: Network,
    agent: u64,
}

impl Spender {
    /// The key that the class `ip/32` has for it.
    pub(crate) fn address(&self) -> Network {
        self.network
    }
}

/// What a request came to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// It went to the backend.
    Served {
        /// What it cost.
        toll: Span,
        /// How long it had waited before that.
        wait: Span,
    },
    /// It did not.
    Refused,
}

#[derive(Default)]
struct Ledger {
    networks: [HashMap<Network, Rates, RandomState>; NETWORKS.len()],
    agents: HashMap<u64, (Box<[u8]>, Rates), RandomState>,
}

/// One caller, as it is shown.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// Its key, as it came: escape it before it goes to a terminal or a page.
    pub(crate) key: Vec<u8>,
    /// Its figures.
    pub(crate) rates: Rates,
}

/// A wait shorter than this is not one that anybody would call being held.
const HELD_MIN: Span = Span::from_millis(1);

impl Spenders {
    pub(crate) fn new() -> Self {
        Self {
            hasher: RandomState::default(),
            shards: std::array::from_fn(|_| Mutex::default()),
            ledger: Mutex::default(),
            unnamed: AtomicU64::new(0),
        }
    }

    /// The classes that spenders are shown by.
    pub(crate) fn classes() -> impl Iterator<Item = &'static str> {
        NETWORKS.iter().map(|(class, ..)| *class).chain([USER_AGENT])
    }

    /// A request has come.
    pub(crate) fn arrive(&self, client: IpAddr, agent: &[u8]) -> Spender {
        let hash = self.hasher.hash_one(agent);
        let mut shard = self.shard(hash);
        if let Some(known) = shard.agents.get_mut(&hash) {
            known.spent.requests += 1;
        } else if shard.agents.len() < SHARD_NAMES_MAX {
            let name = Some(agent[..agent.len().min(AGENT_BYTES_MAX)].into());
            shard.agents.insert(hash, Agent { name, spent: Spent { requests: 1, ..Spent::default() } });
        }
        Spender { network: network(client, 0), agent: hash }
    }

    /// A request has ended.
    pub(crate) fn leave(&self, spender: Spender, end: End) {
        let spent = Spent::of(end);
        {
            let mut shard = self.shard(self.hasher.hash_one(spender.network));
            let room = shard.addresses.len() < SHARD_NAMES_MAX;
            match shard.addresses.get_mut(&spender.network) {
                Some(known) => known.add(Spent { requests: 1, ..spent }),
                None if room => {
                    shard.addresses.insert(spender.network, Spent { requests: 1, ..spent });
                }
                None => {
                    self.unnamed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        let mut shard = self.shard(spender.agent);
        if shard.agents.len() < SHARD_NAMES_MAX || shard.agents.contains_key(&spender.agent) {
            shard.agents.entry(spender.agent).or_default().spent.add(spent);
        }
    }

    /// How many requests were of callers for whom there was no place.
    pub(crate) fn unnamed(&self) -> u64 {
        self.unnamed.load(Ordering::Relaxed)
    }

    /// Writes what was spent into the ledger. To be called once a second.
    pub(crate) fn tick(&self, now: Moment) {
        let mut ledger = self.ledger();
        for shard in &self.shards {
            let Shard { addresses, agents } = std::mem::take(&mut *lock(shard));
            for (address, spent) in addresses {
                for (place, networks) in ledger.networks.iter_mut().enumerate() {
                    networks.entry(network(address.address(), place)).or_default().add(spent, now);
                }
            }
            for (hash, Agent { name, spent }) in agents {
                if let Some(name) = name {
                    ledger.agents.entry(hash).or_insert_with(|| (name, Rates::default())).1.add(spent, now);
                } else if let Some((_, rates)) = ledger.agents.get_mut(&hash) {
                    rates.add(spent, now);
                }
            }
        }
        ledger.prune(now);
    }

    /// Those of a class who spend most. None when there is no such class.
    pub(crate) fn top(&self, class: &str, most: usize, now: Moment) -> Option<Vec<Shown>> {
        let mut ledger = self.ledger();
        let mut shown: Vec<Shown> = if class == USER_AGENT {
            let shown = |(name, rates): &mut (Box<[u8]>, Rates)| Shown { key: name.to_vec(), rates: rates.at(now) };
            ledger.agents.values_mut().map(shown).collect()
        } else {
            let place = NETWORKS.iter().position(|(name, ..)| *name == class)?;
            let shown = |(network, rates): (&Network, &mut Rates)| Shown {
                key: network.to_string().into_bytes(),
                rates: rates.at(now),
            };
            ledger.networks[place].iter_mut().map(shown).collect()
        };
        shown.sort_by(|a, b| b.rates.order(&a.rates).then_with(|| a.key.cmp(&b.key)));
        shown.truncate(most);
        Some(shown)
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(hash >> 40) as usize % SHARDS])
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }
}

impl Ledger {
    fn prune(&mut self, now: Moment) {
        self.networks.iter_mut().for_each(|networks| prune(networks, now, |rates| rates));
        prune(&mut self.agents, now, |(_, rates)| rates);
    }
}

/// Drops who has been idle for long, and who spends least when there are too many.
fn prune<K: Eq + Hash + Clone, V>(
    callers: &mut HashMap<K, V, RandomState>,
    now: Moment,
    rates: impl Fn(&mut V) -> &mut Rates,
) {
    callers.retain(|_, caller| !rates(caller).is_idle(now));
    if callers.len() > LEDGER_MAX {
        let mut weights: Vec<_> = callers.values_mut().map(|caller| rates(caller).at(now).weight()).collect();
        let surplus = weights.len() - LEDGER_MAX * 3 / 4;
        let (_, least, _) = weights.select_nth_unstable_by(surplus, f64::total_cmp);
        let least = *least;
        callers.retain(|_, caller| rates(caller).at(now).weight() > least);
    }
}

impl Spent {
    fn of(end: End) -> Self {
        match end {
            End::Refused => Self { refused: 1, ..Self::default() },
            End::Served { toll, wait } => Self {
                toll_ns: toll.as_nanos(),
                wait_ns: wait.as_nanos(),
                held: u64::from(wait >= HELD_MIN),
                ..Self::default()
            },
        }
    }

    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.refused += other.refused;
        self.held += other.held;
        self.toll_ns = self.toll_ns.saturating_add(other.toll_ns);
        self.wait_ns = self.wait_ns.saturating_add(other.wait_ns);
    }
}

fn network(client: IpAddr, place: usize) -> Network {
    let (_, v4, v6) = NETWORKS[place];
    Network::of(client, if client.is_ipv4() { v4 } else { v6 })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(secs: u64) -> Moment {
        Moment::from_millis(secs * 1000)
    }

    fn serve(spenders: &Spenders, client: &str, agent: &str, toll_ms: u64) {
        let spender = spenders.arrive(client.parse().unwrap(), agent.as_bytes());
        spenders.leave(spender, End::Served { toll: Span::from_millis(toll_ms), wait: Span::from_millis(20) });
    }

    #[test]
    fn who_spends_most_is_first_in_every_class() {
        let spenders = Spenders::new();
        for secs in 1..=20 {
            serve(&spenders, "203.0.113.7", "crawler", 400);
            serve(&spenders, "203.0.113.9", "crawler", 300);
            serve(&spenders, "198.51.100.1", "browser", 10);
            spenders.tick(second(secs));
        }
        let top = |class: &str| spenders.top(class, 10, second(20)).unwrap();
        let named = |class: &str| top(class).into_iter().map(|shown| String::from_utf8(shown.key).unwrap());
        assert_eq!(named("ip/32").collect::<Vec<_>>(), ["203.0.113.7/32", "203.0.113.9/32", "198.51.100.1/32"]);
        assert_eq!(named("ip/24").next().unwrap(), "203.0.113.0/24");
        assert_eq!(named("user-agent").collect::<Vec<_>>(), ["crawler", "browser"]);
        let crawler = &top("ip/24")[0].rates;
        assert!((crawler.cores() - 0.7).abs() < 0.05, "{}", crawler.cores());
        assert!((crawler.requests_per_sec() - 2.0).abs() < 0.1, "{}", crawler.requests_per_sec());
        assert!((crawler.wait_secs() - 0.02).abs() < 0.001);
        assert_eq!((crawler.requests, crawler.held), (40, 40));
        assert!(spenders.top("cookie:sid", 10, second(20)).is_none());
    }

    #[test]
    fn a_request_that_ends_after_the_map_was_emptied_is_still_its_agents() {
        let spenders = Spenders::new();
        let spender = spenders.arrive("203.0.113.7".parse().unwrap(), b"slow");
        spenders.tick(second(1));
        spenders.leave(spender, End::Served { toll: Span::from_secs(1), wait: Span::ZERO });
        spenders.tick(second(2));
        let top = spenders.top("user-agent", 10, second(2)).unwrap();
        assert!(top[0].rates.cores() > 0.0);
        assert_eq!(top[0].rates.requests, 1);
    }

    #[test]
    fn invented_callers_push_out_neither_memory_nor_a_spender() {
        let spenders = Spenders::new();
        for secs in 1..=12u32 {
            serve(&spenders, "203.0.113.7", "crawler", 900);
            for number in 0..20_000u32 {
                let client = std::net::Ipv4Addr::from(0x0a00_0000 + secs * 100_000 + number).to_string();
                // What they cost differs, and fades: one that was dear a while ago must not outlast all who are cheap now.
                serve(&spenders, &client, &client, 1 + u64::from(number) % 97);
            }
            spenders.tick(second(u64::from(secs)));
            assert!(spenders.top("ip/32", usize::MAX, second(u64::from(secs))).unwrap().len() <= LEDGER_MAX, "{secs}");
        }
        let now = second(12);
        assert!(spenders.top("ip/32", usize::MAX, now).unwrap().len() <= LEDGER_MAX);
        assert!(spenders.top("user-agent", usize::MAX, now).unwrap().len() <= LEDGER_MAX);
        assert_eq!(spenders.top("ip/32", 1, now).unwrap()[0].key, b"203.0.113.7/32");
    }

    #[test]
    fn who_has_gone_is_forgotten() {
        let spenders = Spenders::new();
        serve(&spenders, "2001:db8::1", "x", 900);
        spenders.tick(second(1));
        assert_eq!(spenders.top("ip/32", 9, second(1)).unwrap()[0].key, b"2001:db8::/64");
        spenders.tick(second(1 + 3601));
        assert!(spenders.top("ip/32", 9, second(3602)).unwrap().is_empty());
    }
}
