use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::*;
use tollgate_core::fairness::Waits;
use tollgate_gatekeeper::clock::Hand;

const PAGE: RouteKey = RouteKey { route: 0x1111_2222_3333_4444, parent: 5 };
const ARCHIVE: RouteKey = RouteKey { route: 0x7777_8888_9999_0000, parent: 5 };

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(203, 0, last, 7).into()
}

fn queue(text: &str) -> (Arc<Queue>, Hand) {
    let settings = crate::settings::Settings::parse("test.toml", &format!("[gate]\ncores = 1\n{text}")).unwrap();
    let (clock, hand) = Clock::by_hand();
    hand.advance(Span::from_secs(1));
    (Queue::new(&settings.gate.unwrap(), clock), hand)
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A place that is there at once.
fn enter(queue: &Arc<Queue>, last: u8, route: RouteKey) -> Place {
    run(queue.enter(address(last), route, Span::ZERO)).unwrap()
}

#[test]
fn a_lone_request_passes_without_the_lock() {
    let (queue, hand) = queue("");
    let lock = queue.state.lock().unwrap();
    let place = enter(&queue, 1, PAGE);
    assert_eq!(queue.at_backend(), 1);
    hand.advance(Span::from_millis(20));
    assert_eq!(place.leave(None, Outcome::Answered), Span::from_millis(20));
    assert_eq!(queue.at_backend(), 0);
    drop(lock);
    assert_eq!(queue.figures().toll_ns, 20_000_000);
}

/// A backend that waits for others has room for many more than it has cores. Their prices are those of the clock all the same.
#[test]
fn as_many_as_there_is_room_for_pass_without_the_lock_and_pay_their_part() {
    let (queue, hand) = queue("in_flight = 200\n");
    let lock = queue.state.lock().unwrap();
    let places: Vec<_> = (0..200).map(|last| enter(&queue, last, PAGE)).collect();
    assert_eq!((queue.at_backend(), queue.expected(PAGE)), (200, Span::from_millis(5)));
    hand.advance(Span::from_millis(250));
    drop(lock);
    let tolls = places.into_iter().map(|place| place.leave(None, Outcome::Answered).as_nanos());
    assert!(tolls.into_iter().all(|toll| toll.abs_diff(1_250_000) <= 200), "a two hundredth of a core each");
    assert_eq!((queue.at_backend(), queue.calm.is_busy()), (0, false));
    let (charged, spent) = (queue.figures().toll_ns, 250_000_000);
    assert!(charged <= spent && charged > spent - 200 * 200, "{charged} of {spent}");
}

#[test]
fn one_more_than_there_is_room_for_waits_and_goes_when_there_is() {
    let (queue, hand) = queue("in_flight = 50\n");
    let mut places: Vec<_> = (0..50).map(|last| enter(&queue, last, PAGE)).collect();
    assert!(!queue.calm.is_busy());
    hand.advance(Span::from_millis(100));
    let Ok(Entry::Waits(_, mut woken)) = queue.busy().arrive(queue.client(address(77)), PAGE) else {
        panic!("there is no place for it")
    };
    hand.advance(Span::from_millis(100));
    // What it did in calm and what it did since: a fiftieth of a core for 200 ms.
    let toll = places.pop().unwrap().leave(None, Outcome::Answered);
    assert!(toll.as_nanos().abs_diff(4_000_000) <= 100, "{toll:?}");
    assert!(matches!(woken.try_recv(), Ok(Ok(_))));
    drop(places);
    assert_eq!(queue.at_backend(), 1, "the one that was woken");
}

#[test]
fn a_second_on_one_core_ends_the_calm_and_the_last_begins_it() {
    let (queue, hand) = queue("");
    let first = enter(&queue, 1, PAGE);
    hand.advance(Span::from_millis(10));
    let second = enter(&queue, 2, PAGE);
    assert!(queue.calm.is_busy());
    assert_eq!(queue.at_backend(), 2);
    hand.advance(Span::from_millis(20));
    // Alone for 10 ms, then half a core for 20.
    assert_eq!(first.leave(None, Outcome::Answered), Span::from_millis(20));
    hand.advance(Span::from_millis(10));
    assert_eq!(second.leave(None, Outcome::Answered), Span::from_millis(20));
    assert!(!queue.calm.is_busy());
    assert_eq!(queue.figures().toll_ns, 40_000_000, "all that one core did in 40 ms");
}

/// Otherwise, once it has gone, nobody would seem to be at work for as long as it is busy, and at ever greater cost.
#[test]
fn one_that_is_written_down_when_a_calm_ends_did_not_begin_in_it() {
    let settings = crate::settings::Settings::parse("test.toml", "[gate]\ncores = 2\n").unwrap();
    let (clock, hand) = Clock::by_hand();
    let queue = Queue::new(&settings.gate.unwrap(), clock);
    let in_calm = (enter(&queue, 1, PAGE), enter(&queue, 2, PAGE));
    let written_down = enter(&queue, 3, PAGE);
    hand.advance(Span::from_millis(20));
    assert!(queue.calm.is_busy());
    drop(in_calm);
    assert!(!queue.calm.is_busy());
    assert_eq!((queue.at_backend(), queue.busy().unnoticed()), (1, Load::ZERO));
    drop(written_down);
    assert_eq!(queue.at_backend(), 0);
}

/// One that was alone at its beginning and at its end, and not in between, would be taken for one that took long alone.
#[test]
fn how_much_was_there_is_known_or_not_learned_from() {
    let text = "[gate]\ncores = 2\n";
    let settings = crate::settings::Settings::parse("test.toml", text).unwrap();
    let (clock, hand) = Clock::by_hand();
    let two_cores = Queue::new(&settings.gate.unwrap(), clock);
    let mut first = enter(&two_cores, 1, PAGE);
    let others = (enter(&two_cores, 2, PAGE), enter(&two_cores, 3, ARCHIVE));
    hand.advance(Span::from_millis(20));
    assert!(two_cores.calm.is_busy());
    drop(others);
    assert!(!two_cores.calm.is_busy());
    hand.advance(Span::from_millis(10));
    first.pause();
    assert_eq!(first.stay(), None);

    let (queue, hand) = queue("");
    let mut third = enter(&queue, 3, PAGE);
    hand.advance(Span::from_millis(10));
    let _fourth = enter(&queue, 4, PAGE);
    hand.advance(Span::from_millis(20));
    third.pause();
    let stay = third.stay().unwrap();
    // Alone for 10 ms of 30, one of two for 20.
    assert_eq!((stay.wall, stay.crowd.as_256ths()), (Span::from_millis(30), 256 * 5 / 3));
}

#[test]
fn a_pause_costs_nothing_in_calm_and_when_busy() {
    let (queue, hand) = queue("");
    let mut place = enter(&queue, 1, PAGE);
    for _ in 0..2 {
        hand.advance(Span::from_millis(10));
        place.pause();
        place.pause();
        assert_eq!(queue.at_backend(), 0);
        hand.advance(Span::from_millis(500));
        let other = enter(&queue, 2, PAGE);
        place.resume();
        assert_eq!(queue.at_backend(), 2);
        drop(other);
        place.resume();
    }
    assert_eq!(place.leave(None, Outcome::Answered), Span::from_millis(20));
    assert_eq!(queue.at_backend(), 0);
}

/// Who waits when the client of a request that runs for ten seconds asks again, with and without the time being looked at meanwhile.
fn waits_after_ten_seconds(tick: impl Fn(&Queue)) -> Waits {
    let (queue, hand) = queue("in_flight = 2\n");
    let _places = (enter(&queue, 9, PAGE), enter(&queue, 1, PAGE));
    // A third waits, so that it is not calm.
    let _waits = queue.busy().arrive(queue.client(address(8)), PAGE);
    for _ in 0..100 {
        hand.advance(Span::from_millis(100));
        tick(&queue);
    }
    assert!(queue.busy().leave_all() == 1);
    let _again = queue.busy().arrive(queue.client(address(1)), PAGE);
    queue.busy().queue.waits()
}

#[test]
fn a_request_is_charged_while_it_runs() {
    assert_eq!(waits_after_ten_seconds(|_| {}), Waits::Behind);
    assert_eq!(waits_after_ten_seconds(Queue::tick), Waits::Ahead, "in debt before the first request is done");
}

#[test]
fn what_was_charged_while_it_ran_is_not_charged_again() {
    nothing_is_charged_twice(|_| {});
}

/// It is written down when it goes on, and knows what it has paid before.
#[test]
fn what_was_charged_before_the_backend_waited_for_the_client_is_not_charged_again() {
    nothing_is_charged_twice(|place| {
        place.starve();
        place.feed();
    });
}

/// Four tenths of a second of CPU time are within what an address may be ahead by; twice that is not.
fn nothing_is_charged_twice(before_it_ends: impl Fn(&mut Place)) {
    let (queue, hand) = queue("in_flight = 2\n");
    let (_other, mut place) = (enter(&queue, 9, PAGE), enter(&queue, 1, PAGE));
    assert!(!queue.calm.is_busy());
    let _waits = queue.busy().arrive(queue.client(address(8)), PAGE);
    for _ in 0..8 {
        hand.advance(Span::from_millis(100));
        queue.tick();
    }
    before_it_ends(&mut place);
    // Whoever waited takes its place, so its client is the only one to wait when it asks again.
    assert_eq!(place.leave(None, Outcome::Answered).as_millis_ceil(), 400);
    let again = queue.busy().arrive(queue.client(address(1)), PAGE);
    assert!(matches!(again, Ok(Entry::Waits(..))));
    assert_eq!((queue.figures().waiting, queue.busy().queue.waits()), (1, Waits::Behind));
}

/// Those who are ahead get a place at last when none of them has one. Who keeps the backend waiting has none.
#[test]
fn who_is_ahead_and_keeps_the_backend_waiting_keeps_no_others_who_are_ahead_from_their_place() {
    let (queue, _hand) = queue("");
    let mut busy = queue.busy();
    let pass = tollgate_core::fairness::Pass { ahead: true, ..Default::default() };
    let state::Grant(slot) = busy.start(queue.client(address(1)), PAGE, pass);
    assert_eq!(busy.places().ahead, 1);
    for _ in 0..2 {
        assert!(busy.pause(slot).is_some() && busy.pause(slot).is_none());
        assert_eq!(busy.places().ahead, 0);
        busy.resume(slot, PAGE);
        busy.resume(slot, PAGE);
        assert_eq!(busy.places().ahead, 1);
    }
    busy.pause(slot);
    assert!(busy.settle(slot, Span::ZERO).ahead);
    assert_eq!(busy.places().ahead, 0);
}

/// Four cores are what the gate was told; the times are those of one. There is always room, so nobody ever takes the lock in earnest, which would
/// take over what was found as well.
#[test]
fn cores_that_are_not_there_are_found_out_in_calm() {
    let settings = crate::settings::Settings::parse("test.toml", "[gate]\ncores = 4\nin_flight = 8\n").unwrap();
    let (clock, hand) = Clock::by_hand();
    let queue = Queue::new(&settings.gate.unwrap(), clock);
    for round in 0..2000u64 {
        let crowd = 1 + round * round % 4;
        let places: Vec<_> = (0..crowd).map(|last| enter(&queue, last as u8, PAGE)).collect();
        assert!(!queue.calm.is_busy());
        hand.advance(Span::from_millis(20 * crowd + round % 3));
        drop(places);
        hand.advance(Span::from_millis(20));
    }
    assert_eq!(queue.calm.cores().as_milli(), 1000);
}

/// Of the archive nothing is known yet, so a page is not light beside it. Half a second later it is.
#[test]
fn what_takes_longer_than_was_thought_does_not_keep_others_waiting() {
    for began_in_calm in [true, false] {
        let (queue, hand) = queue("");
        for _ in 0..20 {
            let place = enter(&queue, 3, PAGE);
            hand.advance(Span::from_millis(20));
            place.leave(None, Outcome::Answered);
        }
        let before = (!began_in_calm).then(|| enter(&queue, 4, PAGE));
        let _archive = enter(&queue, 1, ARCHIVE);
        drop(before);
        let Ok(Entry::Waits(_, mut woken)) = queue.busy().arrive(queue.client(address(2)), PAGE) else {
            panic!("it should wait: {began_in_calm}")
        };
        for _ in 0..10 {
            hand.advance(Span::from_millis(50));
            queue.tick();
        }
        assert!(matches!(woken.try_recv(), Ok(Ok(_))), "{began_in_calm}");
    }
}

/// Threads come and go as fast as they can. Nobody waits for ever, and there are never more at once than may be.
#[test]
fn no_wake_up_is_lost_and_never_more_are_let_in_than_may_be() {
    const AT_ONCE: u32 = 3;
    let text =
        format!("[gate]\ncores = 2\nin_flight = {AT_ONCE}\nhold = {{ max = '60s', per_key = 64, total = 64 }}\n");
    let settings = crate::settings::Settings::parse("test.toml", &text).unwrap();
    let queue = Queue::new(&settings.gate.unwrap(), Clock::start());
    let (inside, most, passed) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (queue, inside, most, passed) = (&queue, &inside, &most, &passed);
            scope.spawn(move || {
                run(async {
                    let visit = |task: u8| async move {
                        for round in 0..400 {
                            let place =
                                queue.enter(address(thread * 4 + task), PAGE, Span::from_secs(60)).await.unwrap();
                            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            if round % 3 == 0 {
                                tokio::task::yield_now().await;
                            }
                            inside.fetch_sub(1, Ordering::SeqCst);
                            if round % 5 == 0 {
                                drop(place)
                            } else {
                                _ = place.leave(None, Outcome::Answered)
                            }
                            passed.fetch_add(1, Ordering::Relaxed);
                        }
                    };
                    let all = async { tokio::join!(visit(0), visit(1), visit(2), visit(3)) };
                    tokio::time::timeout(Duration::from_secs(60), all).await.expect("somebody was never woken")
                })
            });
        }
    });
    assert_eq!(passed.into_inner(), 4 * 4 * 400);
    let most = most.into_inner();
    assert!(most <= AT_ONCE, "{most} at once");
    assert_eq!((queue.at_backend(), queue.figures().waiting), (0, 0));
    assert!(!queue.calm.is_busy(), "calm returns");
}

