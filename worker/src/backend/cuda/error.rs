//! Why a model could not be loaded onto a device.

use skein_kernels::collective::Lost;
use skein_kernels::cuda::error::ErrorKind;
use skein_kernels::cuda::{CudaError, Device};
use skein_model::LoadError;

use crate::backend::BackendError;

/// Why a model could not be loaded onto a device.
#[derive(Debug, thiserror::Error)]
pub enum CudaLoadError {
    /// The model directory cannot be used.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// A CUDA call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// Another rank of the group was lost.
    #[error("the group has failed: {0}")]
    Lost(#[from] Lost),
    /// Ranks have devices that compute differently.
    #[error(
        "rank {rank} has a GPU of compute capability {its}, rank 0 one of {own}; ranks need the same, choose others \
         with CUDA_VISIBLE_DEVICES"
    )]
    Differs {
        /// Rank with the other device.
        rank: usize,
        /// Compute capability of its device.
        its: String,
        /// Compute capability of rank 0's device.
        own: String,
    },
    /// The group has ended.
    #[error("{0}")]
    Group(String),
    /// The first step failed.
    #[error(transparent)]
    Step(#[from] BackendError),
    /// The KV cache would not hold one sequence.
    #[error(
        "the KV cache would hold {tokens} tokens, and one sequence may have {longest} (at {bytes_per_token} bytes a \
         token); lower --max-model-len, raise --gpu-memory-utilization or give --kv-cache-dtype fp8\n{plan}"
    )]
    TooSmall {
        /// Tokens that fit.
        tokens: u64,
        /// Tokens of the longest sequence.
        longest: u32,
        /// KV cache bytes per token.
        bytes_per_token: u64,
        /// The memory plan, all regions.
        plan: String,
    },
}

impl CudaLoadError {
    /// Whether the device failed or hangs. It may work again in a new process.
    pub fn is_device_fault(&self) -> bool {
        match self {
            Self::Cuda(error) => error.kind() == ErrorKind::DeviceFault,
            Self::Step(error) => matches!(error, BackendError::Stopped { .. }),
            Self::Model(_)
            | Self::TooSmall { .. }
            | Self::Lost(_)
            | Self::Group(_)
            | Self::Differs { .. } => false,
        }
    }
}

pub(super) fn stopped(reason: &str) -> BackendError {
    BackendError::Stopped { backend: "cuda", reason: reason.to_owned() }
}

pub(super) fn failed(error: &CudaError) -> BackendError {
    stopped(&error.to_string())
}

/// Like [`failed`] for a call to `device`, which is abandoned if it is lost.
pub(super) fn failed_on(device: &Device, error: &CudaError) -> BackendError {
    device.note(error);
    failed(error)
}
