//! The file in which the watch survives the end of its process, however sudden.
//!
//! Records are appended and on disk before anybody is told that they count. When the file has grown to more than what it says is worth, it is
//! written anew beside its place and moved there, so there is always a whole one. A write that failed leaves a file that cannot be
//! trusted: from then on only a whole new one can take its place.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::record::{Broken, Record};

const MARK: &[u8] = b"tollgate watch 1\n";
/// A file that is larger than this is not ours.
const BYTES_MAX: u64 = 1 << 30;
/// A smaller file is not worth writing anew.
const WORTH_BYTES: u64 = 8 << 20;

/// Where records are appended.
pub(super) struct Journal {
    path: PathBuf,
    /// None after a write that failed.
    file: Option<File>,
    bytes: u64,
    /// The length of the file when it was last written anew.
    bytes_anew: u64,
}

impl Journal {
    /// Opens the journal of a directory, and calls `each` with every record in it. Where it fails, `each` was not called: who tries again would count everything again.
    pub(super) fn open(directory: &Path, mut each: impl FnMut(Record)) -> io::Result<Self> {
        // Names of accounts may be secrets, such as keys of an API: they are nobody else's on this machine.
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let path = directory.join("watch.journal");
        let mut file = ours().create(true).append(true).read(true).open(&path)?;
        lock(&file)?;
        keep_private(&file)?;
        let mut bytes = Vec::new();
        if file.metadata()?.len() <= BYTES_MAX {
            file.read_to_end(&mut bytes)?;
        }
        let mut journal = Self { path, file: Some(file), bytes: 0, bytes_anew: 0 };
        let good = match bytes.strip_prefix(MARK) {
            Some(mut rest) => loop {
                match Record::read(rest) {
                    Ok((_, length)) => rest = &rest[length..],
                    // Somebody was killed while writing it, and had promised nothing yet.
                    Err(Broken::Short) => break bytes.len() - rest.len(),
                    Err(Broken::Damaged) => {
                        journal.put_aside()?;
                        break bytes.len() - rest.len();
                    }
                }
            },
            None if MARK.starts_with(&bytes) && bytes.len() as u64 == journal.length()? => 0,
            None => {
                journal.put_aside()?;
                0
            }
        };
        journal.cut(good as u64)?;
        if good == 0 {
            journal.append(MARK)?;
        }
        // Read twice, and not kept in between: a journal can be as large as all of the memory that is left.
        let mut rest = bytes.get(MARK.len()..good).unwrap_or_default();
        while let Ok((record, length)) = Record::read(rest) {
            each(record);
            rest = &rest[length..];
        }
        Ok(journal)
    }

