//! Frequencies of a rotation and their scaling for longer contexts. Computed in f32 and rounded in the order
//! of Hugging Face transformers.

use std::f64::consts::PI;

/// Scaling of a rotation for longer contexts.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Frequencies as the base gives them.
    None,
    /// All frequencies are divided by this factor.
    Linear(f64),
    /// Llama 3: low frequencies are divided, high ones kept, and those between interpolated.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are high frequencies.
        high_freq_factor: f64,
        /// Original training context, in tokens.
        original_context: f64,
    },
    /// YaRN (Peng et al. 2023): like Llama 3, but interpolated over the indices of the pairs.
    Yarn {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Pairs with more turns than this within the original context keep their frequency.
        beta_fast: f64,
        /// Frequencies of pairs with fewer turns than this are divided.
        beta_slow: f64,
        /// Original training context, in tokens.
        original_context: f64,
        /// Whether the bounds of the interpolation are rounded outwards to whole pairs.
        truncate: bool,
        /// Factor of cosines and sines.
        amplitude: f64,
    },
    /// LongRoPE (Ding et al. 2024): each pair has its own factor.
    Long {
        /// Divisor of each pair's frequency.
        factors: Vec<f64>,
        /// Factor of cosines and sines.
        amplitude: f64,
    },
}

/// A rotation of the pairs `(i, i + pairs)` of each head.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    /// Angle of each pair per position; a pair with angle 0 is not rotated.
    pub frequencies: Vec<f32>,
    /// Factor of the cosines and sines of rotated pairs.
    pub amplitude: f32,
}

impl Rotation {
    /// Scaled rotation of the first `rotated / 2` of `pairs` pairs, with frequencies `theta^(-2i / rotated)`.
    ///
    /// # Panics
    /// If `rotated` exceeds the head, or [`RopeScaling::Long`] has a different number of factors.
    pub fn new(pairs: usize, rotated: usize, theta: f64, scaling: &RopeScaling) -> Self {
        assert!(rotated <= 2 * pairs, "only pairs of the head are rotated");
        let periods: Vec<f32> = (0..rotated / 2)
            .map(|i| libm::pow(theta, f64::from((2 * i) as f32 / rotated as f32)) as f32)
            .collect();
        let mut frequencies = match scaling {
            RopeScaling::Yarn { .. } => yarn(&periods, theta, scaling),
            RopeScaling::Long { factors, .. } => {
                assert_eq!(factors.len(), periods.len(), "each pair has its factor");
                let scaled =
                    periods.iter().zip(factors).map(|(period, factor)| 1.0 / (*factor as f32 * period));
                scaled.collect()
            }
            _ => periods.iter().map(|period| scaled(1.0 / period, scaling)).collect(),
        };
        frequencies.resize(pairs, 0.0);
        Self { frequencies, amplitude: scaling.amplitude() }
    }

    /// Unscaled rotation of all pairs of a head.
    pub fn plain(head_dim: usize, theta: f64) -> Self {
        Self::new(head_dim / 2, head_dim, theta, &RopeScaling::None)
    }

    /// Whether it rotates any pair.
    pub fn is_any(&self) -> bool {
        self.frequencies.iter().any(|frequency| *frequency != 0.0)
    }

    /// No rotation: positions are not encoded.
    pub fn none(head_dim: usize) -> Self {
        Self { frequencies: vec![0.0; head_dim / 2], amplitude: 1.0 }
    }
}

impl RopeScaling {
    fn amplitude(&self) -> f32 {
        match self {
            Self::None | Self::Linear(_) | Self::Llama3 { .. } => 1.0,
            Self::Yarn { amplitude, .. } | Self::Long { amplitude, .. } => *amplitude as f32,
        }
    }
}

