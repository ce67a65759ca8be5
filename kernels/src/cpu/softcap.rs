//! Softcapping: a smooth limit of values to `-cap..cap` (Gemma 2, Gemma Team 2024).

use super::disjoint::DisjointMut;
use super::math::tanh;
use super::simd::{Kernel, Simd};
use super::{Cpu, VALUES_PER_TASK, for_each_run};

/// Replaces each of `values` by `cap * tanh(values / cap)`.
pub fn softcap(cpu: &mut Cpu, values: &mut [f32], cap: f32) {
    let (isa, count, values) = (cpu.isa, values.len(), DisjointMut::new(values));
    let softcap = Softcap { cap, factor: 1.0 / cap };
    for_each_run(cpu, count.div_ceil(VALUES_PER_TASK), 1, |part, _| {
        let start = part * VALUES_PER_TASK;
        // SAFETY: each part is in one task.
        let values = unsafe { values.part(start, VALUES_PER_TASK.min(count - start)) };
        isa.run(Capped { softcap, values });
    });
}

/// `cap * tanh(factor * x)`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Softcap {
    pub(super) cap: f32,
    pub(super) factor: f32,
}

/// Kernel that caps `values` in place.
pub(super) struct Capped<'a> {
    pub(super) softcap: Softcap,
    pub(super) values: &'a mut [f32],
}

impl Kernel for Capped<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        // Element by element, so any vector width gives the same bits; the compiler vectorises it.
        for value in self.values {
            *value = self.softcap.cap * tanh(*value * self.softcap.factor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::Isa;

    #[test]
    fn it_agrees_with_f64_on_every_instruction_set() {
        let values: Vec<f32> = (0..9001).map(|i| ((i * 71 % 997) as f32 - 498.0) * 0.2).collect();
        let mut first = Vec::new();
        for isa in Isa::available() {
            let mut got = values.clone();
            softcap(&mut Cpu::with_isa(2, isa), &mut got, 30.0);
            for (got, value) in got.iter().zip(&values) {
                let exact = 30.0 * (f64::from(*value) / 30.0).tanh();
                assert!((f64::from(*got) - exact).abs() <= 1e-6 * exact.abs(), "{got} for {exact}");
            }
            assert!(first.is_empty() || first == got, "{}", isa.name());
            first = got;
        }
    }
}
