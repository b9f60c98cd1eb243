//! Where a process keeps what is to survive it, where nobody has said where.
//!
//! Under systemd that is the directory which the unit asks for (`StateDirectory=`). Elsewhere it is one in the home of whoever runs it, by the port of the address for
//! operators: so two gates on one machine have two, and one that is started anew finds its own. A port that the system chooses is another at every start, and
//! whoever asks for one is not coming back: nothing is kept then.
//!
//! A home is that of whoever the variables speak of, who need not be whoever runs the process (`sudo` keeps `HOME`): what root wrote there, the owner could not read, nor the next gate that
//! they start themselves. So a home that belongs to somebody else is not used.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The directory for a process whose operators connect there; `variable` reads the environment, and `is_ours` says whether a directory would be ours.
pub(super) fn state_home(
    operators: SocketAddr,
    variable: impl Fn(&str) -> Option<OsString>,
    is_ours: impl Fn(&Path) -> bool,
) -> Option<PathBuf> {
    // A path that begins nowhere would be another wherever the process is started.
    let path = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let of_unit = variable("STATE_DIRECTORY").and_then(|paths| {
        let first = std::env::split_paths(&paths).next()?;
        first.is_absolute().then_some(first)
    });
    if of_unit.is_some() || operators.port() == 0 {
        return of_unit;
    }
    let states = path("XDG_STATE_HOME").or_else(|| Some(path("HOME")?.join(".local/state")))?;
    let home = states.join("tollgate").join(operators.port().to_string());
    if !is_ours(&home) {
        let directory = home.display();
        tracing::warn!(%directory, error = "it would be in the home of somebody else", "{}", crate::watch::IN_MEMORY_ALONE);
        return None;
    }
    Some(home)
}

/// Whether a directory belongs to whoever runs this process, or would if it were made.
pub(super) fn would_be_ours(directory: &Path) -> bool {
    let nearest = directory.ancestors().find_map(|place| std::fs::metadata(place).ok());
    nearest.is_some_and(|data| data.uid() == rustix::process::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nearest_counts() {
        let home = |port: u16, variables: &[(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            state_home(([127, 0, 0, 1], port).into(), find, |path| !path.starts_with("/home/bob"))
                .map(|path| path.display().to_string())
        };
        let [unit, xdg, own] =
            [("STATE_DIRECTORY", "/var/lib/gate:/var/lib/other"), ("XDG_STATE_HOME", "/state"), ("HOME", "/home/ann")];
        assert_eq!(home(8889, &[unit, xdg, own]).as_deref(), Some("/var/lib/gate"));
        assert_eq!(home(8889, &[xdg, own]).as_deref(), Some("/state/tollgate/8889"));
        assert_eq!(home(8890, &[own]).as_deref(), Some("/home/ann/.local/state/tollgate/8890"));
        assert_eq!(
            home(8889, &[("XDG_STATE_HOME", "state"), own]).as_deref(),
            Some("/home/ann/.local/state/tollgate/8889")
        );
        assert_eq!(home(0, &[unit]).as_deref(), Some("/var/lib/gate"));
        for (port, variables) in
            [(0, &[xdg, own][..]), (8889, &[]), (8889, &[("HOME", "")]), (8889, &[("HOME", "/home/bob")])]
        {
            assert_eq!(home(port, variables), None);
        }
    }

    #[test]
    fn a_directory_is_ours_if_it_is_made_in_what_is_ours() {
        let folder = tempfile::tempdir().unwrap();
        assert!(would_be_ours(folder.path()) && would_be_ours(&folder.path().join("not/there")));
        // Only root can give something away.
        let theirs = folder.path().join("theirs");
        std::fs::create_dir(&theirs).unwrap();
        if std::os::unix::fs::chown(&theirs, Some(4321), None).is_ok() {
            assert!(!would_be_ours(&theirs) && !would_be_ours(&theirs.join(".local/state")));
        }
    }
}
