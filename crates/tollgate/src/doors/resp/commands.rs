//! The commands without a limit or a state, which Redis clients send when they connect: `PING`, `ECHO`, `SELECT`,
//! `INFO`, `COMMAND`, `CONFIG GET`, and the reply to `HELLO`.

use tollgate_wire::resp::{Replies, RespVersion};

use super::session::Arguments;

/// The reported version of Redis. Clients derive the available commands from it.
const REDIS_VERSION: &str = "7.0.0";

/// All commands, as `COMMAND` describes them: name, number of arguments with the name (the minimum if negative), and
/// position of the key (0 for none).
const COMMANDS: [(&str, i64, i64); 13] = [
    ("cl.throttle", -5, 1),
    ("throttle", -3, 1),
    ("ping", -1, 0),
    ("echo", 2, 0),
    ("hello", -1, 0),
    ("auth", -2, 0),
    ("select", 2, 0),
    ("client", -2, 0),
    ("command", -1, 0),
    ("config", -2, 0),
    ("info", -1, 0),
    ("reset", 1, 0),
    ("quit", -1, 0),
];

/// Replies to a command. `name` is in upper case.
pub(super) fn answer(name: &[u8], arguments: Arguments<'_>, replies: &mut Replies<'_>) {
    match (name, arguments.count()) {
        (b"PING", 1) => replies.simple("PONG"),
        (b"PING", 2) | (b"ECHO", 2) => replies.bulk(arguments.at(1)),
        (b"SELECT", 2) => select(arguments, replies),
        (b"INFO", _) => replies.bulk(info().as_bytes()),
        (b"COMMAND", _) => command(arguments, replies),
        (b"CONFIG", 3..) if arguments.at(1).eq_ignore_ascii_case(b"GET") => {
            // redis-benchmark reads the configuration. Every setting is empty.
            replies.map(1);
            replies.bulk(arguments.at(2));
            replies.bulk(b"");
        }
        (b"PING" | b"ECHO" | b"SELECT" | b"CONFIG", _) => {
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            replies.error(&format!("ERR wrong number of arguments for '{name}' command"));
        }
        _ => unknown(arguments, replies),
    }
}

fn unknown(arguments: Arguments<'_>, replies: &mut Replies<'_>) {
    let mut text = format!("ERR unknown command '{:.128}', with args beginning with: ", arguments.text(0));
    for index in 1..arguments.count().min(5) {
        text.push_str(&format!("'{:.64}' ", arguments.text(index)));
    }
    replies.error(&text);
}

fn select(arguments: Arguments<'_>, replies: &mut Replies<'_>) {
    match arguments.text(1).parse::<i64>() {
        Ok(0) => replies.simple("OK"),
        Ok(_) => replies.error("ERR DB index is out of range"),
        Err(_) => replies.error("ERR value is not an integer or out of range"),
    }
}

fn info() -> String {
    format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\nserver_name:tollgate\r\n\
         tollgate_version:{}\r\nos:{}\r\nprocess_id:{}\r\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::process::id()
    )
}

fn command(arguments: Arguments<'_>, replies: &mut Replies<'_>) {
    match arguments.at(1).to_ascii_uppercase().as_slice() {
        b"" => {
            replies.array(COMMANDS.len());
            COMMANDS.iter().for_each(|one| describe(one, replies));
        }
        b"COUNT" => replies.integer(COMMANDS.len() as i64),
        b"LIST" => {
            replies.array(COMMANDS.len());
            COMMANDS.iter().for_each(|(name, ..)| replies.bulk(name.as_bytes()));
        }
        b"DOCS" => replies.map(0),
        b"INFO" => {
            replies.array(arguments.count() - 2);
            for index in 2..arguments.count() {
                let asked = arguments.at(index);
                match COMMANDS.iter().find(|(name, ..)| name.as_bytes().eq_ignore_ascii_case(asked)) {
                    Some(one) => describe(one, replies),
                    None => replies.null(),
                }
            }
        }
        _ => replies
            .error("ERR unknown subcommand of 'command'. Try COMMAND, COMMAND COUNT, COMMAND LIST or COMMAND INFO."),
    }
}

fn describe((name, arity, key): &(&str, i64, i64), replies: &mut Replies<'_>) {
    replies.array(6);
    replies.bulk(name.as_bytes());
    replies.integer(*arity);
    replies.array(1);
    replies.simple(if *key > 0 { "write" } else { "fast" });
    [*key, *key, *key].into_iter().for_each(|index| replies.integer(index));
}

/// The reply to `HELLO`.
pub(super) fn hello(replies: &mut Replies<'_>, version: RespVersion) {
    replies.map(7);
    let mut pair = |name: &str, value: &str| {
        replies.bulk(name.as_bytes());
        replies.bulk(value.as_bytes());
    };
    pair("server", "redis");
    pair("version", REDIS_VERSION);
    pair("mode", "standalone");
    pair("role", "master");
    replies.bulk(b"proto");
    replies.integer(if version == RespVersion::Three { 3 } else { 2 });
    replies.bulk(b"id");
    replies.integer(1);
    replies.bulk(b"modules");
    replies.array(0);
}
