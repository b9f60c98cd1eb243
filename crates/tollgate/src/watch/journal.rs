//! The append-only file that persists the state of the watch, safe against a crash at any moment.
//!
//! Records are written and synced before they are acknowledged. When the file is much longer than the state that it
//! describes, it is rewritten to a temporary file that replaces it, so a complete journal always exists. After a failed
//! write the end of the file is unknown; from then on only a rewrite is accepted.
//!
//! If any bytes of the file are unreadable, a copy is saved as `watch.damaged` before the file changes, and a line is
//! logged. All readable records count, including those after a damaged one, unless the damage hides where they start.

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::record::Record;
use crate::durable::{self, FrameError};

/// The first line: format and version.
const MARK: &[u8] = b"tollgate watch 3\n";
/// A larger file is not a journal of Tollgate.
const BYTES_MAX: u64 = 1 << 30;
/// Smaller files are not rewritten, because that saves too little.
const REWRITE_BYTES_MIN: u64 = 8 << 20;
/// Attempts to lock the file, with a pause after each: a process that is exiting, or a child that has not closed its
/// copy of the file yet, may hold the lock for a moment.
const LOCK_ATTEMPTS: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The open journal.
pub(super) struct Journal {
    path: PathBuf,
    /// `None` after a failed write.
    file: Option<File>,
    /// Length of the file in bytes.
    pub(crate) bytes: u64,
    /// Length in bytes after the last rewrite.
    bytes_after_rewrite: u64,
}

impl Journal {
    /// Opens the journal in `directory` and calls `each` with every record. If this fails, `each` was not called, so
    /// that a caller that retries counts nothing twice.
    pub(super) fn open(directory: &Path, mut each: impl FnMut(Record<'static>)) -> io::Result<Self> {
        // Keys may be secrets such as API keys, so the directory and the file are readable by this user only.
        durable::create_directory(directory)?;
        let path = directory.join("watch.journal");
        let mut file = durable::private().create(true).append(true).read(true).open(&path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other(format!("{} is not a file", path.display())));
        }
        lock(&file)?;
        if file.metadata()?.len() > BYTES_MAX {
            durable::move_aside(&path, "it is too large to be a journal")?;
            file = durable::private().create_new(true).append(true).read(true).open(&path)?;
            lock(&file)?;
        }
        durable::keep_private(&file)?;
        let mut bytes = Vec::new();
        (&file).take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
        let length = bytes.len() as u64;
        let mut journal = Self { path, file: Some(file), bytes: length, bytes_after_rewrite: 0 };
        let contents = Contents::of(&bytes);
        if let Some(reason) = contents.damage {
            durable::put_aside(&journal.path, reason)?;
        }
        if contents.is_whole() {
            durable::sync_directory(&journal.path)?;
        } else {
            let records: Vec<&[u8]> = contents.records.iter().map(|range| &bytes[range.clone()]).collect();
            journal.rewrite(&records)?;
        }
        // Parsed a second time instead of collected, because the parsed records of a large journal might not fit in
        // memory.
        for range in contents.records {
            let mut rest = &bytes[range];
            while let Ok((record, length)) = Record::read(rest) {
                each(record);
                rest = &rest[length..];
            }
        }
        Ok(journal)
    }

    /// Appends records and syncs them, all or none. After a failure only [`Self::rewrite`] works.
    pub(super) fn append(&mut self, records: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Err(io::Error::other("an earlier write failed")) };
        // A write to a deleted file would succeed and be lost.
        let written = match file.metadata() {
            Ok(data) if data.nlink() == 0 => Err(io::Error::new(io::ErrorKind::NotFound, "the journal was deleted")),
            Ok(_) => file.write_all(records).and_then(|()| file.sync_data()),
            Err(error) => Err(error),
        };
        match &written {
            Ok(()) => self.bytes += records.len() as u64,
            Err(_) => {
                let _ = file.set_len(self.bytes);
                self.file = None;
            }
        }
        written
    }

    /// Whether a rewrite would shorten the file considerably.
    pub(super) fn has_grown(&self) -> bool {
        self.bytes > self.bytes_after_rewrite.saturating_mul(2).max(REWRITE_BYTES_MIN)
    }

    /// Whether an earlier write failed.
    pub(super) fn is_broken(&self) -> bool {
        self.file.is_none()
    }

    /// Replaces the content by these records, atomically.
    pub(super) fn rewrite(&mut self, records: &[&[u8]]) -> io::Result<()> {
        let parts: Vec<&[u8]> = [MARK].into_iter().chain(records.iter().copied()).collect();
        let file = durable::replace_prepared(&self.path, &parts, lock)?;
        self.bytes = parts.iter().map(|part| part.len() as u64).sum();
        self.bytes_after_rewrite = self.bytes;
        self.file = Some(file);
        Ok(())
    }
}

