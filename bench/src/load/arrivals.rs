//! The times at which requests should be sent: an open loop does not wait for answers.

use std::f64::consts::TAU;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Intended send times since the start: a renewal process with gamma distributed gaps.
///
/// `burstiness` is the gamma's shape: 1 is a Poisson process, below 1 arrivals bunch, above 1 they even out.
/// The mean gap is `1 / rate` for any shape.
#[derive(Debug)]
pub struct Arrivals {
    rng: StdRng,
    shape: f64,
    scale_s: f64,
    now_s: f64,
}

impl Arrivals {
    /// `rate` requests per second; both numbers are above zero. Equal seeds give equal times.
    pub fn new(rate: f64, burstiness: f64, seed: u64) -> Self {
        assert!(rate > 0.0 && burstiness > 0.0, "rate and burstiness are checked where flags are read");
        Self {
            rng: StdRng::seed_from_u64(seed),
            shape: burstiness,
            scale_s: 1.0 / (rate * burstiness),
            now_s: 0.0,
        }
    }
}

impl Iterator for Arrivals {
    type Item = Duration;
    fn next(&mut self) -> Option<Duration> {
        self.now_s += gamma(&mut self.rng, self.shape) * self.scale_s;
        Some(Duration::from_secs_f64(self.now_s))
    }
}

/// A gamma variate with scale 1 (Marsaglia and Tsang 2000); below shape 1 by the power-of-uniform identity.
fn gamma(rng: &mut StdRng, shape: f64) -> f64 {
    if shape == 1.0 {
        return -open_unit(rng).ln();
    }
    if shape < 1.0 {
        return gamma(rng, shape + 1.0) * open_unit(rng).powf(1.0 / shape);
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = (-2.0 * open_unit(rng).ln()).sqrt() * (TAU * open_unit(rng)).cos();
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && open_unit(rng).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

/// Uniform in (0, 1]: its logarithm is finite.
fn open_unit(rng: &mut StdRng) -> f64 {
    1.0 - rng.random::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_have_the_mean_and_the_variance_asked_for() {
        let check = |rate: f64, burstiness: f64| {
            const COUNT: usize = 200_000;
            let times: Vec<f64> =
                Arrivals::new(rate, burstiness, 7).take(COUNT).map(|time| time.as_secs_f64()).collect();
            let gaps: Vec<f64> =
                std::iter::once(times[0]).chain(times.windows(2).map(|pair| pair[1] - pair[0])).collect();
            let mean = gaps.iter().sum::<f64>() / COUNT as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / COUNT as f64;
            let expected = 1.0 / (rate * rate * burstiness);
            assert!((mean * rate - 1.0).abs() < 0.02, "rate {rate} burstiness {burstiness}: mean {mean}");
            assert!(
                (variance / expected - 1.0).abs() < 0.06,
                "rate {rate} burstiness {burstiness}: {variance}"
            );
        };
        check(1.0, 1.0);
        check(20.0, 1.0);
        check(5.0, 0.25);
        check(5.0, 4.0);
    }

    #[test]
    fn equal_seeds_give_equal_times() {
        let times = |seed| Arrivals::new(3.0, 0.7, seed).take(50).collect::<Vec<_>>();
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
    }
}
