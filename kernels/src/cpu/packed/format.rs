//! What a format of weights specifies.

use super::super::Cpu;
use super::super::blocks::BlockType;
use super::super::input::{Encoding, GROUP};
use super::super::matrix::WeightMatrix;
use super::error::PackError;
use super::layout::Layout;
use super::matrix::Packed;

/// Storage format of packed weights; [`formats`](super::formats) lists all.
#[derive(Clone, Copy)]
pub struct Format(pub(super) &'static Spec);

/// Specification of a format.
pub(in crate::cpu) struct Spec {
    /// Name in logs and in the keys of packed files. Never changes.
    pub(in crate::cpu) name: &'static str,
    /// Name in the file names of packed files.
    pub(in crate::cpu) file_name: &'static str,
    /// Bits per value or code.
    pub(in crate::cpu) bits: u32,
    /// The number of columns of a panel is padded to a multiple of this.
    pub(in crate::cpu) columns: usize,
    /// Bytes inserted among a panel's codes.
    pub(in crate::cpu) inserted: Inserted,
    /// Whether weights are numbers or codes.
    pub(in crate::cpu) weights: Weights,
    /// Vectors of sums per vector of results: with an instruction that multiplies codes four by four, and
    /// without.
    pub(in crate::cpu) sums: [usize; 2],
    /// Format of the model's head if its layers have this format; `None` = this one.
    pub(in crate::cpu) head: Option<Format>,
    /// Data after values, scales and zero points, if any.
    pub(in crate::cpu) tail: Option<Tail>,
    /// Packs a matrix to this format with all threads; see [`pack`](fn@super::pack).
    pub(in crate::cpu) pack: Pack,
}

/// Type of [`Spec::pack`].
pub(super) type Pack = fn(&mut Cpu, &WeightMatrix, Layout, &mut [u8]) -> Result<(), PackError>;

impl Spec {
    /// A format without inserted bytes, tail or special head, with one vector of sums per vector of results.
    pub(in crate::cpu) const fn new(
        names: [&'static str; 2],
        bits: u32,
        columns: usize,
        weights: Weights,
        pack: Pack,
    ) -> Self {
        let ([name, file_name], inserted) = (names, Inserted::NOTHING);
        Self { name, file_name, bits, columns, inserted, weights, sums: [1, 1], head: None, tail: None, pack }
    }
}

/// Bytes that are inserted among a panel's codes.
pub(in crate::cpu) struct Inserted {
    /// Columns whose codes follow each insertion.
    pub(in crate::cpu) columns: usize,
    /// Bytes per insertion.
    pub(in crate::cpu) bytes: usize,
}

impl Inserted {
    /// Nothing inserted: codes are contiguous.
    pub(in crate::cpu) const NOTHING: Self = Self { columns: GROUP, bytes: 0 };
}

/// The kind of a format's weights, and how to read one.
pub(in crate::cpu) enum Weights {
    /// Weights are floating-point numbers.
    Values {
        /// Reads the value of an output and column.
        value: fn(&Packed, usize, usize) -> f32,
        /// Whether weights are bfloat16, so that activations may be rounded to bfloat16, too.
        is_bf16: bool,
    },
    /// Codes of small integers.
    Codes {
        /// Reads the code of an output and column, as it is multiplied.
        code: fn(&Packed, usize, usize) -> u8,
        /// Granularity of the scales.
        scales: Scales,
        /// Whether zero points are stored.
        has_zeros: bool,
    },
    /// Small-integer codes, interleaved with the parameters of blocks.
    Blocks {
        /// Type of the blocks.
        kind: BlockType,
        /// Reads the weight of an output and column.
        weight: fn(&Packed, usize, usize) -> f32,
    },
    /// Codes of floating-point numbers, times a scale: `[columns][16 outputs]` of 8 bits, or two columns per
    /// byte, the even one low.
    Numbers {
        /// Reads the number of an output and column, in `units`.
        number: fn(&Packed, usize, usize) -> f32,
        /// Granularity of the scales.
        scales: Scales,
        /// Unit of the numbers, a power of two that is multiplied into the stored scales.
        units: f32,
    },
}

/// Granularity of scales.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::cpu) enum Scales {
    /// One per output and leaf, in single precision.
    Outputs,
    /// One per output and group of 32 columns, in half precision.
    Groups,
    /// One per output and span of this many columns of a leaf, in single precision. A leaf's last span may be
    /// shorter.
    Spans(usize),
}

/// A part of a packed matrix that only its format reads.
pub(in crate::cpu) struct Tail {
    /// Size in bytes.
    pub(in crate::cpu) bytes: fn(&Layout) -> usize,
    /// Number of its bytes that no product reads.
    pub(in crate::cpu) unread: fn(&Packed) -> usize,
}

impl Format {
    /// Name for logs.
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// Name in the file names of packed files.
    pub const fn file_name(self) -> &'static str {
        self.0.file_name
    }

    /// Bits per value or code.
    pub const fn bits(self) -> u32 {
        self.0.bits
    }

    /// Whether weights are codes of small integers; then activations are, too.
    pub const fn is_integer(self) -> bool {
        matches!(self.0.weights, Weights::Codes { .. } | Weights::Blocks { .. })
    }

    /// Encoding of the activations that these weights are multiplied by.
    pub(super) const fn encoding(self, bf16: bool) -> Encoding {
        match self.0.weights {
            Weights::Codes { .. } | Weights::Blocks { .. } => Encoding::Int8,
            Weights::Values { is_bf16: true, .. } if bf16 => Encoding::Bf16,
            Weights::Values { .. } | Weights::Numbers { .. } => Encoding::F32,
        }
    }

    /// Format of the head of a model whose layers have this format. A head never has less than 8 bits,
    /// because nothing after it compensates for errors of its logits.
    pub fn of_head(self) -> Self {
        self.0.head.unwrap_or(self)
    }

    /// Vectors of sums per vector of results, for an instruction set with or without a product of codes four
    /// by four.
    pub(in crate::cpu) const fn sums(self, has_dot: bool) -> usize {
        self.0.sums[if has_dot { 0 } else { 1 }]
    }

    /// Granularity of the scales; `None` if there are no scales.
    pub(super) const fn scales(self) -> Option<Scales> {
        match self.0.weights {
            Weights::Codes { scales, .. } | Weights::Numbers { scales, .. } => Some(scales),
            Weights::Values { .. } | Weights::Blocks { .. } => None,
        }
    }
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Format {}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name)
    }
}
