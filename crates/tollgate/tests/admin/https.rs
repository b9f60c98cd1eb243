//! Commands with an admin address behind TLS.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use rustls::pki_types::PrivateKeyDer;

const FLAGS: &str = r#"{"account_class":"user","total":0,"matching":0,"flags":[]}"#;

/// A server with a certificate signed by `ca.pem` of the folder; sends this response to every request.
fn server(folder: &Path, answer: String) -> SocketAddr {
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
            if stream.read(&mut seen).is_ok_and(|length| length > 0) {
                let _ = stream.write_all(answer.as_bytes());
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    address
}

fn list_flags(address: SocketAddr, authorities: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["flags", "list", "--admin", &format!("https://localhost:{}", address.port())]);
    command.env("SSL_CERT_FILE", authorities).env_remove("SSL_CERT_DIR").output().unwrap()
}

#[test]
fn commands_use_https_only_with_a_trusted_certificate() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{FLAGS}", FLAGS.len());
    let address = server(folder.path(), answer.clone());
    let output = list_flags(address, &folder.path().join("ca.pem"));
    assert!(output.status.success(), "{output:?}");
    server(other.path(), answer);
    let output = list_flags(address, &other.path().join("ca.pem"));
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("certificate"), "{output:?}");
}

#[test]
fn a_truncated_response_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{FLAGS}", FLAGS.len() + 1);
    let output = list_flags(server(folder.path(), answer), &folder.path().join("ca.pem"));
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("truncated"), "{output:?}");
}
