//! Weights stored by GGUF in [blocks](crate::cpu::blocks), packed without rounding: codes, scales and minima
//! are preserved. Codes have 4, 5 or 6 bits.
//!
//! A panel consists of sections of 256 columns if groups have factors, else of 64. A section starts with its
//! parameters, each for sixteen outputs, followed by its codes, so that the kernel reads a single stream:
//!
//! ```text
//! with factors     scales f16 [16] | minima f16 [16] | factors i8 [groups][16] | minima's i8 [groups][16]
//! without          scales f16 [groups][16] | minima f16 [groups][16]
//! each 32 columns  low bits [4][16 outputs][4]: column j low, column j + 4 high
//!                  5th bits [16 outputs][4]: bit j / 4 is that of column j
//!                  5th and 6th bits [2][16 outputs][4]: pair of bits j / 4 is that of column j
//! ```
//!
//! Types without minima omit them, except for the unused slot beside the scale.

mod kernel;
mod pack;
mod section;
mod specs;
#[cfg(test)]
mod tests;

pub(in crate::cpu::packed) use pack::pack;
pub(super) use specs::keeping;

use super::super::Format;
use crate::cpu::matmul::part::Multiply;
use specs::{Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K};

/// Formats of this module with their kernels.
pub(super) const TABLE: [(Format, Multiply); 9] = [
    (Format(&Q4_0), kernel::multiply_4_32),
    (Format(&Q4_1), kernel::multiply_4_32),
    (Format(&Q5_0), kernel::multiply_5_32),
    (Format(&Q5_1), kernel::multiply_5_32),
    (Format(&Q2_K), kernel::multiply_4_16),
    (Format(&Q3_K), kernel::multiply_4_16),
    (Format(&Q4_K), kernel::multiply_4_32),
    (Format(&Q5_K), kernel::multiply_5_32),
    (Format(&Q6_K), kernel::multiply_6_16),
];
