use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use tollgate_gatekeeper::clock::Hand;

const PAGE: RouteKey = RouteKey { route: 0x1111_2222_3333_4444, parent: 5 };
const ARCHIVE: RouteKey = RouteKey { route: 0x7777_8888_9999_0000, parent: 5 };

fn settings(text: &str) -> Settings {
    crate::settings::Settings::parse("test.toml", &format!("[gate]\n{text}")).unwrap().gate.unwrap()
}

fn queue(text: &str) -> (Arc<Queue>, Hand) {
    let (clock, hand) = Clock::by_hand();
    hand.advance(Span::from_secs(1));
    (Queue::new(None, &settings(&format!("cores = 1\n{text}")), clock), hand)
}

/// A request of one of 256 networks in the same block.
fn entering(network: u8, route: RouteKey) -> Request {
    let network = u64::from(network);
    let client = Client { block: 1, network: 1000 + network, address: 2000 + network, tenant: network };
    Request { client, route, weight_milli: 1000, bytes: 100 }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A permit that is granted at once.
fn enter(queue: &Arc<Queue>, last: u8, route: RouteKey) -> Permit {
    run(queue.enter(entering(last, route), |_, _| ())).unwrap()
}

#[test]
fn a_lone_request_costs_the_time_that_it_took() {
    let (queue, hand) = queue("");
    let permit = enter(&queue, 1, PAGE);
    assert_eq!(queue.status().in_flight, 1);
    hand.advance(Span::from_millis(20));
    assert_eq!(permit.leave(None, Outcome::Answered), Span::from_millis(20));
    let status = queue.status();
    assert_eq!((status.in_flight, status.toll_ns), (0, 20_000_000));
}

#[test]
fn the_round_trip_to_the_backend_is_not_priced_as_cpu_time() {
    let (queue, hand) = queue("");
    let toll = |micros: u64| {
        let permit = enter(&queue, 1, PAGE);
        hand.advance(Span::from_nanos(micros * 1000));
        permit.leave(None, Outcome::Answered).as_nanos() / 1000
    };
    assert_eq!(toll(1_200), 1_200, "nothing is known about the way yet");
    queue.connected_within(Span::from_millis(7));
    queue.connected_within(Span::from_millis(1));
    queue.connected_within(Span::from_millis(3));
    assert_eq!(toll(1_200), 200, "the shortest time to connect is one round trip");
    assert_eq!(toll(100_000), 99_000);
    assert_eq!(toll(800), 50, "an answer that is faster than any connection costs a sixteenth of its time");
}

#[test]
fn requests_that_share_a_core_pay_their_part_of_it() {
    let (queue, hand) = queue("in_flight = 200\n");
    let permits: Vec<_> = (0..200).map(|last| enter(&queue, last, PAGE)).collect();
    hand.advance(Span::from_millis(250));
    let tolls = permits.into_iter().map(|permit| permit.leave(None, Outcome::Answered).as_nanos());
    assert!(tolls.into_iter().all(|toll| toll.abs_diff(1_250_000) <= 200), "a two hundredth of a core each");
}

#[test]
fn one_more_than_the_limit_waits_and_goes_when_another_ends() {
    let (queue, hand) = queue("in_flight = 2\nhold = { max = \"60s\" }\n");
    let mut permits: Vec<_> = (0..2).map(|last| enter(&queue, last, PAGE)).collect();
    run(async {
        let mut position = 0;
        let mut third = Box::pin(queue.enter(entering(9, PAGE), |arrival, waits| match arrival {
            Arrival::Wait(_, standing) if waits => position = standing.position,
            other => panic!("{other:?}"),
        }));
        assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(third.as_mut().poll(cx))).await.is_pending());
        assert_eq!(queue.status().waiting, 1);
        hand.advance(Span::from_millis(20));
        permits.pop().unwrap().leave(None, Outcome::Answered);
        let permit = third.await.unwrap();
        assert_eq!((queue.status().waiting, queue.status().in_flight, position), (0, 2, 1));
        drop(permit);
    });
}

#[test]
fn a_request_whose_client_goes_leaves_the_queue() {
    let (queue, _hand) = queue("in_flight = 1\n");
    let _first = enter(&queue, 1, PAGE);
    run(async {
        let mut second = Box::pin(queue.enter(entering(2, PAGE), |_, _| ()));
        assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(second.as_mut().poll(cx))).await.is_pending());
        drop(second);
        assert_eq!(queue.status().waiting, 0);
    });
}

