//! TLS towards clients and backends.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;

use crate::support::http2::{read_answer, request, run};
use crate::support::{Backend, Gate, eventually};

/// A self-signed certificate for these names.
pub(crate) fn certificate(names: &[&str]) -> rcgen::CertifiedKey<rcgen::KeyPair> {
    rcgen::generate_simple_self_signed(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap()
}

/// Writes the certificate and its key as PEM files.
pub(crate) fn write(folder: &Path, stem: &str, certificate: &rcgen::CertifiedKey<rcgen::KeyPair>) {
    std::fs::write(folder.join(format!("{stem}.pem")), certificate.cert.pem()).unwrap();
    std::fs::write(folder.join(format!("{stem}.key")), certificate.signing_key.serialize_pem()).unwrap();
}

/// Connects with this certificate as the only trusted root.
async fn connect(
    gate: &Gate,
    trusted: &CertificateDer<'static>,
    name: &str,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    shake_hands(TcpStream::connect(gate.address).await?, trusted, name, protocols).await
}

/// Performs a TLS handshake with this certificate as the only trusted root.
pub(crate) async fn shake_hands(
    stream: TcpStream,
    trusted: &CertificateDer<'static>,
    name: &str,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let mut config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    connector.connect(ServerName::try_from(name.to_owned()).unwrap(), stream).await
}

/// Sends one request and returns the raw response.
pub(crate) async fn get(stream: &mut TlsStream<TcpStream>) -> String {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[test]
fn clients_are_served_over_tls_with_the_protocol_they_choose() {
    let folder = tempfile::tempdir().unwrap();
    let site = certificate(&["site"]);
    write(folder.path(), "site", &site);
    let backend = Backend::saying("ok");
    let tls = format!("tls = [{{ cert = \"{0}/site.pem\", key = \"{0}/site.key\" }}]", folder.path().display());
    let gate = Gate::with(&backend, &tls);
    run(async {
        let mut stream = connect(&gate, site.cert.der(), "site", &["http/1.1"]).await.unwrap();
        assert!(get(&mut stream).await.ends_with("ok"));
        let stream = connect(&gate, site.cert.der(), "site", &["h2", "http/1.1"]).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let answer = sender.send_request(request("GET", "/").body(()).unwrap(), true).unwrap().0.await.unwrap();
        assert_eq!(read_answer(answer).await.unwrap().body, b"ok");
    });
    let told = backend.requests().pop().unwrap();
    assert_eq!(
        (told.field("x-forwarded-proto"), told.field("forwarded")),
        (Some("https"), Some("for=127.0.0.1;host=site;proto=https"))
    );
}

#[test]
fn changed_certificate_files_are_reloaded_unless_they_are_invalid() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (certificate(&["site"]), certificate(&["site"]));
    write(folder.path(), "site", &old);
    let backend = Backend::saying("ok");
    let tls = format!("tls = [{{ cert = \"{0}/site.pem\", key = \"{0}/site.key\" }}]", folder.path().display());
    let gate = Gate::with(&backend, &tls);
    let works = |gate: &Gate, with: &rcgen::CertifiedKey<rcgen::KeyPair>| {
        run(async { connect(gate, with.cert.der(), "site", &[]).await.is_ok() })
    };
    assert!(works(&gate, &old));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut kept = runtime.block_on(connect(&gate, old.cert.der(), "site", &[])).unwrap();
    std::fs::write(folder.path().join("site.pem"), "nonsense").unwrap();
    gate.logged("certificates cannot be read");
    assert!(works(&gate, &old));
    write(folder.path(), "site", &new);
    eventually("the new certificate is shown", || works(&gate, &new));
    assert!(!works(&gate, &old));
    assert!(runtime.block_on(get(&mut kept)).ends_with("ok"), "open connections are kept");
}

#[test]
fn the_certificate_is_selected_by_server_name() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (certificate(&["first"]), certificate(&["second", "*.second.example"]));
    write(folder.path(), "first", &first);
    write(folder.path(), "second", &second);
    let backend = Backend::saying("ok");
    let pair =
        |stem: &str| format!("{{ cert = \"{0}/{stem}.pem\", key = \"{0}/{stem}.key\" }}", folder.path().display());
    let gate = Gate::with(&backend, &format!("tls = [{}, {}]", pair("first"), pair("second")));
    run(async {
        assert!(connect(&gate, first.cert.der(), "first", &[]).await.is_ok());
        assert!(connect(&gate, second.cert.der(), "second", &[]).await.is_ok());
        assert!(connect(&gate, second.cert.der(), "www.second.example", &[]).await.is_ok());
        assert!(connect(&gate, second.cert.der(), "first", &[]).await.is_err());
    });
}

