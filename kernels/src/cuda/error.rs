//! What the driver said.

use cudarc::driver::sys;

/// A CUDA call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The driver's answer to a call.
    #[error("{call} failed: {name} ({code}), {text}")]
    Driver {
        /// The function, or the kernel for a launch.
        call: &'static str,
        /// `CUresult`.
        code: u32,
        /// Its name.
        name: String,
        /// Its description.
        text: String,
    },
    /// Arguments that no launch may have.
    #[error("{what}")]
    Invalid {
        /// What is wrong, with the values.
        what: String,
    },
    /// A kernel that the loaded images lack.
    #[error("the kernel images have no {name}; the binary and its kernels do not fit together, build again")]
    NoKernel {
        /// The kernel.
        name: String,
    },
}

impl CudaError {
    /// An [`CudaError::Invalid`].
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into() }
    }
}

/// `Ok` for `CUDA_SUCCESS`, otherwise the error with its name and description.
pub(crate) fn check(call: &'static str, code: sys::CUresult) -> Result<(), CudaError> {
    if code == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let error = cudarc::driver::DriverError(code);
    let text = |text: Result<&std::ffi::CStr, _>| {
        text.map_or("unknown".into(), |text: &std::ffi::CStr| text.to_string_lossy().into_owned())
    };
    Err(CudaError::Driver {
        call,
        code: code as u32,
        name: text(error.error_name()),
        text: text(error.error_string()),
    })
}
