//! The JSON of `POST /api/v1/rejections`: any bytes are a report with a short id, or an error; other parsers agree that
//! a report is JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/tollgate/src/admin/report_json.rs"]
mod report_json;

use report_json::{ID_BYTES_MAX, RejectionReport};

fuzz_target!(|bytes: &[u8]| {
    match RejectionReport::parse(bytes) {
        Ok(report) => {
            assert!((1..=ID_BYTES_MAX).contains(&report.id.len()));
            // Unknown fields are skipped without a check of their UTF-8.
            let value: serde_json::Value = serde_json::from_str(&String::from_utf8_lossy(bytes)).expect("a report is JSON");
            assert_eq!(value["entries"].as_array().map(Vec::len), Some(report.entries.len()));
            for entry in report.entries {
                assert!(entry.class.len() + entry.key.len() <= bytes.len());
                // Only positive whole numbers count.
                let count = entry.rejected.as_u64().unwrap_or(0);
                assert!(count == 0 || !entry.rejected.to_string().starts_with('-'));
            }
        }
        Err(error) => assert!(error.len() <= 3 * bytes.len() + 400, "{error:?}"),
    }
});
