//! Model of a step's duration.

use std::time::Duration;

use skein_bench::engine::steps::{Timed, Work};

/// Duration of a step: `overhead + max(weights, rows × row) + context × context_token`. Reading the weights
/// overlaps with multiplying by them, so the longer one counts; attention follows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTime {
    /// Fixed cost besides the device's work, in seconds.
    pub overhead: f64,
    /// Time to read all weights once, in seconds.
    pub weights: f64,
    /// Time to multiply one row by all weights, in seconds.
    pub row: f64,
    /// Time to read the keys and values of one token, in seconds.
    pub context_token: f64,
}

impl StepTime {
    /// OPT-13B in 16 bits on an A100 with 40 GB, as in the PagedAttention paper (Kwon et al. 2023): 26 GB of
    /// weights and 800 KiB of KV per token at 1.555 TB/s, 26 GFLOP per row at half of 312 TFLOP/s.
    pub const OPT_13B_A100: Self = Self {
        overhead: 0.002,
        weights: 26e9 / 1.555e12,
        row: 26e9 / (0.5 * 312e12),
        context_token: 819_200.0 / 1.555e12,
    };

    /// Duration of a step.
    pub fn of(&self, work: Work) -> Duration {
        let multiplying = self.row * f64::from(work.rows);
        let seconds =
            self.overhead + self.weights.max(multiplying) + self.context_token * work.context as f64;
        Duration::from_secs_f64(seconds)
    }

    /// Relative error against the measurement `step`.
    pub fn error(&self, step: &Timed) -> f64 {
        self.of(step.work).as_secs_f64() / step.seconds - 1.0
    }

    /// Time per token of a request running alone, in seconds.
    pub fn alone(&self, prompt: u32) -> f64 {
        self.of(Work { rows: 1, context: u64::from(prompt) }).as_secs_f64()
    }
}
