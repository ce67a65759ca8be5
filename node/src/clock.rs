//! Time, as the cores take it. The only file that reads a clock: everything pure gets a [`Timestamp`] as an
//! argument, so that a simulator can own time.

use std::cell::Cell;
use std::ops::{Add, Sub};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A point on this process's monotonic clock (or on a simulator's).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(Duration);

impl Timestamp {
    /// The start of the clock.
    pub const ZERO: Self = Self(Duration::ZERO);

    /// `since_start` after the start of the clock.
    pub const fn from_start(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// Time since the clock started.
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(rhs))
    }
}

impl Sub<Timestamp> for Timestamp {
    type Output = Duration;
    fn sub(self, rhs: Self) -> Duration {
        self.since(rhs)
    }
}

thread_local! {
    static SIMULATED: Cell<Option<fn() -> Duration>> = const { Cell::new(None) };
}

/// Now, on the process's monotonic clock; on a thread that [`simulate`]s, on its clock.
#[allow(clippy::disallowed_methods)] // the one place
pub fn now() -> Timestamp {
    static START: OnceLock<Instant> = OnceLock::new();
    match SIMULATED.get() {
        Some(since_start) => Timestamp(since_start()),
        None => Timestamp(START.get_or_init(Instant::now).elapsed()),
    }
}

/// From now on this thread's [`now`] and [`unix_time`] are what `since_start` says; `None` = the process's clock again.
/// For simulators, which own time.
pub fn simulate(since_start: Option<fn() -> Duration>) {
    SIMULATED.set(since_start);
}

/// Seconds since 1970, for what people and clients read (`created` in the OpenAI API). Never used for waiting.
#[allow(clippy::disallowed_methods)] // the one place
pub fn unix_time() -> Duration {
    if let Some(since_start) = SIMULATED.get() {
        return since_start();
    }
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
