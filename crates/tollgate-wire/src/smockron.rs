//! Encodes and decodes the messages between gates and masters, as ZeroMQ frames. They are those of Smockron, an earlier
//! rate limiter, whose programs are the *original* peers, with additions of Tollgate.
//!
//! A gate sends a [`Report`] about each request as an accounting message:
//! `domain\0, status, identifier, received, delayed until, log info`. The domain is the master's name for a rule, and
//! the identifier is the key of the request. A master sends an [`Order`] as a control message:
//! `domain\0, DELAY_UNTIL, identifier, until`. Times are milliseconds since 1970 in decimal. Gates subscribe to
//! domains; the NUL prevents a subscription to `foo` from matching `foobar`.
//!
//! The additions must not disturb original peers. An original master reads five frames and ignores the rest, so the
//! [`Tally`] (the total of the gate for this identifier) is in a seventh frame. An original gate overruns its memory on
//! a fifth frame, so Tollgate's orders have a separate topic, `\0tollgate\0domain\0`, to which no original gate can
//! subscribe, because a domain has no leading NUL. Their fourth frame has 64-bit big-endian numbers.

use tollgate_core::fleet::{Command, Order, Report, Stamp, Status, Tally};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::decimal;
use crate::zmtp::frame;

/// The maximum length of a domain in bytes.
pub const DOMAIN_BYTES_MAX: usize = 255;
/// The maximum length of an identifier in bytes.
pub const IDENTIFIER_BYTES_MAX: usize = 256;
/// The maximum length of a log info ([`Report::note`] and [`Report::cpu`]), in bytes.
pub const NOTE_BYTES_MAX: usize = 1024;
/// The prefix of the topics of Tollgate's orders.
const TOLLGATE_TOPIC: &[u8] = b"\0tollgate\0";
/// The accepted numbers of frames in a report. An original gate sends six and a Tollgate gate seven. The log info may
/// be missing, and one more frame is left for later versions.
const REPORT_FRAMES: core::ops::RangeInclusive<usize> = 5..=8;
/// The statuses with their words. A status is the index of its pair.
const STATUSES: [(Status, &[u8]); 3] =
    [(Status::Accepted, b"ACCEPTED"), (Status::Delayed, b"DELAYED"), (Status::Rejected, b"REJECTED")];
// The words of the variants of `Command`. Only the first is Smockron's.
const DELAY_UNTIL: &[u8] = b"DELAY_UNTIL";
const DELAY: &[u8] = b"DELAY";
const PARDON: &[u8] = b"PARDON";
const BEACON: &[u8] = b"BEACON";
/// The prefix of an encoded tally. The digit is the version of the encoding.
const TALLY_MARK: &[u8] = b"tollgate1";
/// The maximum number of digits of a time. Fifteen digits of milliseconds last until the year 33658.
const TIME_DIGITS_MAX: usize = 15;

tollgate_core::named_enum! {
    /// The reason why a message is dropped.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum MessageError {
        /// Too few or too many frames.
        FrameCount = "frame-count",
        /// The domain is empty, contains a NUL, or is too long.
        Domain = "domain",
        /// The identifier is empty or too long.
        Identifier = "identifier",
        /// The status or command is unknown.
        Word = "word",
        /// A time is not a number of milliseconds since 1970.
        Time = "time",
        /// The log info is too long.
        Note = "note",
        /// A Tollgate addition is invalid.
        Addition = "addition",
    }
}

