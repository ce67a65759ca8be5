//! How activations are encoded, and what their codes have in common with those of weights.

/// Columns that share a scale of weights in grouped formats.
pub const GROUP: usize = 32;
/// Columns that share a scale of inputs that are codes.
pub const INPUT_GROUP: usize = 16;
/// Parts of a group that have scales of inputs.
pub(in crate::cpu) const PARTS: usize = GROUP / INPUT_GROUP;

/// Zero point of codes as they are multiplied, in formats that do not store zero points.
pub(in crate::cpu) const ZERO: u8 = 128;

/// Input of each packed column, if columns are not in the order of the inputs.
pub type Order = std::sync::Arc<[u32]>;

/// Some columns of a row as codes, with all that products need to know of them, in half a cache line.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C, align(32))]
pub(in crate::cpu) struct CodeGroup {
    pub(in crate::cpu) codes: [i8; INPUT_GROUP],
    pub(in crate::cpu) scale: f32,
    /// Sum of the codes.
    pub(in crate::cpu) sum: i32,
    /// `-ZERO * sum`, for weights with that zero point.
    pub(in crate::cpu) offset: i32,
    /// `scale * sum`: sum of the values.
    pub(in crate::cpu) value: f32,
}

/// How activations are encoded for a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encoding {
    /// `f32`, not rounded.
    #[default]
    F32,
    /// Rounded to bfloat16, ties to even; subnormals become zero.
    Bf16,
    /// Codes `x / scale` from -127 to 127, ties to even, with one `f32` scale `max|x| / 127` per row and
    /// [`INPUT_GROUP`] columns. A scale for a whole row would be ruled by a few outliers, which every trained
    /// model has.
    Int8,
}

impl Encoding {
    /// Whether values are codes.
    pub(super) fn is_codes(self) -> bool {
        self == Self::Int8
    }
}
