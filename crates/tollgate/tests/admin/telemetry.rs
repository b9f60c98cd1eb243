//! Metrics and traces, parsed with the definitions of OpenTelemetry.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::metrics::python;
use crate::support::{Gate, PATIENCE, eventually};

/// A request to the receiver.
struct Export {
    head: String,
    body: Vec<u8>,
}

/// A receiver that rejects the first traces and accepts all later requests.
fn receiver() -> (SocketAddr, Arc<Mutex<Vec<Export>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, taken) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<Export>>>::default());
    let exports = taken.clone();
    std::thread::spawn(move || {
        let mut is_first = true;
        for stream in listener.incoming().flatten() {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut reader = BufReader::new(stream);
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|bytes| bytes > 0) {}
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            let refuse = is_first && head.starts_with("POST /v1/traces");
            let status = if refuse { "503 Service Unavailable" } else { "200 OK" };
            write!(reader.get_mut(), "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").unwrap();
            is_first &= !refuse;
            if !refuse {
                exports.lock().unwrap().push(Export { head, body });
            }
        }
    });
    (address, taken)
}

/// Parses the exports so far with OpenTelemetry's definitions.
fn parsed(exports: &Mutex<Vec<Export>>) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    for (number, export) in exports.lock().unwrap().iter().enumerate() {
        let kind = if export.head.starts_with("POST /v1/traces ") { "traces" } else { "figures" };
        std::fs::write(folder.path().join(format!("{number:05}-{kind}")), &export.body).unwrap();
    }
    let script = "import json, pathlib, sys\n\
        from google.protobuf.json_format import MessageToDict\n\
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest as Figures\n\
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest as Traces\n\
        for file in sorted(pathlib.Path(sys.argv[1]).iterdir()):\n\
        \x20 message = Traces() if file.name.endswith('traces') else Figures()\n\
        \x20 message.ParseFromString(file.read_bytes())\n\
        \x20 size = message.ByteSize()\n\
        \x20 message.DiscardUnknownFields()\n\
        \x20 assert size == message.ByteSize(), 'fields that nobody knows'\n\
        \x20 print(json.dumps(MessageToDict(message)))\n";
    let python =
        python("otlp", &["opentelemetry-proto==1.*"], "opentelemetry.proto.collector.trace.v1.trace_service_pb2");
    let output = Command::new(python).args(["-c", script]).arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// All values of this name at any depth.
fn all<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, inner)| match inner {
            Value::Array(inner) if key == name => found.extend(inner),
            _ => all(inner, name, found),
        }),
        Value::Array(values) => values.iter().for_each(|inner| all(inner, name, found)),
        _ => {}
    }
}

fn all_in<'a>(values: &'a [Value], name: &str) -> Vec<&'a Value> {
    let mut found = Vec::new();
    values.iter().for_each(|value| all(value, name, &mut found));
    found
}

/// An attribute of a span.
fn said(span: &Value, name: &str) -> Value {
    let attributes = span["attributes"].as_array().into_iter().flatten();
    let value = attributes.filter(|one| one["key"] == name).map(|one| one["value"].clone()).next().unwrap_or_default();
    value.as_object().and_then(|any| any.values().next().cloned()).unwrap_or_default()
}

fn spans<'a>(parsed: &'a [Value], path: &str) -> Vec<&'a Value> {
    let all = all_in(parsed, "spans");
    let Some(own) = all.iter().find(|span| said(span, "url.path") == path) else { return Vec::new() };
    all.iter().filter(|span| span["traceId"] == own["traceId"]).copied().collect()
}

/// Bytes as in JSON.
fn base64(hex: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = hex
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        let digits = (0..4).map(|place| char::from(DIGITS[(bits >> (18 - 6 * place)) as usize & 63]));
        text.extend(digits.take(chunk.len() + 1));
        text.extend(std::iter::repeat_n('=', 3 - chunk.len()));
    }
    text
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

