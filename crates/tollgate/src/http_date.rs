//! The `Date` header of responses that a gate or a door makes itself.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The current date in the format of HTTP, cached per thread: it is formatted at most once a second.
pub(crate) struct HttpDate {
    /// A time in seconds since the Unix epoch, and its text.
    formatted: RefCell<(u64, Rc<str>)>,
}

impl HttpDate {
    pub(crate) fn new() -> Self {
        let date = Self { formatted: RefCell::new((u64::MAX, Rc::from(""))) };
        date.refresh();
        date
    }

    /// Reads the clock, and formats the date if the second has changed.
    pub(crate) fn refresh(&self) {
        let now = SystemTime::now();
        let secs = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut formatted = self.formatted.borrow_mut();
        if formatted.0 != secs {
            *formatted = (secs, Rc::from(httpdate::fmt_http_date(now)));
        }
    }

    /// The date at the last call of [`Self::refresh`].
    pub(crate) fn get(&self) -> Rc<str> {
        self.formatted.borrow().1.clone()
    }
}
