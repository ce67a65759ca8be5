//! Tensor maps: descriptions of a tensor that the copy engine of Hopper and later (TMA) needs to copy boxes
//! of it.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUtensorMapDataType as DataType};

use super::error::check;
use super::memory::{E4m3, Element};
use super::{CudaError, DeviceSlice};

/// Most dimensions of a tensor map.
const MAX_RANK: usize = 5;

/// Element types of a map's tensor.
pub trait MapElement: Element {
    /// The driver's name of the type.
    const TYPE: DataType;
}

impl MapElement for half::bf16 {
    const TYPE: DataType = DataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

impl MapElement for half::f16 {
    const TYPE: DataType = DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

impl MapElement for f32 {
    const TYPE: DataType = DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

impl MapElement for E4m3 {
    const TYPE: DataType = DataType::CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

/// Permutation of the 16-byte chunks of a box's rows in shared memory. The box's inner dimension must not be
/// wider than the swizzle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swizzle {
    /// The chunks stay in order.
    None,
    /// Chunks are permuted within 32 bytes.
    Bytes32,
    /// Chunks are permuted within 64 bytes.
    Bytes64,
    /// Chunks are permuted within 128 bytes.
    Bytes128,
}

impl Swizzle {
    fn raw(self) -> sys::CUtensorMapSwizzle {
        match self {
            Self::None => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            Self::Bytes32 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
            Self::Bytes64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            Self::Bytes128 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        }
    }

    /// Most bytes of a box's row.
    fn span(self) -> usize {
        match self {
            Self::None => usize::MAX,
            Self::Bytes32 => 32,
            Self::Bytes64 => 64,
            Self::Bytes128 => 128,
        }
    }
}

/// A tensor of at least two dimensions and the box that one copy moves, as 128 bytes that only the hardware
/// reads: a kernel's `const __grid_constant__` parameter, passed by [`super::launch::Args::bytes`]. It does
/// not keep the memory alive.
///
/// Copies write zeros for the part of a box outside the tensor.
#[derive(Debug, Clone, Copy)]
pub struct TensorMap {
    map: sys::CUtensorMap,
}

impl TensorMap {
    /// A map of a dense `tensor`. `dims` and `box_dims` are in values, outermost dimension first. The driver
    /// requires a 16-byte aligned address, rows of a multiple of 16 bytes, and box dimensions up to 256.
    pub fn new<T: MapElement>(
        tensor: DeviceSlice<T>,
        dims: &[usize],
        box_dims: &[usize],
        swizzle: Swizzle,
    ) -> Result<Self, CudaError> {
        let mut strides = [1; MAX_RANK];
        let rank = dims.len().min(MAX_RANK);
        for i in (1..rank).rev() {
            strides[i - 1] = strides[i] * dims[i];
        }
        Self::strided(tensor, dims, &strides[..rank], box_dims, swizzle)
    }

    /// A map of a part of a larger tensor: indices of `dims[i]` are `strides[i]` values apart. Strides are
    /// multiples of 16 bytes except the last, which is 1.
    pub fn strided<T: MapElement>(
        tensor: DeviceSlice<T>,
        dims: &[usize],
        strides: &[usize],
        box_dims: &[usize],
        swizzle: Swizzle,
    ) -> Result<Self, CudaError> {
        limits(tensor, dims, strides, box_dims, swizzle).map_err(|what| {
            let shape = format!("{dims:?}, strides {strides:?}, box {box_dims:?}, swizzle {swizzle:?}");
            CudaError::invalid(format!("tensor map of {shape}: {what}"))
        })?;
        // The driver takes the innermost dimension first, without its stride.
        let (rank, bytes) = (dims.len(), size_of::<T>() as u64);
        let (mut sizes, mut steps, mut boxes) = ([1u64; MAX_RANK], [0u64; MAX_RANK], [1u32; MAX_RANK]);
        for i in 0..rank {
            let from = rank - 1 - i;
            (sizes[i], boxes[i]) = (dims[from] as u64, box_dims[from] as u32);
            if i > 0 {
                steps[i - 1] = strides[from] as u64 * bytes;
            }
        }
        let (mut map, ones) = (sys::CUtensorMap { opaque: [0; 16] }, [1u32; MAX_RANK]);
        // SAFETY: the arrays have `rank` values and are read before the call returns; the type aligns the
        // map.
        check("cuTensorMapEncodeTiled", unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                T::TYPE,
                rank as u32,
                tensor.address() as *mut c_void,
                sizes.as_ptr(),
                steps.as_ptr(),
                boxes.as_ptr(),
                ones.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle.raw(),
                // Neighbouring boxes are read soon, so fetch whole lines of L2.
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        })?;
        Ok(Self { map })
    }