#[test]
fn a_collector_receives_metrics_and_traces() {
    let (address, exports) = receiver();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("headers"), "api-key: s3cret\n").unwrap();
    let gate = Gate::start_in(
        folder,
        &format!(
            "trusted_proxies = [\"127.0.0.1\"]\n\
            [[rule]]\nname = \"api\"\nclass = \"header:x-api-key\"\nbucket = {{ size = 1, drip = 1, every = \"1h\" }}\n\
            [telemetry]\notlp = \"http://{address}\"\nevery = \"1s\"\ntraces = 1.0\nservice = \"shop\"\nheaders_file = \"FOLDER/headers\"\n"
        ),
    );
    let sampled = format!("00-{TRACE}-{PARENT}-01");
    let client = ("X-Forwarded-For", "203.0.113.7");
    let answer = gate.request("/first?token=secret", &[client, ("X-Api-Key", "ann"), ("Traceparent", &sampled)]);
    let seen = answer.header("x-seen-traceparent").expect("the backend is told").to_owned();
    assert_eq!(gate.request("/not-told", &[client, ("Traceparent", &format!("00-{TRACE}-{PARENT}-00"))]).status, 200);
    assert_eq!(gate.request("/refused", &[client, ("X-Api-Key", "ann")]).status, 429);

    let mut told = Vec::new();
    eventually("traces of both, and figures with them", || {
        told = parsed(&exports);
        let mut requests = all_in(&told, "metrics").into_iter().filter(|metric| metric["name"] == "tollgate_requests");
        let counted = requests.next_back().map(|metric| metric["sum"]["dataPoints"][0]["asDouble"].clone());
        !spans(&told, "/first").is_empty() && !spans(&told, "/refused").is_empty() && counted == Some(3.0.into())
    });
    assert!(spans(&told, "/not-told").is_empty());
    assert!(!told.iter().any(|export| export.to_string().contains("secret")));
    assert!(
        exports.lock().unwrap().iter().all(|export| export.head.to_ascii_lowercase().contains("api-key: s3cret\r\n"))
    );

    let first = spans(&told, "/first");
    let (whole, backend) = (first[0], *first.last().unwrap());
    assert_eq!((&whole["traceId"], &whole["parentSpanId"]), (&base64(TRACE).into(), &base64(PARENT).into()));
    assert_eq!((&whole["name"], &whole["kind"]), (&"GET".into(), &"SPAN_KIND_SERVER".into()));
    for (name, value) in [
        ("client.address", "203.0.113.7"),
        ("http.response.status_code", "200"),
        ("tollgate.decision", "admit"),
        ("tollgate.reason", "within-limit"),
        ("tollgate.rule", "api"),
    ] {
        assert_eq!(said(whole, name), value, "{name} in {whole}");
    }
    assert!(said(whole, "tollgate.toll_ms").as_f64().is_some_and(|toll| toll > 0.0), "{whole}");
    assert_eq!((&backend["name"], &backend["kind"]), (&"backend".into(), &"SPAN_KIND_CLIENT".into()));
    assert_eq!(backend["parentSpanId"], whole["spanId"]);
    let onward = seen.split('-').nth(2).unwrap();
    assert_eq!((seen.split('-').nth(1), &backend["spanId"]), (Some(TRACE), &base64(onward).into()));

    let refused = spans(&told, "/refused")[0];
    assert_eq!((said(refused, "tollgate.decision"), said(refused, "tollgate.rule")), ("refuse".into(), "api".into()));
    assert_eq!(said(refused, "http.response.status_code"), "429");

    let resource = &told[0]["resourceMetrics"][0]["resource"];
    assert_eq!(said(resource, "service.name"), "shop");
    let mut answers = all_in(&told, "metrics").into_iter().filter(|metric| metric["name"] == "tollgate_answer_seconds");
    let point = &answers.next_back().unwrap()["histogram"]["dataPoints"][0];
    let counts: u64 = point["bucketCounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|count| count.as_str().unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(point["count"], counts.to_string().as_str());
    assert_eq!(
        point["explicitBounds"].as_array().unwrap().len() + 1,
        point["bucketCounts"].as_array().unwrap().len(),
        "the last bucket has no bound"
    );
}

#[test]
fn an_untrusted_client_cannot_request_a_trace() {
    let (address, exports) = receiver();
    let gate = Gate::start(&format!("[telemetry]\notlp = \"http://{address}\"\nevery = \"1s\"\ntraces = 0.000001\n"));
    let theirs = format!("00-{TRACE}-{PARENT}-01");
    for _ in 0..20 {
        let answer = gate.request("/", &[("Traceparent", &theirs)]);
        assert_eq!(answer.header("x-seen-traceparent"), Some(theirs.as_str()), "what is not told goes on as it came");
    }
    eventually("figures", || exports.lock().unwrap().len() > 2);
    assert!(exports.lock().unwrap().iter().all(|export| export.head.starts_with("POST /v1/metrics ")));
}

#[test]
fn an_unreachable_collector_affects_no_request() {
    let gate = Gate::start("[telemetry]\notlp = \"http://127.0.0.1:1\"\nevery = \"1s\"\ntraces = 1.0\n");
    gate.logged("the collector does not accept telemetry");
    assert_eq!(gate.request("/", &[]).status, 200);
    let count = |name: &str| {
        let text = gate.get("/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        line.unwrap_or_default()
    };
    eventually("what is dropped is counted", || count("tollgate_traces_dropped_total ") == 1);
    assert!(count("tollgate_telemetry_failures_total ") >= 3);
}
