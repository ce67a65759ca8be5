//! Parsers of single values. Each error quotes the value and shows what is valid.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Parses text that is not empty.
///
/// # Errors
/// If it is empty.
pub fn text(given: &str) -> Result<String, String> {
    match given.trim() {
        "" => Err("is empty; give a value or leave it out".to_owned()),
        trimmed => Ok(trimmed.to_owned()),
    }
}

/// Parses an integer in `range`; `1k` is 1000 and `1K` is 1024, as in vLLM, likewise `m` and `g`.
pub fn count(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<u64, String> {
    move |given| {
        let given = &text(given)?;
        let (number, unit) = split_unit(given);
        refuse_negative(given, number)?;
        let scale = match unit {
            "" => 1,
            "k" => 1_000,
            "m" => 1_000_000,
            "g" => 1_000_000_000,
            "K" => 1 << 10,
            "M" => 1 << 20,
            "G" => 1 << 30,
            _ => return Err(format!("`{given}` is not a count; write it like 512, 8k or 1M")),
        };
        let value = scaled(number, scale)
            .ok_or_else(|| format!("`{given}` is not a count; write it like 512 or 8k"))?;
        in_range(value, &range, |bound| bound.to_string())
    }
}

/// Parses a size in bytes, in `range`: `2GiB`, `512MiB`, `3GB`, or a plain number.
pub fn bytes(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<u64, String> {
    move |given| {
        let given = &text(given)?;
        let (number, unit) = split_unit(given);
        refuse_negative(given, number)?;
        let scale = match unit {
            "" | "B" => 1,
            "K" | "KiB" => 1 << 10,
            "M" | "MiB" => 1 << 20,
            "G" | "GiB" => 1 << 30,
            "T" | "TiB" => 1 << 40,
            "P" | "PiB" => 1 << 50,
            "kB" | "KB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TB" => 1_000_000_000_000,
            "PB" => 1_000_000_000_000_000,
            _ => return Err(format!("`{given}` is not a size; write it like 512MiB or 2GiB")),
        };
        let value =
            scaled(number, scale).ok_or_else(|| format!("`{given}` is not a size; write it like 2GiB"))?;
        in_range(value, &range, |bound| size(*bound))
    }
}

/// Parses a duration with its unit, in `range`: `40us`, `500ms`, `120s`, `5m`, `1h`, `30d`. Zero needs no
/// unit.
pub fn duration(range: RangeInclusive<Duration>) -> impl Fn(&str) -> Result<Duration, String> {
    move |given| {
        let given = &text(given)?;
        let (number, unit) = split_unit(given);
        refuse_negative(given, number)?;
        let micros = match unit {
            "us" | "µs" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            "m" | "min" => 60_000_000,
            "h" => 3_600_000_000,
            "d" => 86_400_000_000,
            "" if number == "0" => 1,
            "" => return Err(format!("`{given}` has no unit; did you mean {given}s or {given}ms?")),
            _ => return Err(format!("`{given}` is not a duration; write it like 500ms, 120s or 5m")),
        };
        let value = scaled(number, micros)
            .map(Duration::from_micros)
            .ok_or_else(|| format!("`{given}` is not a duration; write it like 500ms or 120s"))?;
        in_range(value, &range, |bound| time(*bound))
    }
}

/// Parses a decimal number in `range`.
pub fn number(range: RangeInclusive<f64>) -> impl Fn(&str) -> Result<f64, String> {
    move |given| {
        let given = &text(given)?;
        let value: f64 =
            given.trim().parse().map_err(|_| format!("`{given}` is not a number; write it like 0.7"))?;
        in_range(value, &range, |bound| bound.to_string())
    }
}

/// Parses one of the words in `choices`.
pub fn one_of<'a, T: Copy>(choices: &'a [(&'a str, T)]) -> impl Fn(&str) -> Result<T, String> + 'a {
    move |given| {
        let given = &text(given)?;
        let found = choices.iter().find(|(word, _)| *word == given.trim());
        found.map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            let hint = super::suggest(given, words.iter().copied());
            let hint = hint.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            format!("`{given}` is not one of {}{hint}", words.join(", "))
        })
    }
}

fn in_range<T: PartialOrd>(
    value: T,
    range: &RangeInclusive<T>,
    show: impl Fn(&T) -> String,
) -> Result<T, String> {
    if range.contains(&value) {
        return Ok(value);
    }
    let (low, high) = (show(range.start()), show(range.end()));
    Err(format!("{} is out of range; it must be {low} to {high}", show(&value)))
}

/// Splits into leading number and trailing unit.
fn split_unit(given: &str) -> (&str, &str) {
    let given = given.trim();
    let end = given.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(given.len());
    (given[..end].trim(), &given[end..])
}

fn refuse_negative(given: &str, number: &str) -> Result<(), String> {
    let digits =
        number.strip_prefix('-').is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()));
    if digits { Err(format!("`{given}` must not be negative")) } else { Ok(()) }
}

/// Formats a duration for a message: in whole days, hours or minutes if exact, otherwise like `Duration`.
fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    let whole = |unit: u64| time.subsec_nanos() == 0 && seconds >= unit && seconds.is_multiple_of(unit);
    if time.is_zero() {
        "0s".to_owned()
    } else if whole(86_400) && seconds > 86_400 {
        format!("{}d", seconds / 86_400)
    } else if whole(3600) {
        format!("{}h", seconds / 3600)
    } else if whole(60) {
        format!("{}m", seconds / 60)
    } else {
        format!("{time:?}")
    }
}

/// Formats a size for a message, in the largest binary unit that gives an integer.
fn size(bytes: u64) -> String {
    let units = [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let whole = units.iter().find(|(_, bits)| bytes > 0 && bytes.is_multiple_of(1 << bits));
    whole.map_or(format!("{bytes} bytes"), |(unit, bits)| format!("{}{unit}", bytes >> bits))
}

/// `number * scale`, if that is an integer that fits.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let plain: String = number.chars().filter(|letter| *letter != '_').collect();
    if let Ok(whole) = plain.parse::<u64>() {
        return whole.checked_mul(scale);
    }
    let value = plain.parse::<f64>().ok()? * scale as f64;
    // From 2^53 on, a float no longer represents every integer exactly.
    let exact = value.is_finite() && value >= 0.0 && value.fract() == 0.0 && value < 9_007_199_254_740_992.0;
    (exact && scale > 1).then_some(value as u64)
}
