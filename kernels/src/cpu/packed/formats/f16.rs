//! IEEE half, `[panels][columns][16 outputs]`.

#![allow(clippy::needless_range_loop)] // lanes index several arrays

use std::marker::PhantomData;

use super::super::values::{self, Value};
use super::super::{Format, PANEL, Spec, Weights};
use crate::cpu::matmul::float::Product;
use crate::cpu::matmul::float::arithmetic::{Element, Wide};
use crate::cpu::matmul::part::Part;
use crate::cpu::matrix::Storage;
use crate::cpu::simd::integer::IntegerIsa;
use crate::cpu::simd::{Isa, LANES, Simd};

pub(super) const FORMAT: Format = Format(&SPEC);

static SPEC: Spec = Spec::new(["F16", "f16"], 16, 2, WEIGHTS, values::pack::<F16>);

const WEIGHTS: Weights = Weights::Values { value: values::value::<F16>, is_bf16: false };

struct F16;

impl Value for F16 {
    fn is_in(storage: &Storage) -> bool {
        matches!(storage, Storage::F16(_))
    }

    fn at(col: usize, lane: usize) -> usize {
        (col * PANEL + lane) * 2
    }

    fn widen(bytes: &[u8]) -> f32 {
        half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }

    /// Splits sixteen pairs of columns into one column and then the other.
    #[inline(always)]
    fn arrange(pairs: [u32; LANES]) -> [u32; LANES] {
        let mut columns = [0; LANES];
        for lane in 0..LANES / 2 {
            let (even, odd) = (pairs[2 * lane], pairs[2 * lane + 1]);
            columns[lane] = even & 0xffff | odd << 16;
            columns[lane + LANES / 2] = even >> 16 | odd & 0xffff_0000;
        }
        columns
    }
}

impl Element for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { simd.load_f16(from) }
    }
}

pub(super) fn multiply(part: &Part<'_>, isa: Isa, _: IntegerIsa) {
    isa.run(Product::<Wide<F16>> { part, arithmetic: PhantomData });
}
