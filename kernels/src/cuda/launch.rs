//! Kernel launches: a kernel, its grid, and arguments whose sizes are checked against the kernel's
//! parameters.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::error::check;
use super::memory::Element;
use super::{CudaError, DeviceSlice, Stream};

/// Most parameters of a kernel.
const MAX_ARGS: usize = 32;
/// Oldest PTX target (major * 10 + minor) in which kernels wait for the previous grid: `griddepcontrol.wait`.
const MIN_TARGET_WITH_WAITS: i32 = 90;

/// A kernel of a loaded module. Valid as long as [`super::Kernels`] is alive.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    function: sys::CUfunction,
    name: &'static str,
    sizes: [u32; MAX_ARGS],
    count: usize,
    /// Whether it was compiled for a target with waits. Launched with the attribute, a kernel without them
    /// would read what the previous grid has not written yet.
    waits: bool,
}

// SAFETY: a handle that any thread bound to the device may use.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// Grid and block dimensions and dynamic shared memory of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in x, y, z.
    pub blocks: [u32; 3],
    /// Threads in x, y, z.
    pub threads: [u32; 3],
    /// Bytes of dynamic shared memory per block.
    pub shared_bytes: u32,
    /// The kernel may start before the previous one ends (programmatic dependent launch); it waits itself
    /// before it accesses memory. Without effect before compute capability 9.0, where kernels have no wait.
    pub overlaps: bool,
}

impl Grid {
    /// `blocks` blocks of `threads` threads each, one-dimensional.
    pub fn new(blocks: u32, threads: u32) -> Self {
        Self::of([blocks, 1, 1], threads)
    }

    /// Up to three-dimensional `blocks` of `threads` threads each.
    pub fn of(blocks: [u32; 3], threads: u32) -> Self {
        Self { blocks, threads: [threads, 1, 1], shared_bytes: 0, overlaps: false }
    }

    /// Adds dynamic shared memory.
    pub fn shared(self, shared_bytes: u32) -> Self {
        Self { shared_bytes, ..self }
    }

    /// Allows programmatic dependent launch.
    pub fn overlapping(self) -> Self {
        Self { overlaps: true, ..self }
    }
}

/// Arguments of a launch, in the order of the kernel's parameters. Does not allocate.
#[derive(Debug)]
pub struct Args<'a> {
    values: [u64; MAX_ARGS],
    sizes: [u32; MAX_ARGS],
    large: [Option<&'a [u8]>; MAX_ARGS],
    count: usize,
}

impl Default for Args<'_> {
    fn default() -> Self {
        Self { values: [0; MAX_ARGS], sizes: [0; MAX_ARGS], large: [None; MAX_ARGS], count: 0 }
    }
}

impl<'a> Args<'a> {
    /// No arguments yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn push(mut self, value: u64, bytes: u32) -> Self {
        assert!(self.count < MAX_ARGS, "a kernel has at most {MAX_ARGS} parameters");
        (self.values[self.count], self.sizes[self.count]) = (value, bytes);
        self.count += 1;
        self
    }

    /// A pointer; null for [`DeviceSlice::NONE`].
    pub fn slice<T: Element>(self, slice: DeviceSlice<T>) -> Self {
        self.push(slice.address(), 8)
    }

    /// An `i32` from a `usize`, the host's type for sizes. Panics if it does not fit.
    pub fn size(self, value: usize) -> Self {
        let value = i32::try_from(value).unwrap_or_else(|_| panic!("{value} does not fit a kernel's i32"));
        self.push(u64::from(value as u32), 4)
    }

    /// Adds a `u32`.
    pub fn u32(self, value: u32) -> Self {
        self.push(u64::from(value), 4)
    }

    /// Adds an `i32`.
    pub fn i32(self, value: i32) -> Self {
        self.push(u64::from(value as u32), 4)
    }

    /// Adds a `u64`.
    pub fn u64(self, value: u64) -> Self {
        self.push(value, 8)
    }

    /// Adds an `f32`.
    pub fn f32(self, value: f32) -> Self {
        self.push(u64::from(value.to_bits()), 4)
    }

    /// A struct by value, such as a tensor map, as its bytes.
    pub fn bytes(mut self, bytes: &'a [u8]) -> Self {
        self.large[self.count] = Some(bytes);
        let size = bytes.len() as u32;
        self.push(0, size)
    }

    /// Sizes of the arguments in bytes.
    fn sizes(&self) -> &[u32] {
        &self.sizes[..self.count]
    }
}

