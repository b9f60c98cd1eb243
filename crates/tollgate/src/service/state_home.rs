//! Where a process keeps what is to survive it, where nobody has said where.
//!
//! Under systemd that is the directory which the unit asks for (`StateDirectory=`). Elsewhere it is one in the home of whoever runs it, by the port of the address for
//! operators: so two gates on one machine have two, and one that is started anew finds its own. A port that the system chooses is another at every start, and
//! whoever asks for one is not coming back: nothing is kept then.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The directory for a process whose operators connect there; `variable` reads the environment.
pub(super) fn state_home(operators: SocketAddr, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
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
    Some(states.join("tollgate").join(operators.port().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nearest_counts() {
        let home = |port: u16, variables: &[(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            state_home(([127, 0, 0, 1], port).into(), find).map(|path| path.display().to_string())
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
        for (port, variables) in [(0, &[xdg, own][..]), (8889, &[]), (8889, &[("HOME", "")])] {
            assert_eq!(home(port, variables), None);
        }
    }
}
