//! What Tollgate says about itself: figures off its `/metrics`.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

const TOLLS: &str = "tollgate_toll_seconds_total";
const ANSWER_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The sum of all tolls charged so far; nothing when the gate does not tell.
pub(crate) fn tolls(admin: SocketAddr) -> Option<Duration> {
    let text = fetch(admin, "/metrics").ok()?;
    let seconds = sum(&text, TOLLS)?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn fetch(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

/// The sum over all labels of the metric called `name`.
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