#[test]
fn a_reload_changes_certificates_and_turns_tls_on_and_off() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (certificate(&["first"]), certificate(&["second"]));
    write(folder.path(), "first", &first);
    write(folder.path(), "second", &second);
    let backend = Backend::saying("ok");
    let pair =
        |stem: &str| format!("{{ cert = \"{0}/{stem}.pem\", key = \"{0}/{stem}.key\" }}", folder.path().display());
    let gate = Gate::with(&backend, "");
    let reload = |tls: &[&str], counter: &str| {
        let pairs: Vec<_> = tls.iter().map(|stem| pair(stem)).collect();
        let lines = format!("workers = 1\nbackend = \"{}\"\ntls = [{}]", backend.url(), pairs.join(", "));
        gate.rewrite(&format!("[gate]\n{lines}\n"));
        let before = gate.metric(counter);
        gate.signal("HUP");
        eventually("the file is read again", || gate.metric(counter) == before + 1);
    };
    let is_shown = |name: &str, with: &rcgen::CertifiedKey<rcgen::KeyPair>| {
        run(async {
            match connect(&gate, with.cert.der(), name, &[]).await {
                Ok(mut stream) => get(&mut stream).await.ends_with("ok"),
                Err(_) => false,
            }
        })
    };
    assert_eq!(gate.get("/").text(), "ok", "without TLS");
    reload(&["first"], "tollgate_reloads_total");
    assert!(is_shown("first", &first) && !is_shown("second", &second));
    reload(&["first", "second"], "tollgate_reloads_total");
    assert!(is_shown("first", &first) && is_shown("second", &second));
    reload(&["second", "missing"], "tollgate_reloads_failed_total");
    assert!(is_shown("first", &first) && is_shown("second", &second), "a missing file changes nothing");
    reload(&[], "tollgate_reloads_total");
    assert_eq!(gate.get("/").text(), "ok");
}

#[test]
fn a_missing_handshake_times_out() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "site", &certificate(&["site"]));
    let backend = Backend::saying("ok");
    let tls = format!(
        "tls = [{{ cert = \"{0}/site.pem\", key = \"{0}/site.key\" }}]\ntimeouts = {{ head = \"400ms\" }}",
        folder.path().display()
    );
    let gate = Gate::with(&backend, &tls);
    let silent = gate.connect();
    assert!(crate::support::client::is_closed(&silent));
    let mut garbage = gate.connect();
    std::io::Write::write_all(&mut garbage, b"\0\0\0\0\0\0\0\0").unwrap();
    let mut answer = Vec::new();
    let _ = std::io::Read::read_to_end(&mut garbage, &mut answer);
    assert!(!answer.starts_with(b"HTTP"), "no HTTP without TLS on a TLS port");
    assert!(backend.requests().is_empty());
}

