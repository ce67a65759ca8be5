//! `strftime` for chat templates that print today's date: C locale, always UTC, so that all routers write the
//! same prompt.

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
    since_1970: Duration,
    year: i64,
    /// January is 1.
    month: i64,
    /// Counted from 1.
    day: i64,
    /// 0 = Sunday
    weekday: i64,
    /// The first of January is 1.
    day_of_year: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

/// Largest width of a field, in characters. A wider field is copied unchanged.
pub const MAX_WIDTH: usize = 256;

/// Formats `since_1970` by `format`, as Python and glibc do for a time without a zone. Unknown directives are
/// copied unchanged.
pub fn strftime(format: &str, since_1970: Duration) -> String {
    let (moment, mut out, mut rest) = (Moment::new(since_1970), String::new(), format);
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        match Field::read(rest) {
            Some((field, length)) if moment.write(&field, &mut out) => rest = &rest[length..],
            _ => out.push('%'),
        }
    }
    out + rest
}

/// A directive, without its `%`.
struct Field {
    /// `-`, `_` or `0`: what fills it.
    fill: Option<char>,
    /// `^`
    large: bool,
    /// `#`
    swapped: bool,
    width: Option<usize>,
    letter: char,
}

impl Field {
    /// The field that `text` starts with, and its length.
    fn read(text: &str) -> Option<(Self, usize)> {
        let mut field = Self { fill: None, large: false, swapped: false, width: None, letter: '%' };
        let flags = text.find(|c| !"-_0^#".contains(c))?;
        for flag in text[..flags].chars() {
            match flag {
                '^' => field.large = true,
                '#' => field.swapped = true,
                fill => field.fill = Some(fill),
            }
        }
        let digits = text[flags..].find(|c: char| !c.is_ascii_digit())?;
        if digits > 0 {
            field.width = Some(text[flags..flags + digits].parse().ok().filter(|width| *width <= MAX_WIDTH)?);
        }
        // The C locale has no other forms.
        let modifier = usize::from(text[flags + digits..].starts_with(['E', 'O']));
        let at = flags + digits + modifier;
        field.letter = text[at..].chars().next()?;
        let length = at + field.letter.len_utf8();
        Some((field, length))
    }

    fn number(&self, value: i64, width: usize, fill: char, out: &mut String) {
        let text = value.to_string();
        let width = self.width.unwrap_or(if self.fill == Some('-') { 0 } else { width });
        let fill = match self.fill {
            Some('0') => '0',
            Some(_) => ' ',
            None => fill,
        };
        out.extend(std::iter::repeat_n(fill, width.saturating_sub(text.len())));
        out.push_str(&text);
    }

    fn text(&self, text: &str, out: &mut String) {
        let fill = if self.fill == Some('0') { '0' } else { ' ' };
        out.extend(std::iter::repeat_n(fill, self.width.unwrap_or(0).saturating_sub(text.len())));
        let lower = self.swapped && self.letter == 'p';
        let upper = self.large || (self.swapped && "aAbBh".contains(self.letter));
        match (lower, upper) {
            (true, _) => out.push_str(&text.to_ascii_lowercase()),
            (_, true) => out.push_str(&text.to_ascii_uppercase()),
            _ => out.push_str(text),
        }
    }
}

impl Moment {
    fn new(since_1970: Duration) -> Self {
        let seconds = since_1970.as_secs();
        let days = i64::try_from(seconds / 86_400).unwrap_or(i64::MAX);
        let of_day = i64::try_from(seconds % 86_400).unwrap_or(0);
        let (year, month, day) = civil(days);
        Self {
            since_1970,
            year,
            month,
            day,
            weekday: (days + 4).rem_euclid(7),
            day_of_year: days - days_from_civil(year) + 1,
            hour: of_day / 3600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
        }
    }

