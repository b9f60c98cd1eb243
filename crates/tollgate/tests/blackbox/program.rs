//! Runs the built binary.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Root of the project.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Output and exit code of a run.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `tollgate` with these arguments, in the root of the project.
pub(crate) fn tollgate<A: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = A>) -> Run {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments).current_dir(root()).output().unwrap();
    let Output { status, stdout, stderr } = output;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// A file with this content in a temporary directory.
pub(crate) struct Scratch {
    directory: PathBuf,
    pub(crate) file: PathBuf,
}

impl Scratch {
    /// `name` makes the directory of each test unique.
    pub(crate) fn new(name: &str, content: &[u8]) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("tollgate.toml");
        std::fs::write(&file, content).unwrap();
        Self { directory, file }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