/// Not a benchmark, but what would show if threads waited for each other: they pass in calm while one of them holds the lock.
#[test]
fn threads_pass_in_calm_whoever_holds_the_lock() {
    let text = "[gate]\ncores = 64\n";
    let settings = crate::settings::Settings::parse("test.toml", text).unwrap();
    let queue = Queue::new(&settings.gate.unwrap(), Clock::start());
    let _lock = queue.state.lock().unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let queue = &queue;
            scope.spawn(move || (0..10_000).for_each(|_| drop(enter_now(queue, thread))));
        }
    });
    assert!(start.elapsed() < Duration::from_secs(30));
    assert_eq!(queue.counts.take_went(), 30_000);
}

fn enter_now(queue: &Arc<Queue>, last: u8) -> Place {
    let entering = std::pin::pin!(queue.enter(address(last), PAGE, Span::ZERO));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match entering.poll(&mut cx) {
        std::task::Poll::Ready(Ok(place)) => place,
        _ => panic!("it did not pass"),
    }
}

/// A queue that knows what a page costs, and that it is light beside what the archive does.
fn experienced() -> (Arc<Queue>, Hand, Span) {
    let (queue, hand) = queue("");
    for (route, millis) in [(PAGE, 100), (ARCHIVE, 5000)].repeat(50) {
        let place = enter(&queue, 1, route);
        hand.advance(Span::from_millis(millis));
        place.leave(None, Outcome::Answered);
    }
    let expected = queue.expected(PAGE);
    assert!((90..200).contains(&expected.as_millis_ceil()), "{expected:?}");
    (queue, hand, expected)
}

