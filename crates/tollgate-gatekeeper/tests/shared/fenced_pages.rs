//! Pages that pass from one writer to the next.

use core::time::Duration;

use tollgate_gatekeeper::shared::{Address, FencedPages, Unanswered, WriteOutcome};

use crate::fixtures::PATIENT;
use crate::redis_server::{Cluster, RedisServer};

const LONG: Duration = Duration::from_secs(60);

fn shelf(url: &str) -> FencedPages {
    FencedPages::new(Address::parse(url, None).unwrap(), "test:", "main").with_patience(PATIENT.deadline)
}

/// All pages for the next writer.
async fn left(url: &str) -> Vec<Option<Vec<u8>>> {
    let mut next = shelf(url);
    let Some(finished) = next.begin().await.unwrap() else { return Vec::new() };
    let mut pages = Vec::new();
    for page in 0..finished.pages {
        pages.push(next.read(&finished, page).await.unwrap().map(|page| page.bytes));
    }
    pages
}

async fn goes_from_one_to_the_next(url: &str) {
    let mut first = shelf(url);
    assert_eq!(first.begin().await, Ok(None));
    assert_eq!(first.write(0, b"first", LONG).await, Ok(WriteOutcome::Done));
    assert_eq!(first.write(1, b"", LONG).await, Ok(WriteOutcome::Done));
    assert_eq!(first.finish(3).await, Ok(WriteOutcome::Done));
    assert_eq!(first.write(0, b"mo\0re", LONG).await, Ok(WriteOutcome::Done), "a page is written over without ado");

    // A writer that dies before it has finished leaves the previous pages.
    let mut second = shelf(url);
    assert!(second.begin().await.unwrap().is_some_and(|finished| finished.pages == 3));
    assert_eq!(second.write(0, b"half", LONG).await, Ok(WriteOutcome::Done));
    assert_eq!(first.write(0, b"late", LONG).await, Ok(WriteOutcome::Superseded));
    assert_eq!(first.finish(1).await, Ok(WriteOutcome::Superseded));
    drop(second);
    assert_eq!(left(url).await, [Some(b"mo\0re".to_vec()), Some(Vec::new()), None]);

    let mut third = shelf(url);
    third.begin().await.unwrap();
    assert_eq!(third.write(0, b"third", LONG).await, Ok(WriteOutcome::Done));
    assert_eq!(third.finish(1).await, Ok(WriteOutcome::Done));
    assert_eq!(left(url).await, [Some(b"third".to_vec())]);
}

#[tokio::test]
async fn pages_pass_to_the_next_writer_and_only_the_last_writes() {
    let server = RedisServer::start(&[]);
    goes_from_one_to_the_next(&server.url()).await;
}

#[tokio::test]
async fn pages_pass_to_the_next_writer_on_a_cluster() {
    let cluster = Cluster::start();
    goes_from_one_to_the_next(&cluster.url()).await;
}

#[tokio::test]
async fn a_flushed_store_is_detected_and_a_writer_starts_again() {
    let server = RedisServer::start(&[]);
    let mut writer = shelf(&server.url());
    assert_eq!(writer.write(0, b"early", LONG).await, Ok(WriteOutcome::Forgotten), "no term has begun");
    writer.begin().await.unwrap();
    assert_eq!(writer.write(0, b"a", LONG).await, Ok(WriteOutcome::Done));
    server.command(&["FLUSHALL"]);
    assert_eq!(writer.write(0, b"a", LONG).await, Ok(WriteOutcome::Forgotten));
    assert_eq!(writer.begin().await, Ok(None));
    assert_eq!(writer.write(0, b"a", LONG).await, Ok(WriteOutcome::Done));
    // A foreign value is an error and stays unchanged.
    server.command(&["FLUSHALL"]);
    server.command(&["LPUSH", "test:{books:main}:term", "foreign"]);
    assert_eq!(writer.write(0, b"a", LONG).await, Err(Unanswered::Failed));
    let port = server.port();
    drop(server);
    assert!(writer.begin().await.is_err());
    let _server = RedisServer::start_on(port, &[]);
    assert_eq!(writer.begin().await, Ok(None), "it reconnects");
}

#[tokio::test]
async fn a_page_has_an_age_and_expires() {
    let server = RedisServer::start(&[]);
    let mut writer = shelf(&server.url());
    writer.begin().await.unwrap();
    writer.write(0, b"short", Duration::from_millis(1)).await.unwrap();
    writer.write(1, b"long", LONG).await.unwrap();
    writer.finish(2).await.unwrap();
    let mut next = shelf(&server.url());
    let finished = next.begin().await.unwrap().unwrap();
    let wait = async |page: u32, least: Duration| loop {
        let mut reader = shelf(&server.url());
        let read = reader.read(&finished, page).await.unwrap();
        if read.as_ref().is_none_or(|page| page.age >= least) {
            return read;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(wait(0, LONG).await, None);
    let long = wait(1, Duration::from_millis(50)).await.unwrap();
    assert!(long.age < LONG && long.bytes == b"long", "{long:?}");
}
