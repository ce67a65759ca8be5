//! The types that a cache's numbers may have.

/// Number type of cached keys and values. Roundings are to nearest, ties to even.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    /// `f32`, not rounded.
    #[default]
    F32,
    /// bfloat16; magnitudes below 2^-55 become zero. Attention rounds queries and softmax weights likewise.
    Bf16,
    /// IEEE half; finite values outside its range become ±65504, its largest.
    F16,
    /// 8-bit integers. A token's key in each head has one `f32` scale, `max|x| / 127`, and its value another.
    Int8,
    /// FP8 (E4M3 without infinities), with scales as in [`KvType::Int8`], `max|x| / 448`.
    Fp8,
}

impl KvType {
    /// All number types.
    pub const ALL: [Self; 5] = [Self::F32, Self::Bf16, Self::F16, Self::Int8, Self::Fp8];

    /// Whether each row of numbers has a scale.
    #[inline(always)]
    pub(in crate::cpu) const fn is_scaled(self) -> bool {
        matches!(self, Self::Int8 | Self::Fp8)
    }
}
