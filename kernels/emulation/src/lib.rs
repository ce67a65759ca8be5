//! NVIDIA's libraries with kernels that run on the CPU, to test everything that talks to a GPU without one.
//!
//! `cpp/emulation` runs the unchanged `kernels/cu/*.cu` with one fiber per CUDA thread; `cpp/driver` is a
//! `libcuda.so.1` around it, `cpp/cublaslt` a `libcublasLt.so.13`, `cpp/nvrtc` a `libnvrtc.so.13`, `cpp/nccl`
//! a `libnccl.so.2`. A process that finds them instead of NVIDIA's runs the same Rust code, call by call.
//!
//! The emulated NCCL connects processes, each a rank with its own device. Its work waits on the stream until
//! all ranks have reached it. It refuses, with both ranks named, calls on which NCCL would hang: a different
//! order, size or type, a call captured in a graph on one rank only, two communicators at once, two threads.
//!
//! With several devices, processes map each other's device memory. A kernel that waits for another device is
//! suspended until its stream is asked for again; stores to other devices land late and in any order, unless
//! a release covers them.
//!
//! Work on streams runs *late*, only when a call waits for it. That catches a host that reads a result too
//! early or changes the source of a pending copy. These environment variables are read when the driver
//! starts:
//!
//! | variable | meaning |
//! |---|---|
//! | `EMU_SEED` | order of threads, blocks and streams: 0 = by index, any other number shuffles |
//! | `EMU_EAGER=1` | work is done at once |
//! | `EMU_MEMORY` | bytes of device memory, 1 GiB if unset |
//! | `EMU_DEVICES` | number of devices, 1 if unset; `CUDA_VISIBLE_DEVICES` chooses among them |
//! | `EMU_DRIVER` | the driver's version, 13000 if unset |
//! | `EMU_CAPABILITY` | compute capability times ten, 90 if unset |
//! | `EMU_HANG_AT_LAUNCH=n` | the n-th kernel that runs (from 1) never ends |
//! | `EMU_ILLEGAL_ADDRESS_AT_LAUNCH=n` | it ends with error 700, and so does every later call |
//! | `EMU_ECC_AT_LAUNCH=n` | the same with error 214, as after an uncorrectable memory error (an Xid) |
//! | `EMU_FAULT=hang:k`, `illegal:k` | each launch of the kernel named k never ends, or ends with error 700 |
//! | `EMU_LAUNCH=nothing` | kernels and matrix products do not run; shows what the host's work costs |
//! | `EMU_NO_MEMORY_AT_ALLOCATION=n` | the n-th device allocation fails |
//! | `EMU_NCCL_FAULT=hang:r:n` | rank r's n-th exchange (from 1) never ends |
//! | `EMU_NCCL_FAULT=error:r:n`, `remote:r:n` | it ends with an asynchronous error |
//! | `EMU_NCCL_FAULT=wrong:r:n` | a bit of what rank r receives in it is wrong |
//! | `EMU_NCCL_FAULT=breaks:r:n` | the group breaks when rank r has queued its n-th exchange |
//! | `EMU_NCCL_FAULT=absent:r`, `abort:r` | rank r never joins; its abort never returns |
//! | `EMU_PEER=none` | devices do not reach each other's memory |
//! | `EMU_PEER=wrong` | they seem to, and what is written is lost |
//! | `EMU_PEER=silent:d:n` | stores of device d to others are lost, from the n-th such kernel on (from 1) |
//! | `EMU_HOST=n` | the process stands for one on machine n, whose GPUs have numbers of their own |
//! | `EMU_CUBLASLT_VERSION` | cuBLASLt's version, 130000 if unset; 0 counts as missing |
//! | `EMU_NCCL_VERSION` | NCCL's version, 22803 if unset |
//! | `EMU_BLAS_SEARCH_FAULT=n` | cuBLASLt's search for algorithms fails for products of n rows |
//! | `EMU_NO_OVERLAP_IN_CAPTURE=1` | captures of launches that may overlap are refused |
//! | `EMU_NO_CAPTURE=1`, `EMU_NO_GRAPH_LAUNCH=1` | all captures, or all launches of graphs, are refused |
//! | `EMU_LIBRARIES` | the libraries of another build |

use std::ffi::CStr;
use std::ffi::c_char;
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::Library;

static DRIVER: OnceLock<Option<Library>> = OnceLock::new();
static OTHERS: OnceLock<bool> = OnceLock::new();