/// Parses the frames of an accounting message.
pub fn read_report<'a>(frames: &[&'a [u8]]) -> Result<Report<'a>, MessageError> {
    let &[domain, status, identifier, received, delayed, ref rest @ ..] = frames else {
        return Err(MessageError::FrameCount);
    };
    if !REPORT_FRAMES.contains(&frames.len()) {
        return Err(MessageError::FrameCount);
    }
    let status = read_status(status)?;
    let note = rest.first().copied().unwrap_or_default();
    if note.len() > NOTE_BYTES_MAX {
        return Err(MessageError::Note);
    }
    let (cpu, note) = split_note(note);
    Ok(Report {
        domain: read_domain(domain)?,
        status,
        identifier: read_identifier(identifier)?,
        received_ms: read_time(received)?,
        delayed_until_ms: match status {
            Status::Delayed => Some(read_time(delayed)?),
            Status::Accepted | Status::Rejected => None,
        },
        note,
        cpu,
        // Additional frames of other software are ignored.
        tally: match rest.get(1) {
            Some(frame) if frame.starts_with(TALLY_MARK) => Some(read_tally(frame)?),
            _ => None,
        },
    })
}

/// Appends a report to `output`, as the frames of an accounting message.
pub fn put_report(output: &mut Vec<u8>, report: &Report<'_>) {
    put_domain(output, &[], report.domain);
    frame::put(output, true, STATUSES[report.status as usize].1);
    frame::put(output, true, report.identifier);
    put_time(output, true, Some(report.received_ms));
    put_time(output, true, report.delayed_until_ms);
    put_note(output, report);
    if let Some(tally) = &report.tally {
        put_tally(output, tally);
    }
}

/// Parses the frames of a control message.
pub fn read_order<'a>(frames: &[&'a [u8]]) -> Result<Order<'a>, MessageError> {
    let &[topic, word, identifier, data] = frames else { return Err(MessageError::FrameCount) };
    let Some(domain) = topic.strip_prefix(TOLLGATE_TOPIC) else {
        if word != DELAY_UNTIL {
            return Err(MessageError::Word);
        }
        let command = Command::DelayUntil { until_ms: read_time(data)? };
        return Ok(Order { domain: read_domain(topic)?, identifier: read_identifier(identifier)?, command });
    };
    let command = read_tollgate_command(word, data)?;
    if let Command::Beacon { .. } = command {
        return Ok(Order { domain: &[], identifier: &[], command });
    }
    Ok(Order { domain: read_domain(domain)?, identifier: read_identifier(identifier)?, command })
}

/// Appends an order to `output`, as the frames of a control message.
pub fn put_order(output: &mut Vec<u8>, order: &Order<'_>) {
    let mut data = Vec::with_capacity(40);
    let mut put = |values: &[u64]| values.iter().for_each(|value| data.extend_from_slice(&value.to_be_bytes()));
    let word = match order.command {
        Command::DelayUntil { until_ms } => {
            put_domain(output, &[], order.domain);
            frame::put(output, true, DELAY_UNTIL);
            frame::put(output, true, order.identifier);
            return put_time(output, false, Some(until_ms));
        }
        Command::Delay { stamp, era, next, clear } => {
            put(&[stamp.master, stamp.tick.as_nanos(), era, next.as_nanos()]);
            put(clear.map(Moment::as_nanos).as_slice());
            DELAY
        }
        Command::Pardon { stamp, era } => {
            put(&[stamp.master, stamp.tick.as_nanos(), era]);
            PARDON
        }
        Command::Beacon { stamp } => {
            put(&[stamp.master, stamp.tick.as_nanos()]);
            BEACON
        }
    };
    put_domain(output, TOLLGATE_TOPIC, order.domain);
    frame::put(output, true, word);
    frame::put(output, true, order.identifier);
    frame::put(output, false, &data);
}

/// The subscription for Smockron's orders of `domain`.
pub fn topic(domain: &[u8]) -> Vec<u8> {
    [domain, b"\0"].concat()
}

/// The subscription for Tollgate's orders of `domain`; with an empty domain, for beacons, the heartbeats of a master.
pub fn tollgate_topic(domain: &[u8]) -> Vec<u8> {
    [TOLLGATE_TOPIC, domain, b"\0"].concat()
}

/// Whether `subscription` matches orders for `domain`, of either kind.
pub fn topic_covers(subscription: &[u8], domain: &[u8]) -> bool {
    topic(domain).starts_with(subscription) || tollgate_topic(domain).starts_with(subscription)
}

