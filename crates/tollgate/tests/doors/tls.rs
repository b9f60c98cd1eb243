//! Doors with TLS and client certificates, as curl, redis-cli and grpcio use them.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::clients::blocks;
use crate::support::{Doors, call, eventually};

const RULE: &str = "[[rule]]\nname = 'api'\nclass = 'identifier'\nbucket = { size = 9, drip = 1, every = '1h' }\n";
const TLS: &str = "{ cert = 'FOLDER/door.pem', key = 'FOLDER/door.key', client_ca = 'FOLDER/clients.pem' }";

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Writes a certificate `NAME.pem` of this authority and its key `NAME.key`.
fn write_certificate(folder: &Path, name: &str, issuer: &CertifiedIssuer<'static, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    fs::write(folder.join(format!("{name}.pem")), params.signed_by(&key, issuer).unwrap().pem()).unwrap();
    fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
}

/// A folder with the certificates of a door, of a client, and of a client that the door does not trust.
fn certificates() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let [servers, clients, others] = ["servers", "clients", "others"].map(authority);
    fs::write(folder.path().join("servers.pem"), servers.as_ref().pem()).unwrap();
    fs::write(folder.path().join("clients.pem"), clients.as_ref().pem()).unwrap();
    fs::write(folder.path().join("others.pem"), others.as_ref().pem()).unwrap();
    write_certificate(folder.path(), "door", &servers);
    write_certificate(folder.path(), "client", &clients);
    write_certificate(folder.path(), "stranger", &others);
    folder
}

/// All three doors with client certificates, and a token for the other doors.
fn start() -> Doors {
    let folder = certificates();
    fs::write(folder.path().join("token"), "a-token-for-the-doors").unwrap();
    let doors: String = ["http", "grpc", "resp"]
        .iter()
        .map(|door| format!("[doors.{door}]\nlisten = '127.0.0.1:0'\ntls = {TLS}\n"))
        .collect();
    Doors::start_in(folder, &format!("[doors]\ntoken_file = 'FOLDER/token'\n{doors}{RULE}"))
}

