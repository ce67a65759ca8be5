//! Compiles kernels with NVRTC at the first start, for binaries that were built without nvcc. Results are
//! kept on disk under a key of everything they depend on: device, architecture, NVRTC, driver, source.

use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::nvrtc::sys;

use super::cache::{Cache, file_name, hash};
use super::images::{HEADERS, Image};
use super::{CudaError, Device};

/// Oldest NVRTC version that supports the kernels' language features.
const MIN_VERSION: (u32, u32) = (12, 0);
const FLAGS: &[&CStr] = &[c"--std=c++17"];
/// Most compiled kernels to keep on disk, across all versions of the binary and all devices; the oldest are
/// removed.
const MAX_FILES: usize = 512;

/// NVRTC and the architecture to compile for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Compiler {
    /// NVRTC version (major, minor).
    pub(super) version: (u32, u32),
    target: Target,
}

/// An architecture, and whether the result is a cubin for it or PTX for the driver to compile further.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    name: String,
    is_ptx: bool,
}

/// Compiled kernels, in the requested order.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) images: Vec<Vec<u8>>,
    /// Number of images from the cache.
    pub(super) cached: usize,
}

impl Compiler {
    /// Finds NVRTC and the target for `device`.
    pub(super) fn for_device(device: &Device) -> Result<Self, CudaError> {
        let version = find()?;
        let (major, minor) = device.capability;
        let target = Target::of(major * 10 + minor, &supported()?).ok_or_else(|| CudaError::NoCompiler {
            why: format!(
                "is of CUDA {}.{}, which does not know compute capability {major}.{minor}",
                version.0, version.1
            ),
        })?;
        Ok(Self { version, target })
    }

    /// Reads `kernels` from the cache or compiles them, several at once.
    pub(super) fn compile(
        &self,
        device: &Device,
        cache: &Cache,
        kernels: &'static [Image],
    ) -> Result<Compiled, CudaError> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<Vec<(usize, bool, Vec<u8>)>, CudaError> {
            let mut made = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(kernel) = kernels.get(index) else {
                    return Ok(made);
                };
                let (cached, image) = self.image(device, cache, kernel)?;
                made.push((index, cached, image));
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get()).min(kernels.len());
        let mut made = Vec::with_capacity(kernels.len());
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            for worker in workers {
                made.extend(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            Ok::<_, CudaError>(())
        })?;
        made.sort_unstable_by_key(|(index, ..)| *index);
        let cached = made.iter().filter(|(_, cached, _)| *cached).count();
        if cached < kernels.len() {
            cache.prune("kernel-", MAX_FILES);
        }
        Ok(Compiled { images: made.into_iter().map(|(.., image)| image).collect(), cached })
    }

    /// Image of one kernel file, and whether it came from the cache.
    fn image(
        &self,
        device: &Device,
        cache: &Cache,
        kernel: &'static Image,
    ) -> Result<(bool, Vec<u8>), CudaError> {
        let name = self.cache_name(device, kernel);
        if let Some(image) = cache.read(&name) {
            return Ok((true, image));
        }
        let image = self.target.compile(kernel)?;
        cache.write(&name, &image);
        Ok((false, image))
    }

    fn cache_name(&self, device: &Device, kernel: &Image) -> String {
        let mut parts: Vec<&[u8]> = vec![kernel.source.as_bytes()];
        parts.extend(HEADERS.iter().flat_map(|header| [header.name.as_bytes(), header.source.as_bytes()]));
        parts.extend(FLAGS.iter().map(|flag| flag.to_bytes()));
        let (gpu, target, driver) = (file_name(&device.name), &self.target.name, device.driver);
        let (major, minor) = self.version;
        let (file, sum) = (kernel.name, hash(&parts));
        format!("kernel-{file}-{gpu}-{target}-nvrtc{major}.{minor}-driver{driver}-{sum:016x}")
    }
}

