//! The destinations of an access log: a file, stdout, or syslog. The start or the reload opens a destination. Only the
//! thread of the log ([`super::writer`]) writes to it and reopens it, so a write may block.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::net::UdpSocket;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tollgate_wire::log::civil;

use crate::settings::LogOutput;
use crate::wall_clock;

/// The priority of each syslog message: facility local7, severity info, as in nginx.
const PRIORITY: u8 = 23 << 3 | 6;
/// The longest wait for a local syslog daemon that does not read. After it, the rest of the chunk is lost.
const SYSLOG_SEND_MAX: Duration = Duration::from_millis(200);
/// The mode of a new file. Access logs contain addresses and paths of clients, so only owner and group may read them.
const FILE_MODE: u32 = 0o640;

/// An open destination.
#[derive(Debug)]
pub(super) enum Output {
    File { file: File, path: PathBuf },
    Stdout,
    SyslogSocket { socket: UnixDatagram, path: PathBuf },
    SyslogUdp { socket: UdpSocket, host: String },
}

impl Output {
    /// Opens the destination.
    pub(super) fn open(settings: &LogOutput) -> io::Result<Self> {
        match settings {
            LogOutput::File(path) => Ok(Self::File { file: open_file(path)?, path: path.clone() }),
            LogOutput::Stdout => Ok(Self::Stdout),
            LogOutput::SyslogSocket(path) => {
                Ok(Self::SyslogSocket { socket: connect_syslog(path)?, path: path.clone() })
            }
            LogOutput::SyslogUdp(address) => {
                let any: std::net::IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
                let socket = UdpSocket::bind((any, 0))?;
                socket.connect(address)?;
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                Ok(Self::SyslogUdp { socket, host })
            }
        }
    }

    /// Opens a file or a socket again, for log rotation and restarts of the syslog daemon. If that fails, the old one
    /// stays in use.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        match self {
            Self::File { file, path } => *file = open_file(path)?,
            Self::SyslogSocket { socket, path } => *socket = connect_syslog(path)?,
            Self::Stdout | Self::SyslogUdp { .. } => {}
        }
        Ok(())
    }

    /// Writes `count` whole lines. Returns the number of lost ones with the first error, if any were lost. If a file or
    /// stdout fails, all lines count as lost, although some may have been written.
    pub(super) fn write(&mut self, lines: &[u8], count: u64) -> Result<(), Lost> {
        let all_lost = |error| Lost { lines: count, error };
        match self {
            Self::File { file, .. } => file.write_all(lines).map_err(all_lost),
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(lines).and_then(|()| stdout.flush()).map_err(all_lost)
            }
            Self::SyslogSocket { socket, path } => {
                let mut message = SyslogMessage::new(None);
                each_line(lines, |line| {
                    let message = message.of(line);
                    socket.send(message).or_else(|error| match error.raw_os_error() {
                        // The daemon was restarted.
                        Some(CONNECTION_REFUSED | NOT_CONNECTED) => {
                            *socket = connect_syslog(path)?;
                            socket.send(message)
                        }
                        _ => Err(error),
                    })
                })
            }
            Self::SyslogUdp { socket, host } => {
                let mut message = SyslogMessage::new(Some(host));
                each_line(lines, |line| socket.send(message.of(line)))
            }
        }
    }
}

const CONNECTION_REFUSED: i32 = rustix::io::Errno::CONNREFUSED.raw_os_error();
const NOT_CONNECTED: i32 = rustix::io::Errno::NOTCONN.raw_os_error();

/// Lines that were not written.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) lines: u64,
    pub(super) error: io::Error,
}

fn open_file(path: &Path) -> io::Result<File> {
    // Without `O_NONBLOCK`, opening a pipe that has no reader would block the reload. With it, opening fails.
    let nonblock = OFlags::NONBLOCK.bits() as i32;
    let opened = OpenOptions::new().create(true).append(true).mode(FILE_MODE).custom_flags(nonblock).open(path);
    let blocking = opened.and_then(|file| {
        fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
        Ok(file)
    });
    blocking.map_err(|error| {
        io::Error::new(error.kind(), format!("the access log {} cannot be opened: {error}", path.display()))
    })
}

fn connect_syslog(path: &Path) -> io::Result<UnixDatagram> {
    let connect = || {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        socket.set_write_timeout(Some(SYSLOG_SEND_MAX))?;
        Ok(socket)
    };
    connect().map_err(|error: io::Error| {
        io::Error::new(error.kind(), format!("the syslog socket {} cannot be reached: {error}", path.display()))
    })
}

/// Sends one message for each line. After a timeout the remaining lines are lost too: a chunk may have thousands, and
/// each would wait as long.
fn each_line(lines: &[u8], mut send: impl FnMut(&[u8]) -> io::Result<usize>) -> Result<(), Lost> {
    let mut lost: Option<Lost> = None;
    let mut is_stuck = false;
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let sent = if is_stuck { Err(io::ErrorKind::WouldBlock.into()) } else { send(line) };
        if let Err(error) = sent {
            is_stuck |= error.kind() == io::ErrorKind::WouldBlock;
            lost.get_or_insert(Lost { lines: 0, error }).lines += 1;
        }
    }
    lost.map_or(Ok(()), Err)
}

/// A syslog message (RFC 3164), with the time of the write in UTC. Daemons of the same machine expect no host.
struct SyslogMessage {
    bytes: Vec<u8>,
    /// The length of the part before the line, which is the same for all lines of a chunk.
    head: usize,
}

impl SyslogMessage {
    fn new(host: Option<&str>) -> Self {
        let now = civil(wall_clock::now()).strftime("%b %e %H:%M:%S");
        let host = host.map(|host| format!("{host} ")).unwrap_or_default();
        let head = format!("<{PRIORITY}>{now} {host}tollgate: ");
        Self { head: head.len(), bytes: head.into_bytes() }
    }

    /// The message with this line.
    fn of(&mut self, line: &[u8]) -> &[u8] {
        self.bytes.truncate(self.head);
        self.bytes.extend_from_slice(line);
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_syslog_message_has_priority_time_host_and_tag() {
        let mut message = SyslogMessage::new(Some("gate1"));
        let text = String::from_utf8(message.of(b"one line").to_vec()).unwrap();
        assert!(text.starts_with("<190>") && text.ends_with(" gate1 tollgate: one line"), "{text}");
        assert_eq!(text.len(), "<190>Nov 16 10:49:47 gate1 tollgate: one line".len());
        assert!(message.of(b"x").ends_with(b"tollgate: x"));
    }

    #[test]
    fn lines_that_syslog_does_not_take_are_counted_and_a_stuck_daemon_is_not_waited_for_twice() {
        let mut tried = 0;
        let lost = each_line(b"a\nbb\nc\nd\n", |line| {
            tried += 1;
            if line == b"bb" { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(1) }
        });
        assert_eq!((lost.unwrap_err().lines, tried), (3, 2));
        let lost =
            each_line(b"a\nbb\nc\n", |line| if line == b"bb" { Err(io::ErrorKind::Other.into()) } else { Ok(1) });
        assert_eq!(lost.unwrap_err().lines, 1);
    }
}