fn read_status(word: &[u8]) -> Result<Status, MessageError> {
    STATUSES.into_iter().find(|(_, known)| *known == word).map(|(status, _)| status).ok_or(MessageError::Word)
}

/// Splits a log info into the CPU time of the request, in seconds at its start, if there is one, and the note. An
/// original master parses this number, too.
fn split_note(note: &[u8]) -> (Option<Span>, &[u8]) {
    let end = note.iter().position(|&byte| byte == b' ').unwrap_or(note.len());
    match decimal::parse_fixed(&note[..end], (9, 9), 9) {
        Some(nanos) => (Some(Span::from_nanos(nanos)), note.get(end + 1..).unwrap_or_default()),
        None => (None, note),
    }
}

fn put_note(output: &mut Vec<u8>, report: &Report<'_>) {
    let mut note = Vec::new();
    if let Some(cpu) = report.cpu {
        let micros = cpu.as_nanos().div_ceil(1000);
        decimal::put(&mut note, micros / 1_000_000);
        note.push(b'.');
        note.extend((0..6).rev().map(|place| b'0' + (micros / 10_u64.pow(place) % 10) as u8));
        if !report.note.is_empty() {
            note.push(b' ');
        }
    }
    note.extend_from_slice(report.note);
    note.truncate(NOTE_BYTES_MAX);
    frame::put(output, report.tally.is_some(), &note);
}

/// The domain without the NUL at its end, which may be missing, as for original masters.
fn read_domain(frame: &[u8]) -> Result<&[u8], MessageError> {
    let domain = frame.strip_suffix(b"\0").unwrap_or(frame);
    let fits = (1..=DOMAIN_BYTES_MAX).contains(&domain.len()) && !domain.contains(&0);
    fits.then_some(domain).ok_or(MessageError::Domain)
}

fn read_identifier(frame: &[u8]) -> Result<&[u8], MessageError> {
    (1..=IDENTIFIER_BYTES_MAX).contains(&frame.len()).then_some(frame).ok_or(MessageError::Identifier)
}

fn read_time(frame: &[u8]) -> Result<u64, MessageError> {
    let millis = decimal::parse(frame).filter(|&millis| millis > 0 && frame.len() <= TIME_DIGITS_MAX);
    millis.ok_or(MessageError::Time)
}

fn read_tally(frame: &[u8]) -> Result<Tally, MessageError> {
    let mut values = NumberReader(&frame[TALLY_MARK.len()..]);
    let tally = Tally {
        gate: values.next()?,
        serial: values.next()?,
        total: values.toll()?,
        base: values.toll()?,
        era: values.next()?,
        // 0 stands for no master.
        master: Some(values.next()?).filter(|&master| master != 0),
        sent: values.moment()?,
        began: values.moment()?,
        last: values.moment()?,
        clear: values.moment()?,
    };
    values.end()?;
    Ok(tally)
}

fn put_tally(output: &mut Vec<u8>, tally: &Tally) {
    let values = [
        tally.gate,
        tally.serial,
        tally.total.count,
        tally.total.cpu.as_nanos(),
        tally.base.count,
        tally.base.cpu.as_nanos(),
        tally.era,
        tally.master.unwrap_or_default(),
        tally.sent.as_nanos(),
        tally.began.as_nanos(),
        tally.last.as_nanos(),
        tally.clear.as_nanos(),
    ];
    let numbers = values.map(u64::to_be_bytes);
    frame::put_parts(output, false, &[TALLY_MARK, numbers.as_flattened()]);
}

fn read_tollgate_command(word: &[u8], data: &[u8]) -> Result<Command, MessageError> {
    let mut values = NumberReader(data);
    let stamp = values.stamp()?;
    let command = match word {
        DELAY => Command::Delay {
            stamp,
            era: values.next()?,
            next: values.moment()?,
            clear: if values.0.is_empty() { None } else { Some(values.moment()?) },
        },
        PARDON => Command::Pardon { stamp, era: values.next()? },
        BEACON => Command::Beacon { stamp },
        _ => return Err(MessageError::Word),
    };
    values.end()?;
    Ok(command)
}