    /// The map's bytes, with the alignment that the driver requires.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: 128 initialised bytes without padding, borrowed with `self`.
        unsafe { std::slice::from_raw_parts((&raw const self.map).cast(), size_of::<sys::CUtensorMap>()) }
    }
}

/// Checks the requirements of cuTensorMapEncodeTiled (driver API, tensor map objects), so that an error names
/// the value.
fn limits<T: Element>(
    tensor: DeviceSlice<T>,
    dims: &[usize],
    strides: &[usize],
    box_dims: &[usize],
    swizzle: Swizzle,
) -> Result<(), String> {
    let limit = |holds: bool, what: String| if holds { Ok(()) } else { Err(what) };
    let (rank, address, bytes) = (dims.len(), tensor.address(), size_of::<T>());
    limit((2..=MAX_RANK).contains(&rank), format!("{rank} dimensions, and there are 2 to {MAX_RANK}"))?;
    limit(strides.len() == rank, format!("{} strides for {rank} dimensions", strides.len()))?;
    limit(box_dims.len() == rank, format!("{} sizes of a box for {rank} dimensions", box_dims.len()))?;
    limit(address != 0 && address.is_multiple_of(16), format!("address {address:#x} is no multiple of 16"))?;
    for dim in dims {
        limit((1..=1 << 32).contains(dim), format!("a dimension of {dim}, and 1 to 2^32 are possible"))?;
    }
    for size in box_dims {
        limit((1..=256).contains(size), format!("a box of {size}, and 1 to 256 are possible"))?;
    }
    limit(
        strides[rank - 1] == 1,
        format!("an innermost stride of {}, and only 1 is possible", strides[rank - 1]),
    )?;
    for stride in strides[..rank - 1].iter().map(|stride| stride * bytes) {
        let holds = stride > 0 && stride.is_multiple_of(16) && stride < 1 << 40;
        limit(holds, format!("a stride of {stride} bytes is no multiple of 16 below 2^40"))?;
    }
    let row = box_dims[rank - 1] * bytes;
    limit(row.is_multiple_of(16), format!("a box's rows of {row} bytes are no multiple of 16"))?;
    limit(
        row <= swizzle.span(),
        format!("a box's rows of {row} bytes exceed the swizzle's {}", swizzle.span()),
    )?;
    let end = dims.iter().zip(strides).map(|(dim, stride)| (dim - 1) * stride).sum::<usize>() + 1;
    limit(end <= tensor.len(), format!("{end} values are more than the {} there are", tensor.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_named() {
        let memory = DeviceSlice::<half::bf16>::from_raw(1 << 20, 128 * 64);
        let good: (&[usize], &[usize], &[usize]) = (&[128, 64], &[64, 1], &[16, 64]);
        assert_eq!(limits(memory, good.0, good.1, good.2, Swizzle::Bytes128), Ok(()));
        let check = |memory, dims: &[usize], strides: &[usize], box_dims: &[usize], says: &str| {
            let error = limits(memory, dims, strides, box_dims, Swizzle::Bytes128).unwrap_err();
            assert!(error.contains(says), "{error:?} does not say {says:?}");
        };
        check(memory, &[64], &[1], &[64], "1 dimensions");
        check(memory, good.0, &[64, 64, 1], good.2, "3 strides");
        check(memory, good.0, good.1, &[64], "1 sizes of a box");
        check(memory.slice(1..128), good.0, good.1, good.2, "no multiple of 16");
        check(memory, &[129, 64], good.1, good.2, "8256 values are more than the 8192");
        check(memory, &[0, 64], good.1, good.2, "a dimension of 0");
        check(memory, good.0, &[60, 1], good.2, "a stride of 120 bytes");
        check(memory, good.0, &[64, 2], good.2, "an innermost stride of 2");
        check(memory, good.0, good.1, &[257, 64], "a box of 257");
        check(memory, good.0, good.1, &[16, 128], "256 bytes exceed the swizzle's 128");
        check(memory, good.0, good.1, &[16, 4], "8 bytes are no multiple of 16");
    }
}
