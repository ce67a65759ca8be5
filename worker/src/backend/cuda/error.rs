//! Why a model could not be brought onto a device.

use skein_kernels::cuda::CudaError;
use skein_kernels::cuda::error::ErrorKind;

use crate::backend::BackendError;
use crate::model::LoadError;

/// A model that could not be brought onto a device.
#[derive(Debug, thiserror::Error)]
pub enum CudaLoadError {
    /// The model directory.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// The device.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The first step.
    #[error(transparent)]
    Step(#[from] BackendError),
    /// There is no room for one sequence.
    #[error(
        "the KV cache would hold {tokens} tokens, and one sequence may have {longest} (at {bytes_per_token} bytes a \
         token); lower --max-model-len, raise --gpu-memory-utilization or give --kv-cache-dtype fp8\n{plan}"
    )]
    TooSmall {
        /// What fits.
        tokens: u64,
        /// What was asked for.
        longest: u32,
        /// Of the cache.
        bytes_per_token: u64,
        /// All regions.
        plan: String,
    },
}

impl CudaLoadError {
    /// Whether the device failed, or hangs, rather than refused: a new process may find it well.
    pub fn is_device_fault(&self) -> bool {
        match self {
            Self::Cuda(error) => error.kind() == ErrorKind::DeviceFault,
            Self::Step(error) => matches!(error, BackendError::Stopped { .. }),
            Self::Model(_) | Self::TooSmall { .. } => false,
        }
    }
}
