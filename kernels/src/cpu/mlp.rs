//! Activations of feed-forward networks, and gated linear units (Shazeer 2020).

use super::disjoint::DisjointMut;
use super::input::{Encoding, Input};
use super::math::{erf, exp};
use super::rows::Rows;
use super::simd::{Kernel, Simd};
use super::{Cpu, for_each_row};
use crate::gate::Gate;

/// The function of a [`Gate`], as a type that kernels are compiled for.
pub(super) trait Activation: Copy {
    /// Its value.
    fn of(self, x: f32) -> f32;
    /// Gate and up projection as they are used.
    #[inline(always)]
    fn inputs(self, gate: f32, up: f32) -> (f32, f32) {
        (gate, up)
    }
}

/// `x / (1 + exp(-z))`
#[inline(always)]
fn swish(x: f32, z: f32) -> f32 {
    x / (1.0 + exp(-z))
}

/// The function of [`Gate::Silu`].
#[derive(Clone, Copy)]
pub(super) struct Silu;

impl Activation for Silu {
    #[inline(always)]
    fn of(self, x: f32) -> f32 {
        swish(x, x)
    }
}

/// The function of [`Gate::Clamped`].
#[derive(Clone, Copy)]
pub(super) struct Clamped {
    pub(super) alpha: f32,
    pub(super) limit: f32,
}

impl Activation for Clamped {
    #[inline(always)]
    fn of(self, x: f32) -> f32 {
        swish(x, self.alpha * x)
    }

    #[inline(always)]
    fn inputs(self, gate: f32, up: f32) -> (f32, f32) {
        // Comparisons keep NaN, unlike `min` and `max`.
        let most = |x: f32| if x > self.limit { self.limit } else { x };
        let up = most(up);
        (most(gate), if up < -self.limit { -self.limit } else { up } + 1.0)
    }
}

/// [`Gate::GeluTanh`]: `0.5 * (1 + tanh(u))` is `1 / (1 + exp(-2 * u))`.
#[derive(Clone, Copy)]
pub(super) struct GeluTanh;

impl Activation for GeluTanh {
    #[inline(always)]
    fn of(self, x: f32) -> f32 {
        const TWICE_SQRT_2_PER_PI: f32 = 1.595_769;
        swish(x, (x * x * x).mul_add(0.044_715, x) * TWICE_SQRT_2_PER_PI)
    }
}

/// The function of [`Gate::Gelu`].
#[derive(Clone, Copy)]
pub(super) struct Gelu;

impl Activation for Gelu {
    #[inline(always)]
    fn of(self, x: f32) -> f32 {
        let half = 0.5 * x;
        erf(x * std::f32::consts::FRAC_1_SQRT_2).mul_add(half, half)
    }
}

/// The function of [`Gate::Relu`].
#[derive(Clone, Copy)]
pub(super) struct Relu;

impl Activation for Relu {
    #[inline(always)]
    fn of(self, x: f32) -> f32 {
        // A comparison keeps NaN, unlike `max`.
        if x < 0.0 { 0.0 } else { x }
    }
}

/// The function of [`Gate::SquaredRelu`].
#[derive(Clone, Copy)]
pub(super) struct SquaredRelu;

impl Activation for SquaredRelu {
    #[inline(always)]
    fn of(self, x: f32) -> f32 {
        // A comparison keeps NaN, unlike `max`.
        let x = if x < 0.0 { 0.0 } else { x };
        x * x
    }
}

/// `out = activation(gate) * up`. `gate_up` is `[rows, 2 * width]`, gate before up in each row; `out` is
/// `[rows, width]`.
///
/// # Panics
/// If the shapes disagree.
pub fn glu(cpu: &mut Cpu, activation: Gate, gate_up: &[f32], width: usize, out: &mut [f32]) {
    assert!(
        gate_up.len() == 2 * out.len() && out.len().is_multiple_of(width),
        "gate_up is [rows, 2 * width]"
    );
    let (rows, isa, out) = (out.len() / width, cpu.isa, DisjointMut::new(out));
    for_each_row(cpu, rows, |row| {
        let (gate, up) = gate_up[row * 2 * width..][..2 * width].split_at(width);
        // SAFETY: each row is in one task.
        isa.run(Row { activation, gate, up, out: unsafe { out.part(row * width, width) } });
    });
}