impl Target {
    /// Target for compute capability `capability` (major * 10 + minor) out of `supported`.
    /// Architecture-specific features (`a`) where there are kernels for them; PTX of the newest older
    /// architecture if NVRTC is older than the device.
    fn of(capability: u32, supported: &[u32]) -> Option<Self> {
        if supported.contains(&capability) {
            let own = if capability == 90 { "a" } else { "" };
            return Some(Self { name: format!("sm_{capability}{own}"), is_ptx: false });
        }
        let older = supported.iter().copied().filter(|it| *it >= 80 && *it < capability).max()?;
        Some(Self { name: format!("compute_{older}"), is_ptx: true })
    }

    fn compile(&self, kernel: &'static Image) -> Result<Vec<u8>, CudaError> {
        let failed = |log: String| CudaError::Compile { file: kernel.name, target: self.name.clone(), log };
        let program = Program::new(kernel).map_err(|code| failed(error_text(code)))?;
        let architecture = CString::new(format!("--gpu-architecture={}", self.name)).unwrap_or_default();
        let options: Vec<*const c_char> =
            FLAGS.iter().copied().chain([architecture.as_c_str()]).map(CStr::as_ptr).collect();
        // SAFETY: the program is alive; the options are strings that outlive the call.
        let code = unsafe { sys::nvrtcCompileProgram(program.0, options.len() as i32, options.as_ptr()) };
        if code != sys::nvrtcResult::NVRTC_SUCCESS {
            return Err(failed(format!("{}\n{}", error_text(code), program.log())));
        }
        let mut image = program.image(self.is_ptx).map_err(|code| failed(error_text(code)))?;
        if self.is_ptx {
            image.push(0); // the driver reads PTX as a string
        }
        Ok(image)
    }
}

/// An NVRTC program, destroyed on drop.
struct Program(sys::nvrtcProgram);

impl Program {
    fn new(kernel: &Image) -> Result<Self, sys::nvrtcResult> {
        let text = |text: &str| CString::new(text).map_err(|_| sys::nvrtcResult::NVRTC_ERROR_INVALID_INPUT);
        let (source, name) = (text(kernel.source)?, text(kernel.name)?);
        let headers: Vec<CString> = HEADERS.iter().map(|it| text(it.source)).collect::<Result<_, _>>()?;
        let names: Vec<CString> = HEADERS.iter().map(|it| text(it.name)).collect::<Result<_, _>>()?;
        let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (header_pointers, name_pointers) = (pointers(&headers), pointers(&names));
        let mut program = std::ptr::null_mut();
        // SAFETY: the strings are alive until the call returns, which copies them; there are as many headers
        // as names.
        let code = unsafe {
            sys::nvrtcCreateProgram(
                &mut program,
                source.as_ptr(),
                name.as_ptr(),
                headers.len() as i32,
                header_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )
        };
        ok(code).map(|()| Self(program))
    }

    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program is alive; the out-pointer is valid for the call.
        if ok(unsafe { sys::nvrtcGetProgramLogSize(self.0, &mut size) }).is_err() {
            return String::new();
        }
        let mut log = vec![0u8; size];
        // SAFETY: the buffer has the size that the library reported.
        let code = unsafe { sys::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast()) };
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        if ok(code).is_ok() { String::from_utf8_lossy(&log[..end]).into_owned() } else { String::new() }
    }

    fn image(&self, is_ptx: bool) -> Result<Vec<u8>, sys::nvrtcResult> {
        let mut size = 0;
        // SAFETY: the program is alive and compiled; the out-pointer is valid for the call.
        ok(unsafe {
            if is_ptx {
                sys::nvrtcGetPTXSize(self.0, &mut size)
            } else {
                sys::nvrtcGetCUBINSize(self.0, &mut size)
            }
        })?;
        let mut image = vec![0u8; size];
        let to = image.as_mut_ptr().cast();
        // SAFETY: the buffer has the size that the library reported.
        ok(unsafe { if is_ptx { sys::nvrtcGetPTX(self.0, to) } else { sys::nvrtcGetCUBIN(self.0, to) } })?;
        Ok(image)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed once. Errors do not matter here.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn ok(code: sys::nvrtcResult) -> Result<(), sys::nvrtcResult> {
    if code == sys::nvrtcResult::NVRTC_SUCCESS { Ok(()) } else { Err(code) }
}

fn error_text(code: sys::nvrtcResult) -> String {
    // SAFETY: takes any code and returns a constant string.
    let text = unsafe { sys::nvrtcGetErrorString(code) };
    if text.is_null() {
        return format!("{code:?}");
    }
    // SAFETY: a constant string of the library, which stays loaded.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Finds the library; returns its version.
pub(super) fn find() -> Result<(u32, u32), CudaError> {
    // SAFETY: only looks for the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoCompiler { why: "was not found".into() });
    }
    version()
}

/// Version of the library; an error if it is too old.
fn version() -> Result<(u32, u32), CudaError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is present; the out-pointers are valid for the call.
    let code = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    ok(code)
        .map_err(|code| CudaError::NoCompiler { why: format!("does not start: {}", error_text(code)) })?;
    let version = (major.max(0) as u32, minor.max(0) as u32);
    if version < MIN_VERSION {
        return Err(CudaError::NoCompiler { why: format!("is of CUDA {major}.{minor}, too old") });
    }
    Ok(version)
}

