//! `gate.fairness`: the share of a busy backend that the fair queue grants to an address and to its networks, and the
//! class of requests that distinguishes users.

use tollgate_core::class::Class;
use tollgate_core::inputs::Inputs;
use tollgate_core::queue::Shares;

use super::table::{Entries, table};
use super::value::{Choice, Thousandths};

/// The level at which the fair queue distinguishes users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserPlace {
    /// Below the address: users of one address take turns within the share of the address.
    Beneath,
    /// In place of address, network and block: each user has the share of an address.
    Instead,
}

impl Choice for UserPlace {
    const WORDS: &'static [(&'static str, Self)] = &[("beneath", Self::Beneath), ("instead", Self::Instead)];
}

table! {
    /// The shares of clients while the backend is busy. Each level has a share of the backend, at most 1. A client that
    /// has used more than its share waits for clients that have not. Capacity that no other client uses is available to
    /// any client.
    pub(crate) struct Fairness {
        /// The share of an address (IPv6: a /64).
        address_milli as "ip/32": Thousandths = "0.10" where ..=1000 => SHARE_ERROR,
        /// The share of its network (IPv6: a /56).
        network_milli as "ip/24": Thousandths = "0.25" where ..=1000 => SHARE_ERROR,
        /// The share of its block (IPv6: a /48).
        block_milli as "ip/16": Thousandths = "0.50" where ..=1000 => SHARE_ERROR,
        /// The class that identifies users, such as `cookie:sid`, `header:x-api-key` or `user-agent`; `class` of a rule
        /// lists all; `json:/POINTER` is for rules only. A request without this property is charged to its address, and
        /// its connection is the user.
        /// Default: each connection is a user.
        by: Class,
        /// The level of users. `beneath`: users of one address take turns and share the share of the address. This is
        /// safe with values that clients can invent, such as cookies. `instead`: each user has the share of an address,
        /// from any address, and the address is not charged. Use it only for values that the backend or a proxy
        /// verifies, such as API keys behind the address of a CDN: a client that can invent values gets a new share
        /// with each.
        place: UserPlace = "\"beneath\"",
    }
    check Fairness::check;
}

/// The error message for a share above 1.
pub(super) const SHARE_ERROR: &str = "a share is a part of the whole, at most 1: write a number such as 0.1";

impl Fairness {
    /// The share of each level.
    pub(crate) fn shares(&self) -> Shares {
        let Self { address_milli, network_milli, block_milli, .. } = *self;
        Shares { address_milli, network_milli, block_milli }
    }

    fn check(&self, entries: &mut Entries<'_>) {
        if entries.written.has("place") && !entries.written.has("by") {
            let message = "`place` is the level of the users of `by`: write `by = \"cookie:sid\"` beside it";
            entries.missing("place", message);
        }
        if self.by.as_ref().is_some_and(|by| !Inputs::of([], Some(by)).json_pointers.is_empty()) {
            let message =
                "the fair queue does not read bodies: write a class such as `cookie:sid` or `header:x-api-key`";
            entries.report("by", message);
        }
    }
}
