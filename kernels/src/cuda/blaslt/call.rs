//! cuBLASLt's objects, which are freed on drop, and its status codes as errors.

use std::ffi::{CStr, c_void};

use cudarc::cublaslt::sys;

use crate::cuda::CudaError;

/// `cublasOperation_t`, which the bindings lack.
const CUBLAS_OP_T: i32 = 1;

/// `Ok` for `CUBLAS_STATUS_SUCCESS`. `about` describes the product for the error.
pub(super) fn check(
    call: &'static str,
    status: sys::cublasStatus_t,
    about: impl FnOnce() -> String,
) -> Result<(), CudaError> {
    if status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    // SAFETY: takes any status and returns a constant string or null.
    let name = unsafe { sys::cublasLtGetStatusName(status) };
    let name = if name.is_null() {
        format!("{status:?}")
    } else {
        // SAFETY: a constant string of the library, which stays loaded.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    };
    let about = about();
    let about = if about.is_empty() { about } else { format!(", {about}") };
    Err(CudaError::Blas { call, code: status as u32, name, about })
}

/// A library handle.
#[derive(Debug)]
pub(super) struct Handle(pub(super) sys::cublasLtHandle_t);

impl Handle {
    /// Creates a handle. The library must be present and the device bound.
    pub(super) fn new() -> Result<Self, CudaError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the out-pointer is valid for the call.
        check("cublasLtCreate", unsafe { sys::cublasLtCreate(&mut handle) }, String::new)?;
        Ok(Self(handle))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed once. Errors do not matter here.
        let _ = unsafe { sys::cublasLtDestroy(self.0) };
    }
}

/// A column-major matrix: `rows` adjacent values per column, columns `stride` values apart.
#[derive(Debug)]
pub(super) struct Layout(pub(super) sys::cublasLtMatrixLayout_t);

impl Layout {
    pub(super) fn new(
        of: sys::cudaDataType_t,
        rows: u32,
        columns: u32,
        stride: u32,
    ) -> Result<Self, CudaError> {
        let mut layout = std::ptr::null_mut();
        // SAFETY: the out-pointer is valid for the call.
        let status = unsafe {
            sys::cublasLtMatrixLayoutCreate(&mut layout, of, rows.into(), columns.into(), stride.into())
        };
        check("cublasLtMatrixLayoutCreate", status, String::new)?;
        Ok(Self(layout))
    }

    pub(super) fn set_columns(&self, columns: u32) -> Result<(), CudaError> {
        let columns = u64::from(columns);
        // SAFETY: the layout is alive; the attribute is a u64, read during the call.
        let status = unsafe {
            sys::cublasLtMatrixLayoutSetAttribute(
                self.0,
                sys::cublasLtMatrixLayoutAttribute_t::CUBLASLT_MATRIX_LAYOUT_COLS,
                (&raw const columns).cast(),
                size_of::<u64>(),
            )
        };
        check("cublasLtMatrixLayoutSetAttribute", status, String::new)
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed once. Errors do not matter here.
        let _ = unsafe { sys::cublasLtMatrixLayoutDestroy(self.0) };
    }
}

/// Description of the computation: A^T B with f32 sums.
#[derive(Debug)]
pub(super) struct Operation(pub(super) sys::cublasLtMatmulDesc_t);

impl Operation {
    pub(super) fn new() -> Result<Self, CudaError> {
        let mut operation = std::ptr::null_mut();
        // SAFETY: the out-pointer is valid for the call.
        let status = unsafe {
            sys::cublasLtMatmulDescCreate(
                &mut operation,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cudaDataType_t::CUDA_R_32F,
            )
        };
        check("cublasLtMatmulDescCreate", status, String::new)?;
        let operation = Self(operation);
        operation.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T)?;
        Ok(operation)
    }

    /// Sets an attribute; `value` must have the attribute's type.
    pub(super) fn set<V: Copy>(
        &self,
        attribute: sys::cublasLtMatmulDescAttributes_t,
        value: V,
    ) -> Result<(), CudaError> {
        let value = (&raw const value).cast::<c_void>();
        // SAFETY: the description is alive; the given number of bytes is read during the call.
        let status = unsafe { sys::cublasLtMatmulDescSetAttribute(self.0, attribute, value, size_of::<V>()) };
        check("cublasLtMatmulDescSetAttribute", status, || format!("{attribute:?}"))
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed once. Errors do not matter here.
        let _ = unsafe { sys::cublasLtMatmulDescDestroy(self.0) };
    }
}

/// Constraints for the search for algorithms.
#[derive(Debug)]
pub(super) struct Preference(pub(super) sys::cublasLtMatmulPreference_t);

impl Preference {
    /// Algorithms with at most `workspace_bytes`, for addresses that are multiples of `alignment`.
    pub(super) fn new(workspace_bytes: usize, alignment: u32) -> Result<Self, CudaError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let mut preference = std::ptr::null_mut();
        // SAFETY: the out-pointer is valid for the call.
        let status = unsafe { sys::cublasLtMatmulPreferenceCreate(&mut preference) };
        check("cublasLtMatmulPreferenceCreate", status, String::new)?;
        let preference = Self(preference);
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes as u64)?;
        for attribute in [
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            preference.set(attribute, alignment)?;
        }
        Ok(preference)
    }

    fn set<V: Copy>(
        &self,
        attribute: sys::cublasLtMatmulPreferenceAttributes_t,
        value: V,
    ) -> Result<(), CudaError> {
        let value = (&raw const value).cast::<c_void>();
        // SAFETY: the preference is alive; the given number of bytes is read during the call.
        let status =
            unsafe { sys::cublasLtMatmulPreferenceSetAttribute(self.0, attribute, value, size_of::<V>()) };
        check("cublasLtMatmulPreferenceSetAttribute", status, || format!("{attribute:?}"))
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed once. Errors do not matter here.
        let _ = unsafe { sys::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}
