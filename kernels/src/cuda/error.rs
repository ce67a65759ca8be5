//! Errors of CUDA calls.

use cudarc::driver::sys;

/// The only call of cuBLASLt that queues work.
pub(super) const BLAS_LAUNCH: &str = "cublasLtMatmul";
/// CUDA version of the libraries to look for.
const MAJOR: u32 = 13;

/// A CUDA call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// A driver call failed.
    #[error("{call} failed: {name} ({code}), {text}")]
    Driver {
        /// The driver function, or the kernel of a launch.
        call: &'static str,
        /// Numeric value of the `CUresult`.
        code: u32,
        /// Name of the code.
        name: String,
        /// Description of the code.
        text: String,
    },
    /// Arguments that are invalid for every launch.
    #[error("{what}")]
    Invalid {
        /// What is wrong, with the values.
        what: String,
    },
    /// A cuBLASLt call failed.
    #[error("{call} failed: {name} ({code}){about}")]
    Blas {
        /// The library function.
        call: &'static str,
        /// Numeric value of the `cublasStatus_t`.
        code: u32,
        /// Name of the code.
        name: String,
        /// The product's shape, or empty.
        about: String,
    },
    /// An NCCL call or a collective operation failed.
    #[error("{call} failed: {text} (NCCL status {code})")]
    Nccl {
        /// Name of the function.
        call: &'static str,
        /// Numeric value of the `ncclResult_t`.
        code: i32,
        /// Description of the error by NCCL.
        text: String,
    },
    /// There is no usable NCCL.
    #[error(
        "ranks on GPUs need NCCL, and libnccl.so.2 {why}; install it where the loader finds it (LD_LIBRARY_PATH); \
         packages: libnccl2, or nvidia-nccl-cu{major} of PyPI",
        major = MAJOR
    )]
    NoNccl {
        /// The problem, as a verb phrase.
        why: String,
    },
    /// Work on the device cannot end, for example because another rank is lost.
    #[error("the device's work is not waited for: {why}")]
    Ended {
        /// Why it cannot end.
        why: String,
    },
    /// A launch waited in vain for the sums of another rank. Results are wrong from then on.
    #[error("rank {rank} did not send its sums within {within:?}: it has ended, or its GPU is stuck")]
    Missing {
        /// Rank that was waited for.
        rank: usize,
        /// Limit that was exceeded.
        within: std::time::Duration,
    },
    /// NVRTC rejected a kernel's source.
    #[error("NVRTC does not compile {file} for {target}:\n{log}")]
    Compile {
        /// Name of the source file.
        file: &'static str,
        /// Architecture to compile for.
        target: String,
        /// Log written by NVRTC.
        log: String,
    },
    /// There are neither embedded kernels nor a usable NVRTC.
    #[error(
        "this binary was built without CUDA kernels, and NVRTC, which would compile them, {why}; install CUDA \
         {major}'s libnvrtc.so.{major} where the loader finds it (LD_LIBRARY_PATH), or build with nvcc (set NVCC)",
        major = MAJOR
    )]
    NoCompiler {
        /// What is wrong with NVRTC, as a verb phrase.
        why: String,
    },
    /// The embedded kernels are for other devices.
    #[error(
        "{device} has compute capability {}.{}, and this binary's kernels were built for {targets} only; build it with \
         another SKEIN_CUDA_TARGETS, or without",
        capability.0, capability.1
    )]
    NotBuiltFor {
        /// Name of the device.
        device: String,
        /// Its compute capability (major, minor).
        capability: (u32, u32),
        /// Names of the targets, as in `SKEIN_CUDA_TARGETS`.
        targets: &'static str,
    },
    /// The driver cannot compile the PTX of this binary, which a newer CUDA made.
    #[error(
        "{device} has compute capability {}.{}; this binary's machine code is for {targets}, and the driver (CUDA {}.{}) \
         does not read the PTX that nvcc {}.{} made for other devices; update the driver, or build without nvcc or \
         with one that is no newer than the driver",
        capability.0, capability.1, driver.0, driver.1, nvcc.0, nvcc.1
    )]
    NewerPtx {
        /// Name of the device.
        device: String,
        /// Its compute capability (major, minor).
        capability: (u32, u32),
        /// Names of the targets, as in `SKEIN_CUDA_TARGETS`.
        targets: &'static str,
        /// Release of the compiler (major, minor).
        nvcc: (u32, u32),
        /// CUDA version of the driver (major, minor).
        driver: (u32, u32),
    },
    /// The plan does not fit the device.
    #[error("{what}")]
    OutOfMemory {
        /// The plan, the free memory, and what to change.
        what: String,
    },
    /// A wait took longer than [`super::Device::limit_waits`] allows.
    #[error("the device did not finish its work within {within:?} (--step-timeout); it is stuck")]
    Stuck {
        /// Limit that was exceeded.
        within: std::time::Duration,
    },
    /// The loaded images do not contain a kernel.
    #[error("the kernel images have no {name}; the binary and its kernels do not match, rebuild it")]
    NoKernel {
        /// Name of the kernel.
        name: String,
    },
}

