//! A kind of product that is ready to run: its descriptions and its algorithm.

use std::ffi::c_void;

use cudarc::cublaslt::sys::{self, cublasLtMatmulDescAttributes_t as Attribute};

use super::call::{Handle, Layout, Operation, Preference, check};
use super::key::{GemmKey, Scaling};
use crate::cuda::CudaError;
use crate::cuda::error::BLAS_LAUNCH;

/// Alignment of operands and results in bytes, which wide loads and TMA require. (The library's default, 256,
/// does not hold for a row inside a matrix.)
pub(super) const ALIGNMENT: u32 = 16;

/// An algorithm as the library's 64 opaque bytes. The same bytes select the same algorithm in every process
/// with the same library version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Algorithm {
    pub(super) data: [u64; 8],
    /// Workspace that the algorithm needs.
    pub(super) workspace_bytes: usize,
}

/// Addresses of one product's operands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operands {
    pub(super) rows: u32,
    pub(super) out: u64,
    pub(super) x: u64,
    pub(super) weight: u64,
    pub(super) bias: u64,
    pub(super) x_scales: u64,
    pub(super) weight_scales: u64,
    pub(super) workspace: u64,
    pub(super) workspace_bytes: usize,
}

/// The descriptions of a product. The library's matrices are column-major: row-major `x [rows, k]` is its B,
/// `k` by `rows`; row-major weight `[n, k]` is its A, `k` by `n`, transposed; then D = A^T B, `n` by `rows`,
/// is our row-major `[rows, n]`. It is also the only form that supports FP8.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) key: GemmKey,
    pub(super) algorithm: Algorithm,
    operation: Operation,
    weight: Layout,
    x: Layout,
    out: Layout,
}

// SAFETY: descriptions are plain memory of the library, used under the owner's lock.
unsafe impl Send for Plan {}

impl Plan {
    /// Describes the product; the algorithm has to be set afterwards.
    pub(super) fn new(key: GemmKey) -> Result<Self, CudaError> {
        let operation = Operation::new()?;
        if key.bias {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
            operation.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)?;
            operation.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, key.output as i32)?;
        }
        let (weight_mode, x_mode) = key.scaling.modes();
        if matches!(key.scaling, Scaling::Outer | Scaling::Block128) {
            operation.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, weight_mode as i32)?;
            operation.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, x_mode as i32)?;
        }
        if matches!(key.scaling, Scaling::Tensor | Scaling::Outer) {
            // Sums stay in the tensor core's own registers (a few bits less than f32), as is usual for
            // inference.
            operation.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1i8)?;
        }
        let plan = Self {
            key,
            algorithm: Algorithm { data: [0; 8], workspace_bytes: 0 },
            operation,
            weight: Layout::new(key.input, key.k, key.n, key.k)?,
            x: Layout::new(key.input, key.k, key.rows, key.k)?,
            out: Layout::new(key.output, key.n, key.rows, key.n)?,
        };
        plan.set_pointers(&Operands::placeholder(key.rows))?;
        Ok(plan)
    }

    /// Up to `most` algorithms for the bucket's row count, the heuristics' favourite first. Empty if the
    /// library does not support the product.
    pub(super) fn algorithms(
        &self,
        handle: &Handle,
        most: usize,
        workspace_bytes: usize,
    ) -> Result<Vec<Algorithm>, CudaError> {
        let preference = Preference::new(workspace_bytes, ALIGNMENT)?;
        // SAFETY: plain numbers, and zero is one of the status values.
        let mut found: Vec<sys::cublasLtMatmulHeuristicResult_t> = vec![unsafe { std::mem::zeroed() }; most];
        let mut count = 0;
        // SAFETY: all descriptions are alive; `found` has space for `most` results.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle.0,
                self.operation.0,
                self.weight.0,
                self.x.0,
                self.out.0,
                self.out.0,
                preference.0,
                most as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        if status == sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
            return Ok(Vec::new());
        }
        check("cublasLtMatmulAlgoGetHeuristic", status, || self.key.to_string())?;
        Ok(found[..(count.max(0) as usize).min(most)]
            .iter()
            .filter(|result| result.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS)
            .filter(|result| result.workspaceSize <= workspace_bytes)
            .map(|result| Algorithm { data: result.algo.data, workspace_bytes: result.workspaceSize })
            .collect())
    }

    /// Whether the library can run `algorithm` on this product; used for algorithms read from a file.
    pub(super) fn accepts(&self, handle: &Handle, algorithm: &Algorithm, workspace_bytes: usize) -> bool {
        let algo = sys::cublasLtMatmulAlgo_t { data: algorithm.data };
        // SAFETY: plain numbers, and zero is one of the status values.
        let mut result: sys::cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        // SAFETY: all descriptions are alive; the out-pointer is valid for the call.
        let status = unsafe {
            sys::cublasLtMatmulAlgoCheck(
                handle.0,
                self.operation.0,
                self.weight.0,
                self.x.0,
                self.out.0,
                self.out.0,
                &algo,
                &mut result,
            )
        };
        let fits =
            result.workspaceSize <= workspace_bytes && result.workspaceSize <= algorithm.workspace_bytes;
        status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && fits
    }

    /// Queues the product. Does not allocate.
    pub(super) fn run(
        &self,
        handle: &Handle,
        stream: sys::cudaStream_t,
        operands: &Operands,
    ) -> Result<(), CudaError> {
        self.x.set_columns(operands.rows)?;
        self.out.set_columns(operands.rows)?;
        self.set_pointers(operands)?;
        let (one, zero) = (1f32, 0f32);
        let algo = sys::cublasLtMatmulAlgo_t { data: self.algorithm.data };
        // SAFETY: the descriptions are alive, and the caller's slices have the described sizes. C is D, which
        // is not read because beta is 0.
        let status = unsafe {
            sys::cublasLtMatmul(
                handle.0,
                self.operation.0,
                (&raw const one).cast(),
                operands.weight as *const c_void,
                self.weight.0,
                operands.x as *const c_void,
                self.x.0,
                (&raw const zero).cast(),
                operands.out as *const c_void,
                self.out.0,
                operands.out as *mut c_void,
                self.out.0,
                &algo,
                operands.workspace as *mut c_void,
                operands.workspace_bytes,
                stream,
            )
        };
        check(BLAS_LAUNCH, status, || format!("{} rows of {}", operands.rows, self.key))
    }

    fn set_pointers(&self, operands: &Operands) -> Result<(), CudaError> {
        if self.key.bias {
            self.operation.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias)?;
        }
        if self.key.scaling != Scaling::None {
            self.operation.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.weight_scales)?;
            self.operation.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.x_scales)?;
        }
        Ok(())
    }
}

impl Operands {
    /// Operands for queries about a product: the library checks whether pointers are set and how they are
    /// aligned, but does not dereference them.
    fn placeholder(rows: u32) -> Self {
        let aligned = 1 << 20;
        Self {
            rows,
            out: aligned,
            x: aligned,
            weight: aligned,
            bias: aligned,
            x_scales: aligned,
            weight_scales: aligned,
            workspace: aligned,
            workspace_bytes: 0,
        }
    }
}
