use super::client::largest;
use super::*;
use proptest::prelude::*;

const PAGE: RouteKey = RouteKey { route: 1, parent: 100 };
const REPORT: RouteKey = RouteKey { route: 2, parent: 100 };
const SEARCH: RouteKey = RouteKey { route: 3, parent: 100 };

fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

fn client(address: u64, tenant: u64) -> Client {
    Client {
        block: 3_000_000 + address / 65_536,
        network: 2_000_000 + address / 256,
        address: 1_000_000 + address,
        tenant,
    }
}

fn request(address: u64, route: RouteKey) -> Request {
    Request { client: client(address, 0), route, weight_milli: 1000, bytes: 1000 }
}

/// A queue that has served enough of all routes to know that a page and a search cost 20 ms and a report 300 ms.
fn learned(settings: Settings) -> (Queue, Moment) {
    let mut queue = Queue::new(settings, at(0));
    let mut now = at(1000);
    for round in 0..80u64 {
        // One, two and three at once, so that the number in flight varies.
        let count = 1 + round % 3;
        for (route, millis) in [(PAGE, 20), (REPORT, 300), (SEARCH, 20)] {
            let go = |queue: &mut Queue, now| match queue.arrive(request(900 + round % 50, route), now) {
                Arrival::Go(ticket) => Some(ticket),
                Arrival::Wait(ticket, _) => {
                    queue.leave(ticket, now);
                    None
                }
                Arrival::Refuse(refusal) => panic!("{refusal:?}"),
            };
            let tickets: Vec<_> = (0..count).filter_map(|_| go(&mut queue, now)).collect();
            now = now + Span::from_millis(millis * tickets.len() as u64);
            tickets.into_iter().for_each(|ticket| finish(&mut queue, ticket, now));
            now = now + Span::from_millis(200);
        }
    }
    (queue, now)
}

fn finish(queue: &mut Queue, ticket: Ticket, now: Moment) {
    let toll = queue.so_far(ticket, now);
    queue.done(ticket, toll, true, now);
}