#[test]
fn a_request_whose_turn_comes_in_the_instant_in_which_it_gives_up_goes() {
    let (queue, _hand) = queue("in_flight = 1\nhold = { max = \"20ms\" }\n");
    let first = enter(&queue, 1, PAGE);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| run(queue.enter(entering(2, PAGE), |_, _| ())));
        while queue.status().waiting == 0 {
            std::thread::yield_now();
        }
        // The other thread takes the lock once more before it waits.
        std::thread::sleep(Duration::from_millis(5));
        let mut state = queue.state.lock();
        // The request runs out of patience and waits for the lock, unless this machine is slow.
        std::thread::sleep(Duration::from_millis(100));
        let now = queue.clock.now();
        state.core.set_settings(queue_settings(&settings("in_flight = 2\n")), now);
        while let Some(event) = state.core.poll(now) {
            state.handle(event, now);
        }
        drop(state);
        assert!(second.join().unwrap().is_ok());
    });
    drop(first);
    assert_eq!((queue.status().waiting, queue.status().in_flight, queue.status().refused), (0, 0, 0));
}

/// The displaced request gives its slot in the core to the request that displaces it.
#[test]
fn when_the_room_is_full_only_the_displaced_request_is_refused() {
    let (queue, hand) = queue("in_flight = 1\nhold = { max = \"60s\", total = 2 }\n");
    let first = enter(&queue, 1, PAGE);
    run(async {
        let mut waiting: Vec<_> =
            [2, 2, 3].into_iter().map(|last| Box::pin(queue.enter(entering(last, PAGE), |_, _| ()))).collect();
        for request in &mut waiting {
            assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(request.as_mut().poll(cx))).await.is_pending());
        }
        let refused = waiting.remove(1).await.err().expect("the newer of the greedier client");
        assert!(matches!(refused.reason, core::RefusedBy::Full), "{refused:?}");
        assert_eq!((queue.status().waiting, queue.status().refused), (2, 1));
        hand.advance(Span::from_millis(20));
        first.leave(None, Outcome::Answered);
        for request in waiting {
            request.await.expect("its turn").leave(None, Outcome::Answered);
        }
    });
}

