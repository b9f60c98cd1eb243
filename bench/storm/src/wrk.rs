//! One round of the load generator `wrk`, and its results.

use bench_storm::machine::find_program;
use std::{io, net::SocketAddr, process::Command, time::Duration};

/// The results of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Round {
    pub(crate) requests_per_second: f64,
    pub(crate) requests: u64,
    /// Responses other than 2xx or 3xx.
    pub(crate) refused: u64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// Keeps 64 connections busy for `span`, on the core that this thread is pinned to.
pub(crate) fn run(target: SocketAddr, span: Duration) -> io::Result<Round> {
    let wrk =
        find_program("wrk").ok_or_else(|| io::Error::other("wrk is not installed; bench/storm/setup installs it"))?;
    let seconds = format!("-d{}s", span.as_secs().max(1));
    let output =
        Command::new(wrk).args(["-t1", "-c64", &seconds, "--latency"]).arg(format!("http://{target}/")).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text)
        .ok_or_else(|| io::Error::other(format!("wrk said: {text} {}", String::from_utf8_lossy(&output.stderr))))
}

fn parse(text: &str) -> Option<Round> {
    let after = |label: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(label))?;
        Some(line.trim_start_matches(':').trim().to_owned())
    };
    let requests = text.lines().find(|line| line.contains(" requests in "))?;
    Some(Round {
        requests_per_second: after("Requests/sec")?.parse().ok()?,
        requests: requests.split_whitespace().next()?.parse().ok()?,
        refused: after("Non-2xx or 3xx responses").and_then(|count| count.parse().ok()).unwrap_or(0),
        p50: time(&after("50%")?)?,
        p99: time(&after("99%")?)?,
    })
}

/// A time as wrk writes it: `812.00us`, `1.07ms`, `1.20s`.
fn time(text: &str) -> Option<Duration> {
    let unit = text.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
    let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
    let second = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * second).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "Running 8s test @ http://127.0.0.1:1/
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.12ms  300.00us   9.51ms   90.25%
    Req/Sec    49.63k     2.58k   54.68k    70.00%
  Latency Distribution
     50%    1.07ms
     75%    1.30ms
     90%  900.00us
     99%    2.49ms
  395016 requests in 8.00s, 470.44MB read
  Non-2xx or 3xx responses: 12
Requests/sec:  49363.10
Transfer/sec:     58.79MB
";

    #[test]
    fn the_output_of_wrk_is_parsed() {
        let round = parse(SAID).unwrap();
        assert!((round.requests_per_second - 49_363.1).abs() < 1e-6);
        assert_eq!((round.requests, round.refused), (395_016, 12));
        assert_eq!((round.p50, round.p99), (Duration::from_micros(1_070), Duration::from_micros(2_490)));
        assert_eq!(parse(&SAID.replace("Non-2xx", "x")).unwrap().refused, 0);
        assert_eq!(parse("unable to connect"), None);
    }

    #[test]
    fn every_unit_of_wrk_is_known() {
        assert_eq!(time("812.00us"), Some(Duration::from_micros(812)));
        assert_eq!(time("1.20s"), Some(Duration::from_millis(1200)));
        assert_eq!(time("1.00m"), Some(Duration::from_secs(60)));
        assert_eq!(time("fast"), None);
    }
}
