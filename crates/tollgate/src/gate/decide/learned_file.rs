//! The file that keeps the in-flight limits and prices of the backends while the gate is not running.
//!
//! | bytes | content |
//! |---|---|
//! | 19 | `tollgate learned 1` and a line feed |
//! | 16 | the secret key of the routes' hash |
//! | 2 | the number of backends, then for each of them: |
//! | 2, n | the length of its address, the address |
//! | 4 | the in-flight limit, in requests |
//! | 4 | the number of prices, then for each of them: |
//! | 24 | the hash of the route, the mean cost and its deviation in nanoseconds |
//! | 8 | SipHash-1-3 of everything before, to find damage |
//!
//! Numbers are big-endian. The file is private, because of the key, and is replaced atomically. A file with an error is
//! copied, and the gate learns everything again. The numbers are validated ([`tollgate_core::queue::Queue::restore`]).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Buf as _;
use tollgate_core::queue::{Learned, LearnedPrice, Queue};
use tollgate_core::time::Span;

use crate::durable;

const MARK: &[u8] = b"tollgate learned 1\n";
/// Backends in the file: each takes up to 100 KB.
const BACKENDS_MAX: usize = 64;
/// The largest valid file, in bytes.
const BYTES_MAX: u64 = 8 << 20;

/// The learned state of a gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LearnedState {
    /// The key of the route hash.
    pub(crate) key: [u64; 2],
    /// The address and the learned state of each backend.
    pub(crate) backends: Vec<(String, Learned)>,
}

impl LearnedState {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = MARK.to_vec();
        self.key.iter().for_each(|half| bytes.extend(half.to_be_bytes()));
        let is_short = |(url, _): &&(String, Learned)| u16::try_from(url.len()).is_ok();
        let backends: Vec<_> = self.backends.iter().filter(is_short).take(BACKENDS_MAX).collect();
        bytes.extend((backends.len() as u16).to_be_bytes());
        for (url, learned) in backends {
            let prices = &learned.prices[..learned.prices.len().min(Queue::PRICES_MAX)];
            bytes.extend((url.len() as u16).to_be_bytes());
            bytes.extend(url.as_bytes());
            bytes.extend(learned.in_flight.to_be_bytes());
            bytes.extend((prices.len() as u32).to_be_bytes());
            for LearnedPrice { key, mean, deviation } in prices {
                for number in [*key, mean.as_nanos(), deviation.as_nanos()] {
                    bytes.extend(number.to_be_bytes());
                }
            }
        }
        durable::seal(&mut bytes);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = durable::unseal(bytes, MARK)?;
        let key = [reader.try_get_u64().ok()?, reader.try_get_u64().ok()?];
        let count = usize::from(reader.try_get_u16().ok()?);
        if count > BACKENDS_MAX {
            return None;
        }
        let mut backends = Vec::new();
        for _ in 0..count {
            let length = usize::from(reader.try_get_u16().ok()?);
            let url = String::from_utf8(reader.split_off(..length)?.to_vec()).ok()?;
            let in_flight = reader.try_get_u32().ok()?;
            let count = usize::try_from(reader.try_get_u32().ok()?).ok()?;
            let prices = 0..Some(count).filter(|count| *count <= Queue::PRICES_MAX)?;
            let prices = prices.map(|_| {
                let key = reader.try_get_u64().ok()?;
                let mean = Span::from_nanos(reader.try_get_u64().ok()?);
                Some(LearnedPrice { key, mean, deviation: Span::from_nanos(reader.try_get_u64().ok()?) })
            });
            backends.push((url, Learned { in_flight, prices: prices.collect::<Option<_>>()? }));
        }
        reader.is_empty().then_some(Self { key, backends })
    }
}

/// The file.
#[derive(Debug)]
pub(crate) struct LearnedFile {
    pub(crate) path: PathBuf,
    /// The checksum of the content that this process has written.
    written: Option<u64>,
}

impl LearnedFile {
    pub(crate) fn in_directory(directory: &Path) -> Self {
        Self { path: directory.join("gate.learned"), written: None }
    }

    /// The content of the file.
    pub(crate) fn read(&self) -> io::Result<LearnedState> {
        let bytes = durable::read(&self.path, BYTES_MAX)?.ok_or(io::ErrorKind::NotFound)?;
        // The key of a readable file is not secret any more.
        if fs::symlink_metadata(&self.path)?.mode() & 0o077 != 0 {
            return Err(io::Error::other("others may read or write it"));
        }
        let (state, reason) = (LearnedState::decode(&bytes), "it is damaged, or of another version");
        if state.is_none() {
            durable::put_aside(&self.path, reason)?;
        }
        state.ok_or_else(|| io::Error::other(reason))
    }

