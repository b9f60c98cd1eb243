//! Records of the watch's journal.
//!
//! The framing is described in [`durable`].

use std::borrow::Cow;

use tollgate_core::time::Moment;
use tollgate_core::watch::CountKind;

use super::state::{Change, Cleared, Flag};
use crate::durable::{self, FieldReader, FrameError};

/// An event, or a part of the state when the journal was rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// Refusals were reported; `id` is empty for those of this process.
    Report { at: Moment, id: String, entries: Vec<Entry<'static>> },
    /// An account was flagged, and with its clearing: a flag that was cleared earlier.
    Flag(Flag),
    /// A flag was cleared.
    Clear { account: String, cleared: Cleared },
    /// A report with this id was counted.
    Reported { id: String },
    /// A count at the time of the rewrite.
    Count { tallied: CountKind, name: Vec<u8>, at: Moment, count: u64 },
    /// An operator made a change.
    Change(Change),
    /// A flag was set and cleared at another gate. Refusals that were counted here before no longer count.
    RemoteClear(Flag),
    /// An announcement is pending.
    Announce { number: u64, body: String },
    /// The announcement was accepted or given up.
    Announced { number: u64 },
}

/// Refusals of one key. The names are borrowed, because a report may have a hundred thousand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// Class of the rule.
    pub(crate) class: Cow<'a, str>,
    /// The refused key.
    pub(crate) key: Cow<'a, str>,
    /// Number of refused requests.
    pub(crate) count: u64,
}

/// Most entries of a report are shorter.
const ENTRY_BYTES_USUAL: usize = 48;

impl Record {
    /// Appends the record to `out`.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        write_record(out, |out| self.write_content(out));
    }

    /// Appends a [`Record::Report`] of these entries to `out`.
    pub(super) fn write_report<'a>(
        out: &mut Vec<u8>,
        at: Moment,
        id: &str,
        entries: impl ExactSizeIterator<Item = &'a Entry<'a>>,
    ) {
        out.reserve(entries.len() * ENTRY_BYTES_USUAL);
        write_record(out, |out| write_report(out, at, id, entries));
    }

    /// Parses the record at the start of `bytes`; returns it with its length in bytes.
    pub(super) fn read(bytes: &[u8]) -> Result<(Self, usize), FrameError> {
        let (content, length) = durable::read_record(bytes)?;
        // An unknown kind was written by a later version.
        let record = Self::read_content(&mut FieldReader::new(content)).ok_or(FrameError::Content(length))?;
        Ok((record, length))
    }

    fn write_content(&self, out: &mut FieldWriter<'_>) {
        match self {
            Self::Report { at, id, entries } => write_report(out, *at, id, entries.iter()),
            Self::Flag(flag) => out.kind(if flag.cleared.is_none() { 2 } else { 4 }).flag(flag),
            Self::Clear { account, cleared } => {
                out.kind(3).text(account).cleared(cleared);
            }
            Self::Reported { id } => {
                out.kind(5).text(id);
            }
            Self::Count { tallied, name, at, count } => {
                let tallied = u8::from(*tallied == CountKind::Accounts);
                out.kind(6).kind(tallied).bytes(name).moment(*at).long(*count);
            }
            Self::Change(Change { at, by, let_in, what }) => {
                out.kind(11).moment(*at).text(by).text(let_in).text(what);
            }
            Self::RemoteClear(flag) => out.kind(8).flag(flag),
            Self::Announce { number, body } => {
                out.kind(9).long(*number).text(body);
            }
            Self::Announced { number } => {
                out.kind(10).long(*number);
            }
        }
    }

    fn read_content(content: &mut FieldReader<'_>) -> Option<Self> {
        let record = match content.u8()? {
            1 => {
                let (at, id, entries) = (read_moment(content)?, read_text(content)?, content.u32()?);
                let text = |content: &mut FieldReader<'_>| read_text(content).map(Cow::Owned);
                let entry = |_| Some(Entry { class: text(content)?, key: text(content)?, count: content.u64()? });
                Self::Report { at, id, entries: (0..entries).map(entry).collect::<Option<_>>()? }
            }
            2 => Self::Flag(read_flag(content)?),
            3 => Self::Clear { account: read_text(content)?, cleared: read_cleared(content)? },
            4 => Self::Flag(read_cleared_flag(content)?),
            5 => Self::Reported { id: read_text(content)? },
            6 => Self::Count {
                tallied: if content.u8()? == 0 { CountKind::View } else { CountKind::Accounts },
                name: read_bytes(content)?.to_vec(),
                at: read_moment(content)?,
                count: content.u64()?,
            },
            8 => Self::RemoteClear(read_cleared_flag(content)?),
            9 => Self::Announce { number: content.u64()?, body: read_text(content)? },
            10 => Self::Announced { number: content.u64()? },
            11 => Self::Change(Change {
                at: read_moment(content)?,
                by: read_text(content)?,
                let_in: read_text(content)?,
                what: read_text(content)?,
            }),
            _ => return None,
        };
        content.is_empty().then_some(record)
    }
}

