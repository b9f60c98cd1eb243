//! The cost of a request (its CPU time) and the load of the backend (a waiting time), as the backend reports them in
//! header fields of its response, in milliseconds. The settings name the fields.

use tollgate_core::time::Span;
use tollgate_wire::http1::Fields;
use tollgate_wire::server_timing::{self, InvalidDuration};

use crate::settings::TollSource;

const SERVER_TIMING: &str = "server-timing";

/// The reported cost, if there is one. It is removed from the response, unless the settings keep it. In `Server-Timing`
/// it is the metric `cpu`, and the other metrics stay; any other field has a number of milliseconds.
pub(crate) fn take(fields: &mut Fields, source: &TollSource) -> Result<Option<Span>, InvalidDuration> {
    let name = source.header.as_bytes();
    let Some(value) = fields.find(name) else { return Ok(None) };
    if source.header != SERVER_TIMING {
        let cpu = server_timing::milliseconds(value).map(Some);
        if !source.keep {
            fields.retain(|field| field.name_bytes != name);
        }
        return cpu;
    }
    let values: Vec<Vec<u8>> =
        fields.iter().filter(|field| field.name_bytes == name).map(|field| field.value.to_vec()).collect();
    let cpu = values.iter().find_map(|value| server_timing::cpu(value).transpose()).transpose();
    if !source.keep && !matches!(cpu, Ok(None)) {
        fields.retain(|field| field.name_bytes != name);
        let mut rest = Vec::new();
        for value in &values {
            rest.clear();
            if server_timing::write_without_cpu(value, &mut rest) {
                fields.push(name, &rest);
            }
        }
    }
    cpu
}

/// The highest load that a backend may report: a waiting time of one hour.
const LAG_MAX: Span = Span::from_secs(3600);

/// The load in the field `header`, if there is one, which is removed from the response. Of several values the highest
/// counts, because a lower one would hide it.
pub(crate) fn take_load(fields: &mut Fields, header: Option<&str>) -> Result<Option<Span>, InvalidDuration> {
    let Some(name) = header.map(str::as_bytes) else { return Ok(None) };
    if fields.find(name).is_none() {
        return Ok(None);
    }
    let values = fields.iter().filter(|field| field.name_bytes == name);
    let lags: Result<Vec<Span>, _> = values.map(|field| server_timing::milliseconds(field.value)).collect();
    fields.retain(|field| field.name_bytes != name);
    let lag = lags?.into_iter().max();
    if lag.is_some_and(|lag| lag > LAG_MAX) { Err(InvalidDuration) } else { Ok(lag) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(header: &str, keep: bool) -> TollSource {
        TollSource { header: header.to_owned(), keep, cgroup: None }
    }

    #[test]
    fn a_load_is_taken_out_of_the_response_and_the_highest_counts() {
        for (values, expect) in [
            (&[][..], Ok(None)),
            (&[("x-load", "12.5")], Ok(Some(Span::from_nanos(12_500_000)))),
            (&[("x-load", "3"), ("x-load", "40")], Ok(Some(Span::from_millis(40)))),
            (&[("x-load", "-1")], Err(InvalidDuration)),
            (&[("x-load", "1e3")], Err(InvalidDuration)),
            (&[("x-load", "")], Err(InvalidDuration)),
            (&[("x-load", "3600001")], Err(InvalidDuration)),
        ] {
            let mut all = fields(values);
            all.push(b"etag", b"x");
            assert_eq!(take_load(&mut all, Some("x-load")), expect, "{values:?}");
            assert_eq!(all.iter().count(), 1, "{values:?}");
        }
        let mut all = fields(&[("x-load", "5")]);
        assert_eq!(take_load(&mut all, None), Ok(None));
        assert_eq!(all.iter().count(), 1);
    }

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::default();
        for (name, value) in pairs {
            fields.push(name.as_bytes(), value.as_bytes());
        }
        fields
    }

    fn texts(fields: &Fields) -> Vec<String> {
        fields.iter().map(|field| String::from_utf8_lossy(field.value).into_owned()).collect()
    }

    #[test]
    fn the_cpu_metric_is_taken_and_the_others_go_on_to_the_client() {
        let mut answer =
            fields(&[("server-timing", "db;dur=3, cpu;dur=12.5"), ("x", "y"), ("server-timing", "a;dur=1")]);
        assert_eq!(take(&mut answer, &source("server-timing", false)), Ok(Some(Span::from_nanos(12_500_000))));
        assert_eq!(texts(&answer), ["y", "db;dur=3", "a;dur=1"]);
    }

    #[test]
    fn a_client_that_is_to_see_it_sees_it() {
        let mut answer = fields(&[("server-timing", "cpu;dur=1")]);
        take(&mut answer, &source("server-timing", true)).unwrap();
        assert_eq!(texts(&answer), ["cpu;dur=1"]);
    }

    #[test]
    fn a_field_of_its_own_is_milliseconds() {
        let mut answer = fields(&[("x-cpu-ms", "7")]);
        assert_eq!(take(&mut answer, &source("x-cpu-ms", false)), Ok(Some(Span::from_millis(7))));
        assert!(answer.is_empty());
    }

    #[test]
    fn fault_28_nonsense_is_nonsense_and_does_not_reach_the_client_either() {
        for value in ["cpu;dur=NaN", "cpu;dur=-5", "cpu;dur=1e300", "cpu;dur=abc", "cpu"] {
            let mut answer = fields(&[("server-timing", value)]);
            assert_eq!(take(&mut answer, &source("server-timing", false)), Err(InvalidDuration), "{value}");
            assert!(answer.is_empty(), "{value}");
        }
    }
}
