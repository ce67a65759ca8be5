//! Dates of the file: RFC 3339, with an offset. Pure.

use std::str::FromStr;

use toml::value::{Datetime, Offset};

/// A point in time, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DateTime(pub u64);

impl FromStr for DateTime {
    type Err = String;

    /// Reads a date-time such as `2027-01-31T12:00:00Z`.
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "must be a date and time with an offset, such as 2027-01-31T12:00:00Z".to_owned();
        Self::of(text.trim().parse().map_err(|_| expected())?)
    }
}

impl DateTime {
    /// Reads TOML's form.
    ///
    /// # Errors
    /// If it has no date, time or offset, or is before 1970.
    pub fn of(given: Datetime) -> Result<Self, String> {
        let (Some(date), Some(time), Some(offset)) = (given.date, given.time, given.offset) else {
            return Err(format!(
                "must be a date and time with an offset, such as 2027-01-31T12:00:00Z, got {given}"
            ));
        };
        let minutes = match offset {
            Offset::Z => 0,
            Offset::Custom { minutes } => i64::from(minutes),
        };
        let days = days(i64::from(date.year), i64::from(date.month), i64::from(date.day));
        let clock = i64::from(time.hour) * 3600 + i64::from(time.minute) * 60;
        let seconds = days * 86_400 + clock + i64::from(time.second.unwrap_or(0)) - minutes * 60;
        u64::try_from(seconds).map(Self).map_err(|_| format!("must be after 1970, got {given}"))
    }
}

/// Days from 1970-01-01 to a date of the Gregorian calendar (Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms").
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_seconds_since_1970_whatever_their_offset() {
        let check = |text: &str, expected: u64| assert_eq!(text.parse(), Ok(DateTime(expected)), "{text}");
        check("1970-01-01T00:00:00Z", 0);
        check("2000-02-29T12:30:05Z", 951_827_405);
        check("2026-11-29T13:00:00Z", 1_795_957_200);
        check("2026-11-29T15:00:00+02:00", 1_795_957_200);
        check("2026-11-29 08:30:00-04:30", 1_795_957_200);
        check("2100-03-01T00:00:00.75Z", 4_107_542_400);
    }

    #[test]
    fn a_date_without_time_or_offset_is_refused() {
        for text in ["2026-11-29", "2026-11-29T13:00:00", "13:00:00", "soon", "", "1960-01-01T00:00:00Z"] {
            assert!(text.parse::<DateTime>().is_err(), "{text}");
        }
    }
}
