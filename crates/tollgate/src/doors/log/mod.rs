//! The log door: settles tickets from the access log of a proxy that asks [`/v1/auth`](super::http).
//!
//! A proxy that only asks before it forwards a request does not report its end. Most proxies can write the ticket of
//! the request to their access log, though, so each line of the log settles one ticket, with the cost or the duration
//! that it has. Lines arrive through a file that is followed ([`follow`]) or as syslog messages over UDP.
//!
//! Tickets have names that cannot be guessed, so a forged line settles nothing. A line that is read and has no known
//! ticket is counted ([`Count::LogLineIgnored`]).

mod follow;
mod partial_line;

use std::io;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::rc::Rc;

use tokio::sync::mpsc;
use tollgate_core::network::{NetworkSet, unmapped};
use tollgate_wire::log::{Format, Line, Parser, Request};

use super::metrics::Count;
use super::station::Station;
use crate::settings::DoorLog;

/// Maximum number of pieces of the file, each of whole lines, that wait to be settled. While there are as many, the
/// file is not read.
const PIECES_MAX: usize = 16;
/// A UDP datagram cannot be larger.
const DATAGRAM_BYTES_MAX: usize = 65_535;
/// Maximum number of lines that are processed before other work of the thread has its turn.
const LINES_AT_ONCE_MAX: usize = 256;

/// The sources of log lines. The address for syslog messages is bound; nothing is read yet.
pub(super) struct BoundLog {
    file: Option<PathBuf>,
    /// For syslog messages.
    socket: Option<UdpSocket>,
    /// The networks, besides loopback, whose syslog messages are accepted.
    senders: NetworkSet,
}

impl BoundLog {
    /// Binds the address of the settings. The file is opened later, and may not exist yet.
    pub(super) fn bind(settings: &DoorLog) -> io::Result<Self> {
        let socket = settings.syslog.map(UdpSocket::bind).transpose()?;
        if let Some(socket) = &socket {
            socket.set_nonblocking(true)?;
            tracing::info!(address = %socket.local_addr()?, "access log lines are read from syslog messages");
        }
        Ok(Self { file: settings.file.clone(), socket, senders: settings.from.iter().copied().collect() })
    }

    /// Starts to read lines and settle their tickets, in tasks of the calling thread. Another thread reads the file.
    pub(super) fn read(self, station: &Rc<Station>) -> io::Result<()> {
        if let Some(socket) = self.socket {
            let socket = tokio::net::UdpSocket::from_std(socket)?;
            tokio::task::spawn_local(receive(socket, self.senders, station.clone()));
        }
        if let Some(file) = self.file {
            let (sender, pieces) = mpsc::channel(PIECES_MAX);
            tracing::info!(file = %file.display(), "access log lines are read from a file");
            std::thread::Builder::new().name("door-log".into()).spawn(move || follow::follow(&file, &sender))?;
            tokio::task::spawn_local(settle_pieces(pieces, station.clone()));
        }
        Ok(())
    }
}

/// Settles the lines of syslog messages.
async fn receive(socket: tokio::net::UdpSocket, senders: NetworkSet, station: Rc<Station>) {
    let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
    let mut parser = Parser::new();
    loop {
        match socket.recv_from(&mut datagram).await {
            Ok((bytes, sender)) => {
                let sender = unmapped(sender.ip());
                if !(sender.is_loopback() || senders.contains(sender)) {
                    // Counts as one line.
                    station.count(Count::LogLineIgnored);
                    continue;
                }
                let lines = datagram[..bytes].split(|byte| matches!(byte, b'\n' | 0));
                settle_lines(&station, &mut parser, lines).await;
            }
            Err(error) => {
                tracing::debug!(%error, "a syslog message cannot be received");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }
}

/// Settles the lines of pieces of a file. A piece has whole lines.
async fn settle_pieces(mut pieces: mpsc::Receiver<Vec<u8>>, station: Rc<Station>) {
    let mut parser = Parser::new();
    while let Some(piece) = pieces.recv().await {
        settle_lines(&station, &mut parser, piece.split(|byte| *byte == b'\n')).await;
    }
}

async fn settle_lines(station: &Station, parser: &mut Parser, lines: impl Iterator<Item = &[u8]>) {
    for (index, line) in lines.enumerate() {
        settle(station, parser, line);
        if index % LINES_AT_ONCE_MAX == LINES_AT_ONCE_MAX - 1 {
            tokio::task::yield_now().await;
        }
    }
}

/// Settles the ticket of a line. The time in the line is a measured cost or a duration; a line without one also settles
/// its ticket ([`Station::settle_logged`]).
fn settle(station: &Station, parser: &mut Parser, line: &[u8]) {
    let line = line.trim_ascii();
    if line.is_empty() {
        return;
    }
    let settled = parse(parser, line).and_then(|request| {
        let name = std::str::from_utf8(ticket(&request)?).ok()?;
        station.settle_logged(name, request.cost, request.is_measured).then_some(())
    });
    station.count(if settled.is_some() { Count::Settled } else { Count::LogLineIgnored });
}

/// Parses a line, with or without a syslog header. A line that ends with a brace is JSON, others have the combined log
/// format.
fn parse<'a>(parser: &'a mut Parser, line: &'a [u8]) -> Option<Request<'a>> {
    let format = if line.ends_with(b"}") { Format::Json } else { Format::Combined };
    match parser.parse(format, line) {
        Ok(Line::Request(request)) => Some(request),
        _ => None,
    }
}

/// The ticket in a line: the attribute `ticket`, or the logged header `X-Tollgate-Ticket`, in which the proxy got it.
fn ticket<'a>(request: &Request<'a>) -> Option<&'a [u8]> {
    request.attributes.first(b"ticket").or_else(|| request.headers.first(b"x-tollgate-ticket"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ticket_and_the_cost_of_every_format_are_found() {
        let combined = r#"203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 5 "-" "x ticket=forged""#;
        for (line, cost_ms, is_measured) in [
            (format!("{combined} rt=0.250 ticket=0-0-1-ab"), 250, false),
            (format!("{combined} ticket=0-0-1-ab urt=\"0.125\""), 125, false),
            (format!("<190>Aug  5 10:11:12 web1 nginx: {combined} ticket=0-0-1-ab rt=0.250"), 250, false),
            (format!("{combined} ticket=0-0-1-ab cost=0.040"), 40, true),
            (
                r#"{"time": "2026-08-05T10:11:12Z", "remote_addr": "::1", "request_time": 0.25, "ticket": "0-0-1-ab"}"#.to_string(),
                250,
                false,
            ),
            (
                r#"{"StartUTC": "2026-08-05T10:11:12Z", "ClientHost": "::1", "Duration": 250000000, "request_X-Tollgate-Ticket": "0-0-1-ab"}"#.to_string(),
                250,
                false,
            ),
        ] {
            let mut parser = Parser::new();
            let request = parse(&mut parser, line.as_bytes()).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(ticket(&request), Some(&b"0-0-1-ab"[..]), "{line}");
            let cost = request.cost.map(|cost| cost.as_nanos() / 1_000_000);
            assert_eq!((cost, request.is_measured), (Some(cost_ms), is_measured), "{line}");
        }
    }

    #[test]
    fn a_line_without_a_ticket_has_none() {
        let combined =
            r#"203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "GET /?ticket=1 HTTP/1.1" 200 5 "ticket=2" "ticket=3""#;
        let mut parser = Parser::new();
        assert_eq!(ticket(&parse(&mut parser, combined.as_bytes()).unwrap()), None);
        assert!(parse(&mut parser, b"ticket=0-0-1-ab").is_none());
    }
}
