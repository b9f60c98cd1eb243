//! The file that keeps the learned in-flight limits and prices of the backends across restarts of the gate.
//! [`super::keeper`] reads it at the start and writes it.
//!
//! After the line `tollgate learned 2`, the file has a JSON array: the secret key of the routes' hash, and for each
//! backend its address, its in-flight limit in requests, and its prices. A price is the hash of a route, the mean cost
//! and its deviation, in nanoseconds. The file ends with the SipHash-1-3 of everything before, to detect damage.
//!
//! The file is private, because of the key, and is replaced atomically. If it is damaged, it is renamed for the
//! operator (a copy of a huge file would delay the first requests), and the gate learns everything again. The queue
//! bounds the numbers ([`tollgate_core::queue::Queue::restore`]).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tollgate_core::queue::{Learned, LearnedPrice, Queue};
use tollgate_core::time::Span;

use crate::durable;

/// The first line: format and version.
const MARK: &[u8] = b"tollgate learned 2\n";
/// The most backends in the file, of up to 250 KB each: together less than [`BYTES_MAX`].
const BACKENDS_MAX: usize = 64;
/// The largest valid file, in bytes.
const BYTES_MAX: u64 = 16 << 20;

/// The learned state of a gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LearnedState {
    /// The key of the route hash.
    pub(crate) key: [u64; 2],
    /// The address and the learned state of each backend.
    pub(crate) backends: Vec<(String, Learned)>,
}

/// A backend in the file: its address, its in-flight limit and its prices.
type SavedBackend = (String, u32, Vec<[u64; 3]>);

impl LearnedState {
    fn encode(&self) -> Vec<u8> {
        let saved = |(url, learned): &(String, Learned)| -> SavedBackend {
            let price = |price: &LearnedPrice| [price.key, price.mean.as_nanos(), price.deviation.as_nanos()];
            (url.clone(), learned.in_flight, learned.prices.iter().take(Queue::PRICES_MAX).map(price).collect())
        };
        let backends: Vec<_> = self.backends.iter().take(BACKENDS_MAX).map(saved).collect();
        let mut bytes = MARK.to_vec();
        serde_json::to_writer(&mut bytes, &(self.key, backends)).expect("writing into memory cannot fail");
        durable::seal(&mut bytes);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (key, backends): (_, Vec<SavedBackend>) = serde_json::from_slice(durable::unseal(bytes, MARK)?).ok()?;
        if backends.len() > BACKENDS_MAX || backends.iter().any(|(_, _, prices)| prices.len() > Queue::PRICES_MAX) {
            return None;
        }
        let learned = |(url, in_flight, prices): SavedBackend| {
            let price = |[key, mean, deviation]: [u64; 3]| LearnedPrice {
                key,
                mean: Span::from_nanos(mean),
                deviation: Span::from_nanos(deviation),
            };
            (url, Learned { in_flight, prices: prices.into_iter().map(price).collect() })
        };
        Some(Self { key, backends: backends.into_iter().map(learned).collect() })
    }
}

/// The file.
#[derive(Debug)]
pub(crate) struct LearnedFile {
    pub(crate) path: PathBuf,
    /// The checksum of the content that this process has written last, if any.
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
            durable::move_aside(&self.path, reason)?;
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
    fn contents_with_more_than_there_may_be_or_of_another_form_are_refused() {
        let with = |content: &str| LearnedState::decode(&sealed([MARK, content.as_bytes()].concat()));
        assert!(with(r#"[[1, 2], [["a", 8, [[1, 2, 3]]]]]"#).is_some());
        assert_eq!(with("[[1, 2]]"), None);
        assert_eq!(with("[[1, 2], [], 9]"), None, "something follows");
        assert_eq!(with(r#"[[1, 2], [["a", -1, []]]]"#), None);
        assert_eq!(with(r#"[[1, 2], [["a", 8, [[1, 2]]]]]"#), None);
        let many = |count: usize, one: &str| vec![one; count].join(",");
        assert_eq!(with(&format!("[[1, 2], [{}]]", many(BACKENDS_MAX + 1, r#"["a", 8, []]"#))), None);
        let prices = many(Queue::PRICES_MAX + 1, "[1, 2, 3]");
        assert_eq!(with(&format!(r#"[[1, 2], [["a", 8, [{prices}]]]]"#)), None);
        assert_eq!(
            LearnedState::decode(&sealed(b"tollgate learned 3\n[[1, 2], []]".to_vec())),
            None,
            "another version"
        );
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
    fn a_damaged_file_is_renamed_and_not_copied_whatever_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let file = LearnedFile::in_directory(folder.path());
        let damaged = durable::private().create_new(true).write(true).open(&file.path).unwrap();
        damaged.set_len(2 * BYTES_MAX).unwrap();
        assert!(file.read().is_err() && !file.path.exists());
        let aside = fs::metadata(folder.path().join("gate.damaged")).unwrap();
        assert_eq!((aside.ino(), aside.len()), (damaged.metadata().unwrap().ino(), 2 * BYTES_MAX));
        assert_eq!(file.read().unwrap_err().kind(), io::ErrorKind::NotFound);
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
