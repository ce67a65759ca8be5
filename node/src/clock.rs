//! Time. The only file that reads a clock: pure code gets a [`Timestamp`] as an argument, so that a simulator
//! can control time.

use std::cell::Cell;
use std::ops::{Add, Sub};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A point on this process's monotonic clock, or on a simulator's.
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

/// The current time: of the simulated clock on a thread that called [`simulate`], else of the monotonic
/// clock.
#[allow(clippy::disallowed_methods)] // the one place
pub fn now() -> Timestamp {
    static START: OnceLock<Instant> = OnceLock::new();
    match SIMULATED.get() {
        Some(since_start) => Timestamp(since_start()),
        None => Timestamp(START.get_or_init(Instant::now).elapsed()),
    }
}

/// Makes [`now`] and [`unix_time`] return `since_start` on this thread; `None` returns to the real clock. For
/// simulators.
pub fn simulate(since_start: Option<fn() -> Duration>) {
    SIMULATED.set(since_start);
}

/// Time since 1970, for people and clients (`created` in the OpenAI API). Never used for waiting.
#[allow(clippy::disallowed_methods)] // the one place
pub fn unix_time() -> Duration {
    if let Some(since_start) = SIMULATED.get() {
        return since_start();
    }
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
