//! A Python that has pyzmq, which is installed into the target directory when it is not there yet.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

pub(crate) fn python() -> &'static PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("pyzmq");
        let python = home.join("bin/python");
        let has_it = || Command::new(&python).args(["-c", "import zmq"]).status().is_ok_and(|status| status.success());
        if !has_it() {
            let run = |command: &mut Command| {
                assert!(
                    command.status().is_ok_and(|status| status.success()),
                    "{command:?} failed: python3 with venv and pip is needed (Debian: python3-venv)"
                )
            };
            run(Command::new("python3").arg("-m").arg("venv").arg(&home));
            run(Command::new(home.join("bin/pip")).args(["install", "-q", "pyzmq==27.*"]));
            assert!(has_it(), "pyzmq is not there after it was installed");
        }
        python
    })
}