/// A backend that is down is quick to refuse. Neither prices nor the number at once are to follow that.
#[test]
fn what_the_backend_did_not_answer_teaches_nothing() {
    for busy in [false, true] {
        let (queue, hand, expected) = experienced();
        let at_once = queue.figures().at_once;
        let all_end_with = |outcome| {
            for client in 3..200 {
                let other = busy.then(|| enter(&queue, 2, ARCHIVE));
                let place = enter(&queue, client, PAGE);
                assert_eq!(queue.calm.is_busy(), busy);
                hand.advance(Span::from_nanos(30_000));
                place.leave(None, outcome);
                other.map(|other| other.leave(None, Outcome::Failed));
                // So that nobody gets ahead.
                hand.advance(Span::from_secs(1));
            }
        };
        for outcome in [Outcome::Failed, Outcome::CutShort, Outcome::Unheard] {
            all_end_with(outcome);
            assert_eq!((queue.expected(PAGE), queue.figures().at_once), (expected, at_once), "{outcome:?} {busy}");
        }
        all_end_with(Outcome::Answered);
        assert!(queue.expected(PAGE) < expected, "but what it does answer does: {busy}");
    }
}

#[test]
fn who_withholds_the_rest_of_a_request_pays_what_requests_like_it_cost_and_no_more() {
    for busy in [false, true] {
        let (queue, hand, expected) = experienced();
        let other = busy.then(|| enter(&queue, 2, ARCHIVE));
        let there = queue.at_backend();
        let clients = std::cell::Cell::new(10);
        let toll_of = |worked: u64, withheld: u64| {
            clients.set(clients.get() + 1);
            let mut place = enter(&queue, clients.get(), PAGE);
            hand.advance(Span::from_millis(worked));
            place.starve();
            assert_eq!(queue.at_backend(), there, "its place is for others");
            // What happens to the answer meanwhile does not make it work.
            place.pause();
            place.resume();
            assert_eq!(queue.at_backend(), there);
            hand.advance(Span::from_millis(withheld));
            place.feed();
            assert_eq!(queue.at_backend(), there + 1);
            place.leave(None, Outcome::Answered)
        };
        let share = 1 + u64::from(busy);
        let (none, some) = (toll_of(20, 0), toll_of(20, 10));
        assert_eq!((none, some), (Span::from_millis(20 / share), Span::from_millis(20 / share + 10)));
        assert_eq!(toll_of(20, 60_000), expected, "however long");
        assert_eq!(toll_of(1000, 60_000), Span::from_millis(1000 / share), "it has been paid for");
        drop(other);
        assert_eq!(queue.expected(PAGE), expected, "and nobody learns from it");
    }
}