/// `activation(gates) * up`, encoded as the input of a product. `gates` is `[rows, width]`; rows of `up` may
/// be longer.
///
/// # Panics
/// If the shapes disagree.
pub fn glu_into(
    cpu: &mut Cpu,
    activation: Gate,
    (gates, up): (&[f32], Rows<'_>),
    width: usize,
    encoding: Encoding,
    out: &mut Input,
) {
    assert!(gates.len().is_multiple_of(width), "gates are [rows, width]");
    let isa = cpu.isa;
    out.fill(cpu, encoding, gates.len() / width, width, |row, out| {
        let up = &up.values[row * up.stride..][..width];
        isa.run(Row { activation, gate: &gates[row * width..][..width], up, out });
    });
}

/// `activation(x)`, encoded as the input of a product, for ungated networks. `x` is `[rows, width]`.
///
/// # Panics
/// If `x` is not whole rows.
pub fn activate_into(
    cpu: &mut Cpu,
    activation: Gate,
    x: &[f32],
    width: usize,
    encoding: Encoding,
    out: &mut Input,
) {
    assert!(x.len().is_multiple_of(width), "x is [rows, width]");
    let isa = cpu.isa;
    out.fill(cpu, encoding, x.len() / width, width, |row, out| {
        isa.run(Ungated { activation, x: &x[row * width..][..width], out });
    });
}

/// Replaces the values of `x` by their activations.
pub fn activate(cpu: &Cpu, activation: Gate, x: &mut [f32]) {
    cpu.isa.run(InPlace { activation, x });
}

struct InPlace<'a> {
    activation: Gate,
    x: &'a mut [f32],
}

impl Kernel for InPlace<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { activation, x } = self;
        match activation {
            Gate::Silu => activate_in_place(Silu, x),
            Gate::GeluTanh => activate_in_place(GeluTanh, x),
            Gate::Gelu => activate_in_place(Gelu, x),
            Gate::Relu => activate_in_place(Relu, x),
            Gate::Clamped { alpha, limit } => activate_in_place(Clamped { alpha, limit }, x),
            Gate::SquaredRelu => activate_in_place(SquaredRelu, x),
        }
    }
}

/// Replaces `x` by `activation(x)`.
#[inline(always)]
fn activate_in_place<F: Activation>(f: F, x: &mut [f32]) {
    for value in x {
        let (x, up) = f.inputs(*value, 1.0);
        *value = f.of(x) * up;
    }
}

struct Ungated<'a> {
    activation: Gate,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Ungated<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        match self.activation {
            Gate::Silu => set(Silu, self.x, self.out),
            Gate::GeluTanh => set(GeluTanh, self.x, self.out),
            Gate::Gelu => set(Gelu, self.x, self.out),
            Gate::Relu => set(Relu, self.x, self.out),
            Gate::Clamped { alpha, limit } => set(Clamped { alpha, limit }, self.x, self.out),
            Gate::SquaredRelu => set(SquaredRelu, self.x, self.out),
        }
    }
}

/// Sets `out` to `activation(x)`.
#[inline(always)]
fn set<F: Activation>(f: F, x: &[f32], out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        let (x, up) = f.inputs(*x, 1.0);
        *out = f.of(x) * up;
    }
}

struct Row<'a> {
    activation: Gate,
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.out.copy_from_slice(self.gate);
        match self.activation {
            Gate::Silu => gate_in_place(Silu, self.out, self.up),
            Gate::GeluTanh => gate_in_place(GeluTanh, self.out, self.up),
            Gate::Gelu => gate_in_place(Gelu, self.out, self.up),
            Gate::Relu => gate_in_place(Relu, self.out, self.up),
            Gate::Clamped { alpha, limit } => gate_in_place(Clamped { alpha, limit }, self.out, self.up),
            Gate::SquaredRelu => gate_in_place(SquaredRelu, self.out, self.up),
        }
    }
}

