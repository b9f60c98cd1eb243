//! The use of the backend by address, network, block and user agent, for the console and the doctor.
//!
//! The fair queue has the use of every client too, but only by hash, and forgets idle clients. When a request ends,
//! its cost is added to the book of its thread. Books are moved to a ledger of rates once a second, and when the ledger
//! is read. Networks and blocks are summed from the addresses then. Everything is bounded; the ledger keeps the keys
//! with the highest use. Costs are exact. Refusals are sampled while a thread refuses thousands per second.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hash};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tollgate_core::class::KeySink;
use tollgate_core::network::Network;
use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::names::Name;
use tollgate_gatekeeper::sample::Sample;

use super::rates::{Rates, Spent};
use crate::per_thread::PerThread;
use tollgate_core::decision::Act;

/// The number of addresses, and of user agents, in one book. Requests of further addresses are counted as unnamed.
const BOOK_NAMES_MAX: usize = 16_384;
/// The number of keys of each class in the ledger.
const LEDGER_MAX: usize = 10_000;

/// When the ledger is read, the books are moved first if that last happened longer ago than this. It is shorter than
/// the start of a command takes, so that the doctor shows a request that was sent just before.
const FRESH: Span = Span::from_millis(5);

/// The classes of addresses, with their prefix lengths in IPv4 and IPv6.
const NETWORKS: [(&str, u8, u8); 3] = [("ip/32", 32, 64), ("ip/24", 24, 56), ("ip/16", 16, 48)];
/// The class of user agents.
const USER_AGENT: &str = "user-agent";

/// The use of all clients.
#[derive(Default)]
pub(crate) struct Spenders {
    hasher: RandomState,
    books: PerThread<SpendingBook>,
    ledger: Mutex<Ledger>,
    /// The number of requests whose addresses did not fit into a book.
    unnamed: AtomicU64,
}

/// The use in one thread since its book was last moved to the ledger, by keyed hash, which is compared faster than the
/// keys themselves.
#[derive(Default)]
struct SpendingBook {
    addresses: HashMap<u64, AddressSpending, RandomState>,
    agents: HashMap<u64, AgentSpending, RandomState>,
}

struct AddressSpending {
    network: Network,
    spent: Spent,
}

#[derive(Default)]
struct AgentSpending {
    /// The user agent; none if the request was admitted before the book was last moved, so that the ledger has it.
    name: Option<Box<[u8]>>,
    spent: Spent,
}

/// The client of a request: its address (IPv6: its /64) and the hash of its user agent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spender {
    network: Network,
    agent: u64,
}

/// The rates of all keys.
#[derive(Default)]
struct Ledger {
    /// By class, in the order of [`NETWORKS`].
    networks: [HashMap<Network, Rates, RandomState>; NETWORKS.len()],
    agents: HashMap<u64, (Box<[u8]>, Rates), RandomState>,
    /// An empty book with allocated memory, to exchange for a full one.
    spare: SpendingBook,
    /// The last time when books were moved.
    entered: Moment,
}

/// One key with its rates.
#[derive(Clone, Debug)]
pub(crate) struct SpenderRates {
    /// The key as received: escape it before it goes to a terminal or a page.
    pub(crate) key: Vec<u8>,
    pub(crate) rates: Rates,
}