/// Frequency under a scaling that treats each frequency on its own.
fn scaled(frequency: f32, scaling: &RopeScaling) -> f32 {
    match *scaling {
        RopeScaling::Linear(factor) => frequency / factor as f32,
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            let wavelength = 2.0 * std::f32::consts::PI / frequency;
            if wavelength > (original_context / low_freq_factor) as f32 {
                return frequency / factor as f32;
            }
            if wavelength < (original_context / high_freq_factor) as f32 {
                return frequency;
            }
            let range = (high_freq_factor - low_freq_factor) as f32;
            let smooth = (original_context as f32 / wavelength - low_freq_factor as f32) / range;
            (1.0 - smooth) * frequency / factor as f32 + smooth * frequency
        }
        RopeScaling::None | RopeScaling::Yarn { .. } | RopeScaling::Long { .. } => frequency,
    }
}

/// Frequencies under [`RopeScaling::Yarn`]; unchanged for other scalings.
fn yarn(periods: &[f32], theta: f64, scaling: &RopeScaling) -> Vec<f32> {
    let RopeScaling::Yarn { factor, beta_fast, beta_slow, original_context, truncate, .. } = *scaling else {
        return periods.iter().map(|period| 1.0 / period).collect();
    };
    let rotated = (2 * periods.len()) as f64;
    // Index of the pair with `turns` turns within the original context.
    let pair =
        |turns: f64| rotated * libm::log(original_context / (turns * 2.0 * PI)) / (2.0 * libm::log(theta));
    let (low, high) = (pair(beta_fast), pair(beta_slow));
    let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
    let (low, mut high) = (low.max(0.0), high.min(rotated - 1.0));
    if low == high {
        high += 0.001; // as in transformers, which divides by the difference
    }
    let frequency = |(i, period): (usize, &f32)| {
        let ramp = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
        let kept = 1.0 - ramp;
        1.0 / (factor as f32 * period) * (1.0 - kept) + 1.0 / period * kept
    };
    periods.iter().enumerate().map(frequency).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(head_dim: usize, theta: f64, scaling: &RopeScaling) -> Vec<f32> {
        Rotation::new(head_dim / 2, head_dim, theta, scaling).frequencies
    }

    #[test]
    fn llama3_keeps_high_frequencies_and_divides_low_ones() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192.0,
        };
        let plain = frequencies(128, 500_000.0, &RopeScaling::None);
        let scaled = frequencies(128, 500_000.0, &scaling);
        assert_eq!((plain[0], scaled[0]), (1.0, 1.0));
        assert_eq!(scaled[63], plain[63] / 8.0);
        assert!(scaled.iter().zip(&plain).all(|(scaled, plain)| (plain / 8.0..=*plain).contains(scaled)));
        assert_eq!(frequencies(4, 100.0, &RopeScaling::Linear(4.0)), [0.25, 0.025]);
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let yarn = |truncate| RopeScaling::Yarn {
            factor: 4.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_context: 32_768.0,
            truncate,
            amplitude: 1.25,
        };
        let plain = frequencies(128, 1e6, &RopeScaling::None);
        let scaled = frequencies(128, 1e6, &yarn(true));
        // 64 * ln(32768 / (2 pi 32)) / ln(1e6) = 23.59, and 39.65 for one turn.
        assert_eq!((scaled[23], scaled[0]), (plain[23], 1.0));
        assert!(scaled[24] < plain[24] && scaled[39] > plain[39] / 4.0);
        assert!((scaled[40] / plain[40] - 0.25).abs() < 1e-6);
        let between = frequencies(128, 1e6, &yarn(false));
        assert!(between[24] > scaled[24], "the interpolation starts later");
        assert_eq!(Rotation::new(64, 128, 1e6, &yarn(true)).amplitude, 1.25);
    }

    #[test]
    fn pairs_beyond_the_rotated_ones_stay() {
        let long = RopeScaling::Long { factors: vec![1.0, 4.0], amplitude: 1.5 };
        let rotation = Rotation::new(4, 4, 100.0, &long);
        assert_eq!(rotation, Rotation { frequencies: vec![1.0, 0.025, 0.0, 0.0], amplitude: 1.5 });
        assert_eq!(Rotation::none(6).frequencies, [0.0; 3]);
    }
}
