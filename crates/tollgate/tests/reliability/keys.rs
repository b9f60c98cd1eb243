//! Fault 22: clients that invent keys.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::gate::{Gate, PATIENCE};

/// Small tables, so that the invented keys do not fit.
const RULES: &str = "
[[rule]]
name = 'keys'
class = 'header:x-api-key'
bucket = { size = 20, drip = 1, every = '1h' }
memory = '64KiB'
[[rule]]
name = 'agents'
class = 'user-agent'
bucket = { size = 1000000, drip = 1, every = '1h' }
memory = '64KiB'
[[rule]]
name = 'devices'
class = 'cookie:device'
rate = { rate = '100000/s', burst = 1000000 }
memory = '64KiB'
";
const CONNECTIONS: u32 = 4;
const REQUESTS: u32 = 5_000;
/// Requests that are sent before their responses are read.
const PIPELINED: u32 = 50;

/// Sends requests with new keys on one connection, and returns how many were refused.
fn invent(address: SocketAddr, series: u32) -> u32 {
    let mut reader = BufReader::new(TcpStream::connect(address).unwrap());
    reader.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
    let mut refused = 0;
    for batch in 0..REQUESTS / PIPELINED {
        let mut text = String::new();
        for number in batch * PIPELINED..(batch + 1) * PIPELINED {
            let name = format!("{series}-{number}-{:0>1000}", number.wrapping_mul(2_654_435_761));
            text += &format!(
                "GET / HTTP/1.1\r\nHost: site\r\nX-Api-Key: key-{name}\r\nUser-Agent: agent-{name}\r\nCookie: device={name}\r\n\r\n"
            );
        }
        reader.get_mut().write_all(text.as_bytes()).unwrap();
        refused += (0..PIPELINED).filter(|_| status(&mut reader) != 200).count() as u32;
    }
    refused
}

/// Reads one response, and returns its status.
fn status(reader: &mut BufReader<TcpStream>) -> u16 {
    let (mut line, mut status, mut length) = (String::new(), 0, 0);
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        let lower = line.to_ascii_lowercase();
        if let Some(rest) = lower.strip_prefix("http/1.1 ") {
            status = rest[..3].parse().unwrap();
        } else if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        } else if line == "\r\n" {
            reader.read_exact(&mut vec![0; length]).unwrap();
            return status;
        }
        assert!(!line.is_empty(), "the gate closed the connection");
    }
}

fn rss_kb(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn fault_22_a_flood_of_invented_keys_costs_no_memory_and_frees_no_offender() {
    let gate = Gate::start(RULES);
    let ask = |key: &str| gate.request("/", &[("X-Api-Key", key)]).status;
    while ask("offender") == 200 {}
    assert_eq!(ask("regular"), 200);
    let address = gate.address;
    let flood = |first: u32| {
        std::thread::scope(|scope| {
            let series: Vec<_> =
                (first..first + CONNECTIONS).map(|series| scope.spawn(move || invent(address, series))).collect();
            series.into_iter().map(|thread| thread.join().unwrap()).sum::<u32>()
        })
    };
    flood(0);
    let before = rss_kb(gate.id());
    flood(CONNECTIONS);
    flood(2 * CONNECTIONS);
    let after = rss_kb(gate.id());
    // 40,000 keys of each of three classes, of a kilobyte each: 120 MB. The sample of keys for the console has a bound.
    assert!(after < before + 30_000, "{before} KB, then {after} KB");
    assert_eq!(ask("offender"), 429, "a flood of keys does not free an offender");
    assert_eq!(ask("regular"), 200, "a regular client is not refused because of invented keys");
}
