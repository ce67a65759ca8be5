//! A device and its primary context.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};

use super::error::check;
use super::{CudaError, ErrorKind};

/// Oldest driver that can load the kernels of this binary: that of CUDA 13.0.
pub const MIN_DRIVER: i32 = 13_000;
/// Oldest compute capability with kernels.
pub const MIN_CAPABILITY: (u32, u32) = (8, 0);

/// Why no CUDA device can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// `libcuda.so.1` was not found.
    #[error("no NVIDIA driver: libcuda.so.1 was not found")]
    NoDriver,
    /// The driver failed to initialise.
    #[error("the NVIDIA driver does not start: {0}")]
    DriverFailed(CudaError),
    /// The driver is too old for the kernels.
    #[error("the NVIDIA driver supports CUDA {}.{}, and Skein needs 13.0 (driver 580) or newer; update the driver", found / 1000, found % 1000 / 10)]
    DriverTooOld {
        /// CUDA version of the driver, `1000 * major + 10 * minor`.
        found: i32,
    },
    /// The driver works, but no device is visible.
    #[error("the NVIDIA driver works (CUDA {}.{}), but no device is visible; see nvidia-smi and CUDA_VISIBLE_DEVICES", driver / 1000, driver % 1000 / 10)]
    NoDevice {
        /// CUDA version of the driver, `1000 * major + 10 * minor`.
        driver: i32,
    },
    /// The device number is out of range.
    #[error("there is no CUDA device {asked}, only 0 to {}", count - 1)]
    NoSuchDevice {
        /// Requested device number.
        asked: u32,
        /// Number of visible devices.
        count: u32,
    },
    /// The device is too old for the kernels.
    #[error("{name} has compute capability {major}.{minor}, and the kernels need 8.0 (Ampere) or newer")]
    TooOld {
        /// Name of the device.
        name: String,
        /// Major compute capability.
        major: u32,
        /// Minor compute capability.
        minor: u32,
    },
}

/// A CUDA device with its primary context retained.
#[derive(Debug)]
pub struct Device {
    context: sys::CUcontext,
    handle: sys::CUdevice,
    /// Number among the visible devices.
    pub ordinal: u32,
    /// Name as in `nvidia-smi`.
    pub name: String,
    /// The driver's CUDA version, `1000 * major + 10 * minor`.
    pub driver: i32,
    /// Compute capability (major, minor).
    pub capability: (u32, u32),
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Size of the L2 cache.
    pub l2_bytes: u64,
    /// Size of the device's memory.
    pub memory_bytes: u64,
    /// Most shared memory that a block can request.
    pub shared_bytes_per_block: u32,
    /// Longest wait for the device's work, if limited.
    wait_limit: OnceLock<Duration>,
    /// Called during waits, see [`Self::check_during_waits`].
    wait_check: OnceLock<StoredCheck>,
    /// Whether the device is stuck or has faulted, see [`Self::abandon`].
    is_abandoned: AtomicBool,
}

/// Fails if the device's work can never end, with the reason.
pub type WaitCheck = Box<dyn Fn() -> Result<(), CudaError> + Send + Sync>;

struct StoredCheck(WaitCheck);

impl std::fmt::Debug for StoredCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a check")
    }
}

// SAFETY: a context may be used by any thread for which it is current, and [`Device::bind`] makes it so.
unsafe impl Send for Device {}
// SAFETY: as above; the driver API is thread-safe.
unsafe impl Sync for Device {}

impl Device {
    /// Finds the driver, opens device `ordinal` and binds the calling thread to it.
    pub fn open(ordinal: u32) -> Result<Arc<Self>, Unavailable> {
        let driver = driver_version()?;
        let count = device_count().map_err(Unavailable::DriverFailed)?;
        if count == 0 {
            return Err(Unavailable::NoDevice { driver });
        }
        if ordinal >= count {
            return Err(Unavailable::NoSuchDevice { asked: ordinal, count });
        }
        let device = Self::retain(ordinal, driver).map_err(Unavailable::DriverFailed)?;
        if device.capability < MIN_CAPABILITY {
            let (major, minor) = device.capability;
            return Err(Unavailable::TooOld { name: device.name.clone(), major, minor });
        }
        Ok(Arc::new(device))
    }

