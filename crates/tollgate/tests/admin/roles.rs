//! `tollgate run`: the roles that a file names.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::support::{ask, backend};

fn run(config: &str) -> (tempfile::TempDir, Command) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.toml");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("run").arg("--config").arg(&file).stderr(Stdio::piped());
    (folder, command)
}

#[test]
fn a_gate_and_a_master_run_in_one_process() {
    let config = format!(
        "[gate]\nlisten = \"127.0.0.1:0\"\nworkers = 1\nbackend = \"http://{}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
        [master]\naccounting = \"127.0.0.1:0\"\ncontrol = \"127.0.0.1:0\"\n",
        backend()
    );
    let (_folder, mut command) = run(&config);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.find(|line| line.contains("operators may connect")).unwrap();
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    let admin = line["address"].as_str().unwrap().parse().unwrap();
    std::thread::spawn(move || lines.for_each(drop));
    let metrics = ask(admin, "GET", "/metrics", &[], "").body;
    assert!(metrics.contains("tollgate_master_subscribers") && metrics.contains("tollgate_band"), "{metrics}");
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_file_that_names_no_role_is_wrong() {
    for config in ["", "[watch]\nflag_threshold = 5\n", "nonsense = 1\n"] {
        let (_folder, mut command) = run(config);
        assert_eq!(command.output().unwrap().status.code(), Some(2), "{config}");
    }
}