/// Replaces `gate` by `activation(gate) * up`.
#[inline(always)]
pub(super) fn gate_in_place<F: Activation>(f: F, gate: &mut [f32], up: &[f32]) {
    // Element by element, so any vector width gives the same bits; the compiler vectorises it.
    for (gate, up) in gate.iter_mut().zip(up) {
        let (x, up) = f.inputs(*gate, *up);
        *gate = f.of(x) * up;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::Isa;

    fn check(activation: Gate, relative: f64, exact: fn(f64) -> f64) {
        let (rows, width) = (11, 53);
        let gate_up: Vec<f32> =
            (0..rows * 2 * width).map(|i| ((i * 71 % 997) as f32 - 498.0) * 0.2).collect();
        let mut first = Vec::new();
        for isa in Isa::available() {
            let mut out = vec![0.0; rows * width];
            glu(&mut Cpu::with_isa(2, isa), activation, &gate_up, width, &mut out);
            for (i, got) in out.iter().enumerate() {
                let at = i / width * 2 * width + i % width;
                let exact = exact(f64::from(gate_up[at])) * f64::from(gate_up[at + width]);
                assert!(
                    (f64::from(*got) - exact).abs() <= relative * exact.abs() + 1e-30,
                    "{got} for {exact}"
                );
            }
            assert!(first.is_empty() || first == out, "{}", isa.name());
            first = out;
            // Ungated, as if the up projection returned 1.
            let alone: Vec<f32> = gate_up.chunks(2 * width).flat_map(|row| &row[..width]).copied().collect();
            let ones = alone.chunks(width).flat_map(|row| [row, &[1.0; 53]].concat()).collect::<Vec<_>>();
            let (mut expected, mut got) = (vec![0.0; rows * width], Input::default());
            glu(&mut Cpu::with_isa(2, isa), activation, &ones, width, &mut expected);
            activate_into(&mut Cpu::with_isa(2, isa), activation, &alone, width, Encoding::F32, &mut got);
            let Rows { values, stride } = got.values();
            assert!(values.chunks(stride).flat_map(|row| &row[..width]).eq(&expected), "{}", isa.name());
        }
    }

    #[test]
    fn silu_agrees_with_f64_on_every_instruction_set() {
        check(Gate::Silu, 1e-6, |x| x / (1.0 + (-x).exp()));
    }

    #[test]
    fn squared_relu_agrees_with_f64_on_every_instruction_set_and_keeps_nan() {
        check(Gate::SquaredRelu, 1e-6, |x| x.max(0.0).powi(2));
        let mut got = [f32::NAN, -1.0, 3.0];
        gate_in_place(SquaredRelu, &mut got, &[1.0; 3]);
        assert!(got[0].is_nan() && got[1..] == [0.0, 9.0], "{got:?}");
    }

    #[test]
    fn relu_and_gelu_by_erf_agree_with_f64_on_every_instruction_set_and_keep_nan() {
        check(Gate::Relu, 1e-6, |x| x.max(0.0));
        let x: Vec<f32> = (-6000..6000).map(|i| i as f32 * 1e-3).collect();
        let mut first = Vec::new();
        for isa in Isa::available() {
            let mut got = Input::default();
            activate_into(&mut Cpu::with_isa(2, isa), Gate::Gelu, &x, 100, Encoding::F32, &mut got);
            let Rows { values, stride } = got.values();
            let got: Vec<f32> = values.chunks(stride).flat_map(|row| &row[..100]).copied().collect();
            for (x, got) in x.iter().zip(&got) {
                let exact = 0.5 * f64::from(*x) * (1.0 + libm::erf(f64::from(*x) / 2f64.sqrt()));
                let off = (f64::from(*got) - exact).abs();
                assert!(off < 2e-7 * f64::from(x.abs()).max(1.0), "gelu({x}) is {off} off");
            }
            assert!(first.is_empty() || first == got, "{}", isa.name());
            first = got;
        }
        let mut got = [f32::NAN; 2];
        gate_in_place(Gelu, &mut got[..1], &[1.0]);
        gate_in_place(Relu, &mut got[1..], &[1.0]);
        assert!(got.iter().all(|value| value.is_nan()));
    }

    #[test]
    fn clamped_gates_agree_with_f64_and_keep_nan() {
        let (rows, width, gate) = (3, 53, Gate::Clamped { alpha: 1.5, limit: 2.25 });
        let mut gate_up: Vec<f32> =
            (0..rows * 2 * width).map(|i| ((i * 71 % 997) as f32 - 498.0) * 0.01).collect();
        (gate_up[0], gate_up[width + 1]) = (f32::NAN, f32::NAN);
        for isa in Isa::available() {
            let mut out = vec![0.0; rows * width];
            glu(&mut Cpu::with_isa(2, isa), gate, &gate_up, width, &mut out);
            assert!(out[0].is_nan() && out[1].is_nan(), "{}", isa.name());
            for (i, got) in out.iter().enumerate().skip(2) {
                let at = i / width * 2 * width + i % width;
                let (gate, up) = (f64::from(gate_up[at]).min(2.25), f64::from(gate_up[at + width]));
                let exact = gate / (1.0 + (-1.5 * gate).exp()) * (up.clamp(-2.25, 2.25) + 1.0);
                assert!((f64::from(*got) - exact).abs() < 1e-5, "{got} for {exact}");
            }
        }
    }

    #[test]
    fn gelu_agrees_with_f64_on_every_instruction_set() {
        // The published formula cancels far below zero. Here the error is the exponent's rounding: half an
        // ulp of up to 88.
        check(Gate::GeluTanh, 3e-5, |x| {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            x / (1.0 + (-2.0 * u).exp())
        });
        for i in -300..300 {
            let x = i as f32 * 0.01;
            let u = (2.0 / std::f64::consts::PI).sqrt() * (f64::from(x) + 0.044_715 * f64::from(x).powi(3));
            let mut got = [x];
            gate_in_place(GeluTanh, &mut got, &[1.0]);
            assert!((f64::from(got[0]) - 0.5 * f64::from(x) * (1.0 + u.tanh())).abs() < 1e-6, "gelu({x})");
        }
    }
}
