//! The terminal: taken, drawn on, and given back as it was.

use std::io::{self, Read, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::ending::Ending;
use super::keyboard::{Key, keys};

/// A smaller terminal is drawn on as if it were this small.
const SMALLEST: (usize, usize) = (20, 5);

/// A terminal that is drawn on. Dropped, it is as it was.
pub(super) struct Terminal {
    before: Termios,
}

impl Terminal {
    /// Takes the terminal: another screen, no cursor, every key at once.
    pub(super) fn take() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        let terminal = Self { before };
        write(b"\x1b[?1049h\x1b[?25l\x1b[2J")?;
        Ok(terminal)
    }

    /// Columns and rows, now.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(io::stdout()).map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()));
        (size.0.max(SMALLEST.0), size.1.max(SMALLEST.1))
    }

    /// Draws these lines, from the top.
    pub(super) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let mut frame = b"\x1b[H".to_vec();
        for (place, line) in lines.iter().enumerate() {
            if place > 0 {
                frame.extend_from_slice(b"\r\n");
            }
            frame.extend_from_slice(line.as_bytes());
            frame.extend_from_slice(b"\x1b[0m\x1b[K");
        }
        frame.extend_from_slice(b"\x1b[J");
        write(&frame)
    }

    /// The keys that are pressed, within so long. To be told to end is one of them.
    pub(super) fn keys(&self, wait: Duration, ending: &Ending) -> io::Result<Vec<Key>> {
        let stdin = io::stdin();
        let mut polled = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(ending, PollFlags::IN)];
        let wait = Timespec { tv_sec: wait.as_secs().min(60) as i64, tv_nsec: wait.subsec_nanos().into() };
        match poll(&mut polled, Some(&wait)) {
            Ok(0) => return Ok(Vec::new()),
            Ok(_) => {}
            // A terminal that was resized: it is drawn anew.
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        if !polled[1].revents().is_empty() {
            return Ok(vec![Key::Interrupt]);
        }
        let mut bytes = [0; 256];
        let length = stdin.lock().read(&mut bytes)?;
        // Nobody is there any more.
        if length == 0 { Ok(vec![Key::Interrupt]) } else { Ok(keys(&bytes[..length])) }
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
