//! The driver API for these tests: result codes are values, and handles live until the test ends.
// Each test file uses a part of this module, and the unsafe calls are what is tested.
#![allow(dead_code, clippy::undocumented_unsafe_blocks)]

use std::ffi::{CString, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{self, CUresult};

/// `CUDA_SUCCESS` as a number.
pub const OK: u32 = 0;

/// The emulated device, for one test at a time.
pub struct Emulated {
    module: sys::CUmodule,
    _alone: MutexGuard<'static, ()>,
}

/// `None` without a C++ compiler, after printing the reason.
pub fn device() -> Option<Emulated> {
    static ONE_TEST: Mutex<()> = Mutex::new(());
    let alone = ONE_TEST.lock().unwrap_or_else(PoisonError::into_inner);
    if !skein_cuda_emulation::load_only_driver() {
        return None;
    }
    skein_cuda_emulation::reset();
    let mut module = std::ptr::null_mut();
    unsafe {
        code(sys::cuInit(0));
        bind();
        assert_eq!(code(sys::cuModuleLoadData(&mut module, c".version 9.0".as_ptr().cast())), OK);
    }
    Some(Emulated { module, _alone: alone })
}

/// Makes the context current in this thread.
pub fn bind() {
    let mut context = std::ptr::null_mut();
    unsafe {
        assert_eq!(code(sys::cuDevicePrimaryCtxRetain(&mut context, 0)), OK);
        assert_eq!(code(sys::cuCtxSetCurrent(context)), OK);
    }
}

pub fn code(result: CUresult) -> u32 {
    result as u32
}

impl Drop for Emulated {
    fn drop(&mut self) {
        skein_cuda_emulation::reset();
    }
}

impl Emulated {
    pub fn stream(&self) -> sys::CUstream {
        let mut stream = std::ptr::null_mut();
        assert_eq!(code(unsafe { sys::cuStreamCreate(&mut stream, 1) }), OK);
        stream
    }

    pub fn event(&self) -> sys::CUevent {
        let mut event = std::ptr::null_mut();
        assert_eq!(code(unsafe { sys::cuEventCreate(&mut event, 0) }), OK);
        event
    }

    pub fn alloc(&self, words: usize) -> u64 {
        let mut address = 0;
        assert_eq!(code(unsafe { sys::cuMemAlloc_v2(&mut address, words * 4) }), OK);
        address
    }

    /// Page-locked host memory.
    pub fn pinned(&self, words: usize) -> &'static mut [u32] {
        let mut start = std::ptr::null_mut();
        unsafe {
            assert_eq!(code(sys::cuMemHostAlloc(&mut start, words * 4, 0)), OK);
            std::slice::from_raw_parts_mut(start.cast(), words)
        }
    }

    pub fn upload(&self, to: u64, from: &[u32], stream: sys::CUstream) -> u32 {
        code(unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), size_of_val(from), stream) })
    }

    pub fn download(&self, to: &mut [u32], from: u64, stream: sys::CUstream) -> u32 {
        code(unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, size_of_val(to), stream) })
    }

    pub fn synchronize(&self, stream: sys::CUstream) -> u32 {
        code(unsafe { sys::cuStreamSynchronize(stream) })
    }

    pub fn function(&self, name: &str) -> sys::CUfunction {
        let (mut function, name) = (std::ptr::null_mut(), CString::new(name).unwrap());
        assert_eq!(code(unsafe { sys::cuModuleGetFunction(&mut function, self.module, name.as_ptr()) }), OK);
        function
    }

    /// Launches `name` with `args` of 4 or 8 bytes.
    pub fn launch(&self, name: &str, launch: Launch, args: &[Arg], stream: sys::CUstream) -> u32 {
        let mut values: Vec<u64> =
            args.iter().map(|(Arg::Word(value) | Arg::Address(value))| *value).collect();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| (&raw mut *value).cast()).collect();
        let config = sys::CUlaunchConfig {
            gridDimX: launch.blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared_bytes,
            hStream: stream,
            attrs: std::ptr::null_mut(),
            numAttrs: 0,
        };
        let function = self.function(name);
        code(unsafe { sys::cuLaunchKernelEx(&config, function, pointers.as_mut_ptr(), std::ptr::null_mut()) })
    }

    /// Writes `out[i] = i + value` in fresh memory, more in used memory.
    pub fn count(&self, out: u64, value: u32, words: usize, stream: sys::CUstream) -> u32 {
        let args = [Arg::Address(out), Arg::Word(value.into()), Arg::Word(words as u64)];
        self.launch("selftest_count", Launch::of(words.div_ceil(32) as u32, 32), &args, stream)
    }
}

#[derive(Clone, Copy)]
pub struct Launch {
    pub blocks: u32,
    pub threads: u32,
    pub shared_bytes: u32,
}

impl Launch {
    pub fn of(blocks: u32, threads: u32) -> Self {
        Self { blocks, threads, shared_bytes: 0 }
    }
}

#[derive(Clone, Copy)]
pub enum Arg {
    Word(u64),
    Address(u64),
}
