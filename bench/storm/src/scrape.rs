//! Reads Tollgate's metrics from `/metrics` and from the admin API.

use serde_json::Value;
use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};
use tollgate_storm::crowd;

const TOLLS: &str = "tollgate_toll_seconds_total";
const ANSWER_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The sum of all tolls charged so far; `None` if the gate does not report it.
pub(crate) fn tolls(admin: SocketAddr) -> Option<Duration> {
    let text = fetch(admin, "/metrics").ok()?;
    let seconds = sum(&text, TOLLS)?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// The tolls of each crowd so far, by the addresses of its clients; `None` if the gate does not report them.
pub(crate) fn crowd_tolls(admin: SocketAddr) -> Option<[Duration; 3]> {
    let answer = fetch(admin, "/api/v1/buckets?class=ip/32&top=500").ok()?;
    of_crowds(serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?)
}

fn of_crowds(answer: Value) -> Option<[Duration; 3]> {
    let mut tolls = [Duration::ZERO; 3];
    for bucket in answer["buckets"].as_array()? {
        let address: Ipv4Addr = bucket["key"].as_str()?.split('/').next()?.parse().ok()?;
        tolls[crowd::of_address(address) as usize] += Duration::from_millis(bucket["cpu_ms"].as_u64().unwrap_or(0));
    }
    Some(tolls)
}

fn fetch(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

/// The sum of the metric `name` over all labels.
fn sum(text: &str, name: &str) -> Option<f64> {
    let values: Vec<f64> = text.lines().filter_map(|line| value(line, name)).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

fn value(line: &str, name: &str) -> Option<f64> {
    let rest = line.strip_prefix(name)?;
    let value = match rest.strip_prefix('{') {
        Some(labelled) => labelled.split_once('}')?.1,
        None => rest.strip_prefix(' ')?,
    };
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolls_are_summed_by_crowd() {
        let bucket = |key: &str, cpu_ms: u64| serde_json::json!({ "key": key, "cpu_ms": cpu_ms });
        let buckets = [bucket("127.10.1.1/32", 20), bucket("127.200.1.1/32", 300), bucket("127.200.1.2/32", 300)];
        let tolls = of_crowds(serde_json::json!({ "buckets": buckets })).unwrap();
        assert_eq!(tolls, [20, 0, 600].map(Duration::from_millis));
        assert_eq!(of_crowds(serde_json::json!({ "error": "no such class" })), None);
    }

    #[test]
    fn a_metric_is_summed_over_its_labels_and_not_mixed_up_with_others() {
        let text = "# TYPE tollgate_toll_seconds_total counter\n\
            tollgate_toll_seconds_total{via=\"clock\"} 1.5\n\
            tollgate_toll_seconds_total{via=\"header\"} 2\n\
            tollgate_toll_seconds_total_created 99\n\
            other 7\n";
        assert_eq!(sum(text, TOLLS), Some(3.5));
        assert_eq!(sum("tollgate_toll_seconds_total 4 1700000000\n", TOLLS), Some(4.0));
        assert_eq!(sum("other 7\n", TOLLS), None);
    }
}