impl Spenders {
    /// The classes that spenders are shown by.
    pub(crate) fn classes() -> impl Iterator<Item = &'static str> {
        NETWORKS.iter().map(|(class, ..)| *class).chain([USER_AGENT])
    }

    /// The key of a client in the class `ip/32`.
    pub(crate) fn address(client: IpAddr) -> Network {
        network(client, 0)
    }

    /// Counts a refused request. Its user agent is read only if the request is in the sample.
    pub(crate) fn refused<'a>(&self, client: IpAddr, agent: impl FnOnce() -> &'a [u8], now: Moment) {
        let Some(times) = sample_weight(now) else { return };
        let (agent, mut book) = (agent(), self.books.own());
        let spender = self.spender(client, agent);
        let spent = Spent { requests: times, acts: [0, times, 0, 0], ..Spent::default() };
        if let Some(known) = book.entry_of_agent(spender.agent, agent) {
            known.add(spent);
        }
        self.charge(&mut book, spender.network, spent);
    }

    /// The client of a request that goes to the backend. Its cost is added by [`Spenders::served`].
    pub(crate) fn admitted(&self, client: IpAddr, agent: &[u8]) -> Spender {
        let spender = self.spender(client, agent);
        if let Some(known) = self.books.own().entry_of_agent(spender.agent, agent) {
            known.requests += 1;
        }
        spender
    }

    /// Adds a finished request: its cost, its wait, and the acts on it, those that observe mode has prevented included.
    pub(crate) fn served(&self, spender: Spender, toll: Span, wait: Span, acts: [Option<Act>; 2]) {
        let acts = Act::ALL.map(|act| u64::from(acts.contains(&Some(act))));
        let spent = Spent { requests: 0, acts, toll_ns: toll.as_nanos(), wait_ns: wait.as_nanos() };
        let mut book = self.books.own();
        self.charge(&mut book, spender.network, Spent { requests: 1, ..spent });
        // Its name may be in a book that was moved in the meantime.
        if book.agents.len() < BOOK_NAMES_MAX || book.agents.contains_key(&spender.agent) {
            book.agents.entry(spender.agent).or_default().spent.add(spent);
        }
    }

    fn spender(&self, client: IpAddr, agent: &[u8]) -> Spender {
        Spender { network: Self::address(client), agent: self.hasher.hash_one(agent) }
    }

    /// Adds use to the address, or counts it as unnamed if there is no room.
    fn charge(&self, book: &mut SpendingBook, network: Network, spent: Spent) {
        let has_room = book.addresses.len() < BOOK_NAMES_MAX;
        match book.addresses.entry(self.hasher.hash_one(network)) {
            Entry::Occupied(known) => known.into_mut().spent.add(spent),
            Entry::Vacant(place) if has_room => {
                place.insert(AddressSpending { network, spent });
            }
            Entry::Vacant(_) => {
                self.unnamed.fetch_add(spent.requests, Ordering::Relaxed);
            }
        }
    }

    /// The number of requests whose clients did not fit into a book.
    pub(crate) fn unnamed(&self) -> u64 {
        self.unnamed.load(Ordering::Relaxed)
    }

    /// Moves the books to the ledger. Call it once a second.
    pub(crate) fn tick(&self, now: Moment) {
        self.enter(&mut self.ledger.lock(), now);
    }

    /// Moves the books of all threads to the ledger.
    fn enter(&self, ledger: &mut Ledger, now: Moment) {
        ledger.entered = now;
        for mut book in self.books.all() {
            std::mem::swap(&mut *book, &mut ledger.spare);
            // From here on the worker has an empty book and does not wait for the ledger.
            drop(book);
            ledger.enter(now);
        }
        ledger.prune(now);
    }

    /// The keys of a class with the highest use. None if there is no such class. It moves the books first, because an
    /// operator who looks during a storm wants to see its clients at once.
    pub(crate) fn top(&self, class: &str, most: usize, now: Moment) -> Option<Vec<SpenderRates>> {
        let mut ledger = self.ledger.lock();
        if now.since(ledger.entered) >= FRESH {
            self.enter(&mut ledger, now);
        }
        if class == USER_AGENT {
            return Some(top(ledger.agents.values().map(|(name, rates)| (name, rates)), most, now, |name| {
                name.to_vec()
            }));
        }
        let place = NETWORKS.iter().position(|(name, ..)| *name == class)?;
        Some(top(ledger.networks[place].iter(), most, now, |network| network.to_string().into_bytes()))
    }
}

/// The number of refusals that this one stands for; none if it is not in the sample.
fn sample_weight(now: Moment) -> Option<u64> {
    thread_local!(static REFUSALS: Sample = const { Sample::new() });
    REFUSALS.with(|sample| sample.times(now))
}

impl SpendingBook {
    /// The entry of a user agent, which gets its name if it is new; none if there is no room for it.
    fn entry_of_agent(&mut self, hash: u64, agent: &[u8]) -> Option<&mut Spent> {
        let has_room = self.agents.len() < BOOK_NAMES_MAX;
        match self.agents.entry(hash) {
            Entry::Occupied(known) => Some(&mut known.into_mut().spent),
            Entry::Vacant(place) if has_room => {
                let name = Some(Name::of(|writer| writer.write(agent)).as_bytes().into());
                Some(&mut place.insert(AgentSpending { name, spent: Spent::default() }).spent)
            }
            Entry::Vacant(_) => None,
        }
    }
}

