//! The RESP door, with real Redis clients and with raw bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::json;

use crate::clients::blocks;
use crate::support::{Doors, PATIENCE, check, eventually, socket_from};

const RULE: &str = "[[rule]]\nname = 'api'\nclass = 'identifier'\nbucket = { size = 3, drip = 1, every = '60s' }\n";

fn start(lines: &str) -> (Doors, SocketAddr) {
    let mut doors = Doors::start(&format!("[doors]\nresp = '127.0.0.1:0'\n{lines}"));
    let door = doors.door("resp");
    (doors, door)
}

/// A connection that writes and reads lines.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(door: SocketAddr) -> Self {
        let stream = TcpStream::connect(door).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Sends a command and returns its reply: a line, or five integers.
    fn ask(&mut self, command: &str) -> String {
        self.send(format!("{command}\r\n").as_bytes());
        let first = self.line();
        match first.as_str() {
            "*5" => (0..5).map(|_| self.line().trim_start_matches(':').to_owned()).collect::<Vec<_>>().join(" "),
            _ => first,
        }
    }
}

#[test]
fn cl_throttle_replies_as_redis_cell_does() {
    let (doors, door) = start("");
    let mut client = Client::connect(door);
    for (command, reply) in [
        ("CL.THROTTLE user123 15 30 60", "0 16 15 -1 2"),
        ("cl.throttle user123 15 30 60 1", "0 16 14 -1 4"),
        ("CL.THROTTLE user123 15 30 60 0", "0 16 14 -1 4"),
        ("CL.THROTTLE user123 15 30 60 17", "1 16 14 -1 4"),
        ("CL.THROTTLE user123 15 30 60 14", "0 16 0 -1 32"),
        ("CL.THROTTLE user123 15 30 60", "1 16 0 2 32"),
        ("CL.THROTTLE other 0 1 2", "0 1 0 -1 2"),
        ("CL.THROTTLE other 0 1 2", "1 1 0 2 2"),
        ("THROTTLE third 4 1 1 2", "0 5 3 -1 2"),
    ] {
        assert_eq!(client.ask(command), reply, "{command}");
    }
    let usage =
        "-Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
    for (command, reply) in [
        ("CL.THROTTLE user123 15 30", usage),
        ("CL.THROTTLE user123 15 30 60 1 1", usage),
        ("CL.THROTTLE user123 15 0 60", "-Cell error: Store error: Zero rates are not supported"),
        ("CL.THROTTLE user123 15 30 0", "-Cell error: Store error: Zero rates are not supported"),
        ("CL.THROTTLE user123 x 30 60", "-Cell error: Store error: Couldn't parse as integer: x"),
        ("CL.THROTTLE user123 1.5 30 60", "-Cell error: Store error: Couldn't parse as integer: 1.5"),
    ] {
        assert_eq!(client.ask(command), reply, "{command}");
    }
    assert_eq!(doors.metric("tollgate_door_refused_total"), 3);
    assert_eq!(doors.metric("tollgate_door_malformed_total"), 6);
}

/// docs/coming-from/redis-cell.md, with its configuration and redis-cell's own example.
#[test]
fn the_documented_door_answers_redis_cells_example() {
    let config = blocks("docs/coming-from/redis-cell.md", "toml")[0].replace("127.0.0.1:6380", "127.0.0.1:0");
    let mut doors = Doors::start(&config);
    let example = &blocks("docs/coming-from/redis-cell.md", "text")[0];
    let command = example.lines().next().unwrap().trim_start_matches("> ");
    let reply: Vec<_> = example.lines().skip(1).map(|line| line.split_whitespace().nth(2).unwrap()).collect();
    assert_eq!(Client::connect(doors.door("resp")).ask(command), reply.join(" "));
}

#[test]
fn throttle_with_the_name_of_a_rule_uses_that_rule_and_its_state() {
    let domain = "[[domain]]\nname = 'uploads'\n[[domain.rule]]\nname = 'size'\nclass = 'identifier'\n\
        bucket = { size = 9, drip = 1, every = '1s' }\n";
    let mut doors = Doors::start(&format!("[doors]\nresp = '127.0.0.1:0'\nhttp = '127.0.0.1:0'\n{RULE}{domain}"));
    let (resp, http) = (doors.door("resp"), doors.door("http"));
    let mut client = Client::connect(resp);
    assert_eq!(client.ask("THROTTLE api u1"), "0 3 2 -1 60");
    assert_eq!(check(http, &json!({"rule": "api", "key": "u1"}))["remaining"], 1);
    assert_eq!(client.ask("THROTTLE api u1 0"), "0 3 1 -1 120");
    assert_eq!(client.ask("THROTTLE api u1"), "0 3 0 -1 180");
    assert!(client.ask("THROTTLE api u1").starts_with("1 3 0 "));
    assert_eq!(client.ask("THROTTLE api u2 4"), "1 3 0 -1 0");
    assert_eq!(client.ask("THROTTLE uploads/size u1"), "0 9 8 -1 1");
    assert_eq!(client.ask("THROTTLE none u1"), "-ERR no rule 'none'");
    assert!(client.ask("THROTTLE api").starts_with("-ERR wrong number of arguments"));
}

