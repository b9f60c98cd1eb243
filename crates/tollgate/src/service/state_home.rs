//! The default directory for state that survives a restart, if `watch.state_dir` is not set.
//!
//! Under systemd it is the directory of the unit (`StateDirectory=`). Otherwise it is a directory in the user's home,
//! named after the port of the admin address, so that two gates on one machine have different directories and a
//! restarted gate finds its own. If the system chooses the port, it is different at each start, and nothing is
//! persisted.
//!
//! The environment may name the home of another user, because `sudo` keeps `HOME`. That user could not read what root
//! writes there. Therefore a home of another user is not used.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The default state directory of a process with this admin address; none if the state is in memory only. `variable`
/// reads the environment; `is_ours` returns whether a directory belongs to this user.
pub(super) fn state_home(
    admin: SocketAddr,
    variable: impl Fn(&str) -> Option<OsString>,
    is_ours: impl Fn(&Path) -> bool,
) -> Option<PathBuf> {
    // A relative path would depend on the working directory.
    let path = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let of_unit = variable("STATE_DIRECTORY").and_then(|paths| {
        let first = std::env::split_paths(&paths).next()?;
        first.is_absolute().then_some(first)
    });
    if of_unit.is_some() || admin.port() == 0 {
        return of_unit;
    }
    let states = path("XDG_STATE_HOME").or_else(|| Some(path("HOME")?.join(".local/state")))?;
    let home = states.join("tollgate").join(admin.port().to_string());
    if !is_ours(&home) {
        let directory = home.display();
        let error = "the default directory is in the home of another user";
        tracing::warn!(%directory, error, "{}", crate::watch::IN_MEMORY_ONLY);
        return None;
    }
    Some(home)
}

/// Whether a directory belongs to this user, or would if it were created.
pub(super) fn would_be_ours(directory: &Path) -> bool {
    let nearest = directory.ancestors().find_map(|path| std::fs::metadata(path).ok());
    nearest.is_some_and(|data| data.uid() == rustix::process::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_variable_takes_precedence() {
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
    fn a_directory_is_ours_if_its_nearest_existing_parent_is() {
        let folder = tempfile::tempdir().unwrap();
        assert!(would_be_ours(folder.path()) && would_be_ours(&folder.path().join("not/there")));
        // Only root can change the owner.
        let theirs = folder.path().join("theirs");
        std::fs::create_dir(&theirs).unwrap();
        if std::os::unix::fs::chown(&theirs, Some(4321), None).is_ok() {
            assert!(!would_be_ours(&theirs) && !would_be_ours(&theirs.join(".local/state")));
        }
    }
}
