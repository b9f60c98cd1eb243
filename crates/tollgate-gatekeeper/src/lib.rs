//! What a Rust service embeds: bounded tables, a clock and the limiter.