/// Threads start and end requests as fast as they can. Every request gets its turn, and the limit holds.
#[test]
fn no_wake_up_is_lost_and_the_limit_is_never_exceeded() {
    const LIMIT: u32 = 3;
    let settings = settings(&format!("cores = 2\nin_flight = {LIMIT}\nhold = {{ max = '60s' }}\n"));
    let queue = Queue::new(None, &settings, Clock::start());
    let (inside, most, passed) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (queue, inside, most, passed) = (&queue, &inside, &most, &passed);
            scope.spawn(move || {
                run(async {
                    let visit = |task: u8| async move {
                        for round in 0..400 {
                            let entering = entering(thread * 4 + task, PAGE);
                            let permit = queue.enter(entering, |_, _| ()).await.unwrap();
                            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            if round % 3 == 0 {
                                tokio::task::yield_now().await;
                            }
                            inside.fetch_sub(1, Ordering::SeqCst);
                            if round % 5 == 0 {
                                drop(permit)
                            } else {
                                _ = permit.leave(None, Outcome::Answered)
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
    assert!(most <= LIMIT, "{most} at once");
    assert_eq!((queue.status().in_flight, queue.status().waiting), (0, 0));
}

fn mean_cost(queue: &Queue) -> Span {
    queue.with_core(|core, _| core.price(PAGE).mean)
}

/// A queue that knows what a page and the archive cost.
fn experienced() -> (Arc<Queue>, Hand, Span) {
    let (queue, hand) = queue("");
    for (route, millis) in [(PAGE, 100), (ARCHIVE, 5000)].repeat(50) {
        let permit = enter(&queue, 1, route);
        hand.advance(Span::from_millis(millis));
        permit.leave(None, Outcome::Answered);
    }
    let mean = mean_cost(&queue);
    assert_eq!(mean, Span::from_millis(100));
    (queue, hand, mean)
}

/// A backend that is down is quick to refuse. Prices and the in-flight limit do not follow that.
#[test]
fn a_request_that_the_backend_did_not_answer_teaches_nothing() {
    let (queue, hand, expected) = experienced();
    let limit = queue.status().in_flight_max;
    let all_end_with = |outcome| {
        for client in 3..200 {
            let permit = enter(&queue, client, PAGE);
            hand.advance(Span::from_nanos(30_000));
            permit.leave(None, outcome);
            // So that no client gets ahead.
            hand.advance(Span::from_secs(1));
        }
    };
    for outcome in [Outcome::Failed, Outcome::CutShort, Outcome::Unheard] {
        all_end_with(outcome);
        assert_eq!((mean_cost(&queue), queue.status().in_flight_max), (expected, limit), "{outcome:?}");
    }
    all_end_with(Outcome::Answered);
    assert!(mean_cost(&queue) < expected);
}

#[test]
fn a_client_that_withholds_the_rest_of_a_request_pays_what_its_route_costs_and_no_more() {
    let (queue, hand, expected) = experienced();
    let clients = std::cell::Cell::new(10);
    let toll_of = |worked: u64, withheld: u64| {
        clients.set(clients.get() + 1);
        let mut permit = enter(&queue, clients.get(), PAGE);
        hand.advance(Span::from_millis(worked));
        permit.starve();
        assert_eq!(queue.status().in_flight, 0, "its permit is for others");
        hand.advance(Span::from_millis(withheld));
        permit.feed();
        assert_eq!(queue.status().in_flight, 1);
        permit.leave(None, Outcome::Answered)
    };
    assert_eq!(toll_of(20, 10), Span::from_millis(30));
    assert_eq!(toll_of(20, 60_000), expected, "however long");
    assert_eq!(toll_of(1000, 60_000), Span::from_millis(1000), "it has been paid for");
    assert_eq!(mean_cost(&queue), expected, "and nobody learns from it");
}

#[test]
fn a_client_that_does_not_read_pays_until_the_backend_has_finished_and_teaches_nothing() {
    let (queue, hand, expected) = experienced();
    let mut permit = enter(&queue, 1, PAGE);
    permit.held_up();
    hand.advance(Span::from_secs(7));
    assert_eq!(queue.status().in_flight, 1);
    assert_eq!(permit.leave(None, Outcome::Answered), Span::from_secs(7));
    assert_eq!(mean_cost(&queue), expected);
}

#[test]
fn events_that_do_not_fit_the_state_of_a_permit_change_nothing() {
    let (queue, hand, _) = experienced();
    let mut permit = enter(&queue, 1, PAGE);
    permit.feed();
    assert_eq!(queue.status().in_flight, 1, "it runs already");
    permit.starve();
    hand.advance(Span::from_millis(5));
    permit.starve();
    hand.advance(Span::from_millis(5));
    permit.feed();
    permit.feed();
    assert_eq!(queue.status().in_flight, 1);
    assert_eq!(permit.leave(None, Outcome::Answered), Span::from_millis(10), "starved from the first event");
    assert_eq!(queue.status().in_flight, 0);
}

/// A response to a request that is not whole shows that the backend did not wait for the rest.
#[test]
fn a_client_that_withholds_the_rest_of_a_request_pays_for_work_that_did_not_need_it() {
    let (queue, hand, expected) = experienced();
    let mut permit = enter(&queue, 1, PAGE);
    permit.starve();
    hand.advance(Span::from_secs(7));
    permit.worked_unfed();
    assert_eq!(queue.status().in_flight, 0);
    permit.feed();
    assert_eq!(queue.status().in_flight, 1);
    assert_eq!(permit.leave(None, Outcome::Answered), Span::from_secs(7));
    assert_eq!(mean_cost(&queue), expected, "and nobody learns from it");
}

#[test]
fn a_request_whose_end_cannot_be_seen_costs_what_its_route_does() {
    let (queue, hand, expected) = experienced();
    let permit = enter(&queue, 1, PAGE);
    hand.advance(Span::from_millis(1));
    assert_eq!(permit.leave(None, Outcome::Unheard), expected);
    let permit = enter(&queue, 1, PAGE);
    hand.advance(Span::from_secs(1));
    assert_eq!(permit.leave(None, Outcome::Unheard), Span::from_secs(1), "or what it took");
    let permit = enter(&queue, 1, PAGE);
    let reported = Span::from_millis(7);
    assert_eq!(permit.leave(Some(reported), Outcome::Unheard), reported, "or what the backend reports");
}

#[test]
fn a_reload_changes_the_limit_and_waiting_requests_go_on_waiting() {
    let (queue, _hand) = queue("in_flight = 1\nhold = { max = \"60s\" }\n");
    let _first = enter(&queue, 1, PAGE);
    run(async {
        let mut second = Box::pin(queue.enter(entering(2, PAGE), |_, _| ()));
        assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(second.as_mut().poll(cx))).await.is_pending());
        queue.reload(&settings("cores = 1\nin_flight = 2\n"));
        assert!(second.await.is_ok());
    });
}

#[test]
fn a_reload_keeps_prices() {
    let (queue, _hand, expected) = experienced();
    queue.reload(&settings("cores = 1\nhold = { total = 9 }\n"));
    assert_eq!(mean_cost(&queue), expected);
}

#[test]
fn one_client_that_waits_for_seconds_shows_among_many_that_do_not_wait() {
    let (clock, hand) = Clock::by_hand();
    let queues = Queues::new(&settings("cores = 1\nin_flight = 1\nhold = { max = \"60s\" }\n"), clock);
    let queue = queues.first();
    run(async {
        let first = queue.enter(entering(1, PAGE), |_, _| ()).await.unwrap();
        let mut second = Box::pin(queue.enter(entering(2, PAGE), |_, _| ()));
        assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(second.as_mut().poll(cx))).await.is_pending());
        hand.advance(Span::from_secs(4));
        first.leave(None, Outcome::Answered);
        second.await.unwrap().leave(None, Outcome::Answered);
        for _ in 0..1000 {
            queue.enter(entering(3, PAGE), |_, _| ()).await.unwrap().leave(None, Outcome::Answered);
        }
    });
    assert_eq!(queues.take_wait(), Span::from_secs(1), "a quarter of the longest wait");
    assert_eq!(queues.take_wait(), Span::ZERO);
}

#[test]
fn requests_that_wait_for_a_hanging_backend_show_before_and_after_they_are_refused() {
    let (clock, hand) = Clock::by_hand();
    let queues = Queues::new(&settings("cores = 1\nin_flight = 1\nhold = { max = \"60s\" }\n"), clock);
    let queue = queues.first();
    run(async {
        let _hanging = queue.enter(entering(1, PAGE), |_, _| ()).await.unwrap();
        let mut second = Box::pin(queue.enter(entering(2, PAGE), |_, _| ()));
        assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(second.as_mut().poll(cx))).await.is_pending());
        for secs in [1, 2] {
            hand.advance(Span::from_secs(4));
            assert_eq!(queues.take_wait(), Span::from_secs(secs), "a quarter of the wait so far");
        }
        queue.update(|state, now| {
            let ticket = *state.waiters.keys().next().unwrap();
            let refusal = state.core.give_up(ticket, now).unwrap();
            state.handle(Event::Refuse(ticket, refusal), now);
        });
        assert!(second.await.is_err());
        assert_eq!(queues.take_wait(), Span::from_secs(8), "the mean of one");
        assert_eq!(queues.take_wait(), Span::ZERO);
    });
}

#[test]
fn a_queue_that_observes_tells_what_it_would_have_done_and_measures_the_waits_there_would_have_been() {
    let (clock, hand) = Clock::by_hand();
    let queues = Queues::new(&settings("cores = 1\nmode = \"observe\"\nin_flight = 1\nhold = { total = 1 }\n"), clock);
    let queue = queues.first();
    let mut notices = Vec::new();
    let enter = |last: u8, notices: &mut Vec<(Arrival, bool)>| {
        run(queue.enter(entering(last, PAGE), |arrival, waits| notices.push((arrival, waits)))).unwrap()
    };
    let permits: Vec<_> = (1..=3).map(|last| enter(last, &mut notices)).collect();
    let [(Arrival::Go(_), false), (Arrival::Wait(..), false), (Arrival::Refuse(_), false)] = notices[..] else {
        panic!("{notices:?}")
    };
    let status = queue.status();
    assert_eq!((status.observed, status.would_wait, status.would_refuse), (3, 1, 1));
    assert_eq!((status.in_flight, status.waited, status.refused), (3, 0, 0));
    hand.advance(Span::from_secs(8));
    for permit in permits {
        permit.leave(None, Outcome::Answered);
    }
    assert_eq!(
        queues.take_wait(),
        Span::from_secs(4),
        "the mean of one that goes and one that would have waited for 8 s"
    );
    assert_eq!((queue.status().waiting, queue.status().in_flight), (0, 0));
}

#[test]
fn a_reload_to_observe_lets_waiting_requests_go() {
    let (queue, _hand) = queue("in_flight = 1\n");
    let first = enter(&queue, 1, PAGE);
    run(async {
        let mut second = Box::pin(queue.enter(entering(2, PAGE), |_, _| ()));
        let mut third = Box::pin(queue.enter(entering(3, PAGE), |_, _| ()));
        assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(second.as_mut().poll(cx))).await.is_pending());
        assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(third.as_mut().poll(cx))).await.is_pending());
        queue.reload(&settings("cores = 1\nin_flight = 1\nmode = \"observe\"\n"));
        drop(third);
        drop(second.await.unwrap());
    });
    drop(first);
    assert_eq!((queue.status().waiting, queue.status().in_flight), (0, 0));
}
