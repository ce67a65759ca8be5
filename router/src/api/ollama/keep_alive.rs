//! `keep_alive`: how long a model stays in memory after a request.

use std::time::Duration;

use serde_json::Value;

use crate::repository::residency::KeepAlive;

/// Longest time; more counts as always.
const MOST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Reads `keep_alive`: seconds, or a duration such as `5m` or `1h30m` in the form of Go; a negative one is
/// always. `None` if it is neither.
pub fn read(given: &Value) -> Option<KeepAlive> {
    let seconds = match given {
        Value::String(text) => match text.trim().parse() {
            Ok(seconds) => seconds,
            Err(_) => duration(text.trim())?,
        },
        number => number.as_f64()?,
    };
    if !seconds.is_finite() {
        return None;
    }
    Some(if seconds < 0.0 || seconds > MOST.as_secs_f64() {
        KeepAlive::Always
    } else {
        KeepAlive::For(Duration::from_secs_f64(seconds))
    })
}

/// Seconds of numbers with units, one behind the other: Go's `time.ParseDuration`.
fn duration(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|end| *end > 0)?;
        let number: f64 = rest[..end].parse().ok()?;
        let with_unit = &rest[end..];
        let end = with_unit.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(with_unit.len());
        seconds += number
            * match &with_unit[..end] {
                "ns" => 1e-9,
                "us" | "µs" | "μs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &with_unit[end..];
    }
    text.ends_with(|c: char| c.is_ascii_alphabetic()).then_some(sign * seconds)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn seconds_and_durations_are_read() {
        let for_ms = |ms| Some(KeepAlive::For(Duration::from_millis(ms)));
        for (given, expected) in [
            (json!(300), for_ms(300_000)),
            (json!(0), for_ms(0)),
            (json!("0"), for_ms(0)),
            (json!("0s"), for_ms(0)),
            (json!("5m"), for_ms(300_000)),
            (json!("1h30m"), for_ms(5_400_000)),
            (json!("1.5s"), for_ms(1500)),
            (json!("250ms"), for_ms(250)),
            (json!("300"), for_ms(300_000)),
            (json!(-1), Some(KeepAlive::Always)),
            (json!("-1m"), Some(KeepAlive::Always)),
            (json!(1e300), Some(KeepAlive::Always)),
            (json!("5 minutes"), None),
            (json!("m5"), None),
            (json!(""), None),
            (json!("-"), None),
            (json!(["5m"]), None),
            (json!("NaN"), None),
        ] {
            assert_eq!(read(&given), expected, "{given}");
        }
    }
}