impl Ledger {
    /// Adds the spare book to the ledger.
    fn enter(&mut self, now: Moment) {
        let Self { networks, agents, spare, .. } = self;
        for (_, AddressSpending { network: address, spent }) in spare.addresses.drain() {
            for (place, networks) in networks.iter_mut().enumerate() {
                networks.entry(network(address.address(), place)).or_default().add(spent, now);
            }
        }
        for (hash, AgentSpending { name, spent }) in spare.agents.drain() {
            if let Some(name) = name {
                agents.entry(hash).or_insert_with(|| (name, Rates::default())).1.add(spent, now);
            } else if let Some((_, rates)) = agents.get_mut(&hash) {
                rates.add(spent, now);
            }
        }
    }

    fn prune(&mut self, now: Moment) {
        self.networks.iter_mut().for_each(|networks| prune(networks, now, |rates| rates));
        prune(&mut self.agents, now, |(_, rates)| rates);
    }
}

/// The `most` keys with the highest use. Only these are sorted and converted to text: there may be ten thousand, for a
/// page of a hundred.
fn top<'a, K: Ord>(
    callers: impl Iterator<Item = (K, &'a Rates)>,
    most: usize,
    now: Moment,
    name: impl Fn(K) -> Vec<u8>,
) -> Vec<SpenderRates> {
    let mut all: Vec<_> = callers.map(|(key, rates)| (Reverse(rates.at(now).order()), key, rates)).collect();
    let order = |a: &(_, K, _), b: &(_, K, _)| Ord::cmp(&(&a.0, &a.1), &(&b.0, &b.1));
    if most < all.len() {
        all.select_nth_unstable_by(most, order);
        all.truncate(most);
    }
    all.sort_unstable_by(order);
    all.into_iter().map(|(_, key, rates)| SpenderRates { key: name(key), rates: rates.at(now) }).collect()
}

/// Removes keys that have been idle for long, and those with the lowest use if there are too many.
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

