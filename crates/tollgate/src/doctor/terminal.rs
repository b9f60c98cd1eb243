//! Switches the terminal to the live view and back, draws and reads keys.

use std::io::{self, Read, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::keyboard::{KeyPress, keys};
use super::stop_signal::StopSignal;

/// Least columns and rows that are drawn; a smaller terminal shows a part of them.
const SMALLEST: (usize, usize) = (20, 5);

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

    /// Current size in columns and rows.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(io::stdout()).map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()));
        (size.0.max(SMALLEST.0), size.1.max(SMALLEST.1))
    }

    /// Draws lines from the top.
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

    /// Waits for key presses, at most `wait`. A signal and the end of the input count as Ctrl-C.
    pub(super) fn keys(&self, wait: Duration, stop_signal: &StopSignal) -> io::Result<Vec<KeyPress>> {
        let stdin = io::stdin();
        let mut polled = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(stop_signal, PollFlags::IN)];
        let wait = Timespec { tv_sec: wait.as_secs().min(60) as i64, tv_nsec: wait.subsec_nanos().into() };
        match poll(&mut polled, Some(&wait)) {
            Ok(0) => return Ok(Vec::new()),
            Ok(_) => {}
            // The terminal was resized: redraw.
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        if !polled[1].revents().is_empty() {
            return Ok(vec![KeyPress::Interrupt]);
        }
        let mut bytes = [0; 256];
        let length = stdin.lock().read(&mut bytes)?;
        // End of input.
        if length == 0 { Ok(vec![KeyPress::Interrupt]) } else { Ok(keys(&bytes[..length])) }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = write(b"\x1b[0m\x1b[?25h\x1b[?1049l");
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}
