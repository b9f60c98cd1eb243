//! The state of one connection of a Redis client, and the dispatch of its commands.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use tollgate_wire::resp::{Command, Replies, RespVersion};

use super::{commands, throttle};
use crate::doors::metrics::Count;
use crate::doors::station::Station;
use crate::token::Token;

/// The state of a connection.
pub(super) struct RespSession {
    pub(crate) station: Rc<Station>,
    /// The version of the protocol, which the client selects with `HELLO`.
    pub(crate) version: RespVersion,
    /// Whether the client has authenticated with a certificate.
    has_certificate: bool,
    /// The token that the client has sent.
    token: Option<Arc<Token>>,
    /// The name that the client gave the connection.
    name: Vec<u8>,
}

/// The fate of the connection after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterCommand {
    KeepOpen,
    Close,
}

/// Maximum length of a connection's name, in bytes. The rest is dropped.
const CONNECTION_NAME_BYTES_MAX: usize = 256;
/// Maximum length of a command's name, in bytes. The rest is dropped; every known name is shorter.
const COMMAND_NAME_BYTES_MAX: usize = 16;

impl RespSession {
    pub(super) fn new(station: Rc<Station>, has_certificate: bool) -> Self {
        Self { station, version: RespVersion::Two, has_certificate, token: None, name: Vec::new() }
    }

    /// Whether the client is authorized. After a change of the token, it has to send the new one.
    pub(super) fn is_authorized(&self) -> bool {
        self.has_certificate || self.station.still_lets_in(self.token.as_ref())
    }

    /// Replies to one command, which was parsed from `bytes`.
    pub(super) async fn answer(&mut self, command: &Command, bytes: &[u8], out: &mut Vec<u8>) -> AfterCommand {
        let Some(name) = command.argument(bytes, 0) else { return AfterCommand::KeepOpen };
        let mut upper = [0; COMMAND_NAME_BYTES_MAX];
        let upper = &mut upper[..name.len().min(COMMAND_NAME_BYTES_MAX)];
        upper.copy_from_slice(&name[..upper.len()]);
        upper.make_ascii_uppercase();
        let arguments: Arguments<'_> = Arguments { command, bytes };
        let needs_no_token = matches!(&*upper, b"AUTH" | b"HELLO" | b"QUIT" | b"RESET");
        if !needs_no_token && !self.is_authorized() {
            self.station.count(Count::Unauthorized);
            Replies::new(out, self.version).error("NOAUTH Authentication required.");
            return AfterCommand::KeepOpen;
        }
        match &*upper {
            b"CL.THROTTLE" => throttle::by_call(&self.station, arguments, &mut Replies::new(out, self.version)),
            b"THROTTLE" => throttle::throttle(&self.station, arguments, &mut Replies::new(out, self.version)).await,
            b"AUTH" => self.auth(arguments, out),
            b"HELLO" => match self.hello(arguments) {
                Ok(()) => commands::hello(&mut Replies::new(out, self.version), self.version),
                Err(text) => Replies::new(out, self.version).error(&text),
            },
            b"CLIENT" => self.client(arguments, out),
            b"RESET" => {
                *self = Self::new(self.station.clone(), self.has_certificate);
                Replies::new(out, self.version).simple("RESET");
            }
            b"QUIT" => {
                Replies::new(out, self.version).simple("OK");
                return AfterCommand::Close;
            }
            other => commands::answer(other, arguments, &mut Replies::new(out, self.version)),
        }
        AfterCommand::KeepOpen
    }

    fn auth(&mut self, arguments: Arguments<'_>, out: &mut Vec<u8>) {
        let mut replies = Replies::new(out, self.version);
        match arguments.count() {
            2 | 3 if !self.station.asks_for_token() => replies.error(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            ),
            count @ (2 | 3) if self.accept_token(arguments.at(count - 1)) => replies.simple("OK"),
            2 | 3 => replies.error(WRONG_PASSWORD),
            _ => replies.error("ERR wrong number of arguments for 'auth' command"),
        }
    }

    /// Authorizes the client if this is the token; otherwise counts a failure. Returns whether it is.
    fn accept_token(&mut self, sent: &[u8]) -> bool {
        let token = self.station.token_of(sent);
        let is_right = token.is_some();
        if is_right {
            self.token = token;
        } else {
            self.station.count(Count::Unauthorized);
        }
        is_right
    }

    /// `HELLO [version [AUTH user token] [SETNAME name]]`. The error is the reply.
    fn hello(&mut self, arguments: Arguments<'_>) -> Result<(), Cow<'static, str>> {
        let version = match arguments.at(1) {
            _ if arguments.count() == 1 => self.version,
            b"2" => RespVersion::Two,
            b"3" => RespVersion::Three,
            other if other.iter().all(u8::is_ascii_digit) => return Err("NOPROTO unsupported protocol version".into()),
            _ => return Err("ERR Protocol version is not an integer or out of range".into()),
        };
        let mut at = 2;
        while at < arguments.count() {
            let option = arguments.at(at);
            if option.eq_ignore_ascii_case(b"AUTH") && at + 2 < arguments.count() {
                if self.station.asks_for_token() && !self.accept_token(arguments.at(at + 2)) {
                    return Err(WRONG_PASSWORD.into());
                }
                at += 3;
            } else if option.eq_ignore_ascii_case(b"SETNAME") && at + 1 < arguments.count() {
                self.name = arguments.at(at + 1).iter().copied().take(CONNECTION_NAME_BYTES_MAX).collect();
                at += 2;
            } else {
                return Err(format!("ERR Syntax error in HELLO option '{}'", String::from_utf8_lossy(option)).into());
            }
        }
        if !self.is_authorized() {
            let text = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> \
                        AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol \
                        version at the same time";
            return Err(text.into());
        }
        self.version = version;
        Ok(())
    }

    /// `CLIENT`: libraries send their name and version when they connect.
    fn client(&mut self, arguments: Arguments<'_>, out: &mut Vec<u8>) {
        let mut replies = Replies::new(out, self.version);
        if arguments.count() < 2 {
            return replies.error("ERR wrong number of arguments for 'client' command");
        }
        match arguments.at(1).to_ascii_uppercase().as_slice() {
            b"SETNAME" if arguments.count() == 3 => {
                self.name = arguments.at(2).iter().copied().take(CONNECTION_NAME_BYTES_MAX).collect();
                replies.simple("OK");
            }
            b"GETNAME" if self.name.is_empty() => replies.null(),
            b"GETNAME" => replies.bulk(&self.name),
            b"ID" => replies.integer(1),
            b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH" => replies.simple("OK"),
            other => {
                let name = String::from_utf8_lossy(other).into_owned();
                replies.error(&format!("ERR unknown subcommand '{name}'. Try CLIENT HELP."));
            }
        }
    }
}

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// The arguments of a command; 0 is its name.
#[derive(Clone, Copy)]
pub(super) struct Arguments<'a> {
    command: &'a Command,
    bytes: &'a [u8],
}

impl<'a> Arguments<'a> {
    pub(super) fn count(&self) -> usize {
        self.command.count()
    }

    /// The argument at this position; empty if there is none.
    pub(super) fn at(&self, index: usize) -> &'a [u8] {
        self.command.argument(self.bytes, index).unwrap_or_default()
    }

    /// The argument at this position as text, with invalid UTF-8 replaced.
    pub(super) fn text(&self, index: usize) -> Cow<'a, str> {
        String::from_utf8_lossy(self.at(index))
    }
}