#[test]
fn pipelined_commands_get_their_replies_in_order() {
    let (_doors, door) = start("");
    let mut client = Client::connect(door);
    let one = b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$3\r\n999\r\n$1\r\n1\r\n$2\r\n60\r\n";
    let all = one.repeat(500);
    let writer = client.0.get_ref().try_clone().unwrap();
    let sent = std::thread::spawn(move || {
        let mut writer = writer;
        // Pieces that split commands.
        for piece in all.chunks(997) {
            writer.write_all(piece).unwrap();
        }
    });
    for number in 0..500 {
        let reply: Vec<_> = (0..6).map(|_| client.line()).collect();
        assert_eq!(reply[..4], ["*5", ":0", ":1000", &format!(":{}", 999 - number)]);
    }
    sent.join().unwrap();
}

#[test]
fn the_connection_commands_of_clients_get_replies() {
    let (_doors, door) = start("");
    let mut client = Client::connect(door);
    for (command, reply) in [
        ("PING", "+PONG"),
        ("SELECT 0", "+OK"),
        ("SELECT 1", "-ERR DB index is out of range"),
        ("CLIENT SETNAME test", "+OK"),
        ("CLIENT SETINFO LIB-NAME test", "+OK"),
        ("COMMAND COUNT", ":13"),
        (
            "AUTH x",
            "-ERR AUTH <password> called without any password configured for the default user. Are you sure your \
             configuration is correct?",
        ),
        ("HELLO 4", "-NOPROTO unsupported protocol version"),
        ("GET key", "-ERR unknown command 'GET', with args beginning with: 'key'"),
        ("EVAL a\u{1b}[31m", "-ERR unknown command 'EVAL', with args beginning with: 'a\u{1b}[31m'"),
    ] {
        assert_eq!(client.ask(command).trim_end(), reply, "{command}");
    }
    assert_eq!(client.ask("HELLO 3"), "%7");
    let mut fields: Vec<_> = (0..25).map(|_| client.line()).collect();
    fields.retain(|line| !line.starts_with('$'));
    let expect = ["server", "redis", "version", "7.0.0", "mode", "standalone", "role", "master", "proto", ":3"];
    assert_eq!(fields[..10], expect);
    assert_eq!(fields[10..], ["id", ":1", "modules", "*0"]);
    assert_eq!(client.ask("CLIENT GETNAME"), "$4");
    assert_eq!(client.line(), "test");
    assert_eq!(client.ask("QUIT"), "+OK");
    assert_eq!(client.0.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_resp_door_with_a_token_requires_auth() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "a-token-for-the-doors").unwrap();
    let mut doors = Doors::start_in(folder, "[doors]\nresp = '127.0.0.1:0'\ntoken_file = 'FOLDER/token'\n");
    let door = doors.door("resp");
    let mut client = Client::connect(door);
    assert_eq!(client.ask("PING"), "-NOAUTH Authentication required.");
    assert_eq!(client.ask("CL.THROTTLE k 1 1 1"), "-NOAUTH Authentication required.");
    assert!(client.ask("HELLO 3").starts_with("-NOAUTH HELLO must be called"));
    assert!(client.ask("AUTH wrong").starts_with("-WRONGPASS "));
    assert_eq!(client.ask("AUTH default a-token-for-the-doors"), "+OK");
    assert_eq!(client.ask("PING"), "+PONG");
    let mut other = Client::connect(door);
    assert_eq!(other.ask("HELLO 3 AUTH default a-token-for-the-doors SETNAME x"), "%7");
}