/// An answer to a request that is not whole tells that the backend did not wait for the rest.
#[test]
fn who_withholds_the_rest_of_a_request_pays_for_work_that_did_not_need_it() {
    for busy in [false, true] {
        let (queue, hand, expected) = experienced();
        let other = busy.then(|| enter(&queue, 2, ARCHIVE));
        let there = queue.at_backend();
        let mut place = enter(&queue, 1, PAGE);
        place.starve();
        hand.advance(Span::from_secs(7));
        place.worked_unfed();
        assert_eq!(queue.at_backend(), there);
        place.feed();
        assert_eq!(queue.at_backend(), there + 1, "it is at work");
        assert_eq!(place.leave(None, Outcome::Answered), Span::from_secs(7));
        drop(other);
        assert_eq!(queue.expected(PAGE), expected, "and nobody learns from it");
    }
}

#[test]
fn what_cannot_be_heard_costs_what_requests_like_it_do() {
    let (queue, hand, expected) = experienced();
    let place = enter(&queue, 1, PAGE);
    hand.advance(Span::from_millis(1));
    assert_eq!(place.leave(None, Outcome::Unheard), expected);
    let place = enter(&queue, 1, PAGE);
    hand.advance(Span::from_secs(1));
    assert_eq!(place.leave(None, Outcome::Unheard), Span::from_secs(1), "or what it did");
    let place = enter(&queue, 1, PAGE);
    assert_eq!(
        place.leave(Some(Span::from_millis(7)), Outcome::Unheard),
        Span::from_millis(7),
        "or what is said of it"
    );
}

