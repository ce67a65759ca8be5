//! Each kind's recurrence in f64, row by row.

use super::super::shape::{Kind, StateShape};
use super::layer::{EPS, LIMITS, TestLayer, is_keyed};

impl TestLayer {
    /// Outputs of a whole sequence.
    pub(super) fn exact(&self, rows: &[f32]) -> Vec<f64> {
        let rows: Vec<Vec<f64>> =
            rows.chunks(self.shape.width()).map(|row| row.iter().copied().map(f64::from).collect()).collect();
        if self.shape.kind == Kind::Convolution {
            return self.exact_convolution(&rows);
        }
        let StateShape { value_heads, key_dim, value_dim, .. } = self.shape;
        let mut states = vec![vec![0.0; key_dim * value_dim]; value_heads];
        let (first, count) = (self.shape.first_channel(), self.shape.channels());
        let raw: Vec<Vec<f64>> = rows.iter().map(|row| row[first..first + count].to_vec()).collect();
        let mut out = Vec::new();
        for (t, row) in rows.iter().enumerate() {
            let convolved: Vec<f64> = self.convolved(&raw, t).into_iter().map(silu).collect();
            let heads = states.iter_mut().enumerate();
            let read: Vec<f64> =
                heads.flat_map(|(head, state)| self.head(head, state, &convolved, row)).collect();
            out.extend(self.gated(read, &row[self.shape.output_gates()]));
        }
        out
    }

    fn exact_convolution(&self, rows: &[Vec<f64>]) -> Vec<f64> {
        let channels = self.shape.channels();
        let product = |row: &Vec<f64>| (0..channels).map(|c| row[c] * row[2 * channels + c]).collect();
        let products: Vec<Vec<f64>> = rows.iter().map(product).collect();
        let gates = |t: usize| rows[t][channels..2 * channels].to_vec();
        let out = |t: usize| self.convolved(&products, t).into_iter().zip(gates(t)).map(|(x, gate)| x * gate);
        (0..rows.len()).flat_map(out).collect()
    }

    /// The channels of row `t` convolved.
    fn convolved(&self, raw: &[Vec<f64>], t: usize) -> Vec<f64> {
        let taps = self.shape.taps;
        let of_channel = |c: usize| {
            let bias = self.bias.get(c).map_or(0.0, |bias| f64::from(*bias));
            let input = |tap: usize| (t + tap + 1).checked_sub(taps).map_or(0.0, |t| raw[t][c]);
            bias + (0..taps).map(|tap| f64::from(self.taps[c * taps + tap]) * input(tap)).sum::<f64>()
        };
        (0..self.shape.channels()).map(of_channel).collect()
    }

    /// Moves the state of one head on; returns what its query reads.
    fn head(&self, head: usize, state: &mut [f64], convolved: &[f64], row: &[f64]) -> Vec<f64> {
        let shape = &self.shape;
        let StateShape { value_heads, key_heads, key_dim, value_dim, .. } = *shape;
        let is_delta = shape.kind != Kind::StateSpace;
        let key_head = head / (value_heads / key_heads);
        let (mut query, mut key) =
            (convolved[shape.query(key_head)].to_vec(), convolved[shape.key(key_head)].to_vec());
        if is_delta {
            (query, key) = (unit(&query), unit(&key));
            query.iter_mut().for_each(|x| *x /= (key_dim as f64).sqrt());
        }
        let logits = &row[row.len() - shape.logits()..];
        let rate = f64::from(self.decay_rate[head]);
        let time = |logit: f64, index: usize| {
            let time = (logit + f64::from(self.decay_bias[index])).exp().ln_1p();
            if is_delta { time } else { time.clamp(f64::from(LIMITS.0), f64::from(LIMITS.1)) }
        };
        let time_of = |i: usize| match shape.kind {
            Kind::KeyedDelta => time(logits[value_heads + head * key_dim + i], head * key_dim + i),
            Kind::Delta => time(logits[value_heads + head], head),
            _ => time(logits[head], head),
        };
        let beta = if is_delta { 1.0 / (1.0 + (-logits[head]).exp()) } else { time_of(0) };
        let value = &convolved[shape.value(head)];
        let mut out = Vec::new();
        for (column, value) in value.iter().enumerate() {
            let at = |i: usize| i * value_dim + column;
            (0..key_dim).for_each(|i| state[at(i)] *= (-rate * time_of(i)).exp());
            let read: f64 = (0..key_dim).map(|i| key[i] * state[at(i)]).sum();
            let added = if is_delta { value - read } else { *value } * beta;
            (0..key_dim).for_each(|i| state[at(i)] += key[i] * added);
            let skipped = self.skip.get(head).map_or(0.0, |skip| f64::from(*skip) * value);
            out.push((0..key_dim).map(|i| query[i] * state[at(i)]).sum::<f64>() + skipped);
        }
        out
    }

    /// Outputs of a row, normalised and gated.
    fn gated(&self, mut out: Vec<f64>, gates: &[f64]) -> Vec<f64> {
        let width = self.norm_width();
        let is_before = self.shape.kind == Kind::StateSpace;
        let factor = |gate: &f64| if is_keyed(&self.shape) { silu(*gate) / gate } else { silu(*gate) };
        if is_before {
            out.iter_mut().zip(gates).for_each(|(out, gate)| *out *= silu(*gate));
        }
        for (index, group) in out.chunks_mut(width).enumerate() {
            let mean = group.iter().map(|x| x * x).sum::<f64>() / width as f64;
            for (i, out) in group.iter_mut().enumerate() {
                let at = index * width + i;
                *out *= f64::from(self.norm[at % self.norm.len()]) / (mean + f64::from(EPS)).sqrt();
                *out *= if is_before { 1.0 } else { factor(&gates[at]) };
            }
        }
        out
    }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn unit(x: &[f64]) -> Vec<f64> {
    let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    x.iter().map(|x| x * scale).collect()
}
