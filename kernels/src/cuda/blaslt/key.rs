//! Keys that select a product's algorithm.

use std::fmt;

use cudarc::cublaslt::sys::{self, cudaDataType_t as DataType};

use crate::cuda::memory::{E4m3, Element};

/// Element types of a product's operands and results.
pub trait BlasElement: Element {
    /// cuBLASLt's name of the type.
    const TYPE: DataType;
}

impl BlasElement for half::bf16 {
    const TYPE: DataType = DataType::CUDA_R_16BF;
}

impl BlasElement for half::f16 {
    const TYPE: DataType = DataType::CUDA_R_16F;
}

impl BlasElement for f32 {
    const TYPE: DataType = DataType::CUDA_R_32F;
}

impl BlasElement for E4m3 {
    const TYPE: DataType = DataType::CUDA_R_8F_E4M3;
}

/// How e4m3 operands are scaled. A value is the stored value times its scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scaling {
    /// No scales, for types other than e4m3.
    None,
    /// One scale for `x`, one for the weight: `[1]` each.
    Tensor,
    /// One scale for each row of `x`, `[rows]`, and of the weight, `[n]`. Since cuBLAS 12.9.
    Outer,
    /// `x`: one scale per 128 values of a row, `[ceil(k / 128), rows]`, with rows contiguous. Weight: one
    /// scale per 128 x 128 block, `[ceil(n / 128), stride]`, where the stride is `ceil(k / 128)` rounded up
    /// to a multiple of 4. `rows` must be a multiple of 4. Since cuBLAS 12.9.
    Block128,
}

impl Scaling {
    /// All kinds of scaling.
    pub const ALL: [Self; 4] = [Self::None, Self::Tensor, Self::Outer, Self::Block128];

    /// cuBLASLt's modes for (weight, x), which are its A and B.
    pub(super) fn modes(self) -> (sys::cublasLtMatmulMatrixScale_t, sys::cublasLtMatmulMatrixScale_t) {
        use sys::cublasLtMatmulMatrixScale_t as Mode;
        match self {
            Self::None | Self::Tensor => {
                (Mode::CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, Mode::CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F)
            }
            Self::Outer => (
                Mode::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
                Mode::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
            ),
            Self::Block128 => (
                Mode::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                Mode::CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
            ),
        }
    }

    /// Required numbers of scales (weight, x).
    pub fn counts(self, rows: usize, n: usize, k: usize) -> (usize, usize) {
        match self {
            Self::None => (0, 0),
            Self::Tensor => (1, 1),
            Self::Outer => (n, rows),
            Self::Block128 => {
                let blocks = k.div_ceil(128);
                (n.div_ceil(128) * blocks.next_multiple_of(4), blocks * rows)
            }
        }
    }
}

/// A kind of product. One algorithm is chosen for each key and kept, so the same product gives the same bits
/// in every run on the same device with the same cuBLASLt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GemmKey {
    /// Largest number of rows of the bucket, see [`row_bucket`].
    pub rows: u32,
    /// Columns of the result, which are rows of the weight.
    pub n: u32,
    /// Dimension that is summed over.
    pub k: u32,
    /// Type of `x` and the weight.
    pub input: DataType,
    /// Type of the result and the bias.
    pub output: DataType,
    /// Scaling of e4m3 operands.
    pub scaling: Scaling,
    /// Whether a bias is added.
    pub bias: bool,
}

impl GemmKey {
    /// The key for `rows` rows of `I` times an `[n, k]` weight, with a result of `O`.
    pub fn new<I: BlasElement, O: BlasElement>(
        rows: usize,
        n: usize,
        k: usize,
        scaling: Scaling,
        bias: bool,
    ) -> Self {
        let (rows, n, k) = (row_bucket(rows) as u32, n as u32, k as u32);
        Self { rows, n, k, input: I::TYPE, output: O::TYPE, scaling, bias }
    }

    /// The key as written in the file of chosen algorithms.
    pub(super) fn to_line(self) -> String {
        let Self { rows, n, k, input, output, scaling, bias } = self;
        format!("{rows} {n} {k} {} {} {} {}", input as u32, output as u32, scaling as u32, u32::from(bias))
    }
}

impl fmt::Display for GemmKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, n, k, input, output, scaling, bias } = self;
        write!(f, "[{rows}, {k}] x [{n}, {k}]^T, {input:?} to {output:?}, scaling {scaling:?}, bias {bias}")
    }
}

/// Rounds `rows` up to a bucket: every number up to 16, then 24, 32, 48, 64, … (powers of two and the
/// midpoints between them).
pub fn row_bucket(rows: usize) -> usize {
    if rows <= 16 {
        return rows.max(1);
    }
    let power = rows.next_power_of_two();
    if rows <= power / 4 * 3 { power / 4 * 3 } else { power }
}

/// All buckets up to that of `max_rows`, ascending.
pub fn row_buckets(max_rows: usize) -> impl Iterator<Item = usize> {
    let last = row_bucket(max_rows);
    std::iter::successors(Some(1), |rows| Some(row_bucket(rows + 1))).take_while(move |rows| *rows <= last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_rows_and_few_more() {
        for rows in 1..=20_000 {
            let bucket = row_bucket(rows);
            assert!(bucket >= rows && bucket <= rows.max(16) * 3 / 2, "{rows} rows in {bucket}");
            assert_eq!(row_bucket(bucket), bucket, "a bucket is its own");
        }
        let some: Vec<_> = row_buckets(100).collect();
        assert_eq!(some[14..], [15, 16, 24, 32, 48, 64, 96, 128]);
        assert_eq!(row_buckets(1).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn block_scales_are_padded_to_four() {
        assert_eq!(Scaling::Block128.counts(8, 300, 640), (3 * 8, 5 * 8));
        assert_eq!(Scaling::Outer.counts(8, 300, 640), (300, 8));
    }
}
