//! The built master with peers that send recorded bytes of an original, and with peers on libzmq.
#![allow(clippy::unwrap_used)]

mod bytes;
mod hostile;
mod libzmq;
mod originals;
mod replacement;
