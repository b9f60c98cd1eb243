//! Path normalization: any bytes have a bounded normal form, which is its own normal form.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::path::{NormalPath, PathPattern};

fuzz_target!(|bytes: &[u8]| {
    let (pattern, path) = bytes.split_at(bytes.iter().position(|byte| *byte == b' ').unwrap_or(0));
    let normal = NormalPath::of(path);
    if let Some(normal) = normal.differing() {
        assert!(normal.normal().len() <= 3 * path.len() && normal.normal().first() == Some(&b'/'));
        let again = NormalPath::of(normal.normal());
        assert!(normal.is_ambiguous || again.differing().is_none(), "a normal form is normal");
    }
    let pattern = PathPattern::new(String::from_utf8_lossy(pattern));
    assert!(!pattern.matches::<false>(path, normal.differing()) || pattern.matches::<true>(path, normal.differing()));
});