/// Sends a check with curl, as the client with this certificate, or without one.
fn curl(folder: &Path, door: SocketAddr, certificate: Option<&str>) -> Output {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "20", "--cacert"]).arg(folder.join("servers.pem"));
    if let Some(name) = certificate {
        command.arg("--cert").arg(folder.join(format!("{name}.pem")));
        command.arg("--key").arg(folder.join(format!("{name}.key")));
    }
    command.args(["--data", r#"{"rule": "api", "key": "u1", "toll": 0}"#]);
    command.arg(format!("https://localhost:{}/v1/check", door.port())).output().unwrap()
}

fn is_admitted(output: &Output) -> bool {
    String::from_utf8_lossy(&output.stdout).contains(r#""decision": "admit""#)
}

#[test]
fn curl_needs_a_certificate_of_the_client_authority_and_no_token() {
    let mut doors = start();
    let door = doors.door("http");
    let folder = doors.folder.path();
    let admitted = curl(folder, door, Some("client"));
    assert!(is_admitted(&admitted), "{admitted:?}");
    for certificate in [Some("stranger"), None] {
        let refused = curl(folder, door, certificate);
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{certificate:?}: {refused:?}");
    }
    eventually("both are counted", || doors.metric("tollgate_door_handshakes_failed_total") == 2);
    // Without TLS, and with a token in its place.
    let plain = std::panic::catch_unwind(|| {
        call(door, "POST", "/v1/check", &[("Authorization", "Bearer a-token-for-the-doors")], "{}")
    });
    assert!(plain.is_err(), "{plain:?}");
}

#[test]
fn redis_cli_needs_a_certificate_and_no_password() {
    let mut doors = start();
    let port = doors.door("resp").port().to_string();
    let folder = doors.folder.path().to_path_buf();
    let ask = |certificate: Option<&str>| {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "localhost", "-p", &port, "--tls", "--cacert"]).arg(folder.join("servers.pem"));
        if let Some(name) = certificate {
            command.arg("--cert").arg(folder.join(format!("{name}.pem")));
            command.arg("--key").arg(folder.join(format!("{name}.key")));
        }
        let output = command.args(["CL.THROTTLE", "k", "1", "1", "60"]).stdin(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(ask(Some("client")), "0\n2\n1\n-1\n60\n");
    assert_eq!([ask(Some("stranger")), ask(None)], [String::new(), String::new()]);
}

#[test]
fn grpcio_needs_a_certificate_and_no_token() {
    let mut doors = start();
    let door = doors.door("grpc").to_string();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doors/grpc/tls_client.py");
    let python = crate::grpc::tools().join("bin/python");
    let output = Command::new(python).args([script, &door]).arg(doors.folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn changed_files_of_a_door_are_used_for_new_connections() {
    let mut doors = start();
    let door = doors.door("http");
    let folder = doors.folder.path().to_path_buf();
    assert!(is_admitted(&curl(&folder, door, Some("client"))));
    fs::write(folder.join("clients.pem"), "no certificate").unwrap();
    doors.logged("certificates of a door cannot be read");
    assert!(is_admitted(&curl(&folder, door, Some("client"))), "the old file stays in force");
    fs::copy(folder.join("others.pem"), folder.join("clients.pem")).unwrap();
    doors.logged("new certificates of a door are in force");
    assert!(is_admitted(&curl(&folder, door, Some("stranger"))));
    assert!(!is_admitted(&curl(&folder, door, Some("client"))));
}

#[test]
fn tls_without_a_client_authority_asks_for_the_token() {
    let folder = certificates();
    fs::write(folder.path().join("token"), "a-token-for-the-doors").unwrap();
    let tls = TLS.replace(", client_ca = 'FOLDER/clients.pem'", "");
    let config =
        format!("[doors]\ntoken_file = 'FOLDER/token'\nhttp = {{ listen = '127.0.0.1:0', tls = {tls} }}\n{RULE}");
    let mut doors = Doors::start_in(folder, &config);
    let door = doors.door("http");
    let output = curl(doors.folder.path(), door, None);
    assert!(output.status.success() && !is_admitted(&output), "{output:?}");
    assert_eq!(doors.metric("tollgate_door_unauthorized_total"), 1);
}

#[test]
fn a_door_beyond_loopback_needs_a_token_or_a_client_authority() {
    let folder = certificates();
    let check = |tls: &str, extra: &[&str]| {
        let file = folder.path().join("tollgate.toml");
        let config = format!("[doors]\nhttp = {{ listen = '0.0.0.0:8890', tls = {tls} }}\n");
        fs::write(&file, config.replace("FOLDER", &folder.path().display().to_string())).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let run = command.arg("check").args(extra).arg(&file).output().unwrap();
        (run.status.code(), String::from_utf8([run.stdout, run.stderr].concat()).unwrap())
    };
    let (code, text) = check(TLS, &[]);
    assert_eq!(code, Some(0), "{text}");
    let expected =
        "door: http will be open on 0.0.0.0:8890 with TLS, and asks for a client certificate of an authority in";
    assert!(text.contains(expected), "{text}");
    let (code, text) = check(&TLS.replace(", client_ca = 'FOLDER/clients.pem'", ""), &[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains(":2:19: ") && text.contains("needs a token or client certificates"), "{text}");
    let (_, text) = check(TLS, &["--hardening"]);
    assert!(text.contains("pass  the door `http` on 0.0.0.0:8890 uses TLS"), "{text}");
    assert!(text.contains("door.key cannot be read by others"), "{text}");
}

#[test]
fn garbage_instead_of_a_handshake_closes_only_its_own_connection() {
    use std::io::{Read, Write};
    let mut doors = start();
    let door = doors.door("http");
    let before = doors.rss_kb();
    for seed in 0..200_u32 {
        let mut stream = std::net::TcpStream::connect(door).unwrap();
        let noise: Vec<u8> = (0..2048_u32).map(|at| ((at + seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let _ = stream.write_all(&noise);
    }
    // Half of a handshake message, and silence.
    let silent: Vec<_> = (0..200)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(door).unwrap();
            stream.write_all(&[0x16, 0x03, 0x01, 0x40, 0x00, 0x01]).unwrap();
            stream
        })
        .collect();
    assert!(is_admitted(&curl(doors.folder.path(), door, Some("client"))));
    let after = doors.rss_kb();
    assert!(after < before + 16_384, "{before} kB, then {after} kB");
    let mut first = &silent[0];
    first.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    assert_eq!(first.read(&mut [0; 16]).unwrap_or(0), 0, "a handshake that stalls is closed");
}

#[test]
fn the_documented_certificates_and_settings_work() {
    let folder = tempfile::tempdir().unwrap();
    let page = "docs/door-http.md";
    let find = |language: &str, words: &str| {
        let found = blocks(page, language).into_iter().find(|block| block.contains(words));
        found.unwrap_or_else(|| panic!("no block with {words}"))
    };
    let commands = find("sh", "openssl req -x509");
    let (certificates, curl) = commands.split_once("curl ").unwrap();
    let run = |script: &str| Command::new("sh").args(["-ec", script]).current_dir(folder.path()).output().unwrap();
    let made = run(certificates);
    assert!(made.status.success(), "{made:?}");
    let config =
        find("toml", "[doors.http.tls]").replace("0.0.0.0:8890", "127.0.0.1:0").replace("/etc/tollgate", "FOLDER");
    let config = config.replace("FOLDER", &folder.path().display().to_string());
    let rule = RULE.replace("'api'", "'notes'");
    let mut doors = Doors::start(&format!("{config}{rule}"));
    let port = doors.door("http").port();
    let answer = run(&format!("curl -sS {}", curl.replace(":8890", &format!(":{port}"))));
    assert!(is_admitted(&answer), "{answer:?}");
}
