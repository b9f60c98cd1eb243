//! Files that survive a crash: records with checksums, and private files that are replaced atomically. The watch, the
//! master and the gate keep their state in such files.
//!
//! A record is framed so that every flipped bit and every truncation is detected, and so that damage to the content of
//! one record does not hide the records after it:
//!
//! | bytes | content |
//! |---|---|
//! | 4 | length of the content |
//! | 8 | SipHash-1-3 of the content |
//! | 4 | upper half of the SipHash-1-3 of the 12 bytes before |
//! | n | content |
//!
//! A file that is written as a whole has a mark at its start, which identifies its format, and a checksum at its end.
//! Numbers are big-endian. The checksums detect damage, not forgery. Files are therefore private (accessible to their
//! owner only), and symbolic links are not followed: otherwise any user with access to the directory could choose a
//! file for the process to read or overwrite.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use siphasher::sip::SipHasher13;

/// Length of a record's header: the first three rows of the table.
const HEAD_BYTES: usize = 16;
/// Length of the part of the header that the header's own checksum covers.
const SUMMED_HEAD_BYTES: usize = 12;
/// Longest content of a record, in bytes.
const CONTENT_BYTES_MAX: usize = 64 << 20;

/// Why bytes do not start with a valid record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameError {
    /// The record is incomplete.
    Short,
    /// The content is damaged. The next record starts after this many bytes.
    Content(usize),
    /// The header is damaged, so the next record cannot be found.
    Head,
}

/// SipHash-1-3 with a fixed key: equal content has the same hash in every process. Detects damage and changes.
pub(crate) fn hasher() -> impl Hasher {
    SipHasher13::new()
}

/// The hash of these bytes.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = hasher();
    hasher.write(bytes);
    hasher.finish()
}

fn head_checksum(head: &[u8]) -> [u8; 4] {
    ((checksum(head) >> 32) as u32).to_be_bytes()
}

/// Appends a record; `write` appends its content.
pub(crate) fn write_record(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    write(out);
    let content = start + HEAD_BYTES;
    let (length, sum) = ((out.len() - content) as u32, checksum(&out[content..]));
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    out[start + 4..start + SUMMED_HEAD_BYTES].copy_from_slice(&sum.to_be_bytes());
    let head_sum = head_checksum(&out[start..start + SUMMED_HEAD_BYTES]);
    out[start + SUMMED_HEAD_BYTES..content].copy_from_slice(&head_sum);
}

/// Content of the record at the start of `bytes`, and the length of the whole record.
pub(crate) fn read_record(bytes: &[u8]) -> Result<(&[u8], usize), FrameError> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(FrameError::Short)?;
    let [l0, l1, l2, l3, s0, s1, s2, s3, s4, s5, s6, s7, head_sum @ ..] = *head;
    let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
    if head_checksum(&head[..SUMMED_HEAD_BYTES]) != head_sum || length > CONTENT_BYTES_MAX {
        return Err(FrameError::Head);
    }
    let content = rest.get(..length).ok_or(FrameError::Short)?;
    let whole = HEAD_BYTES + length;
    if checksum(content) == u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]) {
        Ok((content, whole))
    } else {
        Err(FrameError::Content(whole))
    }
}

/// Appends the checksum of a whole file.
pub(crate) fn seal(bytes: &mut Vec<u8>) {
    let sum = checksum(bytes);
    bytes.extend_from_slice(&sum.to_be_bytes());
}

/// Bytes between the mark and the checksum of a whole file, if both are valid.
pub(crate) fn unseal<'a>(bytes: &'a [u8], mark: &[u8]) -> Option<&'a [u8]> {
    let (content, sum) = bytes.split_last_chunk::<8>()?;
    (checksum(content) == u64::from_be_bytes(*sum)).then_some(())?;
    content.strip_prefix(mark)
}

/// Options to open a file: private, not through a symbolic link, and without blocking on a pipe.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    options
}

/// Creates a private directory.
pub(crate) fn create_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Makes an existing file private.
pub(crate) fn keep_private(file: &File) -> io::Result<()> {
    let mut permissions = file.metadata()?.permissions();
    if permissions.mode() & 0o077 != 0 {
        permissions.set_mode(0o600);
        file.set_permissions(permissions)?;
    }
    Ok(())
}

/// Reads a whole file; `None` if it does not exist. Of a file larger than `bytes_max`, only the start is returned; the
/// caller finds that its checksum is wrong.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match private().read(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Replaces the content of a file with the concatenated parts, atomically. Returns the new file, positioned at its end.
pub(crate) fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<File> {
    replace_prepared(path, parts, |_| Ok(()))
}