/// The directory of the libraries, for `LD_LIBRARY_PATH` of other processes. `None` if there was no C++
/// compiler.
pub fn directory() -> Option<PathBuf> {
    if let Some(other) = std::env::var_os("EMU_LIBRARIES") {
        return Some(other.into());
    }
    let directory = env!("EMU_LIBRARIES");
    (!directory.is_empty()).then(|| directory.into())
}

/// Makes this process load the emulation instead of the driver, cuBLASLt, NVRTC and NCCL. If it was not
/// built, prints why and returns false.
pub fn load() -> bool {
    load_only_driver()
        && *OTHERS.get_or_init(|| {
            for name in ["libcublasLt.so.13", "libnvrtc.so.13", "libnccl.so.2"] {
                // Once loaded, a library is found by its name; it stays loaded until the process ends.
                std::mem::forget(open(name));
            }
            true
        })
}

/// Like [`load`], but without the emulated cuBLASLt: it is missing, or NVIDIA's if the machine has it.
pub fn load_without_cublaslt() -> bool {
    static NVRTC: OnceLock<()> = OnceLock::new();
    load_only_driver() && {
        NVRTC.get_or_init(|| std::mem::forget(open("libnvrtc.so.13")));
        true
    }
}

/// Like [`load`], but for the driver alone: the other libraries are missing, or NVIDIA's.
pub fn load_only_driver() -> bool {
    driver().is_some()
}

fn driver() -> Option<&'static Library> {
    let load = || {
        if directory().is_none() {
            eprintln!("SKIPPED: no CUDA emulation; install a C++ compiler (g++) and build again");
            return None;
        }
        Some(open("libcuda.so.1"))
    };
    DRIVER.get_or_init(load).as_ref()
}

fn open(name: &str) -> Library {
    let path = directory().unwrap_or_default().join(name);
    // SAFETY: our own library; its constructors only register kernels.
    unsafe { Library::new(&path) }
        .unwrap_or_else(|error| panic!("the CUDA emulation does not load: {}: {error}", path.display()))
}

/// A fault of the emulated device, and when it occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The `n`-th kernel to run from now on, counted from 1, never ends.
    Hang(u32),
    /// That kernel ends with `CUDA_ERROR_ILLEGAL_ADDRESS`, and so does every later call.
    IllegalAddress(u32),
    /// The same with `CUDA_ERROR_ECC_UNCORRECTABLE`.
    EccUncorrectable(u32),
    /// The `n`-th device allocation from now on, counted from 1, fails.
    NoMemory(u32),
    /// Captures of launches that may overlap are refused.
    NoOverlapInCapture,
    /// All captures are refused.
    NoCapture,
    /// All launches of graphs are refused.
    NoGraphLaunch,
}

/// Arms `fault`. Requires that the driver is loaded.
pub fn inject(fault: Fault) {
    let (kind, at) = match fault {
        Fault::Hang(at) => (0, at),
        Fault::IllegalAddress(at) => (1, at),
        Fault::EccUncorrectable(at) => (2, at),
        Fault::NoMemory(at) => (3, at),
        Fault::NoOverlapInCapture => (4, 1),
        Fault::NoCapture => (5, 1),
        Fault::NoGraphLaunch => (6, 1),
    };
    // SAFETY: the symbol has this type.
    unsafe { call::<unsafe extern "C" fn(i32, u32), _>(b"skein_emulation_inject", |inject| inject(kind, at)) }
}

/// Ends every fault and drops all queued work, so that the device looks as it does to a new process. Memory
/// and handles stay.
pub fn reset() {
    // SAFETY: the symbol has this type.
    unsafe { call::<unsafe extern "C" fn(), _>(b"skein_emulation_reset", |reset| reset()) }
}

/// The device's message for its latest fault; empty if there was none.
pub fn last_fault() -> String {
    // SAFETY: the symbol has this type; it returns a string that lives until the next fault, copied at once.
    unsafe {
        call::<unsafe extern "C" fn() -> *const c_char, _>(b"skein_emulation_last_fault", |last| {
            CStr::from_ptr(last()).to_string_lossy().into_owned()
        })
    }
}

/// # Safety
/// The driver's `symbol` is an `F`.
unsafe fn call<F: Copy, T>(symbol: &[u8], run: impl FnOnce(F) -> T) -> T {
    let driver = driver().expect("the CUDA emulation is loaded");
    // SAFETY: as the caller says.
    let function = unsafe { driver.get::<F>(symbol) }.expect("the emulated driver has it");
    run(*function)
}
