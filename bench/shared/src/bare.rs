//! The baseline for latencies: the machine and the Redis server without Tollgate. Two threads write and read plain
//! commands on one socket, at the same rate and with about the same CPU time of the server as decisions.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::server::Server;
use crate::{Failure, KEYS};

/// The number of commands per request, which cost the server about as much as a decision.
const COMMANDS: usize = 3;
/// The answer to each command.
const ANSWER: &[u8] = b"+OK\r\n";

/// The latencies of requests in milliseconds, measured from their due times, at `rate` per second for `span`;
/// and the server's CPU time per request in microseconds.
pub(crate) fn bare(server: &Server, rate: f64, span: Duration) -> Result<(Vec<f64>, f64), Failure> {
    let mut to = TcpStream::connect(server.socket())?;
    to.set_nodelay(true)?;
    let mut from = to.try_clone()?;
    from.set_read_timeout(Some(Duration::from_secs(10)))?;
    let (cpu, start) = (server.cpu(), Instant::now());
    let due = |request: u64| start + Duration::from_secs_f64(request as f64 / rate);
    let under_way = Mutex::new(VecDeque::new());
    let total = (span.as_secs_f64() * rate) as u64;
    let times = std::thread::scope(|scope| {
        let answers = scope.spawn(|| read(&mut from, &under_way, total));
        let mut sent = 0;
        while sent < total {
            let until = ((start.elapsed().as_secs_f64() * rate) as u64).min(total);
            let mut commands = Vec::new();
            for request in sent..until {
                let key = format!("bare:{}", request % KEYS);
                for _ in 0..COMMANDS {
                    let value = [b'v'; 34];
                    commands.extend(redis::cmd("SET").arg(&key).arg(&value).arg("PX").arg(3_000).get_packed_command());
                }
            }
            under_way.lock().unwrap_or_else(PoisonError::into_inner).extend((sent..until).map(due));
            to.write_all(&commands)?;
            sent = until;
            std::thread::sleep(Duration::from_micros(50));
        }
        answers.join().unwrap_or_else(|_| Err("the reader panicked".into()))
    })?;
    Ok((times, (server.cpu() - cpu) * 1e6 / total as f64))
}

/// Reads until all answers have arrived.
fn read(from: &mut TcpStream, under_way: &Mutex<VecDeque<Instant>>, total: u64) -> Result<Vec<f64>, Failure> {
    let (mut times, mut bytes, mut unread) = (Vec::new(), vec![0; 1 << 16], 0);
    while (times.len() as u64) < total {
        let count = from.read(&mut bytes)?;
        if count == 0 || bytes[..count].contains(&b'-') {
            return Err("the server does not do what it is asked".into());
        }
        unread += count;
        let now = Instant::now();
        let mut under_way = under_way.lock().unwrap_or_else(PoisonError::into_inner);
        while unread >= COMMANDS * ANSWER.len()
            && let Some(due) = under_way.pop_front()
        {
            unread -= COMMANDS * ANSWER.len();
            times.push((now - due).as_secs_f64() * 1000.0);
        }
    }
    Ok(times)
}
