//! The `Date` of responses.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The current date for HTTP, formatted at most once a second.
pub(crate) struct HttpDate {
    /// The second since the Unix epoch, and its date.
    formatted: RefCell<(u64, Rc<str>)>,
}

impl HttpDate {
    pub(crate) fn new() -> Self {
        let date = Self { formatted: RefCell::new((u64::MAX, Rc::from(""))) };
        date.refresh();
        date
    }

    /// Reads the clock.
    pub(crate) fn refresh(&self) {
        let now = SystemTime::now();
        let secs = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut formatted = self.formatted.borrow_mut();
        if formatted.0 != secs {
            *formatted = (secs, Rc::from(httpdate::fmt_http_date(now)));
        }
    }

    /// The date when the clock was last read.
    pub(crate) fn get(&self) -> Rc<str> {
        self.formatted.borrow().1.clone()
    }
}
