//! Reads files that an operator names in the settings or in an argument: tokens, secrets, certificates, and
//! configurations of other limiters.
//!
//! The name may be that of something else. Opening a pipe waits for its writer, and a device such as `/dev/zero` never
//! ends. Therefore only regular files up to a size are read.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file. A pipe is rejected without waiting for its writer.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file"));
    }
    Ok(file)
}

/// Reads a regular file of at most `bytes_max` bytes.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("is larger than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// Reads a regular file of at most `bytes_max` bytes as text. The error is a message for the operator.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> Result<String, String> {
    let bytes = read(path, bytes_max).map_err(|error| format!("cannot be read: {error}"))?;
    String::from_utf8(bytes).map_err(|_| "is not UTF-8: save it as UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_up_to_a_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "12345").unwrap();
        assert_eq!(read(&file, 5).unwrap(), b"12345");
        assert_eq!(read(&file, 4).unwrap_err().to_string(), "is larger than 4 bytes");
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        for path in [&pipe, Path::new("/dev/zero"), folder.path()] {
            assert_eq!(read(path, 5).unwrap_err().to_string(), "is not a regular file", "{}", path.display());
        }
    }
}
