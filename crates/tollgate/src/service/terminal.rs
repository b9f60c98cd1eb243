//! Distinguishes the SIGHUP of a closed terminal, which ends the gate, from one that asks for a reload.
//!
//! Without this, a gate that was started in a terminal window would survive the window and keep its port. A gate that
//! lost its terminal earlier, without a signal, is a daemon: for such a gate SIGHUP is a reload.

use std::io::{self, IsTerminal};

/// The terminal of this process.
pub(super) struct AttachedTerminal {
    /// Whether the terminal was open at the last two calls of [`AttachedTerminal::look`], the older first. Two, because
    /// the last call may come between the end of the terminal and its signal.
    was_attached: [bool; 2],
}

impl AttachedTerminal {
    pub(super) fn new() -> Self {
        Self { was_attached: [is_attached(); 2] }
    }

    /// Records whether the terminal is open. To be called every few seconds.
    pub(super) fn look(&mut self) {
        self.was_attached = [self.was_attached[1], is_attached()];
    }

    /// Whether the terminal was closed a moment ago. To be called on SIGHUP.
    pub(super) fn was_closed(&self) -> bool {
        self.was_attached.contains(&true) && !is_attached()
    }
}

/// Whether the process has an open terminal. The descriptors of a closed one are no longer terminals.
fn is_attached() -> bool {
    io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal()
}
