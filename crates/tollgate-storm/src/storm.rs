//! The load generator: plays a plan over real sockets.
//!
//! It uses one thread: run [`play`] on a current-thread runtime, pinned to another core than the site, so
//! that the load generator does not disturb the measurement.

use crate::{
    client::Client,
    crowd::Crowd,
    page::Kind,
    plan::{Plan, Visit},
    tally::{Failure, PATIENCE, Tally, View},
    target::Target,
};
use std::sync::Arc;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout_at},
};

/// Plays `plan` against `target` and records the results in `tally`. Ends when the last visitor has a
/// response or has given up.
pub async fn play(plan: Arc<Plan>, target: Arc<Target>, start: std::time::Instant, tally: Arc<Tally>) {
    let start = Instant::from_std(start);
    let mut clients = JoinSet::new();
    if let Some(origin) = plan.origin {
        for index in 0..plan.crawler_connections {
            let client = Client::new(Crowd::Crawler, origin.address(index), Arc::clone(&target));
            clients.spawn(crawl(Arc::clone(&plan), index, client, start, Arc::clone(&tally)));
        }
    }
    for &visit in &plan.visits {
        sleep_until(start + visit.at).await;
        let (tally, target, alike) = (Arc::clone(&tally), Arc::clone(&target), plan.alike);
        clients.spawn(async move {
            let view = look(visit, alike, target, start).await;
            tally.views().push(view);
        });
        // Removes finished clients along the way, to bound memory.
        while clients.try_join_next().is_some() {}
    }
    while clients.join_next().await.is_some() {}
}

/// One page view: the page, then all its assets at once. `start` is the start of the plan.
async fn look(visit: Visit, alike: bool, target: Arc<Target>, start: Instant) -> View {
    let due = start + visit.at;
    let mut client = Client::new(visit.crowd, visit.source, Arc::clone(&target));
    let page = patiently(due + PATIENCE, client.ask_page(visit.kind, visit.id, alike)).await.map(|()| due.elapsed());
    let whole = match page {
        Ok(_) => load_assets(visit, client, target).await.map(|()| due.elapsed()),
        Err(failure) => Err(failure),
    };
    View { at: visit.at, crowd: visit.crowd, kind: visit.kind, page, whole, ended: start.elapsed() }
}

/// Loads the assets of a page: the first on the page's connection and the others on new ones, as browsers do.
async fn load_assets(visit: Visit, mut client: Client, target: Arc<Target>) -> Result<(), Failure> {
    if target.assets == 0 {
        return Ok(());
    }
    let deadline = Instant::now() + PATIENCE;
    // Pages share assets: there are 100 groups of four.
    let first_id = visit.id % 100 * 4;
    let mut others = JoinSet::new();
    for number in 1..u64::from(target.assets) {
        let mut other = Client::new(visit.crowd, visit.source, Arc::clone(&target));
        others.spawn(async move { patiently(deadline, other.ask_page(Kind::Asset, first_id + number, false)).await });
    }
    let mut outcome = patiently(deadline, client.ask_page(Kind::Asset, first_id, false)).await;
    while let Some(other) = others.join_next().await {
        outcome = outcome.and(other.unwrap_or(Err(Failure::Broken)));
    }
    outcome
}

/// Gives up at `deadline`.
async fn patiently(deadline: Instant, asking: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    timeout_at(deadline, asking).await.unwrap_or(Err(Failure::Late))
}

/// One connection of the crawler: requests one archive page after the other during the storm, whatever the responses.
async fn crawl(plan: Arc<Plan>, index: u16, mut client: Client, start: Instant, tally: Arc<Tally>) {
    let first_id = u64::from(index) * 10_000;
    sleep_until(start + plan.phases.storm_at()).await;
    let crawling = async {
        for id in first_id.. {
            sleep(plan.crawler_round_trip).await;
            tally.crawl(client.ask_page(Kind::Archive, id, plan.alike).await);
        }
    };
    // It abandons its request when the storm ends.
    let _ = timeout_at(start + plan.phases.recovery_at(), crawling).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        crowd::Origin,
        page::Costs,
        plan::Phases,
        site::{self, Settings},
    };
    use std::{net::TcpListener, time::Duration};

    #[tokio::test]
    async fn every_planned_visit_is_seen_and_the_crawler_comes_only_in_the_storm() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || site::serve(&listener, Settings::default()));
        let phases = Phases {
            calm: Duration::from_millis(900),
            storm: Duration::from_millis(60),
            recovery: Duration::from_millis(1),
        };
        let plan = Arc::new(Plan::new(1, phases, Origin::Network));
        let tally = Arc::new(Tally::default());
        let start = std::time::Instant::now();
        let playing = tokio::spawn(play(Arc::clone(&plan), Arc::new(Target::new(address)), start, Arc::clone(&tally)));
        sleep_until(Instant::from_std(start) + Duration::from_millis(850)).await;
        assert_eq!(site::read_counters(address).unwrap().requests[Crowd::Crawler as usize], 0);
        playing.await.unwrap();
        assert!(site::read_counters(address).unwrap().requests[Crowd::Crawler as usize] > 0);
        assert_eq!(tally.views().len(), plan.visits.len());
        let first = tally.views()[0];
        assert!(
            first.whole.unwrap() > first.page.unwrap() && first.page.unwrap() >= Costs::default().of(first.kind).cpu
        );
    }
}