    /// Replaces the content, if it has changed.
    pub(crate) fn write(&mut self, state: &LearnedState) -> io::Result<()> {
        let bytes = state.encode();
        let sum = Some(durable::checksum(&bytes));
        if self.written == sum {
            return Ok(());
        }
        durable::create_directory(self.path.parent().unwrap_or(Path::new("/")))?;
        durable::replace(&self.path, &[&bytes])?;
        self.written = sum;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    fn price(key: u64) -> LearnedPrice {
        LearnedPrice { key, mean: Span::from_millis(20), deviation: Span::from_millis(3) }
    }

    fn state() -> LearnedState {
        let learned = |in_flight, prices| Learned { in_flight, prices };
        let backends = vec![
            ("http://127.0.0.1:8080".to_owned(), learned(64, (1..5).map(price).collect())),
            ("h2c://site.example:80".to_owned(), learned(1, Vec::new())),
        ];
        LearnedState { key: [7, u64::MAX], backends }
    }

    #[test]
    fn a_written_file_is_read_back() {
        assert_eq!(LearnedState::decode(&state().encode()), Some(state()));
        let empty = LearnedState { key: [0, 0], backends: Vec::new() };
        assert_eq!(LearnedState::decode(&empty.encode()), Some(empty));
    }

    #[test]
    fn every_prefix_and_every_flipped_bit_is_noticed() {
        let bytes = state().encode();
        for length in 0..bytes.len() {
            assert_eq!(LearnedState::decode(&bytes[..length]), None, "{length} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(LearnedState::decode(&damaged), None, "bit {bit}");
        }
    }

    /// The checksum is not secret, so a hostile file has a correct one.
    fn sealed(mut content: Vec<u8>) -> Vec<u8> {
        durable::seal(&mut content);
        content
    }

    #[test]
    fn counts_that_promise_more_than_there_is_or_may_be_are_refused() {
        let head = [MARK, &[0; 16]].concat();
        let with = |rest: &[u8]| LearnedState::decode(&sealed([&head[..], rest].concat()));
        assert!(with(&[0, 0]).is_some());
        assert_eq!(with(&[0xFF, 0xFF]), None);
        assert_eq!(with(&[0, 1, 0xFF, 0xFF]), None);
        assert_eq!(with(&[0, 1, 0, 1, b'a', 0, 0, 0, 8, 0xFF, 0xFF, 0xFF, 0xFF]), None);
        assert_eq!(with(&[0, 1, 0, 1, 0xFF, 0, 0, 0, 8, 0, 0, 0, 0]), None, "no text");
        assert_eq!(with(&[0, 0, 9]), None, "something follows");
        let newer = [b"tollgate learned 2\n", &head[MARK.len()..], &[0, 0]].concat();
        assert_eq!(LearnedState::decode(&sealed(newer)), None, "another version");
    }

    proptest! {
        #[test]
        fn no_contents_make_it_panic(content in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = LearnedState::decode(&content);
            let _ = LearnedState::decode(&sealed([MARK, &content].concat()));
        }
    }

    #[test]
    fn the_largest_state_fits_the_bound_on_the_file() {
        let learned = Learned { in_flight: 9, prices: (0..10_000).map(price).collect() };
        let backends = (0..200).map(|number| (format!("http://{number}.site.example"), learned.clone())).collect();
        let bytes = LearnedState { key: [1, 2], backends }.encode();
        assert!(bytes.len() as u64 <= BYTES_MAX, "{}", bytes.len());
        let read = LearnedState::decode(&bytes).unwrap();
        assert_eq!((read.backends.len(), read.backends[0].1.prices.len()), (BACKENDS_MAX, Queue::PRICES_MAX));
    }

    #[test]
    fn the_file_is_private_and_replaced_as_a_whole_and_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("state/gate");
        let mut file = LearnedFile::in_directory(&directory);
        assert_eq!(file.read().unwrap_err().kind(), io::ErrorKind::NotFound);
        file.write(&state()).unwrap();
        assert_eq!(file.read().unwrap(), state());
        assert_eq!(fs::metadata(&file.path).unwrap().mode() & 0o777, 0o600);
        // A second write does nothing if nothing has changed.
        let inode = fs::metadata(&file.path).unwrap().ino();
        file.write(&state()).unwrap();
        assert_eq!(fs::metadata(&file.path).unwrap().ino(), inode);
        // A file of an interrupted write, or a link, is replaced and not written through.
        let (victim, new) = (folder.path().join("victim"), directory.join("gate.learned.new"));
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &new).unwrap();
        file.write(&LearnedState { key: [1, 2], ..state() }).unwrap();
        assert_eq!((fs::read_to_string(&victim).unwrap().as_str(), file.read().unwrap().key), ("precious", [1, 2]));
        fs::set_permissions(&file.path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(file.read().is_err(), "others know the key");
        fs::set_permissions(&file.path, fs::Permissions::from_mode(0o600)).unwrap();
        let moved = folder.path().join("moved");
        fs::rename(&file.path, &moved).unwrap();
        std::os::unix::fs::symlink(&moved, &file.path).unwrap();
        assert!(file.read().is_err(), "a link");
        fs::remove_file(&file.path).unwrap();
        fs::create_dir(&file.path).unwrap();
        assert!(file.read().is_err(), "a directory");
    }
}
