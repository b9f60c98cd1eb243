//! Tollgate keeps a service usable when some of its clients would take all of it.

fn main() {}
