//! The units of time of limits: their numbers in Envoy's messages and their names in JSON.

use tollgate_wire::ratelimit_config::LimitUnit;

/// The number in `RateLimitResponse.RateLimit.Unit`, the unit, and the name in JSON. 0 is `UNKNOWN`. An override has
/// the same numbers.
const NUMBERS: [(i32, LimitUnit, &str); 7] = [
    (1, LimitUnit::Second, "SECOND"),
    (2, LimitUnit::Minute, "MINUTE"),
    (3, LimitUnit::Hour, "HOUR"),
    (4, LimitUnit::Day, "DAY"),
    (5, LimitUnit::Month, "MONTH"),
    (6, LimitUnit::Year, "YEAR"),
    (7, LimitUnit::Week, "WEEK"),
];

/// The number of a unit.
pub(super) fn number(unit: LimitUnit) -> i32 {
    NUMBERS.iter().find(|(_, known, _)| *known == unit).map_or(0, |(number, ..)| *number)
}

/// The unit with this number.
pub(super) fn of_number(number: i32) -> Option<LimitUnit> {
    NUMBERS.iter().find(|(known, ..)| *known == number).map(|(_, unit, _)| *unit)
}

/// The number of the unit with this length, if there is one; 0 otherwise.
pub(super) fn of_secs(secs: u64) -> i32 {
    NUMBERS.iter().find(|(_, unit, _)| unit.secs() == secs).map_or(0, |(number, ..)| *number)
}

/// The name of a number in JSON; `None` for the number 0, which is left out.
pub(super) fn json_name(number: i32) -> Option<&'static str> {
    NUMBERS.iter().find(|(known, ..)| *known == number).map(|(_, _, name)| *name)
}

/// The number of a name in JSON.
pub(super) fn of_json_name(name: &str) -> Option<i32> {
    if name == "UNKNOWN" {
        return Some(0);
    }
    NUMBERS.iter().find(|(_, _, known)| *known == name).map(|(number, ..)| *number)
}
