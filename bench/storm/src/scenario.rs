//! The scenarios of the storm benchmark, which differ in the networks of the crawler.

use serde::{Deserialize, Serialize};
use tollgate_storm::crowd::Origin;

/// A storm by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize)]
pub(crate) enum Scenario {
    /// No crawler: the same visits as in the storms, for comparison.
    S0,
    /// The crawler has one address.
    S1,
    /// 64 addresses of one /24.
    S2,
    /// 64 addresses in 64 /24s of 64 /16s.
    S3,
    /// 64 addresses in 64 /24s of one /16.
    S3Block,
}

impl Scenario {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::S0 => "S0",
            Self::S1 => "S1",
            Self::S2 => "S2",
            Self::S3 => "S3",
            Self::S3Block => "S3 one /16",
        }
    }

    pub(crate) const fn origin(self) -> Option<Origin> {
        Some(match self {
            Self::S0 => return None,
            Self::S1 => Origin::Address,
            Self::S2 => Origin::Network,
            Self::S3 => Origin::Everywhere,
            Self::S3Block => Origin::Block,
        })
    }
}