/// The readable parts of a journal.
struct Contents {
    /// Ranges of consecutive readable records.
    records: Vec<Range<usize>>,
    /// Why other parts are unreadable.
    damage: Option<&'static str>,
    /// Whether the file starts with the mark.
    has_mark: bool,
}

impl Contents {
    /// Whether the file can be appended to as it is.
    fn is_whole(&self) -> bool {
        self.has_mark && self.damage.is_none()
    }

    /// Parses a whole journal.
    fn of(bytes: &[u8]) -> Self {
        if bytes.len() as u64 > BYTES_MAX {
            return Self { records: Vec::new(), damage: Some("it is too large to be a journal"), has_mark: false };
        }
        if bytes.starts_with(MARK) {
            return Self::of_records(bytes);
        }
        // A process that was killed while it created the file leaves a prefix of the mark. Nothing is lost then.
        let damage = (!MARK.starts_with(bytes)).then_some("it does not start like a journal");
        Self { records: Vec::new(), damage, has_mark: false }
    }

    fn of_records(bytes: &[u8]) -> Self {
        let mut contents = Self { records: Vec::new(), damage: None, has_mark: true };
        let (mut start, mut at) = (MARK.len(), MARK.len());
        let mut skip = |range: Range<usize>, reason| {
            contents.records.push(range);
            contents.damage.get_or_insert(reason);
        };
        while at < bytes.len() {
            match Record::read(&bytes[at..]) {
                Ok((_, length)) => at += length,
                Err(FrameError::Content(length)) => {
                    skip(start..at, "a record cannot be read");
                    at += length;
                    start = at;
                }
                Err(FrameError::Head) => {
                    skip(start..at, "the header of a record is damaged, so everything after it is unreadable");
                    return contents;
                }
                Err(FrameError::Short) => {
                    skip(start..at, "it ends in the middle of a record");
                    return contents;
                }
            }
        }
        contents.records.push(start..at);
        contents
    }
}

