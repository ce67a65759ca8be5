//! Randomness: one generator per seed and name, so that a new draw in one module does not change the draws of
//! others.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A named sequence of random values.
#[derive(Debug)]
pub struct Random(Mutex<StdRng>);

impl Random {
    /// The sequence `name` of `seed`.
    pub fn new(seed: u64, name: &str) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(xxh3_64_with_seed(name.as_bytes(), seed))))
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A uniform 64-bit number.
    pub fn number(&self) -> u64 {
        self.draw(Rng::next_u64)
    }

    /// A uniform number in `from..=to`.
    pub fn between(&self, from: u64, to: u64) -> u64 {
        self.draw(|rng| rng.random_range(from..=to))
    }

    /// The same for counts and ids.
    pub fn small(&self, from: u32, to: u32) -> u32 {
        self.draw(|rng| rng.random_range(from..=to))
    }

    /// True with probability 1 / `times`; never if that is 0.
    pub fn once_in(&self, times: u64) -> bool {
        times > 0 && self.between(1, times) == 1
    }

    /// A duration in `from..=to` milliseconds, uniform in its logarithm: short ones are as likely as long
    /// ones.
    pub fn millis(&self, from: u64, to: u64) -> Duration {
        let (low, high) = ((from.max(1) as f64).ln(), (to.max(1) as f64).ln());
        let share = self.draw(|rng| rng.random::<f64>());
        Duration::from_millis((low + share * (high - low)).exp().round() as u64)
    }

    /// One of `options`, which is not empty.
    pub fn pick<T: Copy>(&self, options: &[T]) -> T {
        options[self.between(0, options.len() as u64 - 1) as usize]
    }
}
