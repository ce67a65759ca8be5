//! Formats for checkpoints quantised by other libraries. An output has a single-precision scale per span of
//! 32, 64 or 128 columns of a leaf, and tables also of 16. That preserves every scale of GPTQ, AWQ,
//! compressed-tensors, FP8 and bitsandbytes: larger groups repeat theirs.
//!
//! - 4 and 8 bits with a zero point per span, multiplied as integers ([`integers`]).
//! - FP8 (E4M3 without infinities), and 4-bit indices into a table, such as NF4, multiplied as `f32`
//!   ([`numbers`]).

mod integers;
mod numbers;
mod round;
#[cfg(test)]
mod tests;

use super::super::{Format, Pack, Packed, Scales, Spec, Tail, Weights};
use super::int8;
use crate::cpu::input::GROUP;
pub(super) use integers::{multiply_eight_bits, multiply_four_bits};
use numbers::{CHUNK, TABLE_BYTES};
pub(super) use numbers::{multiply_fp8, multiply_table};
pub use round::to_e4m3;

/// FP8 numbers are multiplied in units of `1 / FP8_UNITS`; see [`crate::cpu::simd::Simd::load_e4m3`].
const FP8_UNITS: f32 = 256.0;

pub(super) const INT4_SPANS: [Format; 3] =
    [Format(&INT4_SPAN32), Format(&INT4_SPAN64), Format(&INT4_SPAN128)];
pub(super) const INT8_SPANS: [Format; 3] =
    [Format(&INT8_SPAN32), Format(&INT8_SPAN64), Format(&INT8_SPAN128)];
pub(super) const FP8_SPANS: [Format; 3] = [Format(&FP8_SPAN32), Format(&FP8_SPAN64), Format(&FP8_SPAN128)];
pub(super) const TABLE_SPANS: [Format; 3] =
    [Format(&TABLE_SPAN32), Format(&TABLE_SPAN64), Format(&TABLE_SPAN128)];

pub(super) const TABLE_SPAN16: Format = Format(&TABLE_SPAN16_SPEC);

static INT4_SPAN32: Spec = integers(["Int4Span32", "int4-span32"], 4, 32);
static INT4_SPAN64: Spec = integers(["Int4Span64", "int4-span64"], 4, 64);
static INT4_SPAN128: Spec = integers(["Int4Span128", "int4-span128"], 4, 128);
static INT8_SPAN32: Spec = integers(["Int8Span32", "int8-span32"], 8, 32);
static INT8_SPAN64: Spec = integers(["Int8Span64", "int8-span64"], 8, 64);
static INT8_SPAN128: Spec = integers(["Int8Span128", "int8-span128"], 8, 128);
static FP8_SPAN32: Spec = fp8(["Fp8Span32", "fp8-span32"], 32);
static FP8_SPAN64: Spec = fp8(["Fp8Span64", "fp8-span64"], 64);
static FP8_SPAN128: Spec = fp8(["Fp8Span128", "fp8-span128"], 128);
static TABLE_SPAN16_SPEC: Spec = table(["Table4Span16", "table4-span16"], 16);
static TABLE_SPAN32: Spec = table(["Table4Span32", "table4-span32"], 32);
static TABLE_SPAN64: Spec = table(["Table4Span64", "table4-span64"], 64);
static TABLE_SPAN128: Spec = table(["Table4Span128", "table4-span128"], 128);

const fn integers(names: [&'static str; 2], bits: u32, span: usize) -> Spec {
    let weights = Weights::Codes { code: Packed::stored_code, scales: Scales::Spans(span), has_zeros: true };
    let (head, pack) = match bits {
        4 => (Some(int8::FORMAT), round::four_bits as Pack),
        _ => (None, round::eight_bits as Pack),
    };
    // A span's sums are kept in addition to those of all columns.
    Spec { sums: [2, 2], head, ..Spec::new(names, bits, GROUP, weights, pack) }
}

const fn fp8(names: [&'static str; 2], span: usize) -> Spec {
    let weights = Weights::Numbers { number: numbers::fp8, scales: Scales::Spans(span), units: FP8_UNITS };
    Spec::new(names, 8, CHUNK, weights, round::fp8)
}

const fn table(names: [&'static str; 2], span: usize) -> Spec {
    let weights = Weights::Numbers { number: numbers::looked_up, scales: Scales::Spans(span), units: 1.0 };
    let tail = Some(Tail { bytes: |_| TABLE_BYTES, unread: |_| 0 });
    Spec { tail, ..Spec::new(names, 4, CHUNK, weights, round::table) }
}
