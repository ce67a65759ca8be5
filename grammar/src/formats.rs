//! Formats of strings whose expression in the library allows texts that their RFC does not.

/// The expression of `format`, if it replaces the library's.
pub fn pattern(format: &str) -> Option<&'static str> {
    Some(match format {
        "email" => EMAIL,
        "date" => DATE,
        "time" => TIME,
        "date-time" => DATE_TIME,
        "hostname" => HOSTNAME,
        "ipv6" => IPV6,
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

/// A date of RFC 3339. The library allows the 29th of February in every year. The year 0 is left out: Python,
/// PostgreSQL and others have none.
macro_rules! date {
    () => {
        concat!(
            r"(([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))",
            r"|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][48]|[2468]0|[13579][26])00)-02-29)"
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

/// `counts` of labels, each of at most so many characters.
macro_rules! labels {
    ($more:literal, $length:literal) => {
        concat!(
            r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,",
            $length,
            r"}[a-zA-Z0-9])?",
            r"(\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,",
            $length,
            r"}[a-zA-Z0-9])?){0,",
            $more,
            "}"
        )
    };
}

/// A name of RFC 1123, whose 253 characters the library leaves open: up to three labels of 63, six of 40 or
/// sixteen of 14.
const HOSTNAME: &str =
    concat!("^(", labels!("2", "61"), "|", labels!("5", "38"), "|", labels!("15", "12"), ")$");

/// Groups of up to four hexadecimal digits, each with a colon.
macro_rules! groups {
    ($count:literal) => {
        concat!("([0-9a-fA-F]{1,4}:){", $count, "}")
    };
}
/// Groups before `::`, at most so many and one.
macro_rules! before {
    ($more:literal) => {
        concat!("(([0-9a-fA-F]{1,4}:){0,", $more, "}[0-9a-fA-F]{1,4})?::")
    };
}
/// The last two groups, or an IPv4 address in their place, which the library does not know.
macro_rules! last {
    () => {
        concat!(
            r"([0-9a-fA-F]{1,4}:[0-9a-fA-F]{1,4}",
            r"|((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9]))"
        )
    };
}

/// An address of RFC 4291, by the grammar in RFC 3986 (3.2.2); without a zone.
#[rustfmt::skip]
const IPV6: &str = concat!(
    "^(", groups!("6"), last!(),
    "|::", groups!("5"), last!(),
    "|", before!("0"), groups!("4"), last!(),
    "|", before!("1"), groups!("3"), last!(),
    "|", before!("2"), groups!("2"), last!(),
    "|", before!("3"), groups!("1"), last!(),
    "|", before!("4"), last!(),
    "|", before!("5"), "[0-9a-fA-F]{1,4}",
    "|", before!("6"), ")$"
);

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

    #[track_caller]
    fn check(format: &str, good: &[&str], bad: &[&str]) {
        good.iter().for_each(|text| assert!(accepts(format, text), "{format}: {text}"));
        bad.iter().for_each(|text| assert!(!accepts(format, text), "{format}: {text}"));
    }

    /// Held against jsonschema 4.26 with all checkers. It differs where an RFC is on our side: it takes a
    /// time only without a zone, no leap second, durations in the wrong order of ISO 8601 and dots around
    /// an email's parts.
    #[test]
    fn formats_allow_what_validators_accept() {
        let long = |label: usize, count: usize| vec!["a".repeat(label); count].join(".");
        let (three, four, sixteen) = (long(63, 3), long(63, 4), long(14, 16));
        check(
            "hostname",
            &["a", "a.b", "ab--cd", "xn--x", &three, &sixteen],
            &["a_b", "-a", "a-", &long(64, 1), &four],
        );
        check(
            "ipv6",
            &[
                "::",
                "::1",
                "1::",
                "::ffff:1.2.3.4",
                "1:2:3:4:5:6:1.2.3.4",
                "1:2:3:4:5:6:7:8",
                "1:2:3:4:5:6:7::",
                "::2:3:4:5:6:7:8",
                "1::3:4:5:6:7:8",
            ],
            &[
                "fe80::1%eth0",
                "1::2::3",
                "12345::",
                "1:2:3:4:5:6:7:8:9",
                "1:2:3:4:5:6:7",
                "::1.2.3.256",
                "::01.2.3.4",
            ],
        );
        check("ipv4", &["1.2.3.4"], &["01.2.3.4", "256.1.1.1"]);
        check("email", &["a@localhost", "a@b.c"], &["a..b@c.d", ".a@b.c"]);
        check(
            "uuid",
            &["2EB8AA08-AA98-11EA-B4AA-73B441D16380", "2eb8aa08-aa98-11ea-b4aa-73b441d16380"],
            &["2eb8aa08aa9811eab4aa73b441d16380"],
        );
        check("duration", &["P1Y2M3DT4H5M6S", "PT1H", "P1W"], &["P1W2D", "PT", "P", "P1DT"]);
        check("uri", &["http://a", "urn:x", "http://[::1]/"], &["//a", "http://a b", "http://a/%zz"]);
        check(
            "date-time",
            &["2024-01-01t00:00:00z"],
            &["2024-02-30T00:00:00Z", "2024-01-01T00:00:00+24:00", "0000-01-01T00:00:00Z"],
        );
    }

    #[test]
    fn dates_are_days_of_the_calendar() {
        for date in
            ["2024-02-29", "2000-02-29", "1999-12-31", "2023-02-28", "2023-04-30", "0400-02-29", "0001-01-01"]
        {
            assert!(accepts("date", date), "{date}");
        }
        for date in [
            "2023-02-29",
            "1900-02-29",
            "2023-02-30",
            "2023-04-31",
            "2023-13-01",
            "2023-00-10",
            "23-01-01",
            "0000-01-01",
            "0000-02-29",
        ] {
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