#[test]
fn an_open_connection_needs_the_new_token_after_a_change() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "a-token-for-the-doors").unwrap();
    let mut doors = Doors::start_in(folder, "[doors]\nresp = '127.0.0.1:0'\ntoken_file = 'FOLDER/token'\n");
    let mut client = Client::connect(doors.door("resp"));
    assert_eq!(client.ask("AUTH a-token-for-the-doors"), "+OK");
    let reload = |doors: &Doors, count: u64| {
        doors.signal("HUP");
        eventually("a reload", || doors.metric("tollgate_reloads_total") == count);
    };
    reload(&doors, 1);
    assert_eq!(client.ask("PING"), "+PONG", "the token is the same");
    std::fs::write(&token, "another-token-for-the-doors").unwrap();
    reload(&doors, 2);
    assert_eq!(client.ask("PING"), "-NOAUTH Authentication required.");
    assert!(client.ask("AUTH a-token-for-the-doors").starts_with("-WRONGPASS "));
    assert_eq!(client.ask("AUTH another-token-for-the-doors"), "+OK");
    assert_eq!(client.ask("PING"), "+PONG");
}

/// Connections whose replies are not read, without the token, make room for a new one.
#[test]
fn clients_without_the_token_that_never_read_do_not_keep_others_out() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "a-token-for-the-doors").unwrap();
    let settings = "[doors]\nresp = '127.0.0.1:0'\ntoken_file = 'FOLDER/token'\nconnections = 2\nthreads = 1\n";
    let mut doors = Doors::start_in(folder, settings);
    let door = doors.door("resp");
    let deaf = || {
        let stream = socket_from([127, 0, 0, 1].into(), door, |socket| socket.set_recv_buffer_size(4096));
        stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        // Until the door waits for this client.
        while (&stream).write_all(&b"PING\r\n".repeat(10_000)).is_ok() {}
        stream
    };
    let deaf = [deaf(), deaf()];
    let stream = TcpStream::connect(door).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut client = Client(BufReader::new(stream));
    assert_eq!(client.ask("AUTH a-token-for-the-doors"), "+OK");
    assert_eq!(client.ask("PING"), "+PONG");
    // One of them is closed at once, long before the time in which it has to read.
    let is_closed = |mut stream: &TcpStream| {
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let end = stream.read_to_end(&mut Vec::new());
        !end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    assert_eq!(deaf.iter().filter(|stream| is_closed(stream)).count(), 1);
}

fn redis_cli(door: SocketAddr, arguments: &[&str]) -> String {
    let port = door.port().to_string();
    let output =
        Command::new("redis-cli").args(["-p", &port]).args(arguments).output().expect("redis-cli is installed");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn redis_cli_works_in_both_versions_of_the_protocol() {
    let (_doors, door) = start(RULE);
    assert_eq!(redis_cli(door, &["CL.THROTTLE", "k", "1", "1", "60"]), "0\n2\n1\n-1\n60\n");
    assert_eq!(redis_cli(door, &["-3", "CL.THROTTLE", "k", "1", "1", "60"]), "0\n2\n0\n-1\n120\n");
    assert_eq!(redis_cli(door, &["-3", "THROTTLE", "api", "u1"]), "0\n3\n2\n-1\n60\n");
    assert!(redis_cli(door, &["INFO", "server"]).contains("server_name:tollgate"));
    assert!(redis_cli(door, &["COMMAND"]).contains("cl.throttle"));
}

#[test]
fn redis_benchmark_runs_with_pipelines_and_without() {
    let (doors, door) = start("");
    let port = door.port().to_string();
    for pipeline in ["16", "1"] {
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &port, "-n", "4800", "-c", "20", "-P", pipeline, "-r", "100", "-q"]);
        let output = command.args(["CL.THROTTLE", "key:__rand_int__", "15", "30", "60"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("requests per second"), "{text}");
    }
    let answered = doors.metric("tollgate_door_admitted_total") + doors.metric("tollgate_door_refused_total");
    assert_eq!((answered, doors.metric("tollgate_door_malformed_total")), (9_600, 0));
}

/// A Python with redis-py, installed into the target directory if it is missing.
fn python() -> &'static PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("redis-py");
        let python = home.join("bin/python");
        let run = |command: &mut Command| assert!(command.status().is_ok_and(|status| status.success()), "{command:?}");
        let has_it =
            || Command::new(&python).args(["-c", "import redis"]).status().is_ok_and(|status| status.success());
        if !has_it() {
            run(Command::new("python3").args(["-m", "venv"]).arg(&home));
            run(Command::new(&python).args(["-m", "pip", "install", "-q", "redis==7.*"]));
        }
        python
    })
}

#[test]
fn redis_py_runs_the_documented_example_in_both_versions_of_the_protocol() {
    let config = blocks("docs/door-resp.md", "toml")[0].replace("127.0.0.1:6380", "127.0.0.1:0");
    let mut doors = Doors::start(&config);
    let door = doors.door("resp");
    let code = &blocks("docs/door-resp.md", "python")[0];
    for (protocol, user) in [("2", "u1"), ("3", "u2")] {
        let output = Command::new(python())
            .args(["-c", &code.replace("port=6380", &format!("port={}, protocol={protocol}", door.port()))])
            .arg(user)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(text, "created\ncreated\nwait 60 s\n");
    }
}

