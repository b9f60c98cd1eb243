//! Commands with an admin address behind TLS, and receivers of flags and telemetry behind TLS.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustls::pki_types::PrivateKeyDer;
use serde_json::json;

use crate::support::{Gate, PATIENCE};

const FLAGS: &str = r#"{"account_class":"user","total":0,"matching":0,"flags":[]}"#;
const ACCEPTED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// A server with a certificate signed by `ca.pem` of the folder; sends the result of `answer` to every request.
fn server(folder: &Path, mut answer: impl FnMut(&[u8]) -> Vec<u8> + Send + 'static) -> SocketAddr {
    let certificate = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("ca.pem"), certificate.cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(certificate.signing_key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.cert.der().clone()], key)
        .unwrap();
    let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let session = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut stream = rustls::StreamOwned::new(session, stream);
            let mut seen = [0; 4096];
            if let Ok(length @ 1..) = stream.read(&mut seen) {
                let _ = stream.write_all(&answer(&seen[..length]));
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    address
}

/// A server that accepts every request, and the first line of each.
fn receiver(folder: &Path) -> (SocketAddr, Receiver<String>) {
    let (sender, requests) = channel();
    let address = server(folder, move |request| {
        let _ = sender.send(String::from_utf8_lossy(request).lines().next().unwrap_or_default().to_owned());
        ACCEPTED.into()
    });
    (address, requests)
}

/// A gate that trusts the authorities in this file.
fn gate(authorities: &Path, config: &str) -> Gate {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("secret"), "a secret of both\n").unwrap();
    Gate::start_by(&["env", "-u", "SSL_CERT_DIR", &format!("SSL_CERT_FILE={}", authorities.display())], folder, config)
}

fn webhook(address: SocketAddr) -> String {
    let port = address.port();
    format!("[watch]\nwebhook = \"https://localhost:{port}/flags\"\nwebhook_secret_file = \"FOLDER/secret\"\n")
}

fn flag(gate: &Gate) {
    let report = json!({ "id": "r1", "entries": [{ "class": "user", "key": "u1", "rejected": 1000 }] });
    assert_eq!(gate.post("/api/v1/rejections", &report).status, 202);
}

fn run(arguments: &[&str], address: SocketAddr, authorities: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments).args(["--admin", &format!("https://localhost:{}", address.port())]);
    command.env("SSL_CERT_FILE", authorities).env_remove("SSL_CERT_DIR").output().unwrap()
}

fn list_flags(address: SocketAddr, authorities: &Path) -> Output {
    run(&["flags", "list"], address, authorities)
}

#[test]
fn commands_use_https_only_with_a_trusted_certificate() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let answer = |_: &[u8]| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{FLAGS}", FLAGS.len()).into_bytes();
    let address = server(folder.path(), answer);
    let output = list_flags(address, &folder.path().join("ca.pem"));
    assert!(output.status.success(), "{output:?}");
    server(other.path(), answer);
    let output = list_flags(address, &other.path().join("ca.pem"));
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("certificate"), "{output:?}");
}

#[test]
fn the_doctor_uses_https() {
    let (folder, gate) = (tempfile::tempdir().unwrap(), Gate::start(""));
    assert_eq!(gate.request("/", &[]).status, 200);
    let admin = gate.admin;
    // One request for each connection, as the command sends them.
    let address = server(folder.path(), move |request| {
        let (mut stream, mut answer) = (TcpStream::connect(admin).unwrap(), Vec::new());
        let request = String::from_utf8_lossy(request).replacen("\r\n", "\r\nConnection: close\r\n", 1);
        stream.write_all(request.as_bytes()).unwrap();
        stream.read_to_end(&mut answer).unwrap();
        answer
    });
    let output = run(&["doctor", "--once", "--class", "ip/32"], address, &folder.path().join("ca.pem"));
    assert!(output.status.success() && output.stdout.starts_with(b"Class: ip/32\n"), "{output:?}");
}

#[test]
fn a_truncated_response_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{FLAGS}", FLAGS.len() + 1);
    let address = server(folder.path(), move |_| answer.clone().into());
    let output = list_flags(address, &folder.path().join("ca.pem"));
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("truncated"), "{output:?}");
}

#[test]
fn flags_are_announced_over_https_only_with_a_trusted_certificate() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (address, requests) = receiver(folder.path());
    let announcing = gate(&folder.path().join("ca.pem"), &webhook(address));
    flag(&announcing);
    assert_eq!(requests.recv_timeout(PATIENCE).unwrap(), "POST /flags HTTP/1.1");
    let (_, _others) = receiver(other.path());
    let wary = gate(&other.path().join("ca.pem"), &webhook(address));
    flag(&wary);
    let line = wary.logged("webhook failed: retrying");
    assert!(line.contains("certificate"), "{line}");
    assert!(requests.try_recv().is_err(), "nothing is sent to a server that cannot be verified");
}

#[test]
fn telemetry_is_sent_over_https() {
    let folder = tempfile::tempdir().unwrap();
    let (address, requests) = receiver(folder.path());
    let telemetry = format!("[telemetry]\notlp = \"https://localhost:{}\"\nevery = \"1s\"\n", address.port());
    let _gate = gate(&folder.path().join("ca.pem"), &telemetry);
    assert_eq!(requests.recv_timeout(PATIENCE).unwrap(), "POST /v1/metrics HTTP/1.1");
}

/// Reading the authorities can take long. A pipe without a writer never ends.
#[test]
fn the_admin_address_responds_while_the_authorities_are_read() {
    let (folder, listener) = (tempfile::tempdir().unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let gate = gate(&pipe, &webhook(listener.local_addr().unwrap()));
    flag(&gate);
    // The authorities are read as soon as the connection is made.
    let _connection = listener.accept().unwrap();
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(gate.json("/api/v1/flags")["total"], 1);
    }
}