    /// Puts these records on disk, all or none. After a failure, only [`Self::replace`] helps.
    pub(super) fn append(&mut self, records: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Err(io::Error::other("an earlier write has failed")) };
        // A file that was deleted takes everything and keeps nothing.
        let written = match file.metadata() {
            Ok(data) if data.nlink() == 0 => Err(io::Error::new(io::ErrorKind::NotFound, "the journal was deleted")),
            Ok(_) => file.write_all(records).and_then(|()| file.sync_data()),
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => {
                self.bytes += records.len() as u64;
                Ok(())
            }
            Err(error) => {
                let _ = file.set_len(self.bytes);
                self.file = None;
                Err(error)
            }
        }
    }

    /// Whether what is there can be written anew in much less.
    pub(super) fn has_grown(&self) -> bool {
        self.bytes > self.bytes_anew.saturating_mul(2).max(WORTH_BYTES)
    }

    /// Whether an earlier write has failed.
    pub(super) fn is_broken(&self) -> bool {
        self.file.is_none()
    }

    /// The length of the file.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Puts these records in the place of everything before.
    pub(super) fn replace(&mut self, records: &[u8]) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let written = self.write_anew(&new, records);
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written
    }

    fn write_anew(&mut self, new: &Path, records: &[u8]) -> io::Result<()> {
        let mut file = ours().create(true).truncate(true).write(true).open(new)?;
        lock(&file)?;
        keep_private(&file)?;
        file.write_all(MARK)?;
        file.write_all(records)?;
        file.sync_all()?;
        fs::rename(new, &self.path)?;
        sync_directory(&self.path)?;
        // It was opened to be written from its start, and goes on from its end.
        self.bytes = (MARK.len() + records.len()) as u64;
        self.bytes_anew = self.bytes;
        self.file = Some(file);
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        self.file.as_ref().map_or(Ok(0), |file| file.metadata().map(|data| data.len()))
    }

    /// Keeps a copy of what cannot be read, for somebody to look at.
    fn put_aside(&self) -> io::Result<()> {
        let aside = self.path.with_extension("damaged");
        match fs::remove_file(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        io::copy(&mut ours().read(true).open(&self.path)?, &mut ours().create_new(true).write(true).open(&aside)?)?;
        tracing::warn!(file = %aside.display(), "the journal of the watch is damaged: a copy was put aside, what could be read counts");
        Ok(())
    }

    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        if let Some(file) = &self.file
            && file.metadata()?.len() != bytes
        {
            file.set_len(bytes)?;
            file.sync_all()?;
        }
        sync_directory(&self.path)?;
        self.bytes = bytes;
        Ok(())
    }
}

/// How files are opened here: for nobody else to read, and not where a link leads. Whoever may write in the directory could otherwise choose a file for us to spoil.
fn ours() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options
}

/// A file that was there before may have been made by somebody who let others read it.
fn keep_private(file: &File) -> io::Result<()> {
    let mut permissions = file.metadata()?.permissions();
    if permissions.mode() & 0o077 != 0 {
        permissions.set_mode(0o600);
        file.set_permissions(permissions)?;
    }
    Ok(())
}

/// Two processes that write one journal would lose what both have promised.
fn lock(file: &File) -> io::Result<()> {
    file.try_lock().map_err(|_| io::Error::other("another process uses this journal: give each its own state_dir"))
}