/// Reads the 64-bit big-endian numbers of Tollgate's additions.
struct NumberReader<'a>(&'a [u8]);

impl NumberReader<'_> {
    fn next(&mut self) -> Result<u64, MessageError> {
        let (value, rest) = self.0.split_first_chunk::<8>().ok_or(MessageError::Addition)?;
        self.0 = rest;
        Ok(u64::from_be_bytes(*value))
    }

    fn stamp(&mut self) -> Result<Stamp, MessageError> {
        Ok(Stamp { master: self.next()?, tick: self.moment()? })
    }

    fn toll(&mut self) -> Result<Toll, MessageError> {
        Ok(Toll { count: self.next()?, cpu: Span::from_nanos(self.next()?) })
    }

    fn moment(&mut self) -> Result<Moment, MessageError> {
        self.next().map(Moment::from_nanos)
    }

    fn end(self) -> Result<(), MessageError> {
        if self.0.is_empty() { Ok(()) } else { Err(MessageError::Addition) }
    }
}

/// Appends the first frame of a message. `prefix` is empty in Smockron's messages.
fn put_domain(output: &mut Vec<u8>, prefix: &[u8], domain: &[u8]) {
    let domain = &domain[..domain.len().min(DOMAIN_BYTES_MAX)];
    frame::put_parts(output, true, &[prefix, domain, b"\0"]);
}

