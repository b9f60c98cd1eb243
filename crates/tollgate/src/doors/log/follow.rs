//! Follows a file to which another program appends lines, through rotation and truncation, like `tail -F`.
//!
//! A disk can hang, so the file is read in a thread of its own. The thread polls, because inotify does not report
//! changes that another machine makes on a network file system.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use tokio::sync::mpsc;

use super::partial_line::PartialLine;

/// The interval at which the file is read.
const POLL: Duration = Duration::from_millis(50);
/// The interval at which the path is checked, to find a file that was missing, or one that has replaced the followed
/// one.
const CHECK_PATH: Duration = Duration::from_millis(500);
/// The maximum size of one read, in bytes.
const PIECE_BYTES: usize = 64 * 1024;

/// Sends complete lines that are appended to the file, several at a time, until the receiver is dropped. Lines of a
/// file that can be opened at the start are not sent, because their requests ended before. A file that is opened later,
/// also after a failed read, is sent from its beginning; tickets that were settled before are unknown then.
pub(super) fn follow(path: &Path, pieces: &mpsc::Sender<Vec<u8>>) {
    let mut followed = open(path, SeekFrom::End(0));
    let mut since_check = Duration::ZERO;
    let mut is_missing = false;
    while !pieces.is_closed() {
        let outcome = followed.as_mut().map(|followed| followed.read_to_end(pieces));
        if let Some(Err(error)) = outcome {
            tracing::warn!(file = %path.display(), %error, "the access log of the proxy cannot be read");
            followed = None;
        }
        std::thread::sleep(POLL);
        since_check += POLL;
        if since_check < CHECK_PATH {
            continue;
        }
        since_check = Duration::ZERO;
        if followed.as_ref().is_none_or(|followed| followed.is_replaced(path)) {
            // The old file may have lines that were written between the last read and the rotation.
            if let Some(followed) = &mut followed {
                let _ = followed.read_to_end(pieces);
            }
            followed = open(path, SeekFrom::Start(0));
        }
        let was_missing = std::mem::replace(&mut is_missing, followed.is_none());
        if is_missing && !was_missing {
            tracing::warn!(file = %path.display(), "the access log of the proxy does not exist, or cannot be opened");
        }
    }
}

struct FollowedFile {
    file: File,
    /// Distinguishes the file from one that has replaced it.
    inode: u64,
    /// The offset of the next read, to detect that the file was truncated.
    position: u64,
    partial: PartialLine,
}

fn open(path: &Path, from: SeekFrom) -> Option<FollowedFile> {
    // Only regular files: a fifo would block this thread until a writer opens it.
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let mut file = File::open(path).ok()?;
    let position = file.seek(from).ok()?;
    let inode = file.metadata().ok()?.ino();
    Some(FollowedFile { file, inode, position, partial: PartialLine::default() })
}

impl FollowedFile {
    /// Whether the path leads to another file. If it leads to none, the old file is still followed.
    fn is_replaced(&self, path: &Path) -> bool {
        std::fs::metadata(path).is_ok_and(|metadata| metadata.ino() != self.inode)
    }

    /// Reads everything that was appended, and sends complete lines.
    fn read_to_end(&mut self, pieces: &mpsc::Sender<Vec<u8>>) -> io::Result<()> {
        // The file was truncated, and is read from its beginning. This is not noticed if it has already grown beyond
        // the old offset.
        if self.file.metadata()?.len() < self.position {
            self.position = self.file.seek(SeekFrom::Start(0))?;
            self.partial = PartialLine::default();
        }
        let mut buffer = [0; PIECE_BYTES];
        loop {
            let bytes = self.file.read(&mut buffer)?;
            if bytes == 0 {
                return Ok(());
            }
            self.position += bytes as u64;
            if let Some(lines) = self.partial.push(&buffer[..bytes])
                && pieces.blocking_send(lines).is_err()
            {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Receives lines until there are this many.
    fn lines(pieces: &mut mpsc::Receiver<Vec<u8>>, count: usize) -> Vec<String> {
        let mut lines = Vec::new();
        while lines.len() < count {
            let piece = String::from_utf8(pieces.blocking_recv().unwrap()).unwrap();
            lines.extend(piece.lines().map(str::to_string));
        }
        lines
    }

    #[test]
    fn a_file_is_followed_through_rotation_and_truncation() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        std::fs::write(&path, "before the start\n").unwrap();
        let (sender, mut pieces) = mpsc::channel(4);
        let follower = std::thread::spawn({
            let path = path.clone();
            move || follow(&path, &sender)
        });
        let append = |text: &str| {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        // The follower starts at the end of the file, whenever it opens it.
        std::thread::sleep(Duration::from_millis(300));
        append("one\ntw");
        assert_eq!(lines(&mut pieces, 1), ["one"]);
        append("o\n");
        assert_eq!(lines(&mut pieces, 1), ["two"]);
        std::fs::rename(&path, directory.path().join("access.log.1")).unwrap();
        append("three\n");
        assert_eq!(lines(&mut pieces, 1), ["three"]);
        std::fs::write(&path, "4\n").unwrap();
        assert_eq!(lines(&mut pieces, 1), ["4"]);
        drop(pieces);
        follower.join().unwrap();
    }
}
