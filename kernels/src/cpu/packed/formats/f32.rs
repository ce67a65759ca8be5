//! IEEE single, `[panels][columns][16 outputs]`.

use std::marker::PhantomData;

use super::super::values::{self, Value};
use super::super::{Format, PANEL, Spec, Weights};
use crate::cpu::matmul::float::Product;
use crate::cpu::matmul::float::arithmetic::{Element, Wide};
use crate::cpu::matmul::part::Part;
use crate::cpu::matrix::Storage;
use crate::cpu::simd::integer::IntegerIsa;
use crate::cpu::simd::{Isa, Simd};

pub(super) const FORMAT: Format = Format(&SPEC);

static SPEC: Spec = Spec::new(["F32", "f32"], 32, 2, WEIGHTS, values::pack::<F32>);

const WEIGHTS: Weights = Weights::Values { value: values::value::<F32>, is_bf16: false };

pub(super) struct F32;

impl Value for F32 {
    fn is_in(storage: &Storage) -> bool {
        matches!(storage, Storage::F32(_))
    }

    fn at(col: usize, lane: usize) -> usize {
        (col * PANEL + lane) * 4
    }

    fn widen(bytes: &[u8]) -> f32 {
        f32::from_le_bytes(std::array::from_fn(|i| bytes[i]))
    }
}

impl Element for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { simd.load(from.cast()) }
    }
}

pub(super) fn multiply(part: &Part<'_>, isa: Isa, _: IntegerIsa) {
    isa.run(Product::<Wide<F32>> { part, arithmetic: PhantomData });
}
