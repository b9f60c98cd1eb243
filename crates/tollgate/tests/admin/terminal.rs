//! A pseudo-terminal of a chosen size with a program, and its screen.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::support::eventually;

/// A program on a terminal; killed when the test ends.
pub(crate) struct Terminal {
    child: Child,
    /// Side of the user.
    person: File,
    /// Side of the program.
    line: OwnedFd,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Starts a program on a terminal with this many columns and rows.
    pub(crate) fn start(command: &mut Command, columns: u16, rows: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let person = openpt(flags).unwrap();
        grantpt(&person).unwrap();
        unlockpt(&person).unwrap();
        let line = ioctl_tiocgptpeer(&person, flags).unwrap();
        let person = File::from(person);
        let ends = [(); 3].map(|()| line.try_clone().unwrap());
        resize(&person, columns, rows);
        let [input, output, errors] = ends;
        let child = command.stdin(input).stdout(output).stderr(errors).spawn().unwrap();
        let (written, mut reader) = (Arc::<Mutex<Vec<u8>>>::default(), person.try_clone().unwrap());
        let kept = written.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                kept.lock().unwrap().extend_from_slice(&bytes[..read]);
            }
        });
        Self { child, person, line, written }
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        resize(&self.person, columns, rows);
    }

    pub(crate) fn press(&self, keys: &str) {
        (&self.person).write_all(keys.as_bytes()).unwrap();
    }

    /// All output so far.
    pub(crate) fn written(&self) -> Vec<u8> {
        self.written.lock().unwrap().clone()
    }

    /// Waits until the screen satisfies a condition; returns its lines.
    pub(crate) fn shows(&self, what: &str, is_so: impl Fn(&[String]) -> bool) -> Vec<String> {
        let mut screen = Vec::new();
        eventually(what, || {
            screen = self.screen();
            is_so(&screen)
        });
        screen
    }

    /// Lines of the last complete frame. Asserts that it has no control sequences but colours and line ends.
    fn screen(&self) -> Vec<String> {
        let written = String::from_utf8_lossy(&self.written()).into_owned();
        let Some(end) = written.rfind("\x1b[J") else { return Vec::new() };
        let begin = written[..end].rfind("\x1b[H").expect("a frame has a begin");
        written[begin + 3..end].split("\r\n").map(plain).collect()
    }

    /// Sends the program a signal.
    pub(crate) fn tell(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Exit code of the program.
    pub(crate) fn ends(&mut self) -> Option<i32> {
        let mut ended = None;
        eventually("the program ends", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap().code()
    }

    /// Whether the terminal echoes and buffers lines again, as in a shell.
    pub(crate) fn is_as_it_was(&self) -> bool {
        tcgetattr(&self.line).unwrap().local_modes.contains(LocalModes::ECHO | LocalModes::ICANON)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("on the terminal: {}", String::from_utf8_lossy(&self.written()).escape_debug());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(person: &File, columns: u16, rows: u16) {
    tcsetwinsize(person, Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

/// A line without colours.
pub(crate) fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        if c == '\x1b' {
            assert_eq!(rest.next(), Some('['), "{line:?}");
            let end = rest.find(|c| !c.is_ascii_digit() && *c != ';');
            assert!(matches!(end, Some('m' | 'K')), "{line:?} does more than colours");
        } else {
            assert!(!c.is_control(), "{line:?}");
            text.push(c);
        }
    }
    text
}
