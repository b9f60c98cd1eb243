//! Runs the examples of docs/door-http.md.

use std::process::Command;

use crate::support::{Doors, root};

/// The code blocks of the page in `language`.
pub(crate) fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let fence = format!("\n```{language}\n");
    text.split(&fence).skip(1).map(|rest| rest.split("\n```\n").next().unwrap().to_owned() + "\n").collect()
}

/// A process with the first configuration of the page, on a free port.
fn documented() -> Doors {
    Doors::start(&blocks("docs/door-http.md", "toml")[0].replace("127.0.0.1:8890", "127.0.0.1:0"))
}

/// Runs the example of the page in this language.
fn run(language: &str, file: &str, command: &[&str]) {
    let mut doors = documented();
    let door = doors.door("http");
    let code = &blocks("docs/door-http.md", language)[0];
    let lines = code.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines <= 20, "an example in {language} has {lines} lines");
    let path = doors.folder.path().join(file);
    std::fs::write(&path, code).unwrap();
    let mut command = {
        let mut words = Command::new(command[0]);
        words.args(&command[1..]).arg(&path).arg("u1");
        words
    };
    command.env("TOLLGATE_DOOR", format!("http://{door}")).env("GOCACHE", doors.folder.path().join("go"));
    let output = command.env("HOME", doors.folder.path()).env("GOFLAGS", "-mod=mod").output();
    let output = output.unwrap_or_else(|error| panic!("{language} is not installed: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text, "created\ncreated\nwait 60 s\n");
    assert_eq!(doors.metric("tollgate_door_settled_total"), 2);
}

#[test]
fn the_javascript_example_runs_as_it_stands() {
    run("javascript", "notes.mjs", &["node"]);
}

#[test]
fn the_python_example_runs_as_it_stands() {
    run("python", "notes.py", &["python3"]);
}

#[test]
fn the_go_example_runs_as_it_stands() {
    run("go", "notes.go", &["go", "run"]);
}

#[test]
fn the_php_example_runs_as_it_stands() {
    run("php", "notes.php", &["php"]);
}

/// docs/coming-from/screentinker.md: a server that tells a connected device to wait, with its configuration.
#[test]
fn a_server_tells_a_device_to_wait_as_documented() {
    let config = blocks("docs/coming-from/screentinker.md", "toml")[0].replace("127.0.0.1:8890", "127.0.0.1:0");
    let mut doors = Doors::start(&config.replace("[gate]\n", "[gate]\nlisten = \"127.0.0.1:0\"\n"));
    let client = blocks("docs/door-http.md", "javascript")[0].split("\n\n").next().unwrap().to_owned();
    let server = &blocks("docs/coming-from/screentinker.md", "javascript")[0];
    // In warm-up, so that only the ceiling of twenty applies. The server's checks do not count as connections.
    let code = format!(
        "{client}\nconst deviceId = 'screen-7', socket = {{ emit: (...event) => console.log(JSON.stringify(event)), disconnect() {{}} }};\n\
         for (let check = 0; check < 21; check++) {{\n{server}}}\n\
         for (let connect = 1; connect <= 21; connect++) {{\n\
           const {{ blocked }} = await ask('/v1/check', {{ rule: 'reconnect', key: deviceId }});\n\
           if (blocked !== connect > 20) throw new Error(`connection ${{connect}}: ${{blocked}}`);\n\
         }}\n{{\n{server}}}\n"
    );
    let path = doors.folder.path().join("server.mjs");
    std::fs::write(&path, code).unwrap();
    let door = format!("http://{}", doors.door("http"));
    let output = Command::new("node").arg(&path).env("TOLLGATE_DOOR", door).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let events: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((events.len(), &events[0][0]), (1, &"device:throttled".into()), "{text}");
    let wait_ms = events[0][1]["retry_after_ms"].as_u64().unwrap();
    assert!((5_000..=10_000).contains(&wait_ms), "{wait_ms} ms");
}
