//! The scheme of Sharkey's rate limiter on Redis, from its description: two numbers per key, a transaction to read
//! them, one to leak, one to revert the leak if another request was faster, and one to count. Check and charge are
//! separate steps.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;

use crate::server::Server;
use crate::{Allowance, CONCURRENT, Failure, KEYS, ROUND};

const DRIP_MS: i64 = 1_000;
const EXPIRE_S: i64 = 10;

/// Checks per second with `CONCURRENT` in flight, on separate connections or on one.
pub(crate) async fn rate(server: &Server, allowance: Allowance, own_connections: bool) -> Result<f64, Failure> {
    let client = redis::Client::open(server.url())?;
    let shared = client.get_multiplexed_async_connection().await?;
    let mut connections = Vec::new();
    for _ in 0..CONCURRENT {
        let connection =
            if own_connections { client.get_multiplexed_async_connection().await? } else { shared.clone() };
        connections.push(connection);
    }
    let end = Instant::now() + ROUND;
    let tasks: Vec<_> = connections
        .into_iter()
        .enumerate()
        .map(|(task, mut connection)| {
            tokio::spawn(async move {
                let mut key = task as u64;
                let mut checked = 0_u64;
                while Instant::now() < end {
                    key = (key + 7_919) % KEYS;
                    let actor = format!("10.0.{}.{}", key / 256, key % 256);
                    if check(&mut connection, &actor, allowance).await.is_ok() {
                        checked += 1;
                    }
                }
                checked
            })
        })
        .collect();
    let mut checked = 0;
    for task in tasks {
        checked += task.await?;
    }
    Ok(checked as f64 / ROUND.as_secs_f64())
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Whether a call of `actor` is admitted.
async fn check(
    connection: &mut MultiplexedConnection,
    actor: &str,
    Allowance { size, drip }: Allowance,
) -> redis::RedisResult<bool> {
    let (counter_key, time_key) = (format!("rl_{actor}_{size}_c"), format!("rl_{actor}_{size}_t"));
    let (counter, time): (Option<i64>, Option<i64>) =
        redis::pipe().atomic().get(&counter_key).get(&time_key).query_async(connection).await?;
    let (mut counter, time, now) = (counter.unwrap_or(0), time.unwrap_or(0), now_ms());
    let drips = (now - time) / DRIP_MS;
    let leak = (drips * i64::from(drip)).min(counter);
    if leak > 0 {
        let moved = drips * DRIP_MS;
        let (canary, _, leaked): (Option<i64>, i64, i64) = redis::pipe()
            .atomic()
            .get(&time_key)
            .incr(&time_key, moved)
            .ignore()
            .expire(&time_key, EXPIRE_S)
            .ignore()
            .get(&time_key)
            .decr(&counter_key, leak)
            .ignore()
            .expire(&counter_key, EXPIRE_S)
            .ignore()
            .get(&counter_key)
            .query_async(connection)
            .await?;
        counter = leaked;
        if canary.unwrap_or(0) != time {
            (_, counter) = redis::pipe()
                .atomic()
                .decr(&time_key, moved)
                .ignore()
                .get::<_>(&time_key)
                .incr(&counter_key, leak)
                .ignore()
                .get(&counter_key)
                .query_async::<(i64, i64)>(connection)
                .await?;
        }
    }
    if counter >= i64::from(size) {
        return Ok(false);
    }
    let mut count = redis::pipe();
    count.atomic();
    if time == 0 {
        count.set(&time_key, now).ignore().expire(&time_key, EXPIRE_S).ignore();
    }
    count.incr(&counter_key, 1).ignore().expire(&counter_key, EXPIRE_S).ignore().get(&counter_key);
    count.query_async::<(i64,)>(connection).await?;
    Ok(true)
}