/// What an error means for the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Device or page-locked memory ran out; the context still works.
    OutOfMemory,
    /// The context is lost: each later call fails, too, and results of earlier ones cannot be trusted. Only a
    /// new process gets a new context.
    DeviceFault,
    /// The call is wrong, or this device or driver does not support it. The same call will fail again.
    Invalid,
    /// Something that the call needs is not available now: no device, a device that another process holds, a
    /// missing library.
    Unavailable,
}

/// `CUresult` values after which the context is lost. For each of them the driver API's documentation says
/// that "the process is left in an inconsistent state", or that the device has to be reset: uncorrectable ECC
/// and NVLink errors, illegal addresses, launch timeouts, a destroyed context, device asserts, stack,
/// instruction, alignment, address space and program counter faults, unspecified launch failures, leaked
/// tensor memory, lost external devices, and "unknown".
const LOST: &[u32] = &[4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 911, 999];
/// `CUresult` values that mean that something is missing: driver stubs, no device or a busy one, no JIT
/// compiler, a system that is not ready, MPS.
const MISSING: &[u32] =
    &[3, 34, 36, 46, 100, 101, 102, 221, 223, 802, 803, 804, 805, 806, 807, 808, 809, 810];

impl CudaError {
    /// Consequence of the error for the process.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Driver { code: 2, .. } => ErrorKind::OutOfMemory,
            Self::Driver { code, .. } if LOST.contains(code) => ErrorKind::DeviceFault,
            Self::Driver { code, .. } if MISSING.contains(code) => ErrorKind::Unavailable,
            // CUBLAS_STATUS_ALLOC_FAILED
            Self::Blas { code: 3, .. } => ErrorKind::OutOfMemory,
            // EXECUTION_FAILED and INTERNAL_ERROR of a launch: the next driver call returns the driver's own
            // error. The other calls launch nothing. Of those, the search for algorithms has returned
            // INTERNAL_ERROR for shapes that it should call unsupported.
            Self::Blas { code: 13 | 14, call: BLAS_LAUNCH, .. } => ErrorKind::DeviceFault,
            Self::Stuck { .. } | Self::Nccl { .. } | Self::Ended { .. } | Self::Missing { .. } => {
                ErrorKind::DeviceFault
            }
            Self::OutOfMemory { .. } => ErrorKind::OutOfMemory,
            Self::NoCompiler { .. }
            | Self::NoNccl { .. }
            | Self::NotBuiltFor { .. }
            | Self::NewerPtx { .. } => ErrorKind::Unavailable,
            Self::Driver { .. }
            | Self::Blas { .. }
            | Self::Invalid { .. }
            | Self::Compile { .. }
            | Self::NoKernel { .. } => ErrorKind::Invalid,
        }
    }

    /// Makes an [`CudaError::Invalid`].
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lost_context_is_a_device_fault() {
        let kind = |code| {
            let (name, text) = (String::new(), String::new());
            CudaError::Driver { call: "cuLaunchKernelEx", code, name, text }.kind()
        };
        for code in [214, 700, 702, 715, 716, 719] {
            assert_eq!(kind(code), ErrorKind::DeviceFault, "{code}");
        }
        assert_eq!(kind(2), ErrorKind::OutOfMemory);
        for code in [1, 200, 209, 400, 500, 600, 701, 801, 900, 901] {
            assert_eq!(kind(code), ErrorKind::Invalid, "{code}");
        }
        assert_eq!(kind(46), ErrorKind::Unavailable);
        assert!(LOST.iter().all(|code| !MISSING.contains(code)));
    }
}
