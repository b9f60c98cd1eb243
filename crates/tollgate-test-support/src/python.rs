//! A Python with libzmq, the reference implementation of ZeroMQ, for tests of the protocol between gates and masters.
//! There are two versions: the current one, and an old one that uses the protocol version ZMTP 3.0. Both are installed
//! into the target directory if they are missing.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use super::kept_directory;

/// The libzmq version of a peer.
#[derive(Clone, Copy, Debug)]
pub enum Libzmq {
    /// ZMTP 3.1.
    Current,
    /// ZMTP 3.0: 4.3.2, of 2019.
    Old,
}

impl Libzmq {
    /// The minor version of ZMTP.
    pub fn minor(self) -> u8 {
        match self {
            Self::Current => 1,
            Self::Old => 0,
        }
    }

    /// A command that runs a script in which `import zmq` is this version.
    pub fn python(self) -> Command {
        let mut command = Command::new(python());
        if let Self::Old = self {
            let module = concat!(env!("CARGO_MANIFEST_DIR"), "/src/zmtp_3_0");
            command.env("PYTHONPATH", module).env("PYTHONDONTWRITEBYTECODE", "1");
            command.env("TOLLGATE_TEST_LIBZMQ", old_library());
        }
        command
    }
}

/// The Python program, in a virtual environment with the current version of pyzmq.
pub fn python() -> &'static PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let home = home();
        let python = home.join("bin/python");
        let has_it = || Command::new(&python).args(["-c", "import zmq"]).status().is_ok_and(|status| status.success());
        if !has_it() {
            run(Command::new("python3").arg("-m").arg("venv").arg(&home));
            run(Command::new(&python).args(["-m", "pip", "install", "-q", "pyzmq==27.*"]));
            assert!(has_it(), "pyzmq is not there after it was installed");
        }
        python
    })
}

/// The file of the old libzmq, from a wheel of pyzmq for Python 3.8. Other Pythons cannot import that pyzmq, but can
/// load the library, which `zmtp_3_0/zmq.py` does.
fn old_library() -> &'static PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let home = home().join("zmtp-3.0");
        let library = home.join("pyzmq.libs/libzmq-1358af2c.so.5.2.2");
        if !library.exists() {
            let which = ["--python-version", "38", "--platform", "manylinux1_x86_64", "pyzmq==19.0.2"];
            let download = ["-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d"];
            run(Command::new(python()).args(download).arg(&home).args(which));
            let wheel = home.join("pyzmq-19.0.2-cp38-cp38-manylinux1_x86_64.whl");
            run(Command::new(python()).args(["-m", "zipfile", "-e"]).arg(wheel).arg(&home));
            assert!(library.exists(), "{} is not in the wheel", library.display());
        }
        library
    })
}

/// The directory of the virtual environment.
fn home() -> PathBuf {
    kept_directory().join("pyzmq")
}

fn run(command: &mut Command) {
    assert!(
        command.status().is_ok_and(|status| status.success()),
        "{command:?} failed: python3 with venv and pip is needed (Debian: python3-venv)"
    );
}
