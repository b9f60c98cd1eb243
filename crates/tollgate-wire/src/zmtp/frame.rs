//! ZMTP frames: one byte of flags, a length of one or eight bytes, and a body. A message is a sequence of frames, of
//! which all but the last have the flag `MORE`. A command, such as SUBSCRIBE, is one frame.

use super::{FRAMES_MAX, MESSAGE_BYTES_MAX, ZmtpError};

/// The flag of a frame that is followed by another one of the same message.
const MORE: u8 = 1;
/// The flag of a frame whose length has eight bytes.
const LONG: u8 = 2;
/// The flag of a command.
pub(super) const COMMAND: u8 = 4;

/// A parsed frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whether another frame of the same message follows.
    pub more: bool,
    /// Whether it is a command.
    pub command: bool,
    /// The index of the start of the body in the input.
    pub start: usize,
    /// The index of the end of the body and of the frame.
    pub end: usize,
}

/// The frames of one message.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a> {
    bodies: [&'a [u8]; FRAMES_MAX],
    count: usize,
}

impl<'a> Frames<'a> {
    /// The bodies, in order.
    pub fn bodies(&self) -> &[&'a [u8]] {
        &self.bodies[..self.count]
    }
}

/// Appends a frame to `output`. `more` is whether another frame of the same message follows.
pub fn put(output: &mut Vec<u8>, more: bool, body: &[u8]) {
    put_parts(output, more, &[body]);
}

/// Appends a frame to `output` whose body consists of these parts.
pub(crate) fn put_parts(output: &mut Vec<u8>, more: bool, parts: &[&[u8]]) {
    put_flagged(output, if more { MORE } else { 0 }, parts);
}

/// Appends a message of these frames to `output`.
pub fn put_message(output: &mut Vec<u8>, bodies: &[&[u8]]) {
    for (place, body) in bodies.iter().enumerate() {
        put(output, place + 1 < bodies.len(), body);
    }
}

/// Appends a command to `output`.
pub(super) fn put_command(output: &mut Vec<u8>, name: &[u8], data: &[u8]) {
    put_flagged(output, COMMAND, &[&[name.len() as u8], name, data]);
}

fn put_flagged(output: &mut Vec<u8>, flags: u8, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    match u8::try_from(length) {
        Ok(short) => output.extend_from_slice(&[flags, short]),
        Err(_) => {
            output.push(flags | LONG);
            output.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    for part in parts {
        output.extend_from_slice(part);
    }
}

/// The header of the frame at index `at`; `None` while the frame is incomplete.
pub(super) fn header(input: &[u8], at: usize) -> Result<Option<Header>, ZmtpError> {
    let Some(&flags) = input.get(at) else { return Ok(None) };
    let (more, command) = (flags & MORE != 0, flags & COMMAND != 0);
    if flags & !(MORE | LONG | COMMAND) != 0 || (more && command) {
        return Err(ZmtpError::Frame);
    }
    let (start, length) = if flags & LONG == 0 {
        let Some(&length) = input.get(at + 1) else { return Ok(None) };
        (at + 2, usize::from(length))
    } else {
        let Some(length) = input.get(at + 1..at + 9) else { return Ok(None) };
        let length = length.iter().fold(0_u64, |length, &byte| length << 8 | u64::from(byte));
        (at + 9, usize::try_from(length).map_err(|_| ZmtpError::TooLong)?)
    };
    // Check before any allocation, because a header of nine bytes could announce an exabyte.
    if length > MESSAGE_BYTES_MAX {
        return Err(ZmtpError::TooLong);
    }
    let end = start + length;
    Ok((end <= input.len()).then_some(Header { more, command, start, end }))
}

/// The message at index `at` and the index of its end; `None` while the message is incomplete.
pub(super) fn message(input: &[u8], at: usize) -> Result<Option<(Frames<'_>, usize)>, ZmtpError> {
    let mut frames = Frames { bodies: [&[]; FRAMES_MAX], count: 0 };
    let mut from = at;
    loop {
        // A message that exceeds its bound is rejected before it is complete.
        if from - at > MESSAGE_BYTES_MAX || frames.count == FRAMES_MAX {
            return Err(ZmtpError::TooLong);
        }
        let Some(header) = header(input, from)? else { return Ok(None) };
        if header.command {
            return Err(ZmtpError::Frame);
        }
        frames.bodies[frames.count] = &input[header.start..header.end];
        frames.count += 1;
        from = header.end;
        if !header.more {
            return Ok(Some((frames, from)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_beyond_the_bound_is_refused_from_its_header_alone() {
        let mut huge = vec![LONG];
        huge.extend_from_slice(&(1_u64 << 62).to_be_bytes());
        assert_eq!(header(&huge, 0), Err(ZmtpError::TooLong));
        huge[1..].copy_from_slice(&u64::MAX.to_be_bytes());
        assert_eq!(header(&huge, 0), Err(ZmtpError::TooLong));
    }

    #[test]
    fn endless_frames_are_rejected() {
        let endless: Vec<u8> = [MORE, 0].repeat(FRAMES_MAX + 1);
        assert_eq!(message(&endless, 0).unwrap_err(), ZmtpError::TooLong);
        let long = [vec![MORE | LONG], (60_000_u64).to_be_bytes().to_vec(), vec![0; 60_000]].concat().repeat(2);
        assert_eq!(message(&long, 0).unwrap_err(), ZmtpError::TooLong);
    }

    #[test]
    fn unknown_flags_are_refused() {
        assert_eq!(header(&[0x08, 0], 0), Err(ZmtpError::Frame));
        assert_eq!(header(&[MORE | COMMAND, 0], 0), Err(ZmtpError::Frame));
    }

    #[test]
    fn long_bodies_take_eight_bytes_of_length() {
        let body = vec![7; 256];
        let mut output = Vec::new();
        put(&mut output, false, &body);
        assert_eq!(&output[..9], &[LONG, 0, 0, 0, 0, 0, 0, 1, 0]);
        let (frames, end) = message(&output, 0).unwrap().unwrap();
        assert_eq!((frames.bodies(), end), (&[&body[..]][..], 265));
    }
}
