//! The formats of weights, one file each: its specification ([`Spec`](super::format::Spec)), packing,
//! widening and kernel. A new format is a file here, a line in [`TABLE`] and a constant.

mod bf16;
mod bf16_folded;
pub(super) mod blocks;
mod f16;
mod f32;
mod grouped;
pub(in crate::cpu) mod int4;
mod int8;
mod spanned;

pub use spanned::to_e4m3;

use super::Format;
use crate::cpu::matmul::part::{Multiply, Part};
use crate::cpu::matrix::Storage;
use crate::cpu::simd::Isa;
use crate::cpu::simd::integer::IntegerIsa;

/// Formats with their kernels; those of blocks have their own table.
const TABLE: [(Format, Multiply); 21] = [
    (Format::F32, f32::multiply),
    (Format::F16, f16::multiply),
    (Format::BF16, bf16::multiply),
    (Format::BF16_FOLDED, bf16_folded::kernel::multiply),
    (Format::INT8, int8::multiply),
    (Format::INT8_GROUP, grouped::multiply_int8),
    (Format::INT4, int4::kernel::multiply),
    (Format::INT4_ZERO, grouped::multiply_int4),
    (spanned::INT4_SPANS[0], spanned::multiply_four_bits),
    (spanned::INT4_SPANS[1], spanned::multiply_four_bits),
    (spanned::INT4_SPANS[2], spanned::multiply_four_bits),
    (spanned::INT8_SPANS[0], spanned::multiply_eight_bits),
    (spanned::INT8_SPANS[1], spanned::multiply_eight_bits),
    (spanned::INT8_SPANS[2], spanned::multiply_eight_bits),
    (spanned::FP8_SPANS[0], spanned::multiply_fp8),
    (spanned::FP8_SPANS[1], spanned::multiply_fp8),
    (spanned::FP8_SPANS[2], spanned::multiply_fp8),
    (spanned::TABLE_SPAN16, spanned::multiply_table),
    (spanned::TABLE_SPANS[0], spanned::multiply_table),
    (spanned::TABLE_SPANS[1], spanned::multiply_table),
    (spanned::TABLE_SPANS[2], spanned::multiply_table),
];

impl Format {
    /// 32-bit floats, without loss.
    pub const F32: Self = f32::FORMAT;
    /// IEEE half, without loss.
    pub const F16: Self = f16::FORMAT;
    /// bfloat16; subnormals become zero, as in `VDPBF16PS`.
    pub const BF16: Self = bf16::FORMAT;
    /// bfloat16 in 12 bits without loss, for weights whose exponents are mostly among a few.
    pub const BF16_FOLDED: Self = bf16_folded::FORMAT;
    /// 8 bits, one scale per output.
    pub const INT8: Self = int8::FORMAT;
    /// 8 bits, one scale per output and group of 32 columns, as in GGUF's `Q8_0`.
    pub const INT8_GROUP: Self = grouped::INT8_GROUP;
    /// 4 bits that expand to codes of [`Format::INT8`]: `multiplier * (code - zero point)`, with a 4-bit
    /// multiplier and zero point per output and group of 32 columns. QServe (arXiv 2405.04532) calls it
    /// progressive group quantization.
    pub const INT4: Self = int4::FORMAT;
    /// 4 bits, one scale and zero point per output and group of 32 columns, as in GPTQ, AWQ and GGUF's
    /// `Q4_0`.
    pub const INT4_ZERO: Self = grouped::INT4_ZERO;

    /// 4 bits, one single-precision scale and zero point per output and span of 32, 64 or 128 columns.
    pub const INT4_SPANS: [Self; 3] = spanned::INT4_SPANS;
    /// 8 bits, with scales and zero points as in [`Format::INT4_SPANS`].
    pub const INT8_SPANS: [Self; 3] = spanned::INT8_SPANS;
    /// FP8 (E4M3 without infinities), with one single-precision scale per output and span.
    pub const FP8_SPANS: [Self; 3] = spanned::FP8_SPANS;
    /// 4-bit indices into a table of sixteen values, with one scale per output and span; quantises to NF4.
    pub const TABLE_SPANS: [Self; 3] = spanned::TABLE_SPANS;
    /// Like [`Format::TABLE_SPANS`], with spans of 16 columns, as in NVFP4.
    pub const TABLE_SPAN16: Self = spanned::TABLE_SPAN16;

    /// Formats that hold only weights stored in blocks.
    pub fn of_blocks() -> impl Iterator<Item = Self> {
        blocks::TABLE.iter().map(|(format, _)| *format)
    }

    /// Formats to which weights can be converted, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|(format, _)| *format)
    }

    /// The lossless formats for `storage`, best first. All but the last may be unable to hold a given matrix.
    pub fn keeping(storage: &Storage) -> &'static [Self] {
        match storage {
            Storage::Bf16(_) => &[Self::BF16_FOLDED, Self::BF16],
            Storage::F16(_) => &[Self::F16],
            Storage::F32(_) => &[Self::F32],
            Storage::Blocks(kind, _) => blocks::keeping(*kind),
        }
    }
}

/// Multiplies with the kernel of the weights' format.
pub(in crate::cpu) fn multiply(part: &Part<'_>, isa: Isa, integers: IntegerIsa) {
    let format = part.linear.weights.layout().format;
    match TABLE.iter().chain(&blocks::TABLE).find(|(known, _)| *known == format) {
        Some((_, multiply)) => multiply(part, isa, integers),
        None => unreachable!("every format is in the table"),
    }
}