/// The same, but calls `prepare` with the new file before anything is written to it.
pub(crate) fn replace_prepared(
    path: &Path,
    parts: &[&[u8]],
    prepare: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<File> {
    let new = with_suffix(path, ".new");
    let written = write_new(&new, parts, prepare).and_then(|file| {
        fs::rename(&new, path)?;
        sync_directory(path)?;
        Ok(file)
    });
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// Creates a file with this content and syncs it. Removes a file of that name first.
fn write_new(path: &Path, parts: &[&[u8]], prepare: impl FnOnce(&File) -> io::Result<()>) -> io::Result<File> {
    remove_if_there(path)?;
    let mut file = private().create_new(true).write(true).open(path)?;
    prepare(&file)?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    file.sync_all()?;
    Ok(file)
}

/// Copies a damaged file to one with the extension `damaged`, for the operator. The copy is synced when this returns,
/// so that the caller may change the file. Replaces the copy of earlier damage.
pub(crate) fn put_aside(path: &Path, reason: &str) -> io::Result<()> {
    let aside = path.with_extension("damaged");
    remove_if_there(&aside)?;
    let mut copy = private().create_new(true).write(true).open(&aside)?;
    let bytes = io::copy(&mut private().read(true).open(path)?, &mut copy)?;
    copy.sync_all()?;
    sync_directory(&aside)?;
    let file = path.display();
    tracing::warn!(%file, copy = %aside.display(), bytes, reason, "a file is damaged: saved a copy");
    Ok(())
}

/// Like [`put_aside`], but renames the file, for one that may be too large to copy.
pub(crate) fn move_aside(path: &Path, reason: &str) -> io::Result<()> {
    let aside = path.with_extension("damaged");
    fs::rename(path, &aside)?;
    sync_directory(&aside)?;
    let file = path.display();
    tracing::warn!(%file, moved_to = %aside.display(), reason, "a file is damaged: moved it away");
    Ok(())
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Syncs the directory of a file, so that its name is on disk.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn records(contents: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        contents.iter().for_each(|content| write_record(&mut bytes, |out| out.extend_from_slice(content)));
        bytes
    }

    #[test]
    fn every_flipped_bit_is_detected_and_outside_headers_costs_one_record() {
        let bytes = records(&[b"first", b"second"]);
        let first = HEAD_BYTES + 5;
        for bit in 0..first * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let expected = if bit / 8 < HEAD_BYTES { FrameError::Head } else { FrameError::Content(first) };
            assert_eq!(read_record(&damaged), Err(expected), "bit {bit}");
        }
        assert_eq!(read_record(&bytes[first..]).unwrap().0, b"second");
    }

    #[test]
    fn a_truncated_record_is_detected() {
        let bytes = records(&[b"content"]);
        for length in 0..bytes.len() {
            assert_eq!(read_record(&bytes[..length]), Err(FrameError::Short), "{length} bytes");
        }
        assert_eq!(read_record(&bytes), Ok((&b"content"[..], bytes.len())));
    }

    #[test]
    fn every_flipped_bit_and_truncation_of_a_whole_file_is_detected() {
        let mut bytes = b"mark\ncontent".to_vec();
        seal(&mut bytes);
        assert_eq!(unseal(&bytes, b"mark\n"), Some(&b"content"[..]));
        for length in 0..bytes.len() {
            assert_eq!(unseal(&bytes[..length], b"mark\n"), None, "{length} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(unseal(&damaged, b"mark\n"), None, "bit {bit}");
        }
    }

    #[test]
    fn a_file_is_private_and_replaced_atomically_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, new, precious] = ["a.state", "a.state.new", "precious"].map(|name| folder.path().join(name));
        assert_eq!(read(&path, 100).unwrap(), None);
        // Left behind by an interrupted write, or a link that an attacker created.
        fs::write(&precious, "of somebody else").unwrap();
        std::os::unix::fs::symlink(&precious, &new).unwrap();
        replace(&path, &[b"one ", b"two"]).unwrap();
        assert_eq!(read(&path, 100).unwrap().unwrap(), b"one two");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(!new.exists() && fs::read(&precious).unwrap() == b"of somebody else");
        put_aside(&path, "a test").unwrap();
        assert_eq!(fs::read(folder.path().join("a.damaged")).unwrap(), b"one two");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        assert!(read(&path, 100).is_err() && put_aside(&path, "a test").is_err());
        replace(&path, &[b"three"]).unwrap();
        assert_eq!(fs::read(&precious).unwrap(), b"of somebody else", "the link was replaced");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(read(&path, 100).is_err() && replace(&path, &[b"four"]).is_err());
        assert!(!new.exists());
    }
}
