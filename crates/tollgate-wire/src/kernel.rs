//! Parsers for Linux files with the CPU time of the machine or of a control group: `cpu.stat`, `cpu.pressure` and
//! `/proc/stat`. The gate reads them to measure how busy its backend, and the machine of the backend, are. Each
//! function takes the contents of a file.

use tollgate_core::time::Span;

use crate::decimal;

/// The CPU time of a control group: `usage_usec` in `cpu.stat`.
pub fn cpu_usage(text: &[u8]) -> Option<Span> {
    let value = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"usage_usec "))?;
    Some(Span::from_nanos(decimal::parse(value)?.saturating_mul(1000)))
}

/// The share of the last ten seconds in which at least one task waited for CPU time, in thousandths: `avg10` of the
/// `some` line in `cpu.pressure`, where it is a percentage with two decimals.
pub fn pressure_milli(text: &[u8]) -> Option<u32> {
    let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"some "))?;
    let value = line.split(|&byte| byte == b' ').find_map(|field| field.strip_prefix(b"avg10="))?;
    let point = value.iter().position(|&byte| byte == b'.')?;
    let (whole, fraction) = (decimal::parse(&value[..point])?, &value[point + 1..]);
    if whole > 100 || fraction.len() != 2 {
        return None;
    }
    let hundredths = whole * 100 + decimal::parse(fraction)?;
    u32::try_from(hundredths.min(10_000) / 10).ok()
}

/// The idle time of all cores in clock ticks, from the first line of `/proc/stat`: idle and iowait. The kernel measures
/// it on every core that sleeps, whereas it only samples the other fields.
pub fn idle_ticks(text: &[u8]) -> Option<u64> {
    let line = text.split(|&byte| byte == b'\n').next()?.strip_prefix(b"cpu ")?;
    // The fields are user, nice, system, idle and iowait, and others that only some kernels have.
    let mut fields = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty()).skip(3);
    let (idle, iowait) = (decimal::parse(fields.next()?)?, decimal::parse(fields.next()?)?);
    idle.checked_add(iowait)
}

/// The number of cores: the lines of `/proc/stat` that begin with `cpu` and a digit.
pub fn core_count(text: &[u8]) -> usize {
    let names = text.split(|&byte| byte == b'\n').filter_map(|line| line.strip_prefix(b"cpu"));
    names.filter(|name| name.first().is_some_and(u8::is_ascii_digit)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_is_in_a_line_of_its_own() {
        let text = b"usage_usec 1234567\nuser_usec 1000000\nsystem_usec 234567\nnr_periods 0\n";
        assert_eq!(cpu_usage(text), Some(Span::from_nanos(1_234_567_000)));
        assert_eq!(cpu_usage(b"user_usec 5\nusage_usec 7"), Some(Span::from_nanos(7000)));
        for text in
            [&b""[..], b"usage_usec", b"usage_usec \n", b"usage_usec -5\n", b"usage_usec 99999999999999999999\n"]
        {
            assert_eq!(cpu_usage(text), None, "{:?}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn idle_time_and_cores_are_in_the_first_lines() {
        let text = b"cpu  100 20 30 4000 500 6 7 8 9 10\ncpu0 1 1 1 1 1\ncpu1 1 1 1 1 1\nintr 5 0\n";
        assert_eq!((idle_ticks(text), core_count(text)), (Some(4500), 2));
        for text in
            [&b""[..], b"cpu0 1 2 3 4 5", b"cpu  1 2 3 4", b"cpu  1 2 3 d e", b"cpu  1 1 1 99999999999999999999 1"]
        {
            assert_eq!(idle_ticks(text), None, "{:?}", String::from_utf8_lossy(text));
        }
        assert_eq!(core_count(b"cpu  1 2 3\nintr 1"), 0);
    }

    #[test]
    fn pressure_is_the_ten_second_average_of_the_some_line() {
        let text =
            b"some avg10=12.34 avg60=5.00 avg300=1.00 total=123\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(pressure_milli(text), Some(123));
        assert_eq!(pressure_milli(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=0"), Some(0));
        assert_eq!(pressure_milli(b"some avg10=100.00 "), Some(1000));
        for text in [
            &b""[..],
            b"full avg10=1.00",
            b"some avg60=1.00",
            b"some avg10=NaN",
            b"some avg10=1",
            b"some avg10=999.00",
            b"some avg10=-1.00",
        ] {
            assert_eq!(pressure_milli(text), None, "{:?}", String::from_utf8_lossy(text));
        }
    }
}
