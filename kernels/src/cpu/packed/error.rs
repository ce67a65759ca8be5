//! Errors of packing a matrix.

/// A weight that is NaN or infinite and so cannot be quantised.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "the weight of output {row} and input {col} is {value}, and only finite weights can be quantized; repair the checkpoint or load it without quantization"
)]
pub struct NotFinite {
    /// Output of the weight.
    pub row: usize,
    /// Input of the weight.
    pub col: usize,
    /// Value of the weight.
    pub value: f32,
}

/// Why a matrix cannot be packed to a format.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum PackError {
    /// A weight to be quantised is NaN or infinite.
    #[error(transparent)]
    NotFinite(#[from] NotFinite),
    /// More weights have rare high bytes than [`Format::BF16_FOLDED`](super::Format::BF16_FOLDED) has space
    /// for.
    #[error(
        "{patches} weights have rare exponents, and the folded format has space for {room}; keep the matrix in plain bfloat16"
    )]
    ManyExponents {
        /// Number of such weights.
        patches: usize,
        /// Largest number of them.
        room: usize,
    },
    /// A scale does not fit half precision, which the format requires.
    #[error("output {row} has a scale that does not fit half precision; store the matrix in another format")]
    WideScale {
        /// Output with that scale.
        row: usize,
    },
    /// A checkpoint's code is too large for the format.
    #[error("the code of output {row} and input {col} is {code}, and the format's largest code is {most}")]
    LargeCode {
        /// Output of the weight.
        row: usize,
        /// Input of the weight.
        col: usize,
        /// Value of the code.
        code: u8,
        /// The format's largest code.
        most: u8,
    },
}