/// Architectures that the library compiles for, as major * 10 + minor.
fn supported() -> Result<Vec<u32>, CudaError> {
    let broken = |code| CudaError::NoCompiler {
        why: format!("does not name its architectures: {}", error_text(code)),
    };
    let mut count = 0;
    // SAFETY: the library is present; the out-pointer is valid for the call.
    ok(unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) }).map_err(broken)?;
    let mut all = vec![0i32; count.max(0) as usize];
    // SAFETY: the buffer has the size that the library reported.
    ok(unsafe { sys::nvrtcGetSupportedArchs(all.as_mut_ptr()) }).map_err(broken)?;
    Ok(all.into_iter().map(|it| it.max(0) as u32).collect())
}

#[cfg(test)]
mod tests {
    use super::super::images::KERNELS;
    use super::*;

    #[test]
    fn the_target_is_the_device_or_older_ptx() {
        let supported = [75, 80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120];
        let check = |capability, name: &str, is_ptx| {
            let target = Target::of(capability, &supported).unwrap();
            assert_eq!((target.name.as_str(), target.is_ptx), (name, is_ptx));
        };
        check(80, "sm_80", false);
        check(86, "sm_86", false);
        check(90, "sm_90a", false);
        check(100, "sm_100", false);
        check(103, "sm_103", false);
        check(110, "sm_110", false);
        check(121, "compute_120", true);
        assert_eq!(Target::of(80, &[100, 120]), None);
    }

    /// Needs NVIDIA's NVRTC on `LD_LIBRARY_PATH`; `tests/cuda/compile` runs it.
    #[test]
    #[ignore = "needs NVRTC"]
    fn every_source_compiles_with_nvrtc() {
        // SAFETY: only looks for the library.
        assert!(unsafe { sys::is_culib_present() }, "no NVRTC on LD_LIBRARY_PATH");
        println!("NVRTC {:?}", version().unwrap());
        for (name, is_ptx) in
            [("sm_80", false), ("sm_89", false), ("sm_90a", false), ("sm_100", false), ("compute_90", true)]
        {
            let target = Target { name: name.into(), is_ptx };
            for kernel in KERNELS {
                let image = target.compile(kernel).unwrap_or_else(|error| panic!("{error}"));
                println!("{name:<12} {:<24} {:>8} bytes", kernel.name, image.len());
                assert!(is_ptx || image.starts_with(b"\x7fELF"));
            }
        }
    }
}