    fn retain(ordinal: u32, driver: i32) -> Result<Self, CudaError> {
        let (mut handle, mut context) = (0, std::ptr::null_mut());
        let mut memory_bytes = 0;
        let mut name = [0 as c_char; 256];
        // SAFETY: out-pointers are valid for the call, the name's length is given, and the driver is
        // initialised.
        unsafe {
            check("cuDeviceGet", sys::cuDeviceGet(&mut handle, ordinal as c_int))?;
            check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, handle))?;
            check("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&mut memory_bytes, handle))?;
            check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, handle))?;
        }
        let name = name.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect::<Vec<_>>();
        let attribute = |attribute| -> Result<u32, CudaError> {
            let mut value = 0;
            // SAFETY: the out-pointer is valid for the call.
            check("cuDeviceGetAttribute", unsafe {
                sys::cuDeviceGetAttribute(&mut value, attribute, handle)
            })?;
            Ok(value as u32)
        };
        let device = Self {
            context,
            handle,
            ordinal,
            name: String::from_utf8_lossy(&name).into_owned(),
            driver,
            capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            l2_bytes: u64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
            memory_bytes: memory_bytes as u64,
            shared_bytes_per_block: attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            )?,
            wait_limit: OnceLock::new(),
            wait_check: OnceLock::new(),
            is_abandoned: AtomicBool::new(false),
        };
        device.bind()?;
        Ok(device)
    }

    /// Makes the device current for the calling thread. Every thread must do this once before it calls CUDA.
    pub fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as `self`.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// Limits every wait for the device's work: a longer one fails with [`CudaError::Stuck`]. Only the first
    /// call has an effect; without one, waits have no limit.
    pub fn limit_waits(&self, wait_limit: Duration) {
        let _ = self.wait_limit.set(wait_limit); // a limit that is already set stays
    }

    /// The limit of waits; `None` = no limit.
    pub(crate) fn wait_limit(&self) -> Option<Duration> {
        self.wait_limit.get().copied()
    }

    /// Calls `check` repeatedly during waits with a limit for the device's work. An error of `check` ends the
    /// wait and abandons the device. Only the first call of this function has an effect.
    pub fn check_during_waits(&self, check: WaitCheck) {
        let _ = self.wait_check.set(StoredCheck(check)); // keeps an earlier check
    }

    /// Runs the check of [`Self::check_during_waits`], if there is one.
    pub(crate) fn check_wait(&self) -> Result<(), CudaError> {
        let checked = self.wait_check.get().map_or(Ok(()), |StoredCheck(check)| check());
        checked.inspect_err(|_| self.abandon())
    }

    /// Gives up on the device: from now on no thread frees anything on it. The driver's functions for freeing
    /// wait for the device's work, which never ends on a stuck device. The memory is released when the
    /// process ends.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
    }

    /// Whether the device was given up, so that nothing may be freed.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    /// Abandons the device if `error` means that it is lost.
    pub fn note(&self, error: &CudaError) {
        if error.kind() == ErrorKind::DeviceFault {
            self.abandon();
        }
    }

    /// The device's identity, which no other device has.
    pub(crate) fn uuid(&self) -> Result<[u8; 16], CudaError> {
        uuid_of(self.handle)
    }

    /// Number of the device `uuid` among the visible ones.
    pub(crate) fn ordinal_of(&self, uuid: &[u8; 16]) -> Result<Option<u32>, CudaError> {
        for ordinal in 0..device_count()? {
            let mut handle = 0;
            // SAFETY: the out-pointer is valid for the call, and the driver is initialised.
            check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut handle, ordinal as c_int) })?;
            if uuid_of(handle)? == *uuid {
                return Ok(Some(ordinal));
            }
        }
        Ok(None)
    }

    /// Whether the driver reports that this device reaches the memory of visible device `ordinal`.
    pub(crate) fn can_access(&self, ordinal: u32) -> Result<bool, CudaError> {
        let (mut peer, mut can) = (0, 0);
        // SAFETY: the out-pointers are valid for the calls, and the driver is initialised.
        unsafe {
            check("cuDeviceGet", sys::cuDeviceGet(&mut peer, ordinal as c_int))?;
            check("cuDeviceCanAccessPeer", sys::cuDeviceCanAccessPeer(&mut can, self.handle, peer))?;
        }
        Ok(can != 0)
    }

    /// Free and total bytes of device memory, across all processes.
    pub fn memory_info(&self) -> Result<(u64, u64), CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the out-pointers are valid for the call.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_abandoned() {
            return;
        }
        // SAFETY: retained once in `retain`. Errors do not matter, because the process no longer uses the
        // device.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.handle) };
    }
}

/// CUDA version of the driver, `1000 * major + 10 * minor`, after initialising it.
pub fn driver_version() -> Result<i32, Unavailable> {
    // SAFETY: only looks for the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(Unavailable::NoDriver);
    }
    let mut version = 0;
    // SAFETY: the library is there; the out-pointer is valid for the call. This call needs no cuInit.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })
        .map_err(Unavailable::DriverFailed)?;
    if version < MIN_DRIVER {
        return Err(Unavailable::DriverTooOld { found: version });
    }
    // SAFETY: the library is there.
    match unsafe { sys::cuInit(0) } {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => Err(Unavailable::NoDevice { driver: version }),
        code => check("cuInit", code).map_err(Unavailable::DriverFailed).map(|()| version),
    }
}

/// Number of devices that this process sees, without opening any.
pub fn visible_devices() -> Result<u32, Unavailable> {
    let driver = driver_version()?;
    match device_count().map_err(Unavailable::DriverFailed)? {
        0 => Err(Unavailable::NoDevice { driver }),
        count => Ok(count),
    }
}

fn uuid_of(device: sys::CUdevice) -> Result<[u8; 16], CudaError> {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: the out-pointer is valid for the call.
    check("cuDeviceGetUuid", unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, device) })?;
    Ok(uuid.bytes.map(|byte| byte as u8))
}

fn device_count() -> Result<u32, CudaError> {
    let mut count = 0;
    // SAFETY: the driver was initialised; the out-pointer is valid for the call.
    match unsafe { sys::cuDeviceGetCount(&mut count) } {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => Ok(0),
        code => check("cuDeviceGetCount", code).map(|()| count as u32),
    }
}
