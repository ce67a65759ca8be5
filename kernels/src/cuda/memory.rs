//! Device memory and page-locked host memory.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys;

use super::error::check;
use super::{CudaError, Device, Stream};

/// A plain value that may be copied between host and device byte by byte.
///
/// # Safety
/// Every bit pattern is valid, and there are neither padding nor pointers to the host.
pub unsafe trait Element: Copy + Send + Sync + 'static {}

/// The bits of an FP8 e4m3 number (OCP 8-bit floating point).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct E4m3(pub u8);

macro_rules! elements {
    ($($type:ty),*) => {$(
        // SAFETY: a number without padding; every bit pattern is valid.
        unsafe impl Element for $type {}
    )*};
}
elements!(u8, i8, u16, i32, u32, i64, u64, f32, half::bf16, half::f16, E4m3);

/// A range of device memory: an address and a number of values. It does not keep the memory alive; the
/// buffer's owner has to keep it while kernels use it.
#[derive(Debug)]
pub struct DeviceSlice<T> {
    address: u64,
    len: usize,
    of: PhantomData<T>,
}

impl<T> Clone for DeviceSlice<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DeviceSlice<T> {}

impl<T: Element> DeviceSlice<T> {
    /// No memory: an absent optional argument.
    pub const NONE: Self = Self { address: 0, len: 0, of: PhantomData };

    /// `len` values at `address`, which must be a multiple of the value's size.
    pub fn from_raw(address: u64, len: usize) -> Self {
        Self { address, len, of: PhantomData }
    }

    /// Address in device memory.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The values in `range`.
    ///
    /// # Panics
    /// If `range` reaches past the end.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} is not inside 0..{} of a device slice",
            self.len
        );
        Self {
            address: self.address + (range.start * size_of::<T>()) as u64,
            len: range.end - range.start,
            of: PhantomData,
        }
    }

    /// The same bytes as values of another type, as many as fit.
    pub fn cast<U: Element>(&self) -> DeviceSlice<U> {
        DeviceSlice { address: self.address, len: self.bytes() / size_of::<U>(), of: PhantomData }
    }

    /// Queues a copy of `values` to this slice and returns. The copy runs in stream order; `values` must not
    /// change until then.
    pub fn upload(
        &self,
        stream: &Stream,
        values: &PinnedBuffer<T>,
        range: Range<usize>,
    ) -> Result<(), CudaError> {
        let values = &values[range];
        assert!(values.len() <= self.len, "{} values do not fit into {}", values.len(), self.len);
        // SAFETY: source and destination have that many bytes; the driver frees pinned memory only after
        // pending copies.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(self.address, values.as_ptr().cast(), size_of_val(values), stream.raw())
        })
    }

    /// Queues a copy of this slice to `values` and returns. Read them after an event or a synchronisation.
    pub fn download(
        &self,
        stream: &Stream,
        values: &mut PinnedBuffer<T>,
        range: Range<usize>,
    ) -> Result<(), CudaError> {
        let values = &mut values[range];
        assert!(values.len() <= self.len, "{} values are more than {}", values.len(), self.len);
        // SAFETY: as in `upload`.
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(
                values.as_mut_ptr().cast(),
                self.address,
                size_of_val(values),
                stream.raw(),
            )
        })
    }

    /// Queues a copy of `values` on the device to this slice. The two must not overlap.
    pub fn copy_from(&self, stream: &Stream, values: DeviceSlice<T>) -> Result<(), CudaError> {
        assert!(values.len() <= self.len, "{} values do not fit into {}", values.len(), self.len);
        // SAFETY: source and destination have that many bytes of device memory.
        check("cuMemcpyDtoDAsync", unsafe {
            sys::cuMemcpyDtoDAsync_v2(self.address, values.address, values.bytes(), stream.raw())
        })
    }

    /// Copies `values` to this slice and waits for the copy; for tests and loading.
    pub fn write(&self, stream: &Stream, values: &[T]) -> Result<(), CudaError> {
        assert!(values.len() <= self.len, "{} values do not fit into {}", values.len(), self.len);
        // A copy from pageable memory waits inside the driver, where no limit applies, so wait for earlier
        // work first.
        stream.synchronize()?;
        // SAFETY: source and destination have that many bytes, and the stream is waited for.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(self.address, values.as_ptr().cast(), size_of_val(values), stream.raw())
        })?;
        stream.synchronize()
    }

    /// Reads all values after the stream's work; for tests and loading.
    pub fn read(&self, stream: &Stream) -> Result<Vec<T>, CudaError> {
        stream.synchronize()?; // as in `write`
        let mut values = Vec::<T>::with_capacity(self.len);
        // SAFETY: the vector has that many bytes, the copy is complete before the length is set, and every
        // bit pattern is valid.
        unsafe {
            let to = values.as_mut_ptr().cast::<c_void>();
            check(
                "cuMemcpyDtoHAsync",
                sys::cuMemcpyDtoHAsync_v2(to, self.address, self.bytes(), stream.raw()),
            )?;
            if let Err(error) = stream.synchronize() {
                // A stuck device may still write to it.
                std::mem::forget(values);
                return Err(error);
            }
            values.set_len(self.len);
        }
        Ok(values)
    }

    /// Sets every word of four bytes to `word`.
    pub fn fill_words(&self, stream: &Stream, word: u32) -> Result<(), CudaError> {
        // SAFETY: the destination has that many words.
        check("cuMemsetD32Async", unsafe {
            sys::cuMemsetD32Async(self.address, word, self.bytes() / size_of::<u32>(), stream.raw())
        })
    }

    /// Sets every byte to `byte`.
    pub fn fill_bytes(&self, stream: &Stream, byte: u8) -> Result<(), CudaError> {
        // SAFETY: the destination has that many bytes.
        check("cuMemsetD8Async", unsafe {
            sys::cuMemsetD8Async(self.address, byte, self.bytes(), stream.raw())
        })
    }
}

