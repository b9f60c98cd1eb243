//! Any bytes of a Redis client: no panic, every command within its bounds, and the same commands however the bytes arrive. Begin with the seeds:
//! `cargo +nightly fuzz run resp_command fuzz/corpus/resp_command`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::cell::Cell;
use tollgate_core::record::PlainRecord;
use tollgate_core::time::Moment;
use tollgate_wire::resp::{ARGUMENTS_MAX, COMMAND_BYTES_MAX, Command, Replies, RespVersion};

fuzz_target!(|bytes: &[u8]| {
    let (mut command, mut at) = (Command::default(), 0);
    while let Ok(Some(length)) = command.read(&bytes[at..]) {
        let rest = &bytes[at..];
        assert!((1..=COMMAND_BYTES_MAX).contains(&length) && command.count() <= ARGUMENTS_MAX);
        let arguments: Vec<&[u8]> = (0..command.count()).map(|place| command.argument(rest, place).unwrap()).collect();
        // One byte less is no whole command.
        assert!(matches!(Command::default().read(&rest[..length - 1]), Ok(None) | Ok(Some(_))));
        let mut out = Vec::new();
        let mut replies = Replies::new(&mut out, RespVersion::Three);
        replies.array(arguments.len());
        arguments.iter().for_each(|argument| replies.bulk(argument));
        if !arguments.is_empty() && out.len() <= COMMAND_BYTES_MAX {
            assert_eq!(Command::default().read(&out), Ok(Some(out.len())));
        }
        let numbers: Vec<i64> =
            arguments.iter().filter_map(|argument| std::str::from_utf8(argument).ok()?.parse().ok()).collect();
        if let [burst, count, period, quantity, ..] = numbers[..]
            && let Ok(cell) = Cell::new(burst, count, period)
        {
            cell.throttle(&mut PlainRecord::new(1), quantity, Moment::from_millis(1_000_000));
        }
        at += length;
    }
});
