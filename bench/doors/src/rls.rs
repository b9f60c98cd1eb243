//! Calls of Envoy's rate limit service.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use tokio::task::JoinSet;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::empty::{self, Descriptor, Entry, RateLimitRequest, RateLimitResponse};
use crate::pace::{Latencies, Pace};

const IN_FLIGHT: usize = 64;
/// Different callers, so that not all calls meet one counter.
const CALLERS: usize = 1_000;

/// A runtime with one thread.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn connect(address: SocketAddr) -> Channel {
    Endpoint::new(format!("http://{address}")).unwrap().connect().await.unwrap()
}

async fn call(grpc: &mut Grpc<Channel>, caller: usize) {
    let entry = Entry { key: "client".to_owned(), value: format!("caller-{}", caller % CALLERS) };
    let descriptors = vec![Descriptor { entries: vec![entry] }];
    let request = RateLimitRequest { domain: "bench".to_owned(), descriptors, hits_addend: 0 };
    grpc.ready().await.unwrap();
    let path = PathAndQuery::from_static(empty::PATH);
    let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
    let response = grpc.unary(tonic::Request::new(request), path, codec).await.unwrap();
    assert_eq!(response.get_ref().overall_code, 1);
}

/// The number of calls, and calls per second, with many in flight on one connection, as Envoy has them.
pub(crate) async fn throughput(address: SocketAddr, span: Duration) -> (f64, f64) {
    let (channel, begin) = (connect(address).await, Instant::now());
    let mut tasks = JoinSet::new();
    for task in 0..IN_FLIGHT {
        let mut grpc = Grpc::new(channel.clone());
        tasks.spawn(async move {
            let mut calls = 0;
            while begin.elapsed() < span {
                call(&mut grpc, task * 31 + calls).await;
                calls += 1;
            }
            calls
        });
    }
    let calls = tasks.join_all().await.into_iter().sum::<usize>() as f64;
    (calls, calls / begin.elapsed().as_secs_f64())
}

/// The latencies of calls at this rate.
pub(crate) async fn latencies(address: SocketAddr, per_second: f64, span: Duration) -> Latencies {
    let (channel, stalls) = (connect(address).await, Arc::new(AtomicUsize::new(0)));
    let (mut pace, mut tasks) = (Pace::start(per_second), JoinSet::new());
    for number in 0..(per_second * span.as_secs_f64()) as usize {
        stalls.store(pace.check(), Ordering::Relaxed);
        while Instant::now() < pace.due(number) {
            // Timers are too coarse.
            tokio::task::yield_now().await;
            stalls.store(pace.check(), Ordering::Relaxed);
        }
        let (mut grpc, due, stalls) = (Grpc::new(channel.clone()), pace.due(number), stalls.clone());
        let stalls_before = stalls.load(Ordering::Relaxed);
        tasks.spawn(async move {
            call(&mut grpc, number).await;
            let latency = due.elapsed();
            // The next check recognises a stall during the call.
            tokio::task::yield_now().await;
            (stalls.load(Ordering::Relaxed) == stalls_before).then_some(latency.as_secs_f64() * 1e6)
        });
    }
    let stalled = pace.stalled();
    Latencies { micros: tasks.join_all().await.into_iter().flatten().collect(), stalled }
}
