//! A line of a trace is parsed or rejected; a parsed line is valid JSON for other parsers, too.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::request::Request as _;
use tollgate_wire::log::{Format, Line, Parser};

fuzz_target!(|line: &[u8]| {
    let mut parser = Parser::new();
    match parser.parse(Format::Trace, line) {
        Ok(read) => {
            // Our parser also accepts invalid UTF-8.
            let text = String::from_utf8_lossy(line);
            if let Err(error) = serde_json::from_str::<&serde_json::value::RawValue>(&text) {
                panic!("read what is not JSON: {error}: {text:?}");
            }
            if let Line::Request(request) = read {
                assert!(!request.client_text.is_empty());
                assert!(request.path().len() <= request.target().len());
                let _ = (request.host(), request.cookie("a"), format!("{request:?}"));
            }
        }
        Err(fault) => assert!((1..=line.len() + 1).contains(&(fault.column as usize)), "{fault}"),
    }
});
