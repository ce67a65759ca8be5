//! `strftime` for chat templates that print today's date: C locale, always UTC.

use std::fmt::Write;
use std::time::Duration;

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A point in time, split into fields.
struct Moment {
    year: i64,
    /// January is 1.
    month: u32,
    /// Counted from 1.
    day: u32,
    /// 0 = Sunday
    weekday: u32,
    /// The first of January is 1.
    day_of_year: u32,
    hour: u32,
    minute: u32,
    second: u32,
}

/// Formats `since_1970` by `format`. Unknown directives are copied unchanged, as in glibc.
pub fn strftime(format: &str, since_1970: Duration) -> String {
    let moment = Moment::new(since_1970);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = chars.next();
        }
        // Writing to a String cannot fail.
        let _ = match directive {
            Some(directive) => moment.write(directive, unpadded, &mut out),
            None => out.write_char('%'),
        };
    }
    out
}

impl Moment {
    fn new(since_1970: Duration) -> Self {
        let seconds = since_1970.as_secs();
        let days = i64::try_from(seconds / 86_400).unwrap_or(i64::MAX);
        let of_day = u32::try_from(seconds % 86_400).unwrap_or(0);
        let (year, month, day) = civil(days);
        let (first_of_year, weekday) = (days_from_civil(year), (days + 4).rem_euclid(7));
        Self {
            year,
            month,
            day,
            weekday: u32::try_from(weekday).unwrap_or(0),
            day_of_year: u32::try_from(days - first_of_year + 1).unwrap_or(0),
            hour: of_day / 3600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
        }
    }

    fn write(&self, directive: char, unpadded: bool, out: &mut String) -> std::fmt::Result {
        let (weekday, month) = (DAYS[self.weekday as usize % 7], MONTHS[(self.month as usize - 1) % 12]);
        let hour_12 = (self.hour + 11) % 12 + 1;
        let mut number = |value: u32, width: usize| {
            let width = if unpadded { 1 } else { width };
            write!(out, "{value:0width$}")
        };
        match directive {
            'd' => number(self.day, 2),
            'm' => number(self.month, 2),
            'H' => number(self.hour, 2),
            'I' => number(hour_12, 2),
            'M' => number(self.minute, 2),
            'S' => number(self.second, 2),
            'j' => number(self.day_of_year, 3),
            'y' => number(u32::try_from(self.year % 100).unwrap_or(0), 2),
            'w' => number(self.weekday, 1),
            'Y' => write!(out, "{}", self.year),
            'e' => write!(out, "{:2}", self.day),
            'A' => out.write_str(weekday),
            'a' => out.write_str(&weekday[..3]),
            'B' => out.write_str(month),
            'b' | 'h' => out.write_str(&month[..3]),
            'p' => out.write_str(if self.hour < 12 { "AM" } else { "PM" }),
            'F' => write!(out, "{}-{:02}-{:02}", self.year, self.month, self.day),
            'T' => write!(out, "{:02}:{:02}:{:02}", self.hour, self.minute, self.second),
            'Z' => out.write_str("UTC"),
            'z' => out.write_str("+0000"),
            '%' => out.write_char('%'),
            other => write!(out, "%{other}"),
        }
    }
}

/// Days since 1970 → (year, month, day) in the proleptic Gregorian calendar. Years are counted from 1 March
/// of year 0, so that the leap day comes last.
fn civil(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, u32::try_from(month).unwrap_or(1), u32::try_from(day).unwrap_or(1))
}

/// Days from 1970 to 1 January of `year`.
fn days_from_civil(year: i64) -> i64 {
    let before = year - 1;
    365 * before + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400) - 719_162
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(seconds: u64, format: &str, expected: &str) {
        assert_eq!(strftime(format, Duration::from_secs(seconds)), expected);
    }

    #[test]
    fn moments_print_as_in_the_c_locale() {
        check(0, "%Y-%m-%d %H:%M:%S %A %j", "1970-01-01 00:00:00 Thursday 001");
        check(951_827_696, "%d %b %Y, %a %I:%M %p, day %j", "29 Feb 2000, Tue 12:34 PM, day 060");
        check(1_773_043_507, "%F %T %B %-d %y %e", "2026-03-09 08:05:07 March 9 26  9");
        check(4_102_444_799, "%F %j %%|%q|%", "2099-12-31 365 %|%q|%");
    }
}