    /// Writes `field`; false if there is no such directive.
    fn write(&self, field: &Field, out: &mut String) -> bool {
        if let Some((value, width, fill)) = self.number(field.letter) {
            field.number(value, width, fill, out);
        } else if let Some(text) = self.text(field.letter) {
            field.text(&text, out);
        } else {
            return false;
        }
        true
    }

    /// Value, width and fill of a number.
    fn number(&self, letter: char) -> Option<(i64, usize, char)> {
        let hour_12 = (self.hour + 11) % 12 + 1;
        let monday_first = (self.weekday + 6) % 7;
        let (iso_year, iso_week) = self.iso_week();
        let (value, width) = match letter {
            'd' | 'e' => (self.day, 2),
            'm' => (self.month, 2),
            'H' | 'k' => (self.hour, 2),
            'I' | 'l' => (hour_12, 2),
            'M' => (self.minute, 2),
            'S' => (self.second, 2),
            'j' => (self.day_of_year, 3),
            'y' => (self.year % 100, 2),
            'C' => (self.year / 100, 2),
            'Y' => (self.year, 1),
            'w' => (self.weekday, 1),
            'u' => (monday_first + 1, 1),
            'U' => ((self.day_of_year + 6 - self.weekday) / 7, 2),
            'W' => ((self.day_of_year + 6 - monday_first) / 7, 2),
            'G' => (iso_year, 1),
            'g' => (iso_year % 100, 2),
            'V' => (iso_week, 2),
            's' => (i64::try_from(self.since_1970.as_secs()).unwrap_or(i64::MAX), 1),
            'f' => (i64::from(self.since_1970.subsec_micros()), 6),
            _ => return None,
        };
        Some((value, width, if "ekl".contains(letter) { ' ' } else { '0' }))
    }

    /// Year and week by ISO 8601: a week belongs to the year of its Thursday.
    fn iso_week(&self) -> (i64, i64) {
        let thursday = self.day_of_year + 3 - (self.weekday + 6) % 7;
        let days = |year: i64| days_from_civil(year + 1) - days_from_civil(year);
        match thursday {
            ..1 => (self.year - 1, (thursday + days(self.year - 1) + 6) / 7),
            _ if thursday > days(self.year) => (self.year + 1, 1),
            _ => (self.year, (thursday + 6) / 7),
        }
    }

    fn text(&self, letter: char) -> Option<String> {
        let (weekday, month) = (DAYS[self.weekday as usize % 7], MONTHS[(self.month as usize - 1) % 12]);
        let half = if self.hour < 12 { "AM" } else { "PM" };
        let all = |format: &str| strftime(format, self.since_1970);
        Some(match letter {
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'p' => half.to_owned(),
            'P' => half.to_lowercase(),
            'F' => all("%Y-%m-%d"),
            'T' | 'X' => all("%H:%M:%S"),
            'D' | 'x' => all("%m/%d/%y"),
            'R' => all("%H:%M"),
            'r' => all("%I:%M:%S %p"),
            'c' => all("%a %b %e %H:%M:%S %Y"),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            // A time without a zone has neither a name nor an offset.
            'Z' | 'z' => String::new(),
            _ => return None,
        })
    }
}

/// Days since 1970 → (year, month, day) in the proleptic Gregorian calendar. Years are counted from 1 March
/// of year 0, so that the leap day comes last.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
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
        // Python's own, in UTC: datetime.datetime.fromtimestamp(…).strftime(…)
        check(4_102_444_799, "%G-W%V-%u %U %W %g", "2099-W53-4 52 52 99");
        check(1_609_459_200, "%G-W%V-%u %U %W %g", "2020-W53-5 00 00 20");
        check(1_735_603_200, "%G-W%V-%u %U %W %g", "2025-W01-2 52 53 25");
    }

    #[test]
    fn a_wide_field_is_copied() {
        check(
            0,
            "%256d|%257d|%99999999999999999999d",
            &format!("{}1|%257d|%99999999999999999999d", "0".repeat(255)),
        );
    }
}
