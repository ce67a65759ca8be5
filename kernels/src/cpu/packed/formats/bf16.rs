//! bfloat16 in pairs of columns, in the order of `VDPBF16PS`: `[panels][columns / 2][16 outputs][2 columns]`.

#![allow(clippy::needless_range_loop)] // lanes index several arrays

use std::marker::PhantomData;

use super::super::values::{self, Value};
use super::super::{Format, PANEL, Spec, Weights};
use crate::cpu::input::{Encoding, Input};
use crate::cpu::matmul::float::all_tiles;
use crate::cpu::matmul::float::arithmetic::{Arithmetic, OfPairs, in_bytes, values as f32_rows};
use crate::cpu::matmul::part::Part;
use crate::cpu::matrix::Storage;
use crate::cpu::rows::Rows;
use crate::cpu::simd::integer::IntegerIsa;
use crate::cpu::simd::{Isa, Kernel, LANES, Simd};

/// Number of adjacent columns.
const PAIR: usize = 2;

pub(super) const FORMAT: Format = Format(&SPEC);

static SPEC: Spec = Spec::new(["Bf16", "bf16"], 16, PAIR, WEIGHTS, values::pack::<Bf16>);

const WEIGHTS: Weights = Weights::Values { value: values::value::<Bf16>, is_bf16: true };

/// Pairs of bfloat16.
pub(super) struct Bf16;

impl Value for Bf16 {
    fn is_in(storage: &Storage) -> bool {
        matches!(storage, Storage::Bf16(_))
    }

    fn at(col: usize, lane: usize) -> usize {
        ((col / PAIR * PANEL + lane) * PAIR + col % PAIR) * 2
    }

    fn widen(bytes: &[u8]) -> f32 {
        half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }

    /// The same pairs with subnormals replaced by zeros.
    #[inline(always)]
    fn arrange(mut pairs: [u32; LANES]) -> [u32; LANES] {
        const EXPONENT: u32 = 0x7f80;
        for lane in 0..LANES {
            let pair = pairs[lane];
            let low = if pair & EXPONENT == 0 { 0x8000 } else { 0xffff };
            let high = if pair & EXPONENT << 16 == 0 { 0x8000_0000 } else { 0xffff_0000 };
            pairs[lane] = pair & (low | high);
        }
        pairs
    }
}

impl Tiled for Bf16 {
    #[inline(always)]
    fn all_tiles<S: Simd, A: OfPairs>(s: S, part: &Part<'_>) {
        all_tiles::<S, A>(s, part);
    }
}

pub(super) fn multiply(part: &Part<'_>, isa: Isa, _: IntegerIsa) {
    multiply_pairs::<Bf16>(part, isa);
}

/// How a format of bfloat16 multiplies some rows of a matrix, tile by tile.
pub(super) trait Tiled {
    fn all_tiles<S: Simd, A: OfPairs>(s: S, part: &Part<'_>);
}

/// Multiplies some rows of one matrix by all rows of `x`.
pub(super) fn multiply_pairs<T: Tiled>(part: &Part<'_>, isa: Isa) {
    match part.x.encoding() {
        Encoding::Bf16 => isa.run(PairProduct::<T> { part, tiled: PhantomData }),
        _ => isa.run(Product::<T> { part, tiled: PhantomData }),
    }
}

/// A product with activations in `f32`.
struct Product<'a, T> {
    part: &'a Part<'a>,
    tiled: PhantomData<T>,
}

impl<T: Tiled> Kernel for Product<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        T::all_tiles::<S, Pairs>(s, self.part);
    }
}

/// A product with activations rounded to bfloat16.
struct PairProduct<'a, T> {
    part: &'a Part<'a>,
    tiled: PhantomData<T>,
}

impl<T: Tiled> Kernel for PairProduct<'_, T> {
    type Output = ();
    const USES_DOT: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if S::HAS_DOT { T::all_tiles::<S, Dot>(s, self.part) } else { T::all_tiles::<S, Pairs>(s, self.part) }
    }
}

/// Weights and `x` in bfloat16, multiplied without widening.
pub(super) struct Dot;

impl Arithmetic for Dot {
    const PARTS: usize = 1;
    const WEIGHT_BYTES: usize = LANES * 4;
    const X_BYTES: usize = 4;
    type Operand<S: Simd> = S::Pairs;

    fn rows(x: &Input) -> Rows<'_, u8> {
        in_bytes(x.halves())
    }

    #[inline(always)]
    unsafe fn x<S: Simd>(s: S, from: *const u8, _: usize) -> S::Pairs {
        // SAFETY: guaranteed by the caller.
        s.splat_pair(unsafe { *from.cast() })
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(s: S, from: *const u8, _: usize) -> S::Pairs {
        // SAFETY: guaranteed by the caller.
        unsafe { s.load_pairs(from) }
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, x: S::Pairs, weights: S::Pairs, sum: S::V) -> S::V {
        s.dot_pairs(x, weights, sum)
    }
}

impl OfPairs for Dot {
    #[inline(always)]
    fn of_pairs<S: Simd>(_: S, pairs: S::Pairs, _: usize) -> S::Pairs {
        pairs
    }
}

/// Weights in bfloat16, widened; `x` in `f32`.
pub(super) struct Pairs;

impl Arithmetic for Pairs {
    const PARTS: usize = 2;
    const WEIGHT_BYTES: usize = LANES * 4;
    const X_BYTES: usize = 8;
    type Operand<S: Simd> = S::V;

    fn rows(x: &Input) -> Rows<'_, u8> {
        f32_rows(x)
    }

    #[inline(always)]
    unsafe fn x<S: Simd>(s: S, from: *const u8, part: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        s.splat(unsafe { *from.cast::<f32>().add(1 - part) })
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(s: S, from: *const u8, part: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        Self::of_pairs(s, unsafe { s.load_pairs(from) }, part)
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, x: S::V, weights: S::V, sum: S::V) -> S::V {
        s.fma(x, weights, sum)
    }
}

impl OfPairs for Pairs {
    #[inline(always)]
    fn of_pairs<S: Simd>(s: S, pairs: S::Pairs, part: usize) -> S::V {
        if part == 0 { s.widen_odd(pairs) } else { s.widen_even(pairs) }
    }
}
