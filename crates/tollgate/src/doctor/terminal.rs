//! Switches the terminal of `tollgate doctor` to the live view and back, draws frames, and reads keys.

use std::io::{self, Read, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::keyboard::{KeyPress, keys};
use super::stop_signal::StopSignal;

/// The least columns and rows for which the view is drawn. A smaller terminal cuts the view off.
const SMALLEST: (usize, usize) = (20, 5);
/// The columns and rows of a terminal that does not report its size.
const USUAL: (usize, usize) = (80, 24);

/// The terminal in the state for the live view; restored when dropped.
pub(super) struct Terminal {
    /// Settings of the terminal to restore.
    before: Termios,
}

impl Terminal {
    /// Switches to raw mode, so that each key press arrives at once, and to an alternate screen without a cursor.
    pub(super) fn take() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        let terminal = Self { before };
        write(b"\x1b[?1049h\x1b[?25l\x1b[2J")?;
        Ok(terminal)
    }

    /// The size to draw for, in columns and rows. Read it before each frame: a resize is not reported.
    pub(super) fn size(&self) -> (usize, usize) {
        let (columns, rows) = tcgetwinsize(io::stdout()).map_or((0, 0), |size| (size.ws_col, size.ws_row));
        drawn_size(columns, rows)
    }

    /// Draws lines from the top, and clears the rest of the screen. The lines must fit [`Self::size`].
    pub(super) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let mut frame = b"\x1b[H".to_vec();
        for (index, line) in lines.iter().enumerate() {
            if index > 0 {
                frame.extend_from_slice(b"\r\n");
            }
            frame.extend_from_slice(line.as_bytes());
            frame.extend_from_slice(b"\x1b[0m\x1b[K");
        }
        frame.extend_from_slice(b"\x1b[J");
        write(&frame)
    }

    /// Waits for key presses, at most `wait`. A stop signal (SIGTERM, SIGHUP or SIGINT) and the end of the input count
    /// as Ctrl-C.
    pub(super) fn keys(&self, wait: Duration, stop_signal: &StopSignal) -> io::Result<Vec<KeyPress>> {
        let stdin = io::stdin();
        let mut polled = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(stop_signal, PollFlags::IN)];
        // The bound keeps the cast lossless.
        let wait = Timespec { tv_sec: wait.as_secs().min(60) as i64, tv_nsec: wait.subsec_nanos().into() };
        match poll(&mut polled, Some(&wait)) {
            Ok(0) => return Ok(Vec::new()),
            Ok(_) => {}
            // A signal was handled. If it was a stop signal, the next call returns it.
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        if !polled[1].revents().is_empty() {
            return Ok(vec![KeyPress::Interrupt]);
        }
        let mut bytes = [0; 256];
        let length = stdin.lock().read(&mut bytes)?;
        if length == 0 { Ok(vec![KeyPress::Interrupt]) } else { Ok(keys(&bytes[..length])) }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = write(b"\x1b[0m\x1b[?25h\x1b[?1049l");
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// The size to draw for on a terminal that reports this one. A serial console reports 0.
fn drawn_size(columns: u16, rows: u16) -> (usize, usize) {
    match (columns, rows) {
        (0, _) | (_, 0) => USUAL,
        _ => (SMALLEST.0.max(columns.into()), SMALLEST.1.max(rows.into())),
    }
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_without_a_size_is_drawn_as_a_usual_one() {
        assert_eq!((drawn_size(0, 0), drawn_size(120, 0)), (USUAL, USUAL));
        assert_eq!((drawn_size(132, 43), drawn_size(10, 43)), ((132, 43), (SMALLEST.0, 43)));
    }
}
