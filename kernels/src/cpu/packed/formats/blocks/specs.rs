//! The formats' specifications.

use super::super::super::{Format, Inserted, Layout, PackError, Spec, Weights};
use super::pack::pack;
use super::section::{Section, weight};
use crate::cpu::Cpu;
use crate::cpu::blocks::BlockType;
use crate::cpu::input::GROUP;
use crate::cpu::matrix::WeightMatrix;

pub(super) static Q4_0: Spec = spec("q4-0", 4, BlockType::Q4_0);
pub(super) static Q4_1: Spec = spec("q4-1", 4, BlockType::Q4_1);
pub(super) static Q5_0: Spec = spec("q5-0", 5, BlockType::Q5_0);
pub(super) static Q5_1: Spec = spec("q5-1", 5, BlockType::Q5_1);
pub(super) static Q2_K: Spec = spec("q2-k", 4, BlockType::Q2K);
pub(super) static Q3_K: Spec = spec("q3-k", 4, BlockType::Q3K);
pub(super) static Q4_K: Spec = spec("q4-k", 4, BlockType::Q4K);
pub(super) static Q5_K: Spec = spec("q5-k", 5, BlockType::Q5K);
pub(super) static Q6_K: Spec = spec("q6-k", 6, BlockType::Q6K);

/// Formats that hold blocks of this type without loss, best first. All but the last may be unable to
/// represent a given matrix.
pub(in super::super) fn keeping(kind: BlockType) -> &'static [Format] {
    match kind {
        BlockType::Q4_0 => const { &[Format(&Q4_0)] },
        BlockType::Q4_1 => const { &[Format(&Q4_1)] },
        BlockType::Q5_0 => const { &[Format(&Q5_0)] },
        BlockType::Q5_1 => const { &[Format(&Q5_1)] },
        BlockType::Q8_0 | BlockType::Iq4Nl => const { &[Format::INT8_GROUP] },
        BlockType::Q2K => const { &[Format(&Q2_K)] },
        BlockType::Q3K => const { &[Format(&Q3_K)] },
        BlockType::Q4K => const { &[Format(&Q4_K)] },
        BlockType::Q5K => const { &[Format(&Q5_K)] },
        BlockType::Q6K => const { &[Format(&Q6_K)] },
        // Its scales are 8-bit powers of two, which half precision covers only in part.
        BlockType::Mxfp4 => const { &[Format::INT8_GROUP, Format::F32] },
    }
}

const fn spec(file_name: &'static str, bits: u32, kind: BlockType) -> Spec {
    let section = Section::of(kind.form());
    let (columns, weights) = (section.groups * GROUP, Weights::Blocks { kind, weight });
    Spec {
        inserted: Inserted { columns, bytes: section.header },
        // A group's sums are kept in addition to those of all columns.
        sums: [2, 2],
        ..Spec::new([kind.name(), file_name], bits, columns, weights, pack_blocks)
    }
}

/// Implements [`pack`](fn@crate::cpu::packed::pack).
///
/// # Panics
/// If the matrix is not stored in the format's block type.
fn pack_blocks(cpu: &mut Cpu, from: &WeightMatrix, layout: Layout, to: &mut [u8]) -> Result<(), PackError> {
    let kind = from.storage().blocks();
    let kind = kind.unwrap_or_else(|| unreachable!("{:?} holds only blocks", layout.format));
    pack(cpu, from, kind, layout, to)
}
