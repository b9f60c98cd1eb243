//! `gate.fairness`: the shares of clients and networks, and the class of users.

use tollgate_core::class::Class;
use tollgate_core::inputs::Inputs;
use tollgate_core::queue::Shares;

use super::error::ErrorCollector;
use super::table::table;
use super::value::{Choice, Thousandths};

/// The class that identifies users, and their level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserClass {
    /// The class that identifies users.
    pub(crate) class: Class,
    /// The level of users.
    pub(crate) place: UserPlace,
}

/// The level of users among those that share the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserPlace {
    /// Below the address: users of one address share its share.
    Beneath,
    /// Instead of address, network and block.
    Instead,
}

impl Choice for UserPlace {
    const WORDS: &'static [(&'static str, Self)] = &[("beneath", Self::Beneath), ("instead", Self::Instead)];
}

table! {
    /// The shares of clients while the backend is busy. Each level has a share of the backend, at most 1. A client that
    /// has used more than its share waits for clients that have not. Capacity that no other client uses is available to
    /// any client.
    struct FairnessTable {
        /// The share of an address (IPv6: a /64).
        address as "ip/32": Thousandths = "0.10" where ..=1000 => SHARE_ERROR,
        /// The share of its network (IPv6: a /56).
        network as "ip/24": Thousandths = "0.25" where ..=1000 => SHARE_ERROR,
        /// The share of its block (IPv6: a /48).
        block as "ip/16": Thousandths = "0.50" where ..=1000 => SHARE_ERROR,
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
}

/// The error of a share above 1.
pub(super) const SHARE_ERROR: &str = "a share is a part of the whole, at most 1: write a number such as 0.1";

impl FairnessTable {
    /// The share of each level.
    pub(super) fn shares(&self) -> Shares {
        Shares { address_milli: self.address.value, network_milli: self.network.value, block_milli: self.block.value }
    }

    /// The class that identifies users.
    pub(super) fn user(&self, errors: &mut ErrorCollector) -> Option<UserClass> {
        if self.written.has("place") && !self.written.has("by") {
            let message = "`place` is the level of the users of `by`: write `by = \"cookie:sid\"` beside it";
            errors.missing(&self.place.span, message);
        }
        let by = self.by.as_ref()?;
        if !Inputs::of([], Some(&by.value)).json_pointers.is_empty() {
            let message =
                "the fair queue does not read bodies: write a class such as `cookie:sid` or `header:x-api-key`";
            errors.report(&by.span, message);
        }
        Some(UserClass { class: by.value.clone(), place: self.place.value })
    }
}
