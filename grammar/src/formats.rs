//! Formats of strings whose expression in the library allows texts that their RFC does not.

/// The expression of `format`, if it replaces the library's.
pub fn pattern(format: &str) -> Option<&'static str> {
    Some(match format {
        "email" => EMAIL,
        "date" => DATE,
        "time" => TIME,
        "date-time" => DATE_TIME,
        _ => return None,
    })
}

/// An email address whose parts are within RFC 5321's lengths (4.5.3.1), which the library's own format
/// leaves open: up to 64 characters before the `@`, 32 if there are dots among them, then up to six labels
/// of 40. The library cannot intersect two such expressions, so lengths and characters are in one.
const EMAIL: &str = concat!(
    r"^([a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,64}|[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-](\.?[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]){0,31})",
    r"@[a-zA-Z0-9]([a-zA-Z0-9-]{0,38}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,38}[a-zA-Z0-9])?){0,5}$"
);

/// A date of RFC 3339. The library allows the 29th of February in every year.
macro_rules! date {
    () => {
        concat!(
            r"([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))",
            r"|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
        )
    };
}

/// A time of RFC 3339. The library allows a leap second in every minute; it is the last second of a day in
/// UTC. Of the offsets, only zero may follow it here.
macro_rules! time {
    () => {
        concat!(
            r"(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
            r"|23:59:60(\.[0-9]+)?([zZ]|[+-]00:00))"
        )
    };
}

const DATE: &str = concat!("^", date!(), "$");
const TIME: &str = concat!("^", time!(), "$");
const DATE_TIME: &str = concat!("^", date!(), "[tT]", time!(), "$");

#[cfg(test)]
mod tests {
    use crate::library::Library;
    use crate::{Source, token_bytes::TokenBytes};
    use serde_json::json;

    /// Whether a string of `format` may be `text`, byte by byte.
    fn accepts(format: &str, text: &str) -> bool {
        let library = Library::new(&TokenBytes::of_bytes(), 256).unwrap();
        let source = Source::json_schema(&json!({"type": "string", "format": format})).unwrap();
        let mut matcher = library.compile(&source).unwrap().matcher();
        let quoted = json!(text).to_string();
        quoted.bytes().all(|byte| matcher.advance(u32::from(byte)).is_ok())
            && matcher.next_tokens().is_ok_and(|next| next.may_end)
    }

    #[test]
    fn dates_are_days_of_the_calendar() {
        for date in ["2024-02-29", "2000-02-29", "1999-12-31", "2023-02-28", "2023-04-30", "0400-02-29"] {
            assert!(accepts("date", date), "{date}");
        }
        for date in
            ["2023-02-29", "1900-02-29", "2023-02-30", "2023-04-31", "2023-13-01", "2023-00-10", "23-01-01"]
        {
            assert!(!accepts("date", date), "{date}");
        }
    }

    #[test]
    fn leap_seconds_are_the_last_of_a_day() {
        for time in ["23:59:60Z", "23:59:60.5+00:00", "00:00:00z", "12:30:45.123-08:00"] {
            assert!(accepts("time", time), "{time}");
            assert!(accepts("date-time", &format!("2016-12-31T{time}")), "{time}");
        }
        for time in ["20:14:60Z", "23:59:60+01:00", "24:00:00Z", "12:60:00Z", "12:00:00", "12:00Z"] {
            assert!(!accepts("time", time), "{time}");
            assert!(!accepts("date-time", &format!("2016-12-31T{time}")), "{time}");
        }
    }
}
