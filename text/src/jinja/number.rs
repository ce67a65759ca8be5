//! Numbers as Python reads and writes them.

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::arguments::invalid;

/// `repr` of a float: the shortest digits that give it back, with an exponent below 1e-4 and from 1e16.
pub fn float(value: f64) -> String {
    if !value.is_finite() {
        let sign = if value < 0.0 { "-" } else { "" };
        return format!("{sign}{}", if value.is_nan() { "nan" } else { "inf" });
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{value:?}"),
    }
}

/// A number, or a boolean as one.
pub fn real(value: &Value) -> Result<f64, Error> {
    if value.kind() == ValueKind::Bool {
        return Ok(f64::from(u8::from(value.is_true())));
    }
    f64::try_from(value.clone()).map_err(|_| invalid(format!("{} is no number", value.kind())))
}

/// An integer, or a boolean as one.
pub fn whole(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        _ if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn floats_print_as_in_python() {
        // Python's own: [repr(x) for x in …]
        for (value, expected) in [
            (1e16, "1e+16"),
            (9999999999999998.0, "9999999999999998.0"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (-1e-7, "-1e-07"),
            (2.5e22, "2.5e+22"),
            (12345678901234567.0, "1.2345678901234568e+16"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (100.0, "100.0"),
            (5e-324, "5e-324"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(super::float(value), expected);
        }
    }
}
