//! The gate of the feed-forward network: SwiGLU (Shazeer 2020).

use super::math::exp;
use super::shared::Shared;
use super::simd::{Kernel, Simd};
use super::{Cpu, for_each_row};

/// `out = silu(gate) * up`. `gate_up` is `[rows, 2 * width]`, each row its gate and then its up; `out` is `[rows, width]`.
///
/// # Panics
/// If the shapes disagree.
pub fn silu_mul(cpu: &mut Cpu, gate_up: &[f32], width: usize, out: &mut [f32]) {
    assert!(
        gate_up.len() == 2 * out.len() && out.len().is_multiple_of(width),
        "gate_up is [rows, 2 * width]"
    );
    let (rows, isa, out) = (out.len() / width, cpu.isa, Shared::new(out));
    for_each_row(cpu, rows, |row| {
        let (gate, up) = gate_up[row * 2 * width..][..2 * width].split_at(width);
        // SAFETY: each row is in one task.
        isa.run(Row { gate, up, out: unsafe { out.part(row * width, width) } });
    });
}

struct Row<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.out.copy_from_slice(self.gate);
        silu_mul_in_place(self.out, self.up);
    }
}

/// The gate of some values, in place of what it is of.
#[inline(always)]
pub(super) fn silu_mul_in_place(gate: &mut [f32], up: &[f32]) {
    // Element by element, so any vector width gives the same bits; the compiler vectorises it.
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + exp(-*gate)) * up;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::Isa;

    #[test]
    fn it_agrees_with_f64_on_every_instruction_set() {
        let (rows, width) = (11, 53);
        let gate_up: Vec<f32> =
            (0..rows * 2 * width).map(|i| ((i * 71 % 997) as f32 - 498.0) * 0.2).collect();
        let mut first = Vec::new();
        for isa in Isa::available() {
            let mut out = vec![0.0; rows * width];
            silu_mul(&mut Cpu::with_isa(2, isa), &gate_up, width, &mut out);
            for (i, got) in out.iter().enumerate() {
                let at = i / width * 2 * width + i % width;
                let (gate, up) = (f64::from(gate_up[at]), f64::from(gate_up[at + width]));
                let exact = gate / (1.0 + (-gate).exp()) * up;
                assert!((f64::from(*got) - exact).abs() <= 1e-6 * exact.abs() + 1e-30, "{got} for {exact}");
            }
            assert!(first.is_empty() || first == out, "{}", isa.name());
            first = out;
        }
    }
}