/// A name is on disk when its directory is.
fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str) -> Record {
        Record::Reported { id: id.to_owned() }
    }

    fn bytes(ids: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        ids.iter().for_each(|id| record(id).write(&mut bytes));
        bytes
    }

    fn open(directory: &Path) -> (Journal, Vec<Record>) {
        let mut records = Vec::new();
        let journal = Journal::open(directory, |record| records.push(record)).unwrap();
        (journal, records)
    }

    #[test]
    fn what_was_appended_is_there_again() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, records) = open(folder.path());
        assert_eq!(records, []);
        journal.append(&bytes(&["a", "b"])).unwrap();
        journal.append(&bytes(&["c"])).unwrap();
        drop(journal);
        let (mut journal, records) = open(folder.path());
        assert_eq!(records, ["a", "b", "c"].map(record));
        journal.replace(&bytes(&["d"])).unwrap();
        journal.append(&bytes(&["e"])).unwrap();
        drop(journal);
        assert_eq!(open(folder.path()).1, ["d", "e"].map(record));
    }

    #[test]
    fn an_end_in_the_middle_of_a_record_takes_only_that_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("watch.journal");
        open(folder.path()).0.append(&bytes(&["a", "b"])).unwrap();
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let (mut journal, records) = open(folder.path());
            assert!(records.len() < 2);
            journal.append(&bytes(&["c"])).unwrap();
            drop(journal);
            assert_eq!(open(folder.path()).1.last(), Some(&record("c")));
        }
        assert!(!folder.path().join("watch.damaged").exists());
    }

    #[test]
    fn fault_43_damage_is_put_aside_and_what_was_before_it_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("watch.journal");
        open(folder.path()).0.append(&bytes(&["a", "b"])).unwrap();
        let mut damaged = fs::read(&path).unwrap();
        *damaged.last_mut().unwrap() ^= 1;
        fs::write(&path, &damaged).unwrap();
        assert_eq!(open(folder.path()).1, [record("a")]);
        assert_eq!(fs::read(folder.path().join("watch.damaged")).unwrap(), damaged);
        fs::write(&path, b"something else").unwrap();
        assert_eq!(open(folder.path()).1, []);
    }

    #[test]
    fn a_journal_that_cannot_be_used_is_not_read_either() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("watch.journal");
        open(folder.path()).0.append(&bytes(&["a", "b"])).unwrap();
        let mut damaged = fs::read(&path).unwrap();
        *damaged.last_mut().unwrap() ^= 1;
        fs::write(&path, &damaged).unwrap();
        // What is in the way keeps the copy from being made.
        let aside = folder.path().join("watch.damaged");
        fs::create_dir(&aside).unwrap();
        for _ in 0..2 {
            let mut records = 0;
            assert!(Journal::open(folder.path(), |_| records += 1).is_err());
            assert_eq!(records, 0);
        }
        fs::remove_dir(&aside).unwrap();
        assert_eq!(open(folder.path()).1, [record("a")]);
    }

    #[test]
    fn a_journal_that_was_deleted_takes_nothing_more_until_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("state");
        let (mut journal, _) = open(&directory);
        fs::remove_dir_all(&directory).unwrap();
        assert!(journal.append(&bytes(&["a"])).is_err());
        assert!(journal.is_broken() && journal.replace(&[]).is_err() && journal.append(&[]).is_err());
        fs::create_dir(&directory).unwrap();
        journal.replace(&bytes(&["b"])).unwrap();
        journal.append(&bytes(&["c"])).unwrap();
        drop(journal);
        assert_eq!(open(&directory).1, ["b", "c"].map(record));
    }

    #[test]
    fn a_journal_is_read_by_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("state");
        let (mut journal, _) = open(&directory);
        let modes =
            || [&directory, &directory.join("watch.journal")].map(|path| fs::metadata(path).unwrap().mode() & 0o777);
        assert_eq!(modes(), [0o700, 0o600]);
        journal.replace(&bytes(&["a"])).unwrap();
        assert_eq!(modes(), [0o700, 0o600]);
    }

    #[test]
    fn a_journal_that_others_could_read_is_ours_again() {
        let folder = tempfile::tempdir().unwrap();
        let [path, aside] = ["watch.journal", "watch.damaged"].map(|name| folder.path().join(name));
        for path in [&path, &aside] {
            fs::write(path, b"something else").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        }
        drop(open(folder.path()));
        for path in [&path, &aside] {
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o600, "{}", path.display());
        }
    }

    #[test]
    fn no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let precious = folder.path().join("precious");
        fs::write(&precious, b"of somebody else").unwrap();
        let link = |name: &str| {
            let directory = folder.path().join(name);
            fs::create_dir(&directory).unwrap();
            std::os::unix::fs::symlink(&precious, directory.join(name)).unwrap();
            directory
        };
        assert!(Journal::open(&link("watch.journal"), |_| {}).is_err());
        let (mut journal, _) = open(&link("watch.new"));
        assert!(journal.replace(&bytes(&["a"])).is_err());
        // One that is in the way goes, not what it leads to.
        journal.replace(&bytes(&["a"])).unwrap();
        let directory = link("watch.damaged");
        fs::write(directory.join("watch.journal"), b"damaged").unwrap();
        drop(open(&directory));
        assert_eq!(fs::read(directory.join("watch.damaged")).unwrap(), b"damaged");
        assert_eq!(fs::read(&precious).unwrap(), b"of somebody else");
    }

    #[test]
    fn two_processes_cannot_share_a_journal() {
        let folder = tempfile::tempdir().unwrap();
        let (_journal, _) = open(folder.path());
        assert!(Journal::open(folder.path(), |_| {}).is_err());
    }
}
