//! Measured speed: the duration of steps, and tokens a second.

use std::time::Duration;

use skein_node::clock::Timestamp;

use super::rate::Rate;
use super::step::Step;
use super::step_time::StepTime;

/// Tokens after which an observation has lost half its weight: a few steps' worth of each.
const PREFILL_RATE_HALF_LIFE: f64 = 4096.0;
const DECODE_RATE_HALF_LIFE: f64 = 256.0;
/// Weight of the newest step in the mean duration that people see.
const STEP_WEIGHT: f32 = 0.1;

/// Measurements over the steps so far.
#[derive(Debug)]
pub(super) struct Pace {
    pub prefill: Rate,
    pub decode: Rate,
    pub step_time: StepTime,
    /// Duration of the latest steps, exponentially weighted, in seconds; 0 before the first.
    pub step_seconds: f32,
    /// When the latest step was committed.
    last_commit: Timestamp,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            prefill: Rate::new(PREFILL_RATE_HALF_LIFE),
            decode: Rate::new(DECODE_RATE_HALF_LIFE),
            step_time: StepTime::default(),
            step_seconds: 0.0,
            last_commit: Timestamp::ZERO,
        }
    }
}

impl Pace {
    /// Measures the step's own time, from its planning or from the commit before it if that was later.
    /// `accepted` is the number of draft tokens found right, which its streams got in addition to one each.
    /// Returns the duration of the step.
    pub fn observe(&mut self, step: &Step, accepted: u32, now: Timestamp) -> Duration {
        let took = now.since(step.started.max(self.last_commit));
        self.last_commit = now;
        self.step_time.observe(step.work(), took);
        let before = if self.step_seconds == 0.0 { took.as_secs_f32() } else { self.step_seconds };
        self.step_seconds = before + STEP_WEIGHT * (took.as_secs_f32() - before);
        if step.prompt_rows() > step.stream_rows {
            self.prefill.observe(step.rows, took);
        } else if step.prompt_rows() == 0 {
            self.decode.observe(step.streams + accepted, took);
        }
        took
    }
}
