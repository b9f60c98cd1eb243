//! Books that go from one writer to the next.

use core::time::Duration;

use tollgate_gatekeeper::shared::{Address, Shelf, Unanswered, Writing};

use crate::redis_server::{Cluster, RedisServer};
use crate::world::PATIENT;

const LONG: Duration = Duration::from_secs(60);

fn shelf(url: &str) -> Shelf {
    Shelf::new(Address::parse(url, None).unwrap(), "test:", "main").with_patience(PATIENT.deadline)
}

/// All that is left to whoever comes next.
async fn left(url: &str) -> Vec<Option<Vec<u8>>> {
    let mut next = shelf(url);
    let Some(legacy) = next.begin().await.unwrap() else { return Vec::new() };
    let mut pages = Vec::new();
    for page in 0..legacy.pages {
        pages.push(next.read(&legacy, page).await.unwrap().map(|page| page.bytes));
    }
    pages
}

async fn goes_from_one_to_the_next(url: &str) {
    let mut first = shelf(url);
    assert_eq!(first.begin().await, Ok(None));
    assert_eq!(first.write(0, b"first", LONG).await, Ok(Writing::Done));
    assert_eq!(first.write(1, b"", LONG).await, Ok(Writing::Done));
    assert_eq!(first.finish(3).await, Ok(Writing::Done));
    assert_eq!(first.write(0, b"mo\0re", LONG).await, Ok(Writing::Done), "a page is written over without ado");

    // One that dies before it has finished leaves what was there.
    let mut second = shelf(url);
    assert!(second.begin().await.unwrap().is_some_and(|legacy| legacy.pages == 3));
    assert_eq!(second.write(0, b"half", LONG).await, Ok(Writing::Done));
    assert_eq!(first.write(0, b"late", LONG).await, Ok(Writing::Superseded));
    assert_eq!(first.finish(1).await, Ok(Writing::Superseded));
    drop(second);
    assert_eq!(left(url).await, [Some(b"mo\0re".to_vec()), Some(Vec::new()), None]);

    let mut third = shelf(url);
    third.begin().await.unwrap();
    assert_eq!(third.write(0, b"third", LONG).await, Ok(Writing::Done));
    assert_eq!(third.finish(1).await, Ok(Writing::Done));
    assert_eq!(left(url).await, [Some(b"third".to_vec())]);
}

#[tokio::test]
async fn books_go_from_one_writer_to_the_next_and_only_the_last_writes() {
    let server = RedisServer::start(&[]);
    goes_from_one_to_the_next(&server.url()).await;
}

#[tokio::test]
async fn books_go_from_one_writer_to_the_next_on_a_cluster() {
    let cluster = Cluster::start();
    goes_from_one_to_the_next(&cluster.url()).await;
}

#[tokio::test]
async fn a_store_that_forgot_says_so_and_a_writer_begins_again() {
    let server = RedisServer::start(&[]);
    let mut writer = shelf(&server.url());
    assert_eq!(writer.write(0, b"early", LONG).await, Ok(Writing::Forgotten), "no term has begun");
    writer.begin().await.unwrap();
    assert_eq!(writer.write(0, b"a", LONG).await, Ok(Writing::Done));
    server.command(&["FLUSHALL"]);
    assert_eq!(writer.write(0, b"a", LONG).await, Ok(Writing::Forgotten));
    assert_eq!(writer.begin().await, Ok(None));
    assert_eq!(writer.write(0, b"a", LONG).await, Ok(Writing::Done));
    // What is not ours is an error, and stays as it is.
    server.command(&["FLUSHALL"]);
    server.command(&["LPUSH", "test:{books:main}:term", "foreign"]);
    assert_eq!(writer.write(0, b"a", LONG).await, Err(Unanswered::Failed));
    let port = server.port();
    drop(server);
    assert!(writer.begin().await.is_err());
    let _server = RedisServer::start_on(port, &[]);
    assert_eq!(writer.begin().await, Ok(None), "it connects anew");
}

#[tokio::test]
async fn a_page_tells_its_age_and_ends_by_itself() {
    let server = RedisServer::start(&[]);
    let mut writer = shelf(&server.url());
    writer.begin().await.unwrap();
    writer.write(0, b"short", Duration::from_millis(1)).await.unwrap();
    writer.write(1, b"long", LONG).await.unwrap();
    writer.finish(2).await.unwrap();
    let mut next = shelf(&server.url());
    let legacy = next.begin().await.unwrap().unwrap();
    let wait = async |page: u32, least: Duration| loop {
        let mut reader = shelf(&server.url());
        let read = reader.read(&legacy, page).await.unwrap();
        if read.as_ref().is_none_or(|page| page.age >= least) {
            return read;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(wait(0, LONG).await, None);
    let long = wait(1, Duration::from_millis(50)).await.unwrap();
    assert!(long.age < LONG && long.bytes == b"long", "{long:?}");
}
