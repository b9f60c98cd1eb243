//! Requests of ten thousand accounts: admitted, refused, or alternating. Refusals are the purpose of the
//! watch and its largest cost.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use memchr::memmem;

/// The number of accounts.
pub(crate) const ACCOUNTS: usize = 10_000;
const CONNECTIONS: usize = 8;
/// The number of pipelined requests per connection.
const AT_ONCE: usize = 32;

/// The decision on the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mix {
    /// All are admitted, and answered by the backend.
    Admitted,
    /// Every other one is refused.
    Half,
    /// All are refused.
    Refused,
}

impl Mix {
    /// The target rate in requests per second. The aim is a hundred thousand; one worker cannot forward as
    /// many as it can refuse.
    pub(crate) fn rate(self) -> f64 {
        match self {
            Self::Refused => 100_000.0,
            Self::Admitted | Self::Half => 30_000.0,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Admitted => "all admitted",
            Self::Half => "every other one refused",
            Self::Refused => "all refused",
        }
    }

    /// The header with the account of request number `number`.
    fn header(self, number: usize) -> &'static str {
        match self {
            Self::Admitted => "X-Member",
            // The alternation covers whole rounds and single accounts, so that each account has both
            // outcomes.
            Self::Half if (number + number / ACCOUNTS).is_multiple_of(2) => "X-Member",
            Self::Half | Self::Refused => "X-Api-Key",
        }
    }
}

/// The client connections.
pub(crate) struct Load {
    mix: Mix,
    connections: Vec<TcpStream>,
    next: usize,
    out: Vec<u8>,
    answer: Vec<u8>,
}

impl Load {
    pub(crate) fn connect(address: SocketAddr, mix: Mix) -> io::Result<Self> {
        let connect = |_| {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(Duration::from_secs(20)))?;
            Ok(stream)
        };
        let connections = (0..CONNECTIONS).map(connect).collect::<io::Result<_>>()?;
        Ok(Self { mix, connections, next: 0, out: Vec::new(), answer: vec![0; 1 << 16] })
    }

    /// Sends requests for this long, and returns the number of responses.
    pub(crate) fn run(&mut self, time: Duration) -> io::Result<u64> {
        let rate_max = self.mix.rate();
        let (began, mut answered) = (Instant::now(), 0);
        while began.elapsed() < time {
            let due = began.elapsed().as_secs_f64() * rate_max;
            if answered as f64 > due {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
            answered += self.once()?;
        }
        Ok(answered)
    }

    /// Sends two requests per account, which uses up the limit of one.
    pub(crate) fn warm_up(&mut self) -> io::Result<()> {
        for _ in 0..(2 * ACCOUNTS).div_ceil(CONNECTIONS * AT_ONCE) {
            self.once()?;
        }
        Ok(())
    }

    /// Sends a batch on every connection.
    fn once(&mut self) -> io::Result<u64> {
        for connection in &mut self.connections {
            self.out.clear();
            for _ in 0..AT_ONCE {
                self.next += 1;
                let (header, account) = (self.mix.header(self.next), self.next % ACCOUNTS);
                write!(self.out, "GET /api/things HTTP/1.1\r\nHost: site\r\n{header}: account-{account}\r\n\r\n")?;
            }
            connection.write_all(&self.out)?;
        }
        for connection in &mut self.connections {
            await_answers(connection, &mut self.answer)?;
        }
        Ok((CONNECTIONS * AT_ONCE) as u64)
    }
}

/// Reads as many responses as there were requests.
fn await_answers(connection: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<()> {
    let (mut filled, mut answers) = (0, 0);
    while answers < AT_ONCE {
        if filled == buffer.len() {
            buffer.resize(buffer.len() * 2, 0);
        }
        let read = connection.read(&mut buffer[filled..])?;
        if read == 0 {
            return Err(io::Error::other("the gate has closed a connection"));
        }
        filled += read;
        answers = whole_answers(&buffer[..filled])?;
    }
    Ok(())
}

/// The number of complete responses.
fn whole_answers(mut bytes: &[u8]) -> io::Result<usize> {
    let mut answers = 0;
    while let Some(end) = memmem::find(bytes, b"\r\n\r\n") {
        let head = bytes[..end].to_ascii_lowercase();
        let length = memmem::find(&head, b"content-length: ").and_then(|at| {
            let digits = head[at + 16..].split(|byte| *byte == b'\r').next()?;
            std::str::from_utf8(digits).ok()?.parse::<usize>().ok()
        });
        let length = length.ok_or_else(|| io::Error::other("an answer without a length"))?;
        match bytes.get(end + 4 + length..) {
            Some(rest) => bytes = rest,
            None => break,
        }
        answers += 1;
    }
    Ok(answers)
}
