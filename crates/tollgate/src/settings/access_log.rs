//! `[gate.access_log]`: destination and format of the access log, which has one line per request.

use std::net::SocketAddr;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::DeValue;

use super::error::{ErrorCollector, shown};
use super::shape::Shape;
use super::table::{Value, table};
use super::value::{Choice, Size, read_text};

/// The destination of an access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogOutput {
    /// A file, to which lines are appended.
    File(PathBuf),
    /// Standard output.
    Stdout,
    /// The socket of the syslog daemon of this machine.
    SyslogSocket(PathBuf),
    /// A syslog server, over UDP.
    SyslogUdp(SocketAddr),
}

/// The format of an access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// The combined format of Apache and nginx, followed by the request time and the cost.
    Combined,
    /// One JSON object per line.
    Json,
}

impl Choice for LogFormat {
    const WORDS: &'static [(&'static str, Self)] = &[("combined", Self::Combined), ("json", Self::Json)];
}

table! {
    /// The access log: one line for each request, refused ones included. A separate thread writes the lines, and no
    /// request waits for it. `tollgate replay` reads both formats, costs included.
    pub(crate) struct AccessLog {
        /// The destination: the path of a file, with at least one `/`; `"stdout"`; `"syslog"` for the daemon of this
        /// machine, or `"syslog:ADDRESS:PORT"` for a server over UDP. SIGUSR1 and SIGHUP reopen a file, for log
        /// rotation.
        output: LogOutput = required,
        /// `combined` is the format of Apache and nginx, followed by the request time and the cost in seconds. `json`
        /// also contains the wait, the decision, its reason and the rule.
        format: LogFormat = "\"combined\"",
        /// Memory for unwritten lines. When it is full, lines are dropped and counted in
        /// `tollgate_access_log_dropped_total`.
        buffer_bytes_max as "buffer": Size<usize> = "\"4MiB\"" where BUFFER_BYTES_MIN.. =>
            "too little memory for unwritten lines: write at least \"256KiB\"",
    }
}

/// Minimum size of the buffer, in bytes. Each worker fills a chunk of 32 KiB, so this is one for each of eight workers.
const BUFFER_BYTES_MIN: usize = 256 << 10;
/// The socket of the syslog daemon.
const SYSLOG_SOCKET: &str = "/dev/log";

impl LogOutput {
    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "stdout" => return Ok(Self::Stdout),
            None if text == "syslog" => return Ok(Self::SyslogSocket(SYSLOG_SOCKET.into())),
            Some(("syslog", path)) if path.starts_with('/') => return Ok(Self::SyslogSocket(path.into())),
            Some(("syslog", address)) => {
                let message = "is not an address and port: write one such as \"syslog:127.0.0.1:514\"";
                return address.parse().map(Self::SyslogUdp).map_err(|_| format!("{} {message}", shown(address)));
            }
            _ => {}
        }
        match text {
            text if text.contains('\0') => Err("a path must not contain NUL".to_owned()),
            text if text.ends_with('/') => Err(format!("{} is a directory: write the path of a file", shown(text))),
            text if text.contains('/') => Ok(Self::File(text.into())),
            text if text.contains('.') => Err(format!(
                "unknown output {0}: write \"./\" before the name of a file, as in {1}",
                shown(text),
                shown(&format!("./{text}"))
            )),
            text => Err(format!(
                "unknown output {}: write the path of a file such as \"/var/log/tollgate/access.log\", \
                 \"stdout\" or \"syslog\"",
                shown(text)
            )),
        }
    }
}

impl Value for LogOutput {
    type Parsed = Self;

    fn shape() -> Shape {
        Shape::Text { what: "a path, \"stdout\" or \"syslog\"", example: "/var/log/tollgate/access.log" }
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self> {
        let output = read_text(value, errors, &Self::shape(), Self::parse)?;
        Some(match output {
            Self::File(path) => Self::File(errors.resolved(&path)),
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_is_a_file_standard_output_or_syslog() {
        let check = |text: &str, expect: LogOutput| assert_eq!(LogOutput::parse(text), Ok(expect));
        check("/var/log/a.log", LogOutput::File("/var/log/a.log".into()));
        check("./a:b.log", LogOutput::File("./a:b.log".into()));
        check("stdout", LogOutput::Stdout);
        check("syslog", LogOutput::SyslogSocket("/dev/log".into()));
        check("syslog:/run/log", LogOutput::SyslogSocket("/run/log".into()));
        check("syslog:192.0.2.1:514", LogOutput::SyslogUdp("192.0.2.1:514".parse().unwrap()));
        for (text, instead) in [
            ("sysolg", "\"stdout\""),
            ("access.log", "`./access.log`"),
            ("syslog:logs", "127.0.0.1:514"),
            ("/var/log/", "directory"),
            ("", "\"stdout\""),
        ] {
            let message = LogOutput::parse(text).unwrap_err();
            assert!(message.contains(instead), "{text}: {message}");
        }
    }
}