fn reload(queue: &Queue, text: &str) {
    let settings = crate::settings::Settings::parse("test.toml", &format!("[gate]\n{text}")).unwrap();
    queue.reload(&settings.gate.unwrap());
}

#[test]
fn a_reload_changes_how_many_wait_and_who_waits_goes_on_waiting() {
    let (queue, _hand) = queue("in_flight = 1\nhold = { total = 2 }\n");
    let place = enter(&queue, 1, PAGE);
    let arrive = |last: u8| queue.busy().arrive(queue.client(address(last)), PAGE);
    let waits = |last: u8| match arrive(last) {
        Ok(Entry::Waits(_, woken)) => woken,
        _ => panic!("{last} does not wait"),
    };
    let mut woken: Vec<_> = [2, 3].map(waits).into();
    assert!(arrive(4).is_err(), "no room to wait in");
    reload(&queue, "cores = 1\nin_flight = 1\nhold = { total = 4 }\n");
    woken.extend([4, 5].map(waits));
    assert!(arrive(6).is_err());
    assert!(woken.iter_mut().all(|woken| woken.try_recv().is_err()), "nobody was turned away");
    reload(&queue, "cores = 1\nin_flight = 1\nhold = { total = 1 }\n");
    assert_eq!(queue.figures().waiting, 4, "those who wait already go on waiting");
    assert!(arrive(7).is_err());
    place.leave(None, Outcome::Answered);
    assert!(woken.iter_mut().any(|woken| woken.try_recv().is_ok()), "and go when it is their turn");
}

#[test]
fn a_reload_changes_what_a_client_may_have_waiting_and_its_share() {
    let (queue, _hand) = queue("");
    reload(&queue, "cores = 2\nhold = { per_key = 9, total = 500 }\nfairness = { \"ip/32\" = 0.123 }\n");
    let in_force = format!("{:?}", queue.state().queue);
    for expect in ["address_milli: 123, network_milli: 250", "per_key: 9, total: 500", "Cores(2000)"] {
        assert!(in_force.contains(expect), "{expect} in {in_force}");
    }
}

#[test]
fn a_reload_with_other_cores_looks_for_the_number_at_once_anew_and_prices_by_them() {
    let (queue, hand) = queue("");
    assert_eq!((queue.figures().at_once, queue.calm.cores().as_milli()), (1, 1000));
    let first = enter(&queue, 1, PAGE);
    reload(&queue, "cores = 4\n");
    assert_eq!((queue.figures().at_once, queue.calm.cores().as_milli()), (4, 4000));
    let others: Vec<_> = (2..5).map(|last| enter(&queue, last, PAGE)).collect();
    hand.advance(Span::from_millis(10));
    assert_eq!(first.leave(None, Outcome::Answered), Span::from_millis(10), "a core for each of the four");
    drop(others);
}