/// The key of a client in the class with index `place` in [`NETWORKS`].
fn network(client: IpAddr, place: usize) -> Network {
    let (_, v4, v6) = NETWORKS[place];
    Network::of(client, if client.is_ipv4() { v4 } else { v6 })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn second(secs: u64) -> Moment {
        Moment::from_millis(secs * 1000)
    }

    fn serve(spenders: &Spenders, client: &str, agent: &str, toll_ms: u64) {
        let spender = spenders.admitted(client.parse().unwrap(), agent.as_bytes());
        spenders.served(spender, Span::from_millis(toll_ms), Span::from_millis(20), [Some(Act::Hold), None]);
    }

    #[test]
    fn the_key_with_the_highest_use_is_first_in_every_class() {
        let spenders = Spenders::default();
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
        assert_eq!((crawler.total.requests, crawler.total.acts[0]), (40, 40));
        assert!(spenders.top("cookie:sid", 10, second(20)).is_none());
    }

    #[test]
    fn reading_the_ledger_includes_recent_use() {
        let spenders = Spenders::default();
        spenders.tick(second(1));
        serve(&spenders, "203.0.113.7", "crawler", 400);
        let shown = |ms| spenders.top("ip/32", 10, Moment::from_millis(ms)).unwrap().len();
        assert_eq!((shown(1004), shown(1005)), (0, 1));
    }

    /// The gate itself delays a request by milliseconds while its machine is busy.
    #[test]
    fn a_request_counts_as_held_if_it_was_held_and_not_because_it_took_long() {
        let spenders = Spenders::default();
        let (held, would) = (Some(Act::Hold), [Some(Act::WouldHold), Some(Act::WouldRefuse)]);
        for acts in [[None, None], [held, None], [None, would[0]], [held, would[1]]] {
            let spender = spenders.admitted("203.0.113.7".parse().unwrap(), b"x");
            spenders.served(spender, Span::ZERO, Span::from_millis(20), acts);
        }
        assert_eq!(spenders.top("ip/32", 10, second(1)).unwrap()[0].rates.total.acts, [2, 0, 1, 1]);
    }

    #[test]
    fn a_list_of_few_is_the_beginning_of_the_whole_one() {
        let spenders = Spenders::default();
        for number in 0..300u32 {
            let client = Ipv4Addr::from(0x0a00_0000 + number).to_string();
            serve(&spenders, &client, &client, u64::from(number * 7919 % 40));
        }
        spenders.tick(second(1));
        for class in ["ip/32", "user-agent"] {
            let keys = |most| spenders.top(class, most, second(1)).unwrap().into_iter().map(|shown| shown.key);
            let all: Vec<_> = keys(usize::MAX).collect();
            assert_eq!(all.len(), 300);
            for most in [0, 1, 2, 150, 299, 300, 301] {
                assert_eq!(keys(most).collect::<Vec<_>>(), all[..most.min(300)], "{class}: {most}");
            }
        }
    }

    #[test]
    fn refusals_cost_nothing_and_are_counted() {
        let spenders = Spenders::default();
        let client = "203.0.113.7".parse().unwrap();
        for secs in 1..=3 {
            (0..4).for_each(|_| spenders.refused(client, || b"crawler", second(secs)));
            serve(&spenders, "203.0.113.7", "crawler", 100);
            spenders.tick(second(secs));
        }
        for class in ["ip/32", "ip/16", "user-agent"] {
            let [caller] = &spenders.top(class, 10, second(3)).unwrap()[..] else { panic!("one caller") };
            let Spent { requests, acts, toll_ns, .. } = caller.rates.total;
            assert_eq!((requests, acts, toll_ns), (15, [3, 12, 0, 0], 300_000_000), "{class}");
        }
    }

    #[test]
    fn in_a_storm_refusals_are_counted_nearly_right() {
        let spenders = Spenders::default();
        for secs in 1..=3 {
            for number in 0..100_000u32 {
                spenders.refused(Ipv4Addr::from(0xcb00_7100 + number % 32).into(), || b"crawler", second(secs));
            }
            spenders.tick(second(secs));
        }
        let addresses = spenders.top("ip/32", 100, second(3)).unwrap();
        assert_eq!(addresses.len(), 32);
        let all: u64 = addresses.iter().map(|shown| shown.rates.total.acts[1]).sum();
        assert!((285_000..315_000).contains(&all), "{all}");
        for SpenderRates { rates, .. } in addresses {
            // 9,375 with a standard deviation of 550.
            assert!(
                rates.total.requests == rates.total.acts[1] && (6_800..12_000).contains(&rates.total.acts[1]),
                "{rates:?}"
            );
        }
    }

    #[test]
    fn in_a_storm_requests_without_a_place_are_counted_nearly_right() {
        let spenders = Spenders::default();
        for number in 0..1_000_000u32 {
            spenders.refused(Ipv4Addr::from(0x0a00_0000 + number).into(), || b"crawler", second(1));
        }
        let named = |book: parking_lot::MutexGuard<'_, SpendingBook>| {
            book.addresses.values().map(|known| known.spent.requests).sum::<u64>()
        };
        let named: u64 = spenders.books.all().map(named).sum();
        let all = named + spenders.unnamed();
        assert!(spenders.unnamed() > 0 && (950_000..1_050_000).contains(&all), "{all}");
    }

    #[test]
    fn the_use_of_several_threads_adds_up() {
        let spenders = Spenders::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| serve(&spenders, "203.0.113.7", "crawler", 1)));
            }
            (1..=9).for_each(|secs| spenders.tick(second(secs)));
        });
        spenders.tick(second(10));
        for class in Spenders::classes() {
            let [caller] = &spenders.top(class, 10, second(10)).unwrap()[..] else { panic!("one caller") };
            assert_eq!((caller.rates.total.requests, caller.rates.total.toll_ns), (4000, 4_000_000_000), "{class}");
        }
    }

    #[test]
    fn a_request_that_ends_after_the_map_was_emptied_is_still_its_agents() {
        let spenders = Spenders::default();
        let spender = spenders.admitted("203.0.113.7".parse().unwrap(), b"slow");
        spenders.tick(second(1));
        spenders.served(spender, Span::from_secs(1), Span::ZERO, [None; 2]);
        spenders.tick(second(2));
        let top = spenders.top("user-agent", 10, second(2)).unwrap();
        assert!(top[0].rates.cores() > 0.0);
        assert_eq!(top[0].rates.total.requests, 1);
    }

    #[test]
    fn invented_callers_push_out_neither_memory_nor_a_spender() {
        let spenders = Spenders::default();
        for secs in 1..=12u32 {
            serve(&spenders, "203.0.113.7", "crawler", 900);
            for number in 0..20_000u32 {
                let client = Ipv4Addr::from(0x0a00_0000 + secs * 100_000 + number).to_string();
                // Costs differ and fade: an expensive client of the past must not outlast all cheap ones of the
                // present.
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
    fn idle_keys_are_removed() {
        let spenders = Spenders::default();
        serve(&spenders, "2001:db8::1", "x", 900);
        spenders.tick(second(1));
        assert_eq!(spenders.top("ip/32", 9, second(1)).unwrap()[0].key, b"2001:db8::/64");
        spenders.tick(second(1 + 3601));
        assert!(spenders.top("ip/32", 9, second(3602)).unwrap().is_empty());
    }
}
