//! The load that a backend reports in a response header.

use std::io::Write;

use serde_json::Value;

use crate::support::{Backend, Gate, eventually};

fn band(gate: &Gate) -> String {
    let status: Value = serde_json::from_str(&gate.admin("/api/v1/status").text()).unwrap();
    status["band"]["name"].as_str().unwrap_or_else(|| panic!("{status}")).to_owned()
}

#[test]
fn a_load_in_a_response_header_sets_the_band_and_is_not_forwarded() {
    // The backend reports the lag that the path names.
    let backend = Backend::answering(|request, stream| {
        let lag = request.path()[1..].to_string();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Lag-Ms: {lag}\r\nX-Other: kept\r\n\r\nok")
    });
    let gate = Gate::with(&backend, "bands = { header = 'x-lag-ms' }");
    assert_eq!(band(&gate), "normal");
    for nonsense in ["/-1", "/1e9", "/", "/9999999999", "/NaN", "/300,300"] {
        let answer = gate.get(nonsense);
        assert_eq!((answer.status, answer.field("x-lag-ms"), answer.field("x-other")), (200, None, Some("kept")));
    }
    assert_eq!(band(&gate), "normal", "nonsense is not a load");
    eventually("the band is critical", || {
        assert_eq!(gate.get("/300.5").field("x-lag-ms"), None);
        band(&gate) == "critical"
    });
    let plain = Gate::before(&backend);
    assert_eq!(plain.get("/300").field("x-lag-ms"), Some("300"), "without the setting, the header is the client's");
}