/// A folder with ioredis, installed by npm if it is missing.
fn ioredis() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ioredis");
        if !folder.join("node_modules/ioredis/package.json").exists() {
            std::fs::create_dir_all(&folder).unwrap();
            let mut npm = Command::new("npm");
            npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(&folder).arg("ioredis@5");
            assert!(npm.status().is_ok_and(|status| status.success()), "{npm:?}");
        }
        folder
    })
}

#[test]
fn ioredis_works_with_a_pipeline() {
    let (_doors, door) = start(RULE);
    let script = format!(
        "const Redis = require('ioredis'); const redis = new Redis({});\n\
         redis.pipeline().call('CL.THROTTLE', 'k', 1, 1, 60)\
         .call('THROTTLE', 'api', 'u1').call('NONE').exec().then((all) => {{\n\
         console.log(JSON.stringify(all.map(([error, reply]) => error ? error.message : reply))); redis.quit(); }});",
        door.port()
    );
    let output = Command::new("node").args(["-e", &script]).current_dir(ioredis()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let unknown = "\"ERR unknown command 'NONE', with args beginning with: \"";
    assert_eq!(text.trim(), format!("[[0,2,1,-1,60],[0,3,2,-1,60],{unknown}]"), "{output:?}");
}

#[test]
fn garbage_on_the_resp_door_leaves_memory_flat_and_other_clients_served() {
    let (doors, door) = start("connections = 64\n");
    let mut good = Client::connect(door);
    assert_eq!(good.ask("PING"), "+PONG");
    let before = doors.rss_kb();
    for (bytes, reply) in [
        (&b"*1000000000\r\n"[..], "-ERR Protocol error: invalid multibulk length"),
        (b"*1\r\n$1000000000\r\n", "-ERR Protocol error: invalid bulk length"),
        (b"*1\r\n:1\r\n", "-ERR Protocol error: expected '$', got ':'"),
    ] {
        let mut client = Client::connect(door);
        client.send(bytes);
        assert_eq!(client.line(), reply);
        assert_eq!(client.0.read(&mut [0]).unwrap(), 0, "the connection is closed");
    }
    let endless = vec![b'a'; 1 << 20];
    for seed in 0..100_u8 {
        let mut stream = TcpStream::connect(door).unwrap();
        let _ = stream.write_all(&endless);
        let mut stream = TcpStream::connect(door).unwrap();
        let noise: Vec<u8> = (0..4096_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed).collect();
        let _ = stream.write_all(&noise);
    }
    // Half a command, or nothing: none of these connections closes by itself.
    let silent: Vec<_> = (0..300)
        .map(|place| {
            let mut stream = TcpStream::connect(door).unwrap();
            let _ = stream.write_all(if place % 2 == 0 { b"*2\r\n$4\r\nPI" } else { b"" });
            stream
        })
        .collect();
    let mut other = Client::connect(door);
    assert_eq!(other.ask("PING"), "+PONG");
    assert_eq!(good.ask("PING"), "+PONG");
    // A client that never reads its replies blocks only itself.
    let mut deaf = TcpStream::connect(door).unwrap();
    deaf.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let commands = b"INFO\r\n".repeat(100_000);
    let _ = deaf.write_all(&commands);
    assert_eq!(good.ask("PING"), "+PONG");
    let after = doors.rss_kb();
    assert!(after < before + 16_384, "{before} kB, then {after} kB");
    drop((silent, deaf));
}

#[test]
fn replies_are_those_that_redis_cell_gave_to_the_same_commands() {
    let (_doors, door) = start("");
    let mut client = Client::connect(door);
    let cases: Vec<_> =
        include_str!("redis_cell/cases.txt").lines().map(|case| case.split_once('\t').unwrap()).collect();
    let message = |command: &str| {
        let words: Vec<&str> = command.split(' ').map(|word| word.trim_matches('\'')).collect();
        let arguments: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        format!("*{}\r\n{arguments}", words.len())
    };
    // All in one write: the replies were recorded within a millisecond of each other.
    client.send(cases.iter().map(|(command, _)| message(command)).collect::<String>().as_bytes());
    for (command, expected) in cases {
        let first = client.line();
        let reply = match first.strip_prefix('*') {
            Some(count) => {
                let numbers = (0..count.parse().unwrap()).map(|_| client.line().trim_start_matches(':').to_owned());
                numbers.collect::<Vec<_>>().join(" ")
            }
            None => first,
        };
        assert_eq!(reply, expected.trim_end(), "{command}");
    }
}
