//! The kernels' images, loaded.

use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::sys;

use super::error::check;
use super::launch::Kernel;
use super::{CudaError, Device};

/// One per `cu/*.cu`: its name, and what `cuModuleLoadData` takes.
const IMAGES: &[(&str, &[u8])] = &[("norm", b"")];

/// All kernels of this binary, loaded on one device.
#[derive(Debug)]
pub struct Kernels {
    modules: Vec<sys::CUmodule>,
    device: Arc<Device>,
}

// SAFETY: module handles may be used from any thread that is bound to their device.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Loads them on `device`.
    pub fn load(device: &Arc<Device>) -> Result<Self, CudaError> {
        let mut kernels = Self { modules: Vec::new(), device: device.clone() };
        for (_, image) in IMAGES {
            let mut module = std::ptr::null_mut();
            // SAFETY: the image is one that nvcc made; the out-pointer is valid for the call.
            check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) })?;
            kernels.modules.push(module);
        }
        Ok(kernels)
    }

    /// The kernel called `name`.
    pub fn get(&self, name: &'static str) -> Result<Kernel, CudaError> {
        let symbol = CString::new(name).map_err(|_| CudaError::NoKernel { name: name.into() })?;
        for module in &self.modules {
            let mut function = std::ptr::null_mut();
            // SAFETY: the module lives; the name ends with NUL; the out-pointer is valid for the call.
            match unsafe { sys::cuModuleGetFunction(&mut function, *module, symbol.as_ptr()) } {
                sys::CUresult::CUDA_ERROR_NOT_FOUND => {}
                code => return check("cuModuleGetFunction", code).map(|()| Kernel { function, name }),
            }
        }
        Err(CudaError::NoKernel { name: name.into() })
    }

    /// Their device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let _ = self.device.bind();
        for module in &self.modules {
            // SAFETY: loaded once, unloaded once. Errors change nothing.
            let _ = unsafe { sys::cuModuleUnload(*module) };
        }
    }
}
