//! Why a matrix cannot lie in a format.

/// A weight that no integer can stand for.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "the weight of output {row} and input {col} is {value}, only finite ones can be rounded to integers; repair the checkpoint or load it without quantization"
)]
pub struct NotFinite {
    /// Its output.
    pub row: usize,
    /// Its input.
    pub col: usize,
    /// What it is.
    pub value: f32,
}

/// Why a matrix does not lie in a format.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum PackError {
    /// A weight is to be rounded that cannot.
    #[error(transparent)]
    NotFinite(#[from] NotFinite),
    /// [`Format::BF16_FOLDED`](super::Format::BF16_FOLDED) has no room for so many high bytes that are in no table.
    #[error(
        "{patches} weights have exponents that are rare among their neighbours, and folding has room for {room}; leave them in 16 bits"
    )]
    ManyExponents {
        /// Such weights.
        patches: usize,
        /// How many there may be.
        room: usize,
    },
    /// A code of a checkpoint has more bits than the format.
    #[error("the code of output {row} and input {col} is {code}, and the format's largest is {most}")]
    LargeCode {
        /// Its output.
        row: usize,
        /// Its input.
        col: usize,
        /// What it is.
        code: u8,
        /// What it may be.
        most: u8,
    },
}