fn write_record(out: &mut Vec<u8>, write_content: impl FnOnce(&mut FieldWriter<'_>)) {
    durable::write_record(out, |out| write_content(&mut FieldWriter(out)));
}

fn write_report<'a>(
    out: &mut FieldWriter<'_>,
    at: Moment,
    id: &str,
    entries: impl ExactSizeIterator<Item = &'a Entry<'a>>,
) {
    out.kind(1).moment(at).text(id).short(entries.len() as u32);
    for entry in entries {
        out.text(&entry.class).text(&entry.key).long(entry.count);
    }
}

struct FieldWriter<'a>(&'a mut Vec<u8>);

impl FieldWriter<'_> {
    fn kind(&mut self, kind: u8) -> &mut Self {
        self.0.push(kind);
        self
    }

    fn short(&mut self, number: u32) -> &mut Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    fn long(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    fn moment(&mut self, moment: Moment) -> &mut Self {
        self.long(moment.as_nanos())
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.short(bytes.len() as u32).0.extend_from_slice(bytes);
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    fn flag(&mut self, flag: &Flag) {
        self.text(&flag.account).moment(flag.flagged_at).long(flag.rejected);
        flag.cleared.iter().for_each(|cleared| self.cleared(cleared));
    }

    fn cleared(&mut self, cleared: &Cleared) {
        self.moment(cleared.at).text(&cleared.by).text(&cleared.note);
    }
}

fn read_moment(content: &mut FieldReader<'_>) -> Option<Moment> {
    content.u64().map(Moment::from_nanos)
}

fn read_bytes<'a>(content: &mut FieldReader<'a>) -> Option<&'a [u8]> {
    let length = content.u32()? as usize;
    content.bytes(length)
}

fn read_text(content: &mut FieldReader<'_>) -> Option<String> {
    std::str::from_utf8(read_bytes(content)?).ok().map(str::to_owned)
}

fn read_flag(content: &mut FieldReader<'_>) -> Option<Flag> {
    let (account, flagged_at) = (read_text(content)?, read_moment(content)?);
    Some(Flag { account, flagged_at, rejected: content.u64()?, cleared: None })
}

fn read_cleared_flag(content: &mut FieldReader<'_>) -> Option<Flag> {
    let flag = read_flag(content)?;
    Some(Flag { cleared: Some(read_cleared(content)?), ..flag })
}

fn read_cleared(content: &mut FieldReader<'_>) -> Option<Cleared> {
    Some(Cleared { at: read_moment(content)?, by: read_text(content)?, note: read_text(content)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> impl Strategy<Value = Record> {
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
            (any::<bool>(), prop::collection::vec(any::<u8>(), 0..20), at.clone(), 0u64..9).prop_map(
                |(accounts, name, at, count)| {
                    let tallied = if accounts { CountKind::Accounts } else { CountKind::View };
                    Record::Count { tallied, name, at, count }
                }
            ),
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