impl Kernel {
    /// Wraps `function` and queries its target and the sizes of its parameters.
    pub(crate) fn new(function: sys::CUfunction, name: &'static str) -> Result<Self, CudaError> {
        let (mut sizes, mut count, mut target) = ([0; MAX_ARGS], 0, 0);
        // The target of the PTX, also of a cubin: what the driver compiles from older PTX has no waits.
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PTX_VERSION;
        // SAFETY: the out-pointer is valid for the call, and the function is alive.
        check("cuFuncGetAttribute", unsafe { sys::cuFuncGetAttribute(&mut target, attribute, function) })?;
        let waits = target >= MIN_TARGET_WITH_WAITS;
        loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: the out-pointers are valid for the call, and the function is alive.
            match unsafe { sys::cuFuncGetParamInfo(function, count, &mut offset, &mut size) } {
                sys::CUresult::CUDA_ERROR_INVALID_VALUE => {
                    return Ok(Self { function, name, sizes, count, waits });
                }
                code => check("cuFuncGetParamInfo", code)?,
            }
            assert!(count < MAX_ARGS, "{name} has more than {MAX_ARGS} parameters");
            sizes[count] = size as u32;
            count += 1;
        }
    }

    /// Whether its launches may overlap with the previous grid's end.
    pub fn may_overlap(&self) -> bool {
        self.waits
    }

    /// Name of the kernel.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Queues the kernel on `stream`.
    ///
    /// # Panics
    /// If number or sizes of the arguments differ from the kernel's parameters: the driver would read past
    /// them.
    pub fn launch(&self, stream: &Stream, grid: Grid, args: &Args<'_>) -> Result<(), CudaError> {
        assert_eq!(self.parameter_sizes(), args.sizes(), "arguments of {}", self.name);
        let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
        for (i, pointer) in pointers[..args.count].iter_mut().enumerate() {
            *pointer = match args.large[i] {
                Some(bytes) => bytes.as_ptr().cast_mut().cast(),
                None => (&raw const args.values[i]).cast_mut().cast(),
            };
        }
        let mut overlap = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: grid.blocks[0],
            gridDimY: grid.blocks[1],
            gridDimZ: grid.blocks[2],
            blockDimX: grid.threads[0],
            blockDimY: grid.threads[1],
            blockDimZ: grid.threads[2],
            sharedMemBytes: grid.shared_bytes,
            hStream: stream.raw(),
            attrs: &mut overlap,
            numAttrs: u32::from(grid.overlaps && self.waits && stream.overlaps()),
        };
        // SAFETY: there are as many pointers as the kernel has parameters, to values of the right sizes, read
        // before the call returns. The kernel's use of device addresses cannot affect the host's memory.
        check(self.name, unsafe {
            sys::cuLaunchKernelEx(&config, self.function, pointers.as_mut_ptr(), std::ptr::null_mut())
        })
    }

    /// Size of each parameter in bytes.
    pub fn parameter_sizes(&self) -> &[u32] {
        &self.sizes[..self.count]
    }

    /// Allows up to `bytes` of dynamic shared memory, beyond the default limit of 48 KiB, and prefers as much
    /// shared memory as a multiprocessor has.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), CudaError> {
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        self.set(attribute, bytes as i32)?;
        self.prefer_shared()
    }

    /// Prefers as much shared memory as a multiprocessor has, and the rest as L1. By default the driver
    /// chooses for each launch. A multiprocessor changes the division only when it is idle, so a kernel that
    /// follows one with much shared memory should ask for the same, or the two cannot overlap.
    pub fn prefer_shared(&self) -> Result<(), CudaError> {
        let most = sys::CUshared_carveout_enum::CU_SHAREDMEM_CARVEOUT_MAX_SHARED as i32;
        self.set(sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, most)
    }

    fn set(&self, attribute: sys::CUfunction_attribute, value: i32) -> Result<(), CudaError> {
        // SAFETY: the function is alive.
        check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(self.function, attribute, value) })
    }
}
