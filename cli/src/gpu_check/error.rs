//! How a fault of the device ends the check.

use skein_kernels::cuda::CudaError;

use crate::exit::{DEVICE, Failure};

/// Without kernels that it can run, a device counts as missing.
pub(super) fn failure(error: &CudaError) -> Failure {
    match error {
        CudaError::NoCompiler { .. } | CudaError::NotBuiltFor { .. } => {
            Failure::new(DEVICE, error.to_string())
        }
        _ => Failure::other(error),
    }
}
