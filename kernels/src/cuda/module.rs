//! Loads the kernels' images.

use std::ffi::CString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use cudarc::driver::sys;

use super::cache::Cache;
use super::device::driver_version;
use super::error::check;
use super::images::{KERNELS, NVCC_RELEASE, TARGETS};
use super::launch::Kernel;
use super::nvrtc::{self, Compiler};
use super::{CudaError, Device};

/// Origin of the loaded kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelSource {
    /// Compiled by nvcc when this binary was built.
    Embedded,
    /// Compiled by NVRTC on this machine, now or at an earlier start.
    Compiled {
        /// NVRTC version (major, minor).
        version: (u32, u32),
        /// Number of kernel files.
        files: usize,
        /// Number of files that an earlier start had compiled.
        cached: usize,
        /// Cache directory, if any.
        directory: Option<PathBuf>,
    },
}

impl fmt::Display for KernelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Compiled { version: (major, minor), files, cached, directory } = self else {
            return write!(f, "built into this binary for {TARGETS}");
        };
        write!(f, "compiled by NVRTC {major}.{minor}: {} files now, {cached} earlier", files - cached)?;
        match directory {
            Some(directory) => write!(f, ", kept in {}", directory.display()),
            None => write!(f, ", not kept: no cache directory"),
        }
    }
}

/// Where the kernels of this binary come from on any device: built in, or a compiler on this machine. Loads
/// no kernel and needs no device.
///
/// # Errors
/// If they are not built in and NVRTC is missing or too old.
pub fn origin() -> Result<String, CudaError> {
    if are_embedded() {
        return Ok(KernelSource::Embedded.to_string());
    }
    let (major, minor) = nvrtc::find()?;
    Ok(format!("compiled at the first start, which takes minutes, by NVRTC {major}.{minor}"))
}

fn are_embedded() -> bool {
    KERNELS.iter().all(|kernel| !kernel.fatbin.0.is_empty())
}

/// All kernels of this binary, loaded on one device.
#[derive(Debug)]
pub struct Kernels {
    modules: Vec<sys::CUmodule>,
    source: KernelSource,
    device: Arc<Device>,
}

// SAFETY: module handles may be used from any thread that is bound to their device.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Loads the kernels on `device`: those embedded in the binary, or else compiled here, which takes
    /// minutes of processor time at the first start, and at least as long as `gemv_packed.cu`: a minute.
    pub fn load(device: &Arc<Device>) -> Result<Self, CudaError> {
        let (source, compiled) = if are_embedded() {
            (KernelSource::Embedded, None)
        } else {
            let (source, images) = compile(device)?;
            (source, Some(images))
        };
        let mut kernels = Self { modules: Vec::with_capacity(KERNELS.len()), source, device: device.clone() };
        match compiled {
            None => KERNELS
                .iter()
                .try_for_each(|kernel| kernels.load_image(&kernel.fatbin.0))
                .map_err(|error| not_built_for(device, error))?,
            Some(images) => images.iter().try_for_each(|image| kernels.load_image(image))?,
        }
        Ok(kernels)
    }

    fn load_image(&mut self, image: &[u8]) -> Result<(), CudaError> {
        let mut module = std::ptr::null_mut();
        // SAFETY: an image made by nvcc or NVRTC, which contains its own length; the out-pointer is valid for
        // the call.
        check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) })?;
        self.modules.push(module);
        Ok(())
    }

    /// The kernel called `name`. Loads its code to the device, so that even its first launch may be in a
    /// graph.
    pub fn get(&self, name: &'static str) -> Result<Kernel, CudaError> {
        let symbol = CString::new(name).map_err(|_| CudaError::NoKernel { name: name.into() })?;
        for module in &self.modules {
            let mut function = std::ptr::null_mut();
            // SAFETY: the module is alive; the name ends with NUL; the out-pointer is valid for the call.
            match unsafe { sys::cuModuleGetFunction(&mut function, *module, symbol.as_ptr()) } {
                sys::CUresult::CUDA_ERROR_NOT_FOUND => {}
                code => return check("cuModuleGetFunction", code).and_then(|()| Kernel::new(function, name)),
            }
        }
        Err(CudaError::NoKernel { name: name.into() })
    }

    /// Origin of the kernels, for logs.
    pub fn kernel_source(&self) -> &KernelSource {
        &self.source
    }

    /// The device of the kernels.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

/// `error`, or a clearer one if the embedded images are for other devices or newer drivers.
fn not_built_for(device: &Device, error: CudaError) -> CudaError {
    const NO_BINARY_FOR_GPU: u32 = 209;
    const UNSUPPORTED_PTX_VERSION: u32 = 222;
    match error {
        CudaError::Driver { code: UNSUPPORTED_PTX_VERSION, .. } => CudaError::NewerPtx {
            device: device.name.clone(),
            capability: device.capability,
            targets: TARGETS,
            nvcc: NVCC_RELEASE,
            driver: driver_version().map_or((0, 0), release_of),
        },
        CudaError::Driver { code: NO_BINARY_FOR_GPU, .. } => CudaError::NotBuiltFor {
            device: device.name.clone(),
            capability: device.capability,
            targets: TARGETS,
        },
        other => other,
    }
}

/// (13, 0) of 13000, as the driver numbers its CUDA versions.
fn release_of(version: i32) -> (u32, u32) {
    let version = version.unsigned_abs();
    (version / 1000, version % 1000 / 10)
}

fn compile(device: &Device) -> Result<(KernelSource, Vec<Vec<u8>>), CudaError> {
    let compiler = Compiler::for_device(device)?;
    let cache = Cache::of_user();
    let compiled = compiler.compile(device, &cache, KERNELS)?;
    let source = KernelSource::Compiled {
        version: compiler.version,
        files: KERNELS.len(),
        cached: compiled.cached,
        directory: cache.directory().map(Into::into),
    };
    Ok((source, compiled.images))
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if self.device.is_abandoned() {
            return;
        }
        let _ = self.device.bind();
        for module in &self.modules {
            // SAFETY: loaded once and unloaded once. Errors do not matter here.
            let _ = unsafe { sys::cuModuleUnload(*module) };
        }
    }
}
