//! Programs on this machine, and directories for one run.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// A directory for one run, removed with everything in it when the run is over.
pub struct ScratchDir(PathBuf);

impl ScratchDir {
    /// Creates it.
    pub fn new() -> io::Result<Self> {
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let path = std::env::temp_dir().join(format!("bench-storm-{}-{nanos}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Finds a program on the path, or where distributions install daemons.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    dirs.map(|dir| dir.join(name)).find(|program| program.is_file())
}

/// Returns the Tollgate binary at `named`, or builds the release binary of this source.
pub fn find_tollgate(named: Option<&Path>) -> io::Result<PathBuf> {
    if let Some(path) = named {
        return path.canonicalize();
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo).args(["build", "--release", "-q", "-p", "tollgate"]).status()?;
    if !status.success() {
        return Err(io::Error::other("tollgate does not build"));
    }
    // Beside this program's own profile, wherever the target directory is.
    let built = std::env::current_exe()?.with_file_name("../release/tollgate");
    built.canonicalize().map_err(|error| io::Error::new(error.kind(), format!("no tollgate at {}", built.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_directory_leaves_nothing_behind() {
        let dir = ScratchDir::new().unwrap();
        let path = dir.path().to_owned();
        fs::write(path.join("file"), "x").unwrap();
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn a_program_is_found_and_one_that_does_not_exist_is_not() {
        assert!(find_program("sh").is_some());
        assert_eq!(find_program("no-such-program"), None);
    }
}
