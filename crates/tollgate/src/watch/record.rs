//! Records of the watch's journal, as JSON. The framing is described in [`durable`].
//!
//! [`super::state::WatchState::replay`] applies a record to the state.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use tollgate_core::time::Moment;

use super::state::{Change, Cleared, Flag};
use crate::durable::{self, FrameError};

/// An event, or a part of the state when the journal was rewritten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Record<'a> {
    /// Refusals were reported; `id` is empty for those of this process.
    Report {
        #[serde(with = "nanos")]
        at: Moment,
        id: String,
        entries: Vec<Entry<'a>>,
    },
    /// An account was flagged. If `cleared` is set, it is a past flag, written when the journal was rewritten.
    Flag(Flag),
    /// A flag was cleared.
    Clear { account: String, cleared: Cleared },
    /// A report with this ID was counted before the journal was rewritten.
    Reported { id: String },
    /// A count at the time of the rewrite: of an account, or for the list of episodes. The name is escaped.
    Count {
        is_of_account: bool,
        name: String,
        #[serde(with = "nanos")]
        at: Moment,
        count: u64,
    },
    /// An operator made a change.
    Change(Change),
    /// A flag was set and cleared at another gate. Refusals of the account that were counted here before no longer
    /// count.
    RemoteClear(Flag),
    /// An announcement for the webhook is pending; `body` is its JSON.
    Announce { number: u64, body: String },
    /// The announcement was accepted or given up.
    Announced { number: u64 },
}

/// Refusals of one key. The names are borrowed, because a report may have a hundred thousand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry<'a> {
    /// Class of the rule.
    pub(crate) class: Cow<'a, str>,
    /// The refused key.
    pub(crate) key: Cow<'a, str>,
    /// Number of refused requests.
    pub(crate) count: u64,
}

impl Record<'_> {
    /// Appends the record.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        durable::write_record(out, |out| serde_json::to_writer(out, self).expect("every field has a JSON form"));
    }

    /// Parses the record at the start of `bytes`, and its length.
    pub(super) fn read(bytes: &[u8]) -> Result<(Self, usize), FrameError> {
        let (content, length) = durable::read_record(bytes)?;
        let record = serde_json::from_slice(content).map_err(|_| FrameError::Content(length))?;
        Ok((record, length))
    }
}

/// The JSON form of a moment: nanoseconds since 1970.
pub(super) mod nanos {
    use serde::{Deserialize, Deserializer, Serializer};
    use tollgate_core::time::Moment;

    pub(crate) fn serialize<S: Serializer>(moment: &Moment, output: S) -> Result<S::Ok, S::Error> {
        output.serialize_u64(moment.as_nanos())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Moment, D::Error> {
        u64::deserialize(input).map(Moment::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> impl Strategy<Value = Record<'static>> {
        let at = (0u64..u64::MAX).prop_map(Moment::from_nanos);
        let text = ".{0,20}";
        let entry = (text, text, 0u64..u64::MAX).prop_map(|(class, key, count)| Entry {
            class: class.into(),
            key: key.into(),
            count,
        });
        let flag = (text, at.clone(), 0u64..9).prop_map(|(account, flagged_at, rejected)| Flag {
            account,
            flagged_at,
            rejected,
            cleared: None,
        });
        let cleared = (at.clone(), text, text).prop_map(|(at, by, note)| Cleared { at, by, note });
        prop_oneof![
            (at.clone(), text, prop::collection::vec(entry, 0..20)).prop_map(|(at, id, entries)| Record::Report {
                at,
                id,
                entries
            }),
            (flag.clone(), prop::option::of(cleared.clone()))
                .prop_map(|(flag, cleared)| Record::Flag(Flag { cleared, ..flag })),
            (text, cleared.clone()).prop_map(|(account, cleared)| Record::Clear { account, cleared }),
            text.prop_map(|id| Record::Reported { id }),
            (any::<bool>(), text, at.clone(), 0u64..9).prop_map(|(is_of_account, name, at, count)| Record::Count {
                is_of_account,
                name,
                at,
                count
            }),
            (flag, cleared).prop_map(|(flag, cleared)| Record::RemoteClear(Flag { cleared: Some(cleared), ..flag })),
            (any::<u64>(), text).prop_map(|(number, body)| Record::Announce { number, body }),
            any::<u64>().prop_map(|number| Record::Announced { number }),
            (at, text, text, text).prop_map(|(at, by, let_in, what)| Record::Change(Change { at, by, let_in, what })),
        ]
    }

    proptest! {
        #[test]
        fn a_record_is_parsed_as_it_was_written_and_a_part_of_it_is_rejected(record in record()) {
            let mut bytes = Vec::new();
            record.write(&mut bytes);
            prop_assert_eq!(Record::read(&bytes), Ok((record, bytes.len())));
            for length in 0..bytes.len() {
                prop_assert_eq!(Record::read(&bytes[..length]), Err(FrameError::Short));
            }
        }

        #[test]
        fn a_flipped_bit_is_detected(record in record(), index in any::<prop::sample::Index>(), bit in 0u8..8) {
            let mut bytes = Vec::new();
            record.write(&mut bytes);
            let index = index.index(bytes.len());
            bytes[index] ^= 1 << bit;
            prop_assert!(Record::read(&bytes).is_err());
        }

        #[test]
        fn parsing_arbitrary_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Record::read(&bytes);
        }
    }
}
