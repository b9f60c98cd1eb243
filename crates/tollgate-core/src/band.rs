//! How loaded the backend is.

/// How loaded the backend is: it multiplies the penalty of a client that is over its own limit, and never touches another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Band {
    /// As usual.
    #[default]
    Normal,
    /// Waiting has become noticeable, for some time.
    Elevated,
    /// Waiting hurts, or one measure was catastrophic.
    Critical,
}

impl Band {
    /// The word that people and programs see.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Elevated => "elevated",
            Self::Critical => "critical",
        }
    }
}