/// Locks the file: two processes that write to one journal would overwrite acknowledged records.
fn lock(file: &File) -> io::Result<()> {
    for _ in 0..LOCK_ATTEMPTS {
        if file.try_lock().is_ok() {
            return Ok(());
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    Err(io::Error::other("another process uses this journal: give each its own state_dir"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn record(id: &str) -> Record<'static> {
        Record::Reported { id: id.to_owned() }
    }

    fn bytes(ids: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        ids.iter().for_each(|id| record(id).write(&mut bytes));
        bytes
    }

    fn open(directory: &Path) -> (Journal, Vec<Record<'static>>) {
        let mut records = Vec::new();
        let journal = Journal::open(directory, |record| records.push(record)).unwrap();
        (journal, records)
    }

    #[test]
    fn appended_records_are_read_when_the_journal_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, records) = open(folder.path());
        assert_eq!(records, []);
        journal.append(&bytes(&["a", "b"])).unwrap();
        journal.append(&bytes(&["c"])).unwrap();
        drop(journal);
        let (mut journal, records) = open(folder.path());
        assert_eq!(records, ["a", "b", "c"].map(record));
        journal.rewrite(&[&bytes(&["d"])]).unwrap();
        journal.append(&bytes(&["e"])).unwrap();
        drop(journal);
        assert_eq!(open(folder.path()).1, ["d", "e"].map(record));
    }

    /// Opens a journal with this content.
    fn open_with(directory: &Path, content: &[u8]) -> (Journal, Vec<Record<'static>>) {
        let _ = fs::remove_file(directory.join("watch.damaged"));
        fs::write(directory.join("watch.journal"), content).unwrap();
        open(directory)
    }

    fn aside(directory: &Path) -> Option<Vec<u8>> {
        fs::read(directory.join("watch.damaged")).ok()
    }

    #[test]
    fn a_truncated_journal_loses_only_its_last_record_and_is_copied_first() {
        let folder = tempfile::tempdir().unwrap();
        let whole = [MARK, &bytes(&["a", "b"])].concat();
        let first = MARK.len() + bytes(&["a"]).len();
        for length in 0..whole.len() {
            let (mut journal, records) = open_with(folder.path(), &whole[..length]);
            assert_eq!(records.len(), usize::from(length >= first), "{length} bytes");
            let loses = length > MARK.len() && length != first;
            assert_eq!(aside(folder.path()), loses.then(|| whole[..length].to_vec()), "{length} bytes");
            journal.append(&bytes(&["c"])).unwrap();
            drop(journal);
            assert_eq!(open(folder.path()).1.last(), Some(&record("c")));
        }
    }

    #[test]
    fn fault_43_every_flipped_bit_is_detected_copied_first_and_costs_one_record() {
        let folder = tempfile::tempdir().unwrap();
        let whole = [MARK, &bytes(&["a", "b", "c"])].concat();
        let record_bytes = bytes(&["a"]).len();
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let (mut journal, records) = open_with(folder.path(), &damaged);
            let in_records = (bit / 8).checked_sub(MARK.len());
            let expected: Vec<_> = match in_records.map(|at| (at / record_bytes, at % record_bytes)) {
                None => Vec::new(),
                Some((number, at)) if at < 16 => ["a", "b", "c"][..number].to_vec(),
                Some((number, _)) => {
                    ["a", "b", "c"].into_iter().enumerate().filter_map(|(n, id)| (n != number).then_some(id)).collect()
                }
            };
            assert_eq!(records, expected.into_iter().map(record).collect::<Vec<_>>(), "bit {bit}");
            assert_eq!(aside(folder.path()), Some(damaged), "bit {bit}");
            journal.append(&bytes(&["d"])).unwrap();
            drop(journal);
            assert_eq!(open(folder.path()).1.last(), Some(&record("d")), "bit {bit}");
        }
        assert_eq!(open_with(folder.path(), b"something else").1, []);
        assert_eq!(aside(folder.path()).unwrap(), b"something else");
    }

    #[test]
    fn no_record_is_delivered_when_opening_fails() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("watch.journal");
        open(folder.path()).0.append(&bytes(&["a", "b"])).unwrap();
        let mut damaged = fs::read(&path).unwrap();
        *damaged.last_mut().unwrap() ^= 1;
        fs::write(&path, &damaged).unwrap();
        // A directory of that name makes the copy fail.
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
    fn a_deleted_journal_accepts_no_records_until_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("state");
        let (mut journal, _) = open(&directory);
        fs::remove_dir_all(&directory).unwrap();
        assert!(journal.append(&bytes(&["a"])).is_err());
        assert!(journal.is_broken() && journal.rewrite(&[&[]]).is_err() && journal.append(&[]).is_err());
        fs::create_dir(&directory).unwrap();
        journal.rewrite(&[&bytes(&["b"])]).unwrap();
        journal.append(&bytes(&["c"])).unwrap();
        drop(journal);
        assert_eq!(open(&directory).1, ["b", "c"].map(record));
    }

    #[test]
    fn a_journal_is_readable_by_its_user_only() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("state");
        let (mut journal, _) = open(&directory);
        let modes =
            || [&directory, &directory.join("watch.journal")].map(|path| fs::metadata(path).unwrap().mode() & 0o777);
        assert_eq!(modes(), [0o700, 0o600]);
        journal.rewrite(&[&bytes(&["a"])]).unwrap();
        assert_eq!(modes(), [0o700, 0o600]);
    }

    #[test]
    fn the_permissions_of_an_existing_journal_are_corrected() {
        let folder = tempfile::tempdir().unwrap();
        let [path, aside] = ["watch.journal", "watch.damaged"].map(|name| folder.path().join(name));
        for path in [&path, &aside] {
            fs::write(path, b"something else").unwrap();
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        }
        drop(open(folder.path()));
        for path in [&path, &aside] {
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o600, "{}", path.display());
        }
        // A journal without damage is not rewritten.
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        drop(open(folder.path()));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn symbolic_links_are_not_followed() {
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
        let (mut journal, _) = open(&link("watch.journal.new"));
        // The link itself is replaced, not its target.
        journal.rewrite(&[&bytes(&["a"])]).unwrap();
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
