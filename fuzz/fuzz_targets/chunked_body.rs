//! The chunked coding: any segmentation of a body gives the same result.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_wire::http1::chunked::{Decoder, Malformed, Step};

fn decode(input: &[u8], piece: usize) -> Result<Option<(Vec<u8>, usize)>, Malformed> {
    let (mut decoder, mut data, mut start, mut end) = (Decoder::default(), Vec::new(), 0, 0);
    loop {
        match decoder.decode(&input[start..end])? {
            Step::Data(range) => {
                data.extend_from_slice(&input[start + range.start..start + range.end]);
                start += range.end;
            }
            Step::More(used) if end < input.len() => {
                start += used;
                end = (end + piece).min(input.len());
            }
            Step::More(_) => return Ok(None),
            Step::End(used) => return Ok(Some((data, start + used))),
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let whole = decode(input, input.len().max(1));
    for piece in [1, 2, 7] {
        assert_eq!(decode(input, piece), whole);
    }
});
