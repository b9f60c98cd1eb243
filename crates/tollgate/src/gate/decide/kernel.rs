//! What the kernel knows about the backend: the CPU time that its control group has used, and how much it wants for more.
//!
//! The files are small and made by the kernel, so reading one takes microseconds. No more than [`BYTES_MAX`] of one is read, whatever it
//! is. One that cannot be read, or does not say what it should, is reported once; until it can be, prices and bands come from what the
//! gate sees by itself.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tollgate_core::time::Span;
use tollgate_wire::kernel::{cpu_usage, pressure_milli};

/// More than any of these files has.
const BYTES_MAX: u64 = 4096;

/// One file of the kernel's, and whether it was readable when last read.
#[derive(Debug)]
struct Watched {
    path: PathBuf,
    is_missing: bool,
}

impl Watched {
    fn new(path: PathBuf) -> Self {
        Self { path, is_missing: false }
    }

    /// What `parse` makes of the file now.
    fn read<T>(&mut self, parse: fn(&[u8]) -> Option<T>) -> Option<T> {
        let read = read(&self.path).and_then(|text| parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into()));
        match read {
            Ok(value) => {
                if std::mem::take(&mut self.is_missing) {
                    tracing::info!(path = %self.path.display(), "the kernel's account of the backend is readable again");
                }
                Some(value)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_missing, true) {
                    let path = self.path.display();
                    tracing::warn!(%path, %error, "cannot read the kernel's account of the backend; going on without it");
                }
                None
            }
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// What is known about the use of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Used {
    /// Nothing: the file cannot be read.
    Unknown,
    /// From now on it will be known.
    Begins,
    /// So much was used since the last look.
    Since(Span),
}

/// The CPU time that a control group uses.
#[derive(Debug)]
pub(crate) struct Usage {
    stat: Watched,
    before: Option<Span>,
}

impl Usage {
    /// Of the group with this directory.
    pub(crate) fn of_group(group: &Path) -> Self {
        Self { stat: Watched::new(group.join("cpu.stat")), before: None }
    }

    /// Looks how much was used.
    pub(crate) fn look(&mut self) -> Used {
        let now = self.stat.read(cpu_usage);
        let before = std::mem::replace(&mut self.before, now);
        match (now, before) {
            (None, _) => Used::Unknown,
            (Some(now), Some(before)) if now >= before => {
                Used::Since(Span::from_nanos(now.as_nanos() - before.as_nanos()))
            }
            // A group that was removed and made again counts from zero.
            (Some(_), _) => Used::Begins,
        }
    }
}

/// How much somebody wants for CPU time.
#[derive(Debug)]
pub(crate) struct Pressure(Watched);

impl Pressure {
    /// By what this file says.
    pub(crate) fn of_file(path: PathBuf) -> Self {
        Self(Watched::new(path))
    }

    /// The part of the last ten seconds in which somebody did, in thousandths.
    pub(crate) fn milli(&mut self) -> Option<u32> {
        self.0.read(pressure_milli)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_a_group_uses_is_read_from_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let say = |micros: u64| {
            fs::write(dir.path().join("cpu.stat"), format!("usage_usec {micros}\nuser_usec 1\n")).unwrap()
        };
        let mut usage = Usage::of_group(dir.path());
        assert_eq!(usage.look(), Used::Unknown, "there is no such file");
        say(5_000_000);
        assert_eq!(usage.look(), Used::Begins);
        say(5_030_000);
        assert_eq!(usage.look(), Used::Since(Span::from_millis(30)));
        say(10);
        assert_eq!(usage.look(), Used::Begins, "a new group of the same name");
        say(1_010);
        assert_eq!(usage.look(), Used::Since(Span::from_millis(1)));
        fs::write(dir.path().join("cpu.stat"), "nonsense").unwrap();
        assert_eq!(usage.look(), Used::Unknown);
        assert!(usage.stat.is_missing);
    }

    #[test]
    fn an_endless_file_is_not_read_to_its_end() {
        let mut usage = Usage { stat: Watched::new("/dev/zero".into()), before: None };
        assert_eq!(usage.look(), Used::Unknown);
    }

    #[test]
    fn pressure_is_read_from_a_file_and_from_this_kernel_if_it_has_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cpu.pressure");
        fs::write(&path, "some avg10=25.50 avg60=1.00 avg300=0.10 total=1\n").unwrap();
        assert_eq!(Pressure::of_file(path).milli(), Some(255));
        let own = Path::new("/proc/pressure/cpu");
        // A kernel may have the file and not let it be read.
        if fs::read(own).is_ok_and(|text| !text.is_empty()) {
            let milli = Pressure::of_file(own.to_owned()).milli();
            assert!(milli.is_some_and(|milli| milli <= 1000), "{milli:?}");
        }
    }
}