#[test]
fn plain_http_on_a_tls_port_gets_a_readable_error() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "site", &certificate(&["site"]));
    let backend = Backend::saying("ok");
    let tls = format!("tls = [{{ cert = \"{0}/site.pem\", key = \"{0}/site.key\" }}]", folder.path().display());
    let gate = Gate::with(&backend, &tls);
    let answer_to = |request: &[u8]| {
        let mut plain = gate.connect();
        std::io::Write::write_all(&mut plain, request).unwrap();
        let mut answer = String::new();
        // The client may still be sending, and must not lose the response to a reset.
        std::io::Read::read_to_string(&mut plain, &mut answer).unwrap();
        answer
    };
    let upload = format!("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{}", "x".repeat(100_000));
    for request in ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &upload] {
        let answer = answer_to(request.as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head}");
        assert!(head.contains("connection: close") && head.contains(&format!("content-length: {}", body.len())));
        assert!(body.contains("Use https://"), "{body}");
    }
    assert!(answer_to(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").ends_with("\r\n\r\n"), "no body after HEAD");
    assert!(backend.requests().is_empty());
    assert_eq!(gate.metric("tollgate_connections_unopened_total"), 4);
    // A client that does not close the connection holds it for a bounded time.
    let mut open = gate.connect();
    std::io::Write::write_all(&mut open, b"G").unwrap();
    let connections = || gate.metric("tollgate_connections");
    eventually("it is answered", || gate.metric("tollgate_connections_unopened_total") == 5);
    eventually("it is closed", || connections() == 0);
}

/// A TLS backend with this certificate. Returns its port.
fn secret_backend(site: &rcgen::CertifiedKey<rcgen::KeyPair>) -> u16 {
    let key = PrivateKeyDer::try_from(site.signing_key.serialize_der()).unwrap();
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![site.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut bytes = [0; 4096];
                    while let Ok(1..) = stream.read(&mut bytes).await {
                        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret").await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
    });
    port
}

/// A gate with this configuration and the trusted roots in a file.
fn trusting(roots: &Path, config: &str) -> Gate {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.toml");
    std::fs::write(&file, config).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("gate").arg("--config").arg(&file).args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.env("SSL_CERT_FILE", roots).env_remove("SSL_CERT_DIR");
    Gate::spawn(command, folder)
}

#[test]
fn a_tls_backend_is_used_if_its_certificate_is_trusted() {
    let folder = tempfile::tempdir().unwrap();
    let site = certificate(&["localhost"]);
    write(folder.path(), "site", &site);
    write(folder.path(), "other", &certificate(&["localhost"]));
    let config = format!("[gate]\nworkers = 1\nbackend = \"https://localhost:{}\"\n", secret_backend(&site));
    let gate = trusting(&folder.path().join("site.pem"), &config);
    for _ in 0..3 {
        assert_eq!(gate.get("/").text(), "secret");
    }
    let wary = trusting(&folder.path().join("other.pem"), &config);
    assert_eq!(wary.get("/").status, 502);
}

#[test]
fn a_reload_adds_the_first_tls_backend_and_reads_the_trusted_roots_again() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (certificate(&["localhost"]), certificate(&["localhost"]));
    write(folder.path(), "roots", &first);
    let plain = Backend::saying("plain");
    let config = |url: &str| format!("[gate]\nworkers = 1\nbackend = \"{url}\"\n");
    let gate = trusting(&folder.path().join("roots.pem"), &config(&plain.url()));
    assert_eq!(gate.get("/").text(), "plain");
    let mut reloads = 0;
    let mut reload = |url: &str| {
        gate.rewrite(&config(url));
        gate.signal("HUP");
        reloads += 1;
        eventually("settings are reloaded", || gate.metric("tollgate_reloads_total") == reloads);
        eventually("the backend answers", || gate.get("/").text() == "secret");
    };
    reload(&format!("https://localhost:{}", secret_backend(&first)));
    // The second is not trusted yet.
    let second_port = secret_backend(&second);
    write(folder.path(), "roots", &second);
    reload(&format!("https://localhost:{second_port}"));
    // Without roots, a TLS backend is an error, and the old settings stay in force.
    std::fs::write(folder.path().join("roots.pem"), "").unwrap();
    gate.rewrite(&config(&format!("https://127.0.0.1:{second_port}")));
    gate.signal("HUP");
    eventually("the reload is refused", || gate.metric("tollgate_reloads_failed_total") == 1);
    assert_eq!(gate.get("/").text(), "secret");
}