/// Appends a frame with a time, empty if there is none. `more` is whether another frame of the message follows.
fn put_time(output: &mut Vec<u8>, more: bool, millis: Option<u64>) {
    let mut digits = itoa::Buffer::new();
    let written = millis.map_or(&[][..], |millis| digits.format(millis).as_bytes());
    frame::put(output, more, written);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ACCEPTED: &str =
        "0108 64656661756c7400 0108 4143434550544544 0109 3132372e302e302e31 010d 31373934373034343832383630 0100 0000";
    const DELAYED: &str = "0108 64656661756c7400 0107 44454c41594544 0109 3132372e302e302e31 010d 31373934373034343833303637 \
                           010d 31373934373034343833383633 0000";
    const REJECTED: &str =
        "0108 64656661756c7400 0108 52454a4543544544 0109 3132372e302e302e31 010d 31373934373034343832383630 0100 0000";
    const CONTROL: &str =
        "0108 64656661756c7400 010b 44454c41595f554e54494c 0109 3132372e302e302e31 000d 31373934373034343833383633";

    fn report(status: Status, received_ms: u64, delayed_until_ms: Option<u64>) -> Report<'static> {
        let (domain, identifier) = (&b"default"[..], &b"127.0.0.1"[..]);
        Report { domain, status, identifier, received_ms, delayed_until_ms, note: b"", cpu: None, tally: None }
    }

    #[test]
    fn reports_are_smockrons_byte_for_byte() {
        for (bytes, report) in [
            (ACCEPTED, report(Status::Accepted, 1_794_704_482_860, None)),
            (DELAYED, report(Status::Delayed, 1_794_704_483_067, Some(1_794_704_483_863))),
            (REJECTED, report(Status::Rejected, 1_794_704_482_860, None)),
        ] {
            let mut output = Vec::new();
            put_report(&mut output, &report);
            assert_eq!(output, hex(bytes));
            assert_eq!(read_report(&split(&output)), Ok(report));
        }
    }

    #[test]
    fn orders_are_smockrons_byte_for_byte() {
        let command = Command::DelayUntil { until_ms: 1_794_704_483_863 };
        let order = Order { domain: b"default", identifier: b"127.0.0.1", command };
        let mut output = Vec::new();
        put_order(&mut output, &order);
        assert_eq!(output, hex(CONTROL));
        assert_eq!(read_order(&split(&output)), Ok(order));
    }

    #[test]
    fn a_report_of_an_original_may_lack_log_info_and_the_nul_of_its_domain() {
        let frames: [&[u8]; 5] = [b"default", b"ACCEPTED", b"127.0.0.1", b"1794704482860", b""];
        assert_eq!(read_report(&frames), Ok(report(Status::Accepted, 1_794_704_482_860, None)));
    }

    #[test]
    fn a_log_info_starts_with_the_cpu_time() {
        let check = |info: &[u8], cpu: Option<u64>, note: &[u8]| {
            let frames: [&[u8]; 6] = [b"d\0", b"ACCEPTED", b"i", b"1794704482860", b"", info];
            let report = read_report(&frames).unwrap();
            assert_eq!((report.cpu, report.note), (cpu.map(Span::from_millis), note), "{}", info.escape_ascii());
        };
        check(b"0.020000 GET /a agent", Some(20), b"GET /a agent");
        check(b"1", Some(1000), b"");
        check(b"12.5 x", Some(12_500), b"x");
        for text in [&b""[..], b"GET /", b".5", b"1.2.3", b"-1", b"NaN", b"1e3", b"1234567890", b"0.0000000001"] {
            check(text, None, text);
        }
        let mut output = Vec::new();
        let cpu = Some(Span::from_millis(20));
        put_report(&mut output, &Report { note: b"GET /a agent", cpu, ..report(Status::Accepted, 1, None) });
        assert!(output.ends_with(b"0.020000 GET /a agent"), "{}", output.escape_ascii());
    }

    #[test]
    fn an_identifier_is_raw_bytes() {
        let frames: [&[u8]; 6] = [b"default\0", b"ACCEPTED", b"a;b\0\xff", b"1794704482860", b"", b""];
        assert_eq!(read_report(&frames).unwrap().identifier, b"a;b\0\xff");
    }

    #[test]
    fn each_invalid_report_has_its_error() {
        let good: [&[u8]; 6] = [b"default\0", b"DELAYED", b"127.0.0.1", b"1794704482860", b"1794704483860", b""];
        let check = |place: usize, body: &[u8], fault| {
            let mut frames = good;
            frames[place] = body;
            assert_eq!(
                read_report(&frames),
                Err(fault),
                "frame {place}: {}",
                body[..body.len().min(40)].escape_ascii()
            );
        };
        check(0, b"", MessageError::Domain);
        check(0, b"\0", MessageError::Domain);
        check(0, b"de\0fault\0", MessageError::Domain);
        check(0, &[b'x'; 257], MessageError::Domain);
        check(1, b"WEIRD", MessageError::Word);
        check(2, b"", MessageError::Identifier);
        check(2, &vec![b'x'; 1 << 20], MessageError::Identifier);
        for time in [&b""[..], b"0", b"-1", b"NaN", b"1e15", b"1794704482860.5", b" 1794704482860", b"9999999999999999"]
        {
            check(3, time, MessageError::Time);
            check(4, time, MessageError::Time);
        }
        check(5, &[b'x'; 1025], MessageError::Note);
        assert_eq!(read_report(&good[..4]), Err(MessageError::FrameCount));
        assert_eq!(read_report(&[&good[..], &[b"", b"", b""]].concat()), Err(MessageError::FrameCount));
    }

    #[test]
    fn each_invalid_order_has_its_error() {
        let good: [&[u8]; 4] = [b"default\0", b"DELAY_UNTIL", b"127.0.0.1", b"1794704483863"];
        let check = |place: usize, body: &[u8], fault| {
            let mut frames = good;
            frames[place] = body;
            assert_eq!(read_order(&frames), Err(fault), "frame {place}");
        };
        check(0, b"de\0fault\0", MessageError::Domain);
        check(1, b"DELAY", MessageError::Word);
        check(2, b"", MessageError::Identifier);
        check(2, &vec![b'x'; 1 << 20], MessageError::Identifier);
        for time in [&b""[..], b"0", b"-1", b"soon"] {
            check(3, time, MessageError::Time);
        }
        assert_eq!(read_order(&good[..3]), Err(MessageError::FrameCount));
        assert_eq!(read_order(&[&good[..], &[b""]].concat()), Err(MessageError::FrameCount));
    }

    #[test]
    fn an_original_sees_six_frames_of_our_report_and_four_of_our_order_to_it() {
        let mut output = Vec::new();
        let tally = Some(tally([0; 12]));
        put_report(&mut output, &Report { tally, ..report(Status::Accepted, 1_794_704_482_860, None) });
        let frames = split(&output);
        assert_eq!(frames.len(), 7);
        assert_eq!(frames[..6], split(&hex(ACCEPTED))[..]);
        // The original's subscription is not a prefix of any Tollgate topic.
        assert!(!tollgate_topic(b"default").starts_with(&topic(b"default")));
        assert!(
            topic_covers(b"", b"foo")
                && topic_covers(b"foo\0", b"foo")
                && topic_covers(&tollgate_topic(b"foo"), b"foo")
        );
        assert!(!topic_covers(b"foo\0", b"foobar"));
    }

    #[test]
    fn a_seventh_frame_of_other_software_is_ignored() {
        let frames: [&[u8]; 7] = [b"d\0", b"ACCEPTED", b"i", b"1794704482860", b"", b"", b"theirs"];
        assert_eq!(read_report(&frames).unwrap().tally, None);
        let frames: [&[u8]; 7] = [b"d\0", b"ACCEPTED", b"i", b"1794704482860", b"", b"", b"tollgate1 but broken"];
        assert_eq!(read_report(&frames), Err(MessageError::Addition));
    }

    fn tally(values: [u64; 12]) -> Tally {
        let [gate, serial, count, cpu, base_count, base_cpu, era, master, sent, began, last, clear] = values;
        let toll = |count, cpu| Toll { count, cpu: Span::from_nanos(cpu) };
        let (total, base) = (toll(count, cpu), toll(base_count, base_cpu));
        let [sent, began, last, clear] = [sent, began, last, clear].map(Moment::from_nanos);
        let master = Some(master).filter(|&master| master != 0);
        Tally { gate, serial, total, base, era, master, sent, began, last, clear }
    }

    proptest! {
        #[test]
        fn a_tally_comes_back_as_it_was(values in any::<[u64; 12]>()) {
            let report = Report { tally: Some(tally(values)), ..report(Status::Rejected, 1, None) };
            let mut output = Vec::new();
            put_report(&mut output, &report);
            prop_assert_eq!(read_report(&split(&output)), Ok(report));
        }

        #[test]
        fn an_order_of_our_own_comes_back_as_it_was(values in any::<[u64; 5]>(), clears in any::<bool>(), kind in 0..3) {
            let [master, tick, era, next, clear] = values;
            let stamp = Stamp { master, tick: Moment::from_nanos(tick) };
            let clear = clears.then_some(Moment::from_nanos(clear));
            let command = match kind {
                0 => Command::Delay { stamp, era, next: Moment::from_nanos(next), clear },
                1 => Command::Pardon { stamp, era },
                _ => Command::Beacon { stamp },
            };
            let (domain, identifier): (&[u8], &[u8]) = if kind < 2 { (b"d", b"i") } else { (b"", b"") };
            let order = Order { domain, identifier, command };
            let mut output = Vec::new();
            put_order(&mut output, &order);
            prop_assert_eq!(read_order(&split(&output)), Ok(order));
        }

        #[test]
        fn no_frames_make_a_reader_panic(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..10)) {
            let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            let _ = (read_report(&frames), read_order(&frames));
        }
    }

    fn split(mut wire: &[u8]) -> Vec<&[u8]> {
        let mut frames = Vec::new();
        while let [_, length, rest @ ..] = wire {
            let (body, rest) = rest.split_at(usize::from(*length));
            frames.push(body);
            wire = rest;
        }
        frames
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }
}
