//! Ways to reach a store: with a user, over TLS, over a Unix socket, through Sentinels.

use core::time::Duration;
use std::path::PathBuf;

use tollgate_gatekeeper::shared::{Address, Store};
use tollgate_test_support::free_port;

use crate::fixtures::*;
use crate::load::*;
use crate::redis_server::{RedisServer, Watched};

/// A directory that is removed when it is dropped.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tollgate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().into()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Exactly three of three are admitted, alone or in one call with others.
async fn decides(store: &Store) {
    let (rule, roomy) = (shared(rule("rule", limit("drip-1", 3))), shared(rule("roomy", limit("drip-1", 30))));
    let mut admitted = 0;
    for _ in 0..5 {
        admitted += usize::from(ask(store, &[(&rule, b"key")]).await.unwrap().is_some());
    }
    assert_eq!(admitted, 3);
    assert!(ask(store, &[(&roomy, b"key"), (&rule, b"key")]).await.unwrap().is_none());
    assert!(ask(store, &[(&roomy, b"key"), (&roomy, b"key")]).await.unwrap().is_some());
}

#[tokio::test]
async fn a_user_needs_only_scripts_and_its_own_keys() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let rights = "on >se:cret/@1 ~test:* +evalsha +script|load +get +mget +set +setrange +del +time +ping +client";
    server.command(&[&["ACL", "SETUSER", "gate"][..], &rights.split(' ').collect::<Vec<_>>()].concat());
    let url = format!("redis://gate:se%3Acret%2F%401@127.0.0.1:{}", server.port());
    decides(&open(&url, PATIENT)).await;
    assert!(!format!("{:?}", Address::parse(&url, None).unwrap()).contains("cret"));
}

#[tokio::test]
async fn a_unix_socket_works() {
    let _alone = ALONE.lock().await;
    let directory = Directory::new("socket");
    let socket = directory.0.join("redis.sock");
    let _server = RedisServer::start(&["--unixsocket", socket.to_str().unwrap()]);
    decides(&open(&format!("unix://{}", socket.display()), PATIENT)).await;
}

#[tokio::test]
async fn tls_checks_the_certificate() {
    let _alone = ALONE.lock().await;
    let directory = Directory::new("tls");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let roots = made.cert.pem();
    let certificate = directory.write("cert.pem", &roots);
    let key = directory.write("key.pem", &made.signing_key.serialize_pem());
    let port = free_port();
    let _server = RedisServer::start(
        &[
            &["--tls-port", &port.to_string(), "--tls-cert-file", &certificate, "--tls-key-file", &key][..],
            &["--tls-ca-cert-file", &certificate, "--tls-auth-clients", "no"],
        ]
        .concat(),
    );
    let url = format!("rediss://localhost:{port}");
    decides(&Store::open(Address::parse(&url, Some(roots.into_bytes())).unwrap(), PATIENT)).await;
    // The certificate is unknown here.
    let impatient = tollgate_gatekeeper::shared::Options { deadline: Duration::from_millis(300), ..PATIENT };
    let store = Store::open(Address::parse(&url, None).unwrap(), impatient);
    let rule = shared(rule("rule", limit("drip-1", 3)));
    assert!(ask(&store, &[(&rule, b"other")]).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_lead_to_the_new_master() {
    let _alone = ALONE.lock().await;
    let mut watched = Watched::start();
    let (store, rule) = open_by_default(&watched.url()).await;
    let load = Load::start(&store, &rule);
    watched.kill_master();
    answers(&store, &rule).await;
    let report = load.stop().await;
    report.assert_in_time();
    assert!(report.unanswered() > 0);
}
