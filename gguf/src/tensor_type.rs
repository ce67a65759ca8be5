//! Tensor types of GGUF files, with ggml's block sizes.

/// Tensor type, with the size of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorType {
    /// Number of the type in GGUF files.
    pub id: u32,
    /// Name in ggml.
    pub name: &'static str,
    /// Values per block.
    pub values: usize,
    /// Bytes per block.
    pub bytes: usize,
}

const fn kind(id: u32, name: &'static str, values: usize, bytes: usize) -> TensorType {
    TensorType { id, name, values, bytes }
}

/// All of ggml's types except withdrawn ones, as of ggml 0.25.3.
const TYPES: [TensorType; 35] = [
    kind(0, "F32", 1, 4),
    kind(1, "F16", 1, 2),
    kind(2, "Q4_0", 32, 18),
    kind(3, "Q4_1", 32, 20),
    kind(6, "Q5_0", 32, 22),
    kind(7, "Q5_1", 32, 24),
    kind(8, "Q8_0", 32, 34),
    kind(9, "Q8_1", 32, 36),
    kind(10, "Q2_K", 256, 84),
    kind(11, "Q3_K", 256, 110),
    kind(12, "Q4_K", 256, 144),
    kind(13, "Q5_K", 256, 176),
    kind(14, "Q6_K", 256, 210),
    kind(15, "Q8_K", 256, 292),
    kind(16, "IQ2_XXS", 256, 66),
    kind(17, "IQ2_XS", 256, 74),
    kind(18, "IQ3_XXS", 256, 98),
    kind(19, "IQ1_S", 256, 50),
    kind(20, "IQ4_NL", 32, 18),
    kind(21, "IQ3_S", 256, 110),
    kind(22, "IQ2_S", 256, 82),
    kind(23, "IQ4_XS", 256, 136),
    kind(24, "I8", 1, 1),
    kind(25, "I16", 1, 2),
    kind(26, "I32", 1, 4),
    kind(27, "I64", 1, 8),
    kind(28, "F64", 1, 8),
    kind(29, "IQ1_M", 256, 56),
    kind(30, "BF16", 1, 2),
    kind(34, "TQ1_0", 256, 54),
    kind(35, "TQ2_0", 256, 66),
    kind(39, "MXFP4", 32, 17),
    kind(40, "NVFP4", 64, 36),
    kind(41, "Q1_0", 128, 18),
    kind(42, "Q2_0", 64, 18),
];

impl TensorType {
    /// Looks up a type by its number.
    pub fn of(id: u32) -> Option<Self> {
        TYPES.iter().find(|kind| kind.id == id).copied()
    }

    /// Size in bytes of a tensor with rows of `dims[0]` values. `None` if rows are not whole blocks, a size
    /// is zero, or the product overflows.
    pub fn bytes_of(self, dims: &[u64]) -> Option<usize> {
        let size = |dim: &u64| usize::try_from(*dim).ok().filter(|size| *size > 0);
        let (row, outer) = dims.split_first()?;
        let row = size(row).filter(|row| row.is_multiple_of(self.values))?;
        let row = (row / self.values).checked_mul(self.bytes)?;
        // The number of values must not overflow either.
        dims.iter().try_fold(1usize, |all, dim| all.checked_mul(size(dim)?))?;
        outer.iter().try_fold(row, |all, dim| all.checked_mul(size(dim)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_checked() {
        let q4_k = TensorType::of(12).unwrap();
        assert_eq!(q4_k.bytes_of(&[512, 3]), Some(2 * 144 * 3));
        for dims in [&[100u64, 3][..], &[0, 3], &[256, 0], &[], &[256, u64::MAX], &[1 << 40, 1 << 30]] {
            assert_eq!(q4_k.bytes_of(dims), None, "{dims:?}");
        }
        assert_eq!(TensorType::of(4), None, "withdrawn");
        assert_eq!(TensorType::of(u32::MAX), None);
    }
}
