//! The program `tollgate-storm`, as its users run it.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use tollgate_storm::results::{FORMAT, Results};

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tollgate-storm"))
}

/// A running site, killed at the end of the test.
struct Site {
    child: Child,
    address: String,
}

impl Site {
    fn start() -> Self {
        let mut child = program()
            .args(["site", "--listen", "127.0.0.1:0", "--article", "1000+0", "--archive", "20000+0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("site on http://").unwrap().to_string();
        Self { child, address }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(arguments: &[&str]) -> Output {
    program().args(std::iter::once("run").chain(arguments.iter().copied())).output().unwrap()
}

#[test]
fn a_storm_against_the_site_writes_results_and_a_picture() {
    let site = Site::start();
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("storm-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (json, svg) = (directory.join("results.json"), directory.join("results.svg"));
    let url = format!("http://{}", site.address);
    let output = run(&[
        "--target",
        &url,
        "--site",
        &site.address,
        "--name",
        "nothing in between",
        "--seed",
        "7",
        "--networks",
        "12",
        "--connections",
        "24",
        "--calm",
        "1",
        "--storm",
        "2",
        "--recovery",
        "1",
        "--json",
        json.to_str().unwrap(),
        "--svg",
        svg.to_str().unwrap(),
    ]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("storm      people") && table.contains("The crawler received"), "{table}");
    let results: Results = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!((results.format, results.storm.seed, results.storm.networks), (FORMAT, 7, 12));
    assert_eq!(
        results.phases.iter().map(|phase| phase.name.as_str()).collect::<Vec<_>>(),
        ["calm", "storm", "recovery"]
    );
    assert!(results.phases.iter().map(|phase| phase.people.views + phase.office.views).sum::<u64>() > 5, "{table}");
    assert!(results.phase("storm").unwrap().crawler.answered > 5, "{table}");
    assert!(results.site.unwrap().crawler_s > 0.1, "{:?}", results.site);
    assert_eq!(results.seconds.len(), 4);
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.contains("nothing in between") && picture.ends_with("</svg>\n"));
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Ends TLS in front of the site, for 127.0.0.1, until the test ends. Returns its port.
fn terminate_tls(site: &str, certificate: &rcgen::CertifiedKey<rcgen::KeyPair>) -> u16 {
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(certificate.signing_key.serialize_der());
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let chain = vec![certificate.cert.der().clone()];
    let config = builder.with_no_client_auth().with_single_cert(chain, key.into()).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let (site, (port_sender, port)) = (site.to_owned(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            port_sender.send(listener.local_addr().unwrap().port()).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, site) = (acceptor.clone(), site.clone());
                tokio::spawn(async move {
                    let mut outer = acceptor.accept(stream).await?;
                    let mut inner = tokio::net::TcpStream::connect(site).await?;
                    tokio::io::copy_bidirectional(&mut outer, &mut inner).await
                });
            }
        });
    });
    port.recv().unwrap()
}

#[test]
fn a_storm_over_https_verifies_the_server() {
    let site = Site::start();
    let certificate = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let target = format!("https://127.0.0.1:{}", terminate_tls(&site.address, &certificate));
    let folder = tempfile::tempdir().unwrap();
    let (trusted, other) = (folder.path().join("trusted.pem"), folder.path().join("other.pem"));
    std::fs::write(&trusted, certificate.cert.pem()).unwrap();
    let stranger = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(&other, stranger.cert.pem()).unwrap();
    let storm = |certificates: &std::path::Path| {
        let phases = ["--calm", "1", "--storm", "3", "--recovery", "1", "--connections", "24", "--json", "-"];
        let certificates = certificates.to_str().unwrap();
        run(&[&["--target", &target, "--certificates", certificates][..], &phases].concat())
    };
    let output = storm(&trusted);
    assert!(output.status.success(), "{output:?}");
    let results: Results = serde_json::from_slice(&output.stdout).unwrap();
    assert!(results.phases.iter().map(|phase| phase.crawler.answered).sum::<u64>() > 0, "{output:?}");
    assert!(results.phases.iter().map(|phase| phase.people.served).sum::<u64>() > 1, "{output:?}");
    let refused = storm(&other);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("certificate"), "{refused:?}");
}

/// The commands of the page and of the crate's README, without the gate between storm and site, and shorter.
#[test]
fn the_documented_commands_run() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for page in ["docs/storm.md", "crates/tollgate-storm/README.md"] {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        let commands = text.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
        let of = |start: &str| commands.lines().find(|line| line.starts_with(start)).unwrap();
        assert_eq!(of("tollgate-storm site"), "tollgate-storm site --listen 127.0.0.1:8080 &");
        let site = Site::start();
        let line = of("tollgate-storm run").replace("127.0.0.1:8888", &site.address);
        let line = line.replace("127.0.0.1:8080", &site.address).replace("--name \"Tollgate\"", "--name Tollgate");
        let folder = tempfile::tempdir().unwrap();
        let output = program()
            .args(line.split_whitespace().skip(1))
            .args(["--calm", "1", "--storm", "1", "--recovery", "1"])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(folder.path().join("results.json").exists() && folder.path().join("results.svg").exists());
    }
}

#[test]
fn wrong_arguments_exit_2_and_an_unreachable_target_1() {
    for arguments in [
        &["--target", "127.0.0.1:1"][..],
        &["--target", "ftp://127.0.0.1:1"],
        &["--target", "https://127.0.0.1:1", "--certificates", "/nonexistent/ca.pem"],
        &["--target", "http://192.0.2.1:80"],
        &["--target", "http://127.0.0.1:1", "--networks", "0"],
        &["--target", "http://127.0.0.1:1", "--networks", "5889"],
        &["--target", "http://127.0.0.1:1", "--random", "--networks", "3"],
        &["--target", "http://127.0.0.1:1", "--article-path", "/a b", "--archive-path", "/c", "--asset-path", "/d"],
        &["--target", "http://127.0.0.1:1", "--article-path", "/a"],
        &[],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
    assert_eq!(run(&["--target", "http://127.0.0.1:1"]).status.code(), Some(1));
}
