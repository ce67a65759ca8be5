//! Fractions of the device's limits used by a run: the shortest possible time, at the speeds measured in the
//! same run, divided by the actual time.
//!
//! In the shortest time, every step reads all weights and the keys and values of its tokens once, and
//! multiplies every token by the weights. The longer of the two is the roofline, because both can overlap.
//! Operations of attention, norms, sampling and activations count as zero, so long contexts appear worse than
//! they are.

use std::time::Duration;

use skein_model::cost::StepCost;

use super::ceiling::Ceiling;

/// Shortest possible times at the device's limits.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Least {
    /// Seconds of reading.
    pub reading: f64,
    /// Multiplication time in seconds; 0 if the device's rate is unknown.
    pub multiplying: f64,
}

/// Requests of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requests {
    /// Number of requests.
    pub count: u64,
    /// Most of them at once.
    pub at_once: u64,
    /// Prompt tokens of each.
    pub input_len: u32,
    /// Output tokens of each.
    pub output_len: u32,
}

impl Least {
    /// Shortest times of a decode step of `batch` sequences with `context` tokens each.
    pub fn of_decode(batch: u64, context: f64, cost: StepCost, ceiling: &Ceiling) -> Self {
        let bytes = cost.weight_bytes as f64 + batch as f64 * context * cost.kv_bytes_per_token as f64;
        Self::of(bytes, cost.operations(batch, batch), cost, ceiling)
    }

    /// Shortest times of the prefill of `batch` prompts of `input_len` tokens in one step.
    pub fn of_prefill(batch: u64, input_len: u32, cost: StepCost, ceiling: &Ceiling) -> Self {
        let operations = cost.operations(batch * u64::from(input_len), batch);
        Self::of(cost.weight_bytes as f64, operations, cost, ceiling)
    }

    /// Shortest times of whole requests: each group of those that run at once needs as many decode steps as a
    /// request has output tokens.
    pub fn of_requests(requests: Requests, cost: StepCost, ceiling: &Ceiling) -> Self {
        let Requests { count: requests, at_once, input_len, output_len } = requests;
        let (input, output) = (u64::from(input_len), u64::from(output_len));
        let steps = requests.div_ceil(at_once.max(1)) * output;
        let context = f64::from(input_len) + f64::from(output_len) / 2.0;
        let kv_bytes = (requests * output * cost.kv_bytes_per_token) as f64 * context;
        // The last token of each request is sampled but not computed.
        let computed = requests * (input + output.saturating_sub(1));
        let bytes = (steps * cost.weight_bytes) as f64 + kv_bytes;
        Self::of(bytes, cost.operations(computed, requests * output), cost, ceiling)
    }

    fn of(bytes: f64, operations: u64, cost: StepCost, ceiling: &Ceiling) -> Self {
        let time = |amount: f64, rate: f64| if rate > 0.0 { amount / rate } else { 0.0 };
        Self {
            reading: time(bytes, ceiling.read_bytes_per_second),
            multiplying: time(operations as f64, ceiling.flops(cost.product).unwrap_or(0.0)),
        }
    }

    /// Fractions used by a run of duration `took`.
    pub fn shares(self, took: Duration) -> Shares {
        let share = |least: f64| if took.is_zero() { 0.0 } else { least / took.as_secs_f64() };
        Shares { reading: share(self.reading), multiplying: share(self.multiplying) }
    }
}

/// Fractions of a device's limits; 1 = fully used, 0 = unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Shares {
    /// Fraction of plain reading.
    pub reading: f64,
    /// Fraction of plain multiplication of the kind that the weights' format permits.
    pub multiplying: f64,
}

impl Shares {
    /// Fraction of the limit that binds first.
    pub fn roofline(self) -> f64 {
        self.reading.max(self.multiplying)
    }
}

#[cfg(test)]
mod tests {
    use skein_model::cost::Product;

    use super::*;

    const COST: StepCost = StepCost {
        weight_bytes: 1000,
        weights: 500,
        head_weights: 100,
        kv_bytes_per_token: 2,
        product: Product::Int8,
    };

    fn ceiling() -> Ceiling {
        Ceiling { read_bytes_per_second: 1e5, f32: Some(1e5), bf16: None, int8: Some(4e5) }
    }

    fn check(least: Least, reading: f64, multiplying: f64, took: Duration, roofline: f64) {
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(least.reading, reading) && close(least.multiplying, multiplying), "{least:?}");
        let share = least.shares(took).roofline();
        assert!(close(share, roofline), "{share} of the roofline, expected {roofline}");
    }

    #[test]
    fn a_step_reads_or_multiplies_whichever_takes_longer() {
        let ms = Duration::from_millis;
        let decode = |batch| Least::of_decode(batch, 50.0, COST, &ceiling());
        check(decode(1), 0.011, 0.0025, ms(22), 0.5);
        // 1000 + 40 * 100 bytes, 40 * 1000 operations.
        check(decode(40), 0.05, 0.1, ms(125), 0.8);
        // The head computes only one token per prompt.
        check(
            Least::of_prefill(2, 10, COST, &ceiling()),
            0.01,
            (20.0 * 800.0 + 2.0 * 200.0) / 4e5,
            ms(82),
            0.5,
        );
        check(decode(1), 0.011, 0.0025, Duration::ZERO, 0.0);
    }

    #[test]
    fn requests_need_a_step_for_each_token_of_each_group() {
        let requests = Requests { count: 5, at_once: 2, input_len: 10, output_len: 4 };
        let least = Least::of_requests(requests, COST, &ceiling());
        let reading = (3.0 * 4.0 * 1000.0 + 5.0 * 4.0 * 2.0 * 12.0) / 1e5;
        let multiplying = (5.0 * 13.0 * 800.0 + 5.0 * 4.0 * 200.0) / 4e5;
        check(least, reading, multiplying, Duration::from_secs(1), multiplying.max(reading));
    }

    #[test]
    fn a_product_without_an_instruction_of_its_own_is_held_against_plain_ones() {
        assert_eq!(ceiling().flops(Product::Bf16), Some(1e5));
        assert_eq!(ceiling().flops(Product::Int8), Some(4e5));
        let slow_dot = Ceiling { bf16: Some(5e4), ..ceiling() };
        assert_eq!(slow_dot.flops(Product::Bf16), Some(1e5));
        let unknown = Ceiling { f32: None, int8: None, ..ceiling() };
        check(Least::of_prefill(1, 10, COST, &unknown), 0.01, 0.0, Duration::from_millis(20), 0.5);
    }
}
