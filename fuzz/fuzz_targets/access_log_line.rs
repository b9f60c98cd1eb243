//! A line of an access log, and the detection of its format.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::request::Request as _;
use tollgate_wire::log::{Format, Line, Parser};

fuzz_target!(|line: &[u8]| {
    let mut parser = Parser::new();
    for format in [Format::Combined, Format::Json] {
        match parser.parse(format, line) {
            Ok(Line::Request(request)) => {
                assert!(!request.client_text.is_empty());
                assert!(request.path().len() <= request.target().len());
                let _ = (request.host(), request.cookie("a"), format!("{request:?}"));
            }
            Ok(Line::Band { .. }) => panic!("an access log has no bands"),
            Err(fault) => assert!((1..=line.len() + 1).contains(&(fault.column as usize)), "{fault}"),
        }
    }
    let _ = Format::detect(line);
});