fn go(queue: &mut Queue, request: Request, now: Moment) -> Ticket {
    match queue.arrive(request, now) {
        Arrival::Go(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

fn wait(queue: &mut Queue, request: Request, now: Moment) -> Ticket {
    match queue.arrive(request, now) {
        Arrival::Wait(ticket, _) => ticket,
        other => panic!("{other:?}"),
    }
}

fn events(queue: &mut Queue, now: Moment) -> Vec<Event> {
    core::iter::from_fn(|| queue.poll(now)).collect()
}

#[test]
fn a_backend_of_one_core_is_found_out() {
    for configured in [1, 2, 4] {
        let (queue, _) = learned(Settings { cores: Cores::whole(configured), ..Settings::default() });
        assert_eq!(queue.cores(), Cores::whole(1), "{configured} in the settings");
        assert!(queue.limit() < 3, "{:?}", queue.limit());
    }
}

#[test]
fn a_light_request_does_not_wait_for_a_heavy_one() {
    let (mut queue, now) = learned(Settings::default());
    while let Arrival::Go(_) = queue.arrive(request(1, REPORT), now) {}
    assert!(queue.waiting() > 0);
    go(&mut queue, request(2, PAGE), now);
}

#[test]
fn a_client_behind_its_share_goes_before_one_that_is_ahead() {
    let (mut queue, mut now) = learned(Settings::default());
    let mut in_flight = go(&mut queue, request(1, REPORT), now);
    for _ in 0..20 {
        wait(&mut queue, request(1, REPORT), now);
    }
    // The crawler has used its credit.
    for _ in 0..5 {
        now = now + Span::from_millis(300);
        finish(&mut queue, in_flight, now);
        let all = events(&mut queue, now);
        let [Event::Go(ticket), more @ ..] = &all[..] else { panic!("at least one at a time") };
        in_flight = *ticket;
        for event in more {
            let Event::Go(ticket) = event else { panic!("{event:?}") };
            finish(&mut queue, *ticket, now);
        }
    }
    let behind = match queue.arrive(request(70_000, REPORT), now) {
        Arrival::Go(_) => return,
        Arrival::Wait(ticket, standing) => {
            assert!(!standing.is_ahead);
            ticket
        }
        Arrival::Refuse(refusal) => panic!("{refusal:?}"),
    };
    finish(&mut queue, in_flight, now + Span::from_millis(300));
    assert_eq!(events(&mut queue, now + Span::from_millis(300))[..], [Event::Go(behind)]);
}

#[test]
fn a_request_is_refused_if_it_would_wait_longer_than_allowed_and_told_when_the_queue_has_drained() {
    let (mut queue, now) = learned(Settings::default());
    let (mut waiting, mut refused) = (0, Vec::new());
    for _ in 0..100 {
        match queue.arrive(request(1, REPORT), now) {
            Arrival::Go(_) => {}
            Arrival::Wait(..) => waiting += 1,
            Arrival::Refuse(refusal) => refused.push(refusal),
        }
    }
    // 10 s of one core are 33 reports.
    assert!((30..=38).contains(&waiting), "{waiting}");
    for refusal in refused {
        assert_eq!(refusal.reason, RefusedBy::WaitTooLong);
        assert!((9_000..=13_000).contains(&refusal.retry_after.as_millis_ceil()), "{refusal:?}");
    }
}

/// Each of them has nothing else waiting, and all of them together would wait for minutes.
#[test]
fn many_clients_with_one_request_each_are_refused_by_time_too() {
    let (mut queue, now) = learned(Settings::default());
    let mut refused = 0;
    for client in 0..500 {
        refused += u32::from(matches!(queue.arrive(request(client * 70_000, REPORT), now), Arrival::Refuse(_)));
    }
    assert!(queue.waiting() < 45, "{} of 300 ms wait for one core", queue.waiting());
    assert!(refused > 440, "{refused}");
}

#[test]
fn when_the_room_is_full_the_newest_request_of_the_client_furthest_ahead_is_displaced() {
    let (mut queue, mut now) = learned(Settings { total: 8, hold_max: Span::from_secs(1000), ..Settings::default() });
    for _ in 0..4 {
        let ticket = go(&mut queue, request(1, REPORT), now);
        now = now + Span::from_millis(300);
        finish(&mut queue, ticket, now);
    }
    let mut newest = None;
    while queue.waiting() < 8 {
        if let Arrival::Wait(ticket, _) = queue.arrive(request(1, REPORT), now) {
            newest = Some(ticket);
        }
    }
    let mut refused = 0;
    loop {
        match queue.arrive(request(300_000, REPORT), now) {
            Arrival::Go(_) => continue,
            Arrival::Wait(..) => {}
            Arrival::Refuse(_) => break,
        }
        let all = events(&mut queue, now);
        let [Event::Refuse(ticket, Refusal { reason: RefusedBy::Full, .. })] = all[..] else { panic!("{all:?}") };
        if refused == 0 {
            assert_eq!(Some(ticket), newest);
        }
        refused += 1;
    }
    assert!(refused > 0);
    assert_eq!(queue.waiting(), 8);
}

#[test]
fn memory_bounds_waiting_requests_too() {
    let (mut queue, now) = learned(Settings { memory: 10_000, hold_max: Span::from_secs(1000), ..Settings::default() });
    let refused = (0..50).filter(|_| matches!(queue.arrive(request(1, REPORT), now), Arrival::Refuse(_))).count();
    assert_eq!(queue.waiting(), 10);
    assert!(refused > 30);
}

#[test]
fn requests_that_cost_little_together_go_beyond_the_limit() {
    for (route, from, to) in [(PAGE, 10, 16), (REPORT, 1, 4)] {
        let (mut queue, now) = learned(Settings::default());
        let went = (0..100).filter(|_| matches!(queue.arrive(request(1, route), now), Arrival::Go(_))).count();
        assert!((from..=to).contains(&went), "{went} of 0.3 s");
    }
}

#[test]
fn a_request_that_costs_more_than_its_price_moves_to_a_higher_octave() {
    let (mut queue, now) = learned(Settings::default());
    while let Arrival::Go(_) = queue.arrive(request(1, PAGE), now) {}
    let search = wait(&mut queue, request(400_000, SEARCH), now);
    let soon = now + Span::from_millis(25);
    queue.tick(soon);
    assert_eq!(events(&mut queue, soon), [], "it may end any moment");
    let later = now + Span::from_millis(600);
    queue.tick(later);
    assert!(events(&mut queue, later).contains(&Event::Go(search)), "the pages in flight are not its peers any more");
}

/// The kernel counts CPU time in steps of 10 ms: one busy core can look like 0.8 of one. A limit that grows by that
/// mistake lets a crawler of many networks take the whole backend.
#[test]
fn the_limit_grows_at_once_only_if_the_machine_is_certainly_idle() {
    for (busy_milli, limit) in [(750, 8), (500, 64)] {
        let mut queue = Queue::new(Settings::default(), at(0));
        (0..50).for_each(|address| _ = queue.arrive(request(address * 70_000, PAGE), at(1)));
        for millis in (50..400).step_by(50) {
            queue.machine_busy(Some(Cores::from_milli(busy_milli)));
            queue.tick(at(millis));
        }
        assert_eq!(queue.limit(), limit, "{busy_milli}");
    }
}

/// With a fixed limit nothing has to be found before waits can be estimated.
#[test]
fn with_a_fixed_limit_a_request_is_refused_by_its_estimated_wait() {
    let settings = Settings { in_flight: Some(1), hold_max: Span::from_secs(1), ..Settings::default() };
    let mut queue = Queue::new(settings, at(0));
    let Arrival::Go(first) = queue.arrive(request(1, REPORT), at(0)) else { panic!("nothing is in flight") };
    finish(&mut queue, first, at(600));
    let arrivals: Vec<_> = (0..4).map(|_| queue.arrive(request(1, REPORT), at(601))).collect();
    assert!(matches!(arrivals[..3], [Arrival::Go(_), Arrival::Wait(..), Arrival::Wait(..)]), "{arrivals:?}");
    assert!(matches!(arrivals[3], Arrival::Refuse(_)), "{arrivals:?}");
}

/// The last reading of a quiet machine is about the time before a crawler of many networks came.
#[test]
fn a_machine_that_was_idle_does_not_show_that_there_is_room_for_what_nobody_has_seen() {
    let mut queue = Queue::new(Settings::default(), at(0));
    let pages: Vec<_> = (0..16).map(|address| queue.arrive(request(address * 70_000, PAGE), at(1))).collect();
    for millis in (50..400).step_by(50) {
        queue.machine_busy(Some(Cores::from_milli(100)));
        queue.tick(at(millis));
    }
    let mut tickets: Vec<_> =
        pages.into_iter().filter_map(|page| if let Arrival::Go(ticket) = page { Some(ticket) } else { None }).collect();
    let mut now = at(0);
    while !tickets.is_empty() {
        now = now + Span::from_millis(450);
        tickets.drain(..).for_each(|ticket| finish(&mut queue, ticket, now));
        tickets.extend(events(&mut queue, now).into_iter().map(|event| match event {
            Event::Go(ticket) => ticket,
            Event::Refuse(..) => panic!("{event:?}"),
        }));
    }
    assert_eq!((queue.limit(), queue.waiting()), (64, 0));
    let soon = now + Span::from_millis(10);
    let gone =
        (0..64u64).filter(|address| matches!(queue.arrive(request(address * 70_000, REPORT), soon), Arrival::Go(_)));
    assert!(gone.count() <= 32);
}

#[test]
fn a_client_that_is_ahead_is_served_at_least_once_a_second() {
    let (mut queue, mut now) = learned(Settings::default());
    let crawl = |queue: &mut Queue, now| match queue.arrive(request(1, REPORT), now) {
        Arrival::Go(_) => 1,
        _ => 0,
    };
    (0..30).for_each(|_| _ = crawl(&mut queue, now));
    let mut gone = 0;
    // People keep the backend busy.
    for step in 0..600u64 {
        now = now + Span::from_millis(20);
        if let Arrival::Go(ticket) = queue.arrive(request(1000 + step * 70_000, PAGE), now) {
            finish(&mut queue, ticket, now + Span::from_millis(10));
        }
        gone += events(&mut queue, now).len();
    }
    assert!(gone >= 1);
}

#[test]
fn a_fixed_limit_is_never_exceeded() {
    let mut queue = Queue::new(Settings { in_flight: Some(3), ..Settings::default() }, at(0));
    let tickets: Vec<_> = (0..3).map(|address| go(&mut queue, request(address, PAGE), at(1))).collect();
    let waiting = wait(&mut queue, request(9, PAGE), at(1));
    assert_eq!(events(&mut queue, at(1)), []);
    finish(&mut queue, tickets[0], at(20));
    assert_eq!(events(&mut queue, at(20)), [Event::Go(waiting)]);
}

#[test]
fn a_paused_request_leaves_its_permit_to_others_and_is_not_charged() {
    let mut queue = Queue::new(Settings { in_flight: Some(1), ..Settings::default() }, at(0));
    let first = go(&mut queue, request(1, PAGE), at(0));
    let second = wait(&mut queue, request(2, PAGE), at(0));
    queue.pause(first, at(10));
    assert_eq!(events(&mut queue, at(10)), [Event::Go(second)]);
    finish(&mut queue, second, at(50));
    queue.resume(first, at(50));
    assert_eq!(queue.so_far(first, at(60)), Span::from_millis(20));
}

#[test]
fn a_request_that_gives_up_reports_its_whole_wait() {
    let mut queue = Queue::new(Settings { in_flight: Some(1), ..Settings::default() }, at(0));
    let _first = go(&mut queue, request(1, PAGE), at(0));
    let second = wait(&mut queue, request(2, PAGE), at(1000));
    let left = queue.standing(queue.slot(second).unwrap()).wait;
    let refusal = queue.give_up(second, at(16_000)).unwrap();
    assert_eq!(refusal.reason, RefusedBy::WaitTooLong);
    assert!(refusal.standing.wait >= Span::from_secs(15) && refusal.standing.wait <= Span::from_secs(16) + left);
}

#[test]
fn a_ticket_of_a_request_that_is_gone_does_nothing() {
    let mut queue = Queue::new(Settings::default(), at(0));
    let ticket = go(&mut queue, request(1, PAGE), at(0));
    finish(&mut queue, ticket, at(5));
    let other = go(&mut queue, request(2, PAGE), at(5));
    assert_eq!(ticket.slot, other.slot);
    queue.done(ticket, Span::from_secs(9), true, at(6));
    queue.pause(ticket, at(6));
    assert!(!queue.leave(ticket, at(6)) && queue.give_up(ticket, at(6)).is_none());
    assert_eq!(queue.in_flight(), 1);
}

#[test]
fn a_client_with_four_times_the_weight_gets_four_times_the_service() {
    let mut queue =
        Queue::new(Settings { in_flight: Some(1), hold_max: Span::from_secs(100_000), ..Settings::default() }, at(0));
    let clients = [(1, 1000), (70_000, 4000)];
    let arrive = |queue: &mut Queue, (address, weight_milli), now| match queue
        .arrive(Request { weight_milli, ..request(address, PAGE) }, now)
    {
        Arrival::Go(ticket) => Some(ticket),
        Arrival::Wait(..) => None,
        Arrival::Refuse(refusal) => panic!("{refusal:?}"),
    };
    let mut in_flight = None;
    for _ in 0..10 {
        for client in clients {
            in_flight = arrive(&mut queue, client, at(0)).or(in_flight);
        }
    }
    let (mut served, mut now) = ([0, 0], at(0));
    for _ in 0..4000 {
        now = now + Span::from_millis(200);
        let done = in_flight.take().expect("the backend is never idle");
        let client = usize::from(queue.slot(done).expect("it is in flight").request.weight_milli == 4000);
        served[client] += 1;
        finish(&mut queue, done, now);
        // Both keep ten requests waiting.
        in_flight = arrive(&mut queue, clients[client], now);
        for event in events(&mut queue, now) {
            let Event::Go(ticket) = event else { panic!("{event:?}") };
            in_flight = Some(ticket);
        }
    }
    let ratio = f64::from(served[1]) / f64::from(served[0]);
    assert!((3.6..=4.4).contains(&ratio), "{served:?}");
}

#[test]
fn a_client_with_more_weight_expects_a_shorter_wait() {
    let expected = |weight_milli| {
        let (mut queue, now) = learned(Settings { in_flight: Some(1), ..Settings::default() });
        go(&mut queue, request(1, PAGE), now);
        for address in 1..=5 {
            (0..6).for_each(|_| _ = wait(&mut queue, request(address * 70_000, PAGE), now));
        }
        let request = Request { weight_milli, ..request(9 * 70_000, PAGE) };
        (0..3).for_each(|_| _ = wait(&mut queue, request, now));
        match queue.arrive(request, now) {
            Arrival::Wait(_, standing) => standing.wait.as_millis_ceil(),
            other => panic!("{other:?}"),
        }
    };
    let (usual, heavy) = (expected(1000), expected(4000));
    assert!(heavy * 2 <= usual, "{heavy} ms, {usual} ms");
}

#[test]
fn an_exempt_request_passes_a_full_queue_and_takes_nothing_from_others() {
    let settings = Settings { in_flight: Some(2), total: 3, ..Settings::default() };
    let mut queue = Queue::new(settings, at(0));
    let first = go(&mut queue, request(1, PAGE), at(0));
    go(&mut queue, request(1, PAGE), at(0));
    let waiting: Vec<_> = (0..3).map(|_| wait(&mut queue, request(1, PAGE), at(0))).collect();
    assert!(matches!(queue.arrive(request(1, PAGE), at(0)), Arrival::Refuse(_)));
    let checks: Vec<_> = (0..9).map(|_| queue.pass(request(1, SEARCH), at(0))).collect();
    assert_eq!(queue.waiting(), 3);
    // Its work is its own: three requests have shared the core for 30 ms.
    checks[1..].iter().for_each(|check| queue.done(*check, Span::ZERO, false, at(0)));
    assert_eq!(queue.so_far(checks[0], at(30)), Span::from_millis(10));
    let tag = largest(queue.tags(&client(1, 0)));
    finish(&mut queue, checks[0], at(30));
    assert_eq!(largest(queue.tags(&client(1, 0))), tag, "its client pays nothing");
    assert_eq!(events(&mut queue, at(30)), [], "it had no permit to give back");
    assert_eq!(queue.price(SEARCH).mean, Span::from_millis(10), "its route has a price all the same");
    finish(&mut queue, first, at(40));
    assert_eq!(events(&mut queue, at(40)), [Event::Go(waiting[0])]);
}

#[test]
fn an_exempt_request_that_stalls_is_not_counted_when_it_goes_on() {
    let mut queue = Queue::new(Settings { in_flight: Some(1), ..Settings::default() }, at(0));
    let check = queue.pass(request(1, PAGE), at(0));
    queue.pause(check, at(10));
    queue.resume(check, at(50));
    go(&mut queue, request(2, PAGE), at(50));
    assert_eq!(queue.so_far(check, at(60)), Span::from_millis(15));
    finish(&mut queue, check, at(60));
    assert_eq!(queue.in_flight(), 1);
}

proptest! {
    /// Requests of one tenant in one octave leave in order of arrival, whatever others do, and every request ends
    /// exactly once.
    #[test]
    fn requests_of_one_tenant_leave_in_order(
        steps in prop::collection::vec((0u8..4, 0u64..6, 0u64..400, 1u64..200), 1..300),
        limit in 1u32..6,
    ) {
        let mut queue = Queue::new(Settings { in_flight: Some(limit), total: 40, ..Settings::default() }, at(0));
        let mut now = at(0);
        // Expensive, so that no request exceeds its price during the test.
        let toll = Span::from_secs(1000);
        for _ in 0..4 {
            let ticket = go(&mut queue, request(99, PAGE), now);
            queue.done(ticket, toll, true, now);
        }
        let (mut waiting, mut flying): (Vec<(Ticket, u64, u64)>, Vec<Ticket>) = (Vec::new(), Vec::new());
        let mut arrivals = 0;
        for (what, address, passed, cost) in steps {
            now = now + Span::from_millis(passed);
            match what {
                0 | 1 => {
                    arrivals += 1;
                    match queue.arrive(request(address, PAGE), now) {
                        Arrival::Go(ticket) => {
                            let own = waiting.iter().filter(|(_, other, _)| *other == address).count();
                            prop_assert_eq!(own, 0, "passed its own");
                            flying.push(ticket);
                        }
                        Arrival::Wait(ticket, _) => waiting.push((ticket, address, arrivals)),
                        Arrival::Refuse(_) => {}
                    }
                }
                2 if !flying.is_empty() => {
                    let ticket = flying.swap_remove(cost as usize % flying.len());
                    queue.done(ticket, toll, true, now);
                }
                3 if !waiting.is_empty() => {
                    let (ticket, ..) = waiting.remove(cost as usize % waiting.len());
                    prop_assert!(queue.leave(ticket, now));
                }
                _ => queue.tick(now),
            }
            while let Some(event) = queue.poll(now) {
                let (Event::Go(ticket) | Event::Refuse(ticket, _)) = event;
                let index = waiting.iter().position(|(other, ..)| *other == ticket).expect("it waited");
                let (_, address, order) = waiting.remove(index);
                if let Event::Go(ticket) = event {
                    prop_assert!(waiting.iter().all(|(_, other, later)| *other != address || *later > order));
                    flying.push(ticket);
                }
            }
            prop_assert_eq!(queue.waiting(), waiting.len());
            prop_assert!(flying.len() <= limit as usize);
            prop_assert!(waiting.is_empty() || flying.len() == limit as usize, "idle while somebody waits");
        }
    }
}

#[test]
fn the_time_to_an_answer_grows_with_the_requests_in_flight_and_with_those_that_wait() {
    let (mut queue, now) = learned(Settings { in_flight: Some(4), ..Settings::default() });
    let millis = |queue: &mut Queue| queue.time_to_answer(request(1, PAGE), now).as_nanos() / 1_000_000;
    let alone = millis(&mut queue);
    assert!((15..=25).contains(&alone), "{alone}");
    for number in 2..=4 {
        go(&mut queue, request(300 * number, PAGE), now);
        let shared = millis(&mut queue);
        assert!(shared.abs_diff(number * alone) <= 2, "{shared} with {number} at once");
    }
    go(&mut queue, request(1500, PAGE), now);
    let full = millis(&mut queue);
    for client in 6..16 {
        assert!(matches!(queue.arrive(request(300 * client, PAGE), now), Arrival::Wait(..)));
    }
    let waiting = millis(&mut queue);
    assert!(waiting >= full + 5 * alone, "{waiting} after {full}");
}

#[test]
fn a_forecast_comes_true_and_changes_nothing() {
    let client = |address| Client { block: address, network: 1000 + address, address: 2000 + address, tenant: 0 };
    let route = RouteKey { route: 1, parent: 2 };
    let mut queue = Queue::new(Settings { in_flight: Some(1), total: 1, ..Settings::default() }, at(0));
    for (address, fate) in [(1, Fate::Go), (2, Fate::Wait), (3, Fate::Refuse(RefusedBy::Full))] {
        let forecast = queue.forecast(client(address), 1000, Some(route), at(1));
        assert_eq!((forecast, forecast.fate), (queue.forecast(client(address), 1000, Some(route), at(1)), fate));
        let request = Request { client: client(address), route, weight_milli: 1000, bytes: 0 };
        let (standing, came) = match queue.arrive(request, at(1)) {
            Arrival::Go(_) => (forecast.standing, Fate::Go),
            Arrival::Wait(_, standing) => (standing, Fate::Wait),
            Arrival::Refuse(refusal) => (refusal.standing, Fate::Refuse(refusal.reason)),
        };
        assert_eq!((standing, came), (forecast.standing, fate));
    }
}

/// A crawler's requests and pages at a backend with one worker. In the order in which they start, they end.
#[test]
fn a_page_behind_a_long_request_of_a_backend_with_one_worker_costs_what_it_takes_alone() {
    let mut queue = Queue::new(Settings::default(), at(0));
    let long = RouteKey { route: 50, parent: 60 };
    let go = |queue: &mut Queue, client, route, now| {
        let (ticket, _) = queue.observe(Request { route, ..request(client, PAGE) }, now);
        ticket
    };
    for number in 0..40 {
        let start = 1000 * number;
        let first = go(&mut queue, 1, long, at(start));
        let page = go(&mut queue, 2, PAGE, at(start + 10 + 61 * number % 250));
        finish(&mut queue, first, at(start + 300));
        finish(&mut queue, page, at(start + 320));
    }
    for (route, micros) in [(PAGE, 20_000), (long, 300_000)] {
        let mean = queue.price(route).mean.as_nanos() / 1000;
        assert!(mean.abs_diff(micros) < micros / 50, "{mean} us instead of {micros}");
    }
}
