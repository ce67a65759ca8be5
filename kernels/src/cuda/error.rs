//! What the driver said.

use cudarc::driver::sys;

/// The CUDA version whose libraries are looked for.
const MAJOR: u32 = 13;

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
    /// cuBLASLt's answer to a call.
    #[error("{call} failed: {name} ({code}){about}")]
    Blas {
        /// The function.
        call: &'static str,
        /// `cublasStatus_t`.
        code: u32,
        /// Its name.
        name: String,
        /// The shape, or nothing.
        about: String,
    },
    /// A kernel's source that NVRTC refuses.
    #[error("NVRTC does not compile {file} for {target}:\n{log}")]
    Compile {
        /// The source.
        file: &'static str,
        /// The architecture asked for.
        target: String,
        /// What NVRTC wrote.
        log: String,
    },
    /// No way to get kernels.
    #[error(
        "this binary was built without CUDA kernels, and NVRTC, which would compile them, {why}; install CUDA \
         {major}'s libnvrtc.so.{major} where the loader finds it (LD_LIBRARY_PATH), or build with nvcc (set NVCC)",
        major = MAJOR
    )]
    NoCompiler {
        /// What is wrong with NVRTC.
        why: String,
    },
    /// A plan that does not fit the device.
    #[error("{what}")]
    OutOfMemory {
        /// The plan, what is free, and what to change.
        what: String,
    },
    /// A wait that took longer than [`super::Device::limit_waits`] allows.
    #[error("the device did not end its work within {within:?} (--step-timeout): it is stuck")]
    Stuck {
        /// The limit.
        within: std::time::Duration,
    },
    /// A kernel that the loaded images lack.
    #[error("the kernel images have no {name}; the binary and its kernels do not fit together, build again")]
    NoKernel {
        /// The kernel.
        name: String,
    },
}

/// What an error means for the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Device or page-locked memory ran out; the context still works.
    OutOfMemory,
    /// The context is lost: each later call fails too, and results of earlier ones cannot be trusted. Only a
    /// new process gets a new context.
    DeviceFault,
    /// A call that is wrong, or that this device or driver does not know. The same call fails again.
    Invalid,
    /// What the call needs is not there now: no device, a device that another process holds, a library that
    /// is missing.
    Unavailable,
}

/// `CUresult` after which the context is lost. The driver API's documentation says of each of these that "the
/// process is left in an inconsistent state", or that the device has to be reset: uncorrectable ECC and
/// NVLink errors, illegal addresses, launch timeouts, a destroyed context, device asserts, stack,
/// instruction, alignment, address space and program counter faults, unspecified launch failures, leaked
/// tensor memory, lost external devices, and "unknown".
const LOST: &[u32] = &[4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 911, 999];
/// `CUresult` when something is missing: driver stubs, no or busy devices, no JIT compiler, a system that is
/// not ready, MPS.
const MISSING: &[u32] =
    &[3, 34, 36, 46, 100, 101, 102, 221, 223, 802, 803, 804, 805, 806, 807, 808, 809, 810];

impl CudaError {
    /// What it means for the process.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Driver { code: 2, .. } => ErrorKind::OutOfMemory,
            Self::Driver { code, .. } if LOST.contains(code) => ErrorKind::DeviceFault,
            Self::Driver { code, .. } if MISSING.contains(code) => ErrorKind::Unavailable,
            // CUBLAS_STATUS_ALLOC_FAILED
            Self::Blas { code: 3, .. } => ErrorKind::OutOfMemory,
            // EXECUTION_FAILED and INTERNAL_ERROR: the driver's own error comes with its next call.
            Self::Blas { code: 13 | 14, .. } => ErrorKind::DeviceFault,
            Self::Stuck { .. } => ErrorKind::DeviceFault,
            Self::OutOfMemory { .. } => ErrorKind::OutOfMemory,
            Self::NoCompiler { .. } => ErrorKind::Unavailable,
            Self::Driver { .. }
            | Self::Blas { .. }
            | Self::Invalid { .. }
            | Self::Compile { .. }
            | Self::NoKernel { .. } => ErrorKind::Invalid,
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lost_context_is_a_fault_of_the_device() {
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
