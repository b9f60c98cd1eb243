//! `gate.fairness`: which clients share the backend, and what each is due.

use tollgate_core::class::Class;
use tollgate_core::queue::Shares;

use super::fault::Collector;
use super::table::table;
use super::value::{Choice, Thousandths};

/// The class that tells users apart, beneath or in place of the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserClass {
    /// How users are told apart.
    pub(crate) class: Class,
    /// Where users stand.
    pub(crate) place: UserPlace,
}

/// Where a user stands among the levels that share the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserPlace {
    /// Beneath the address: users of one address take turns.
    Beneath,
    /// In place of address, network and block.
    Instead,
}

impl Choice for UserPlace {
    const WORDS: &'static [(&'static str, Self)] = &[("beneath", Self::Beneath), ("instead", Self::Instead)];
}

table! {
    /// How the backend's time is shared while it is scarce. Each level has a share of the backend, at most 1; a client that has used more than
    /// its share waits for clients that have not. Time that no other client wants is given to any client.
    struct FairnessTable {
        /// The share of an address (IPv6: a /64).
        address as "ip/32": Thousandths = "0.10",
        /// The share of its network (IPv6: a /56).
        network as "ip/24": Thousandths = "0.25",
        /// The share of its block (IPv6: a /48).
        block as "ip/16": Thousandths = "0.50",
        /// The class that tells users apart, such as `cookie:sid`, `header:x-api-key` or `user-agent`; `class` of a rule lists all. A request
        /// without this key counts for its address, and its connection is the user. Without `by`, users are told apart by connection.
        by: Class,
        /// Where users stand. `beneath`: users of one address take turns, and share what the address is due. This is safe with values that
        /// clients can invent, such as cookies. `instead`: each user is due as much as an address, whatever address it comes from, and the
        /// address is not charged. This is for values that the backend or a proxy verifies, such as API keys behind the address of a CDN: a client that can
        /// invent values gets a new share with each.
        place: UserPlace = "\"beneath\"",
    }
}

impl FairnessTable {
    /// What each level is due.
    pub(super) fn shares(&self, faults: &mut Collector) -> Shares {
        let mut share = |share: &super::table::Placed<Thousandths>| {
            if share.value.0 > 1000 {
                faults.fault(&share.span, "a share is a part of the whole, at most 1: write a number such as 0.1");
            }
            share.value.0
        };
        Shares {
            address_milli: share(&self.address),
            network_milli: share(&self.network),
            block_milli: share(&self.block),
        }
    }

    /// The class that tells users apart.
    pub(super) fn user(&self, faults: &mut Collector) -> Option<UserClass> {
        if self.written.has("place") && !self.written.has("by") {
            let message = "`place` says where the users of `by` stand: write `by = \"cookie:sid\"` beside it";
            faults.missing(&self.place.span, message);
        }
        let by = self.by.as_ref()?;
        Some(UserClass { class: by.value.clone(), place: self.place.value })
    }
}
