//! Days of certificates, and how they are told.

use std::time::Duration;

/// A day.
pub const DAY: Duration = Duration::from_secs(86_400);
/// How far the clocks of nodes may be behind that of the machine which signs.
pub const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// A time in days, or in hours if it is shorter than one.
pub fn period(time: Duration) -> String {
    // The clock may have gone on by minutes since the days were counted from it.
    let count = |unit: Duration| (time + CLOCK_SKEW / 2).as_secs() / unit.as_secs();
    let (count, unit) = match count(DAY) {
        0 => (count(Duration::from_secs(3600)), "hour"),
        days => (days, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}