/// An allocation of device memory.
#[derive(Debug)]
pub struct DeviceBuffer<T: Element> {
    slice: DeviceSlice<T>,
    device: Arc<Device>,
}

impl<T: Element> DeviceBuffer<T> {
    /// `len` uninitialised values.
    pub fn new(device: &Arc<Device>, len: usize) -> Result<Self, CudaError> {
        let mut address = 0;
        let bytes = (len * size_of::<T>()).max(1);
        // SAFETY: the out-pointer is valid for the call.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes) })?;
        Ok(Self { slice: DeviceSlice { address, len, of: PhantomData }, device: device.clone() })
    }

    /// A copy of `values`.
    pub fn from_slice(device: &Arc<Device>, stream: &Stream, values: &[T]) -> Result<Self, CudaError> {
        let buffer = Self::new(device, values.len())?;
        buffer.write(stream, values)?;
        Ok(buffer)
    }
}

impl<T: Element> std::ops::Deref for DeviceBuffer<T> {
    type Target = DeviceSlice<T>;

    fn deref(&self) -> &DeviceSlice<T> {
        &self.slice
    }
}

impl<T: Element> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.device.is_abandoned() {
            return;
        }
        let _ = self.device.bind();
        // SAFETY: allocated in `new` and freed once; the driver waits for work that uses it. Errors do not
        // matter here.
        let _ = unsafe { sys::cuMemFree_v2(self.slice.address) };
    }
}

/// Page-locked host memory, which asynchronous copies require.
#[derive(Debug)]
pub struct PinnedBuffer<T: Element> {
    start: *mut T,
    len: usize,
    device: Arc<Device>,
}

// SAFETY: plain memory with one owner.
unsafe impl<T: Element> Send for PinnedBuffer<T> {}
// SAFETY: shared references only read it.
unsafe impl<T: Element> Sync for PinnedBuffer<T> {}

impl<T: Element> PinnedBuffer<T> {
    /// `len` values with all bytes zero.
    pub fn new(device: &Arc<Device>, len: usize) -> Result<Self, CudaError> {
        let mut start = std::ptr::null_mut();
        let bytes = (len * size_of::<T>()).max(1);
        // SAFETY: the out-pointer is valid for the call, after which the memory is `bytes` long.
        unsafe {
            check("cuMemHostAlloc", sys::cuMemHostAlloc(&mut start, bytes, 0))?;
            start.cast::<u8>().write_bytes(0, bytes);
        }
        Ok(Self { start: start.cast(), len, device: device.clone() })
    }
}

impl<T: Element> std::ops::Deref for PinnedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised values, borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T: Element> std::ops::DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `len` initialised values, borrowed mutably with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl<T: Element> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        if self.device.is_abandoned() {
            return;
        }
        let _ = self.device.bind();
        // SAFETY: allocated in `new` and freed once. Errors do not matter here.
        let _ = unsafe { sys::cuMemFreeHost(self.start.cast()) };
    }
}
