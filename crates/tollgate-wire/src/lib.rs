//! Bytes to values and back, with no I/O: everything that a stranger can send is parsed here, where it can be fuzzed.
