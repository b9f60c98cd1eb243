//! Distinguishes the SIGHUP of a closed terminal from one that asks for a reload.
//!
//! A gate that was started in a terminal window would otherwise survive the window and keep its port. A gate that lost
//! its terminal earlier, without a signal, is a daemon: for such a gate SIGHUP is a reload.

use std::io::{self, IsTerminal};

/// The terminal of this process.
pub(super) struct AttachedTerminal {
    /// Whether there was one at the last two calls of [`AttachedTerminal::look`]. Two, because a call can come between
    /// the end of the terminal and its signal.
    was_attached: [bool; 2],
}

impl AttachedTerminal {
    pub(super) fn new() -> Self {
        Self { was_attached: [is_attached(); 2] }
    }

    /// Call it every few seconds.
    pub(super) fn look(&mut self) {
        self.was_attached = [self.was_attached[1], is_attached()];
    }

    /// Whether the terminal was closed a moment ago.
    pub(super) fn was_closed(&self) -> bool {
        self.was_attached.contains(&true) && !is_attached()
    }
}

/// The descriptors of a closed terminal are no longer terminals.
fn is_attached() -> bool {
    io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal()
}
