//! What this machine has: programs, and room for files that are gone afterwards.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A directory for one run, removed with everything in it when the run is over.
pub(crate) struct ScratchDir(PathBuf);

impl ScratchDir {
    pub(crate) fn new() -> io::Result<Self> {
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let path = std::env::temp_dir().join(format!("bench-storm-{}-{nanos}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Where a program is: on the path, or where distributions hide daemons.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    dirs.map(|dir| dir.join(name)).find(|program| program.is_file())
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
