//! Gates of attention's outputs: each value is multiplied by the sigmoid of its gate (Qiu et al. 2025, arXiv
//! 2505.06708).

use super::disjoint::DisjointMut;
use super::math::exp;
use super::rows::Rows;
use super::simd::{Kernel, Simd};
use super::{Cpu, for_each_row_of};

/// Multiplies `values` `[rows, width]` by the sigmoids of `gates`, whose rows may be longer.
///
/// # Panics
/// If the shapes disagree.
pub fn gate_outputs(cpu: &mut Cpu, gates: Rows<'_>, width: usize, values: &mut [f32]) {
    let Rows { values: gates, stride } = gates;
    let rows = values.len() / width.max(1);
    assert!(
        values.len() == rows * width && (rows == 0 || gates.len() >= (rows - 1) * stride + width),
        "values are [rows, width], and so are their gates"
    );
    let (isa, values) = (cpu.isa, DisjointMut::new(values));
    for_each_row_of(cpu, rows, width, |row, _| {
        let gates = &gates[row * stride..][..width];
        // SAFETY: each row is in one task.
        isa.run(GateRow { gates, values: unsafe { values.part(row * width, width) } });
    });
}

struct GateRow<'a> {
    gates: &'a [f32],
    values: &'a mut [f32],
}

impl Kernel for GateRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        // Element by element, so any vector width gives the same bits; the compiler vectorises it.
        for (value, gate) in self.values.iter_mut().zip(self.gates) {
            *value /= 1.0 + exp(-gate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::Isa;

    #[test]
    fn it_agrees_with_f64_on_every_instruction_set_and_skips_what_lies_between_rows() {
        let (rows, width, stride) = (5, 1003, 1010);
        let number = |i: usize| ((i * 71 % 997) as f32 - 498.0) * 0.02;
        let values: Vec<f32> = (0..rows * width).map(number).collect();
        let gates: Vec<f32> = (0..rows * stride).map(|i| number(i * 3 + 1)).collect();
        let mut first = Vec::new();
        for (isa, threads) in Isa::available().into_iter().flat_map(|isa| [(isa, 1), (isa, 3)]) {
            let mut got = values.clone();
            let gates = Rows { values: &gates[..], stride };
            gate_outputs(&mut Cpu::with_isa(threads, isa), gates, width, &mut got);
            for (i, got) in got.iter().enumerate() {
                let gate = f64::from(gates.values[i / width * stride + i % width]);
                let exact = f64::from(values[i]) / (1.0 + (-gate).exp());
                assert!((f64::from(*got) - exact).abs() <= 1e-6 * exact.abs(), "{got} for {exact}");
            }
            assert!(first.is_empty() || first == got, "{}", isa.name());
            first = got;
        }
    }
}
