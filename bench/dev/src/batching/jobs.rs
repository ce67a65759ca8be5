//! Random jobs with lengths like those of published data sets.

use std::f64::consts::TAU;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use skein_bench::load::arrivals::Arrivals;

use super::batcher::Job;

/// Distribution of prompt and output lengths: two independent log-normal ones, truncated at `most`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lengths {
    /// Mean prompt tokens before truncation.
    pub prompt_mean: f64,
    /// Standard deviation of the logarithm of the prompt length.
    pub prompt_sigma: f64,
    /// Mean output tokens before truncation.
    pub output_mean: f64,
    /// Standard deviation of the logarithm of the output length.
    pub output_sigma: f64,
    /// Most tokens of prompt and output together: the model's context length.
    pub most: u32,
}

/// Shortest output. With one token, latency per token would include the whole wait and prefill.
const LEAST_OUTPUT: u32 = 4;

impl Lengths {
    /// Means of ShareGPT in the PagedAttention paper; the deviations are ours, to match the tails of its
    /// figure 11.
    pub const SHAREGPT: Self =
        Self { prompt_mean: 161.31, prompt_sigma: 1.1, output_mean: 337.99, output_sigma: 0.9, most: 2048 };
    /// Means of Alpaca in the same paper.
    pub const ALPACA: Self =
        Self { prompt_mean: 19.31, prompt_sigma: 0.5, output_mean: 58.45, output_sigma: 1.0, most: 2048 };

    fn draw(&self, random: &mut StdRng) -> (u32, u32) {
        let prompt = log_normal(random, self.prompt_mean, self.prompt_sigma) as u32;
        let output = log_normal(random, self.output_mean, self.output_sigma) as u32;
        let prompt = prompt.clamp(1, self.most - LEAST_OUTPUT);
        (prompt, output.clamp(LEAST_OUTPUT, self.most - prompt))
    }
}

/// Arrival process of jobs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrival {
    /// Poisson process with this rate, per second.
    Rate(f64),
    /// All at the start.
    AtOnce,
}

/// `count` jobs; equal seeds give equal lengths for any arrival process.
pub fn jobs(count: usize, lengths: &Lengths, arrival: Arrival, seed: u64) -> Vec<Job> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut times = match arrival {
        Arrival::Rate(rate) => Some(Arrivals::new(rate, 1.0, seed)),
        Arrival::AtOnce => None,
    };
    let mut one = || {
        let at = times.as_mut().and_then(Iterator::next).unwrap_or_default();
        let (prompt, output) = lengths.draw(&mut random);
        Job { at, prompt, output }
    };
    (0..count).map(|_| one()).collect()
}

/// Log-normal variate with this mean (Box and Muller 1958).
fn log_normal(random: &mut StdRng, mean: f64, sigma: f64) -> f64 {
    let open_unit = 1.0 - random.random::<f64>();
    let normal = (-2.0 * open_unit.ln()).sqrt() * (TAU * random.random::<f64>()).cos();
    (mean.ln() - sigma * sigma / 2.0 + sigma * normal).exp()
}
