//! When requests are sent: how many a second, how many at once, and in which batches.

use std::fmt;
use std::time::Duration;

/// Distribution of requests over time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Sessions per second; `None` = as fast as `max_concurrency` permits.
    pub request_rate: Option<f64>,
    /// Shape parameter of the gaps, see [`super::arrivals::Arrivals`].
    pub burstiness: f64,
    /// Most sessions at once; `None` = all.
    pub max_concurrency: Option<usize>,
    /// Seed of the arrival times.
    pub seed: u64,
    /// Forms batches of sessions; `max_concurrency` then has no effect.
    pub held_back: Option<HeldBack>,
}

/// How batches are formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBack {
    /// Most sessions per batch.
    pub most: usize,
    /// How long the first session of a batch waits for others; zero = a batch starts with the waiting
    /// sessions.
    pub delay: Duration,
}

impl HeldBack {
    /// Parses `static:8` or `dynamic:8:50ms`; `None` for `continuous`, which holds nothing back.
    ///
    /// # Errors
    /// Describes the expected forms.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        let complaint = || {
            format!(
                "`{text}` is not continuous, static:N such as static:8, or dynamic:N:TIME such as dynamic:8:50ms"
            )
        };
        match text.split(':').collect::<Vec<_>>()[..] {
            ["continuous"] => Ok(None),
            ["static", most] => {
                let most = count(most).ok_or_else(complaint)?;
                Ok(Some(Self { most, delay: Duration::ZERO }))
            }
            ["dynamic", most, delay] => {
                let held = Self::dynamic(most, delay).ok_or_else(complaint)?;
                Ok(Some(held))
            }
            _ => Err(complaint()),
        }
    }

    /// Parses the largest batch and the longest delay, such as `8` and `50ms` or `1.5s`.
    pub fn dynamic(most: &str, delay: &str) -> Option<Self> {
        let (number, unit) = match delay.strip_suffix("ms") {
            Some(number) => (number, 1e-3),
            None => (delay.strip_suffix('s')?, 1.0),
        };
        let seconds: f64 = number.parse().ok()?;
        let delay = Duration::try_from_secs_f64(seconds * unit).ok()?;
        Some(Self { most: count(most)?, delay })
    }
}

impl fmt::Display for HeldBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.delay {
            Duration::ZERO => write!(f, "static:{}", self.most),
            delay => write!(f, "dynamic:{}:{}ms", self.most, delay.as_millis()),
        }
    }
}

fn count(text: &str) -> Option<usize> {
    text.parse().ok().filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_they_are_written() {
        for text in ["static:8", "dynamic:4:50ms", "dynamic:16:1500ms"] {
            let held = HeldBack::parse(text).expect("a rule").expect("it holds back");
            assert_eq!(held.to_string(), text);
        }
        assert_eq!(HeldBack::parse("continuous"), Ok(None));
        assert_eq!(
            HeldBack::parse("dynamic:8:0.5s").ok().flatten().map(|held| held.delay.as_millis()),
            Some(500)
        );
        for text in
            ["static", "static:0", "dynamic:8", "dynamic:8:50", "dynamic:8:-1s", "orca:8", "static:8:1"]
        {
            assert!(HeldBack::parse(text).is_err_and(|error| error.contains(text)), "{text}");
        }
    }
}
