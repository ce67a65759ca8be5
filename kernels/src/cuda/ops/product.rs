//! Weights, arguments and kernel tables shared by `cu/gemv.cu` and `cu/gemm.cu`. Both use the arithmetic of
//! `cu/linear.cuh`, so they give the same bits. Packed weights have kernels of their own:
//! [`packed`](super::packed).

use super::Activation;
use super::packed::{Form, PackedValues, Shape};
use crate::cuda::launch::{Args, Kernel};
use crate::cuda::memory::{E4m3, Element};
use crate::cuda::{CudaError, DeviceSlice, Kernels};
use crate::gate::Gate;
use crate::leaves::{MAX_LEAVES, UNIT};

/// A weight matrix on the device, `[n, k]`, row-major: row `n` has the weights of output `n`.
#[derive(Debug, Clone, Copy)]
pub struct LinearWeight<T> {
    /// Number of outputs.
    pub n: usize,
    /// Number of inputs: a multiple of 8, or of 16 for e4m3.
    pub k: usize,
    /// `[n]` bias, or [`DeviceSlice::NONE`].
    pub bias: DeviceSlice<T>,
    /// Values of the matrix.
    pub values: WeightValues<T>,
    /// Inputs per [leaf](crate::leaves), if the matrix's inputs may be split over ranks. Leaves have equal
    /// length, and their number is a power of two. 0: sums have slices, which cannot be split over ranks.
    pub leaf: usize,
}

/// Storage of a weight's values.
#[derive(Debug, Clone, Copy)]
pub enum WeightValues<T> {
    /// `[n, k]` in the activations' type.
    Same(DeviceSlice<T>),
    /// `[n, k]` in FP8; a weight is the stored value times its scale. Must not contain NaN, which would count
    /// as 480.
    E4m3 {
        /// `[n, k]` values.
        values: DeviceSlice<E4m3>,
        /// Scales, as many as the granularity requires.
        scales: DeviceSlice<f32>,
        /// Which weights share a scale.
        granularity: Granularity,
    },
    /// Codes of 4, 6 or 8 bits.
    Packed(PackedValues),
}

/// Which weights share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granularity {
    /// All of them: `[1]`. Stacked tensors with a scale each are [`Self::Channel`].
    Tensor,
    /// A row: `[n]`.
    Channel,
    /// One scale per leaf of a row: `[n, leaves]`, so that scales do not depend on the number of ranks.
    Leaf,
    /// A block of 128 x 128: `[ceil(n / 128), ceil(k / 128)]`. Stacked tensors start at multiples of 128
    /// rows.
    Block128,
}

impl Granularity {
    /// Distance between the scales of two rows of blocks, and the total number of scales. `leaves`: per row.
    pub fn stride_and_count(self, n: usize, k: usize, leaves: usize) -> (usize, usize) {
        let stride = k.div_ceil(128);
        match self {
            Self::Tensor => (0, 1),
            Self::Channel => (1, n),
            Self::Leaf => (leaves, n * leaves),
            Self::Block128 => (stride, n.div_ceil(128) * stride),
        }
    }
}

impl<T: Activation> LinearWeight<T> {
    /// Checks the sizes; call it once, when the weights are loaded.
    pub fn check(&self) -> Result<(), CudaError> {
        let Self { n, k, bias, values, .. } = *self;
        let (len, multiple, address) = match values {
            WeightValues::Same(values) => (values.len(), 8, values.address()),
            WeightValues::E4m3 { values, .. } => (values.len(), 16, values.address()),
            WeightValues::Packed(packed) => {
                let is_whole = packed.memory.len() >= self.packed_shape(packed.form).bytes();
                (if is_whole { n * k } else { 0 }, 8, packed.memory.address())
            }
        };
        let problem = if n == 0 || k == 0 || !k.is_multiple_of(multiple) {
            format!(
                "CUDA kernels read 16 bytes at a time, so the inputs are a positive multiple of {multiple}"
            )
        } else if len < n * k {
            format!("{len} values are too few")
        } else if !address.is_multiple_of(16) {
            format!("its address {address:#x} is not a multiple of 16")
        } else if !bias.is_empty() && bias.len() < n {
            format!("a bias of {} is too short", bias.len())
        } else if let Some(problem) = self.leaf_problem() {
            problem
        } else if let Some((have, want)) = self.missing_scales() {
            format!("{have} scales are too few, {want} are needed")
        } else {
            return Ok(());
        };
        Err(CudaError::invalid(format!("a [{n}, {k}] weight: {problem}")))
    }

    /// Leaves per row; 1 if there are none.
    pub fn leaves(&self) -> usize {
        self.k.checked_div(self.leaf).unwrap_or(1)
    }

    /// Shape of this matrix in `form`.
    pub(super) fn packed_shape(&self, form: Form) -> Shape {
        Shape { form, n: self.n, k: self.k, leaf: self.leaf }
    }

    fn leaf_problem(&self) -> Option<String> {
        let (Self { k, leaf, .. }, leaves) = (*self, self.leaves());
        let by = |wanted| match self.values {
            WeightValues::E4m3 { granularity, .. } => granularity == wanted,
            WeightValues::Same(_) | WeightValues::Packed(_) => false,
        };
        if leaf == 0 {
            return by(Granularity::Leaf).then(|| "it has scales of leaves and no leaves".into());
        }
        let fits = k.is_multiple_of(leaf) && leaves.is_power_of_two() && leaves <= MAX_LEAVES;
        // Loads of 16 bytes must not cross the end of a leaf.
        let unit = if by(Granularity::Block128) { 128 } else { UNIT };
        let whole = leaves == 1 || leaf.is_multiple_of(unit);
        (!fits || !whole).then(|| format!("it cannot be cut into leaves of {leaf} inputs"))
    }

    fn missing_scales(&self) -> Option<(usize, usize)> {
        let WeightValues::E4m3 { scales, granularity, .. } = self.values else { return None };
        let (_, want) = granularity.stride_and_count(self.n, self.k, self.leaves());
        (scales.len() < want).then_some((scales.len(), want))
    }

    /// Size of the values in bytes.
    pub fn bytes(&self) -> usize {
        match self.values {
            WeightValues::Same(_) => self.n * self.k * size_of::<T>(),
            WeightValues::E4m3 { .. } => self.n * self.k,
            WeightValues::Packed(packed) => packed.memory.len(),
        }
    }
}

/// How results are written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Output {
    /// `[rows, n]`, rounded to the activations' type.
    Plain,
    /// `[rows, n]` in f32, for logits.
    F32,
    /// `[rows, inner]`: the activation of the gate times up. The weight is gate and up stacked, `[2 * inner,
    /// k]`.
    Gated(Gate),
}

impl Output {
    /// Whether the weight is gate and up stacked.
    pub fn is_gated(self) -> bool {
        matches!(self, Self::Gated(_))
    }

    /// Index of the output in a [`Table`], for a product with or without leaves.
    fn index(self, has_leaves: bool) -> usize {
        match (self, has_leaves) {
            (Self::Plain, false) => 0,
            (Self::F32, false) => 1,
            (Self::Gated(_), _) => 2,
            (Self::Plain, true) => 3,
            (Self::F32, true) => 4,
        }
    }
}

/// A launch of `out = x weight^T (+ bias)`.
#[derive(Debug, Clone, Copy)]
pub struct Product<'a, T, O> {
    /// `[rows, n]`, or `[rows, n / 2]` when gated.
    pub out: DeviceSlice<O>,
    /// Activations, `[rows, k]`.
    pub x: DeviceSlice<T>,
    /// Weight to multiply by.
    pub weight: &'a LinearWeight<T>,
    /// Number of rows.
    pub rows: usize,
    /// How results are written.
    pub output: Output,
}

impl<T: Activation, O: Element> Product<'_, T, O> {
    /// Columns of `out`.
    pub fn columns(&self) -> usize {
        if self.output.is_gated() { self.weight.n / 2 } else { self.weight.n }
    }

    /// Asserts that all sizes fit.
    pub(super) fn check(&self) {
        let Self { out, x, weight, rows, output } = *self;
        let LinearWeight { n, k, leaf, .. } = *weight;
        debug_assert_eq!(weight.check(), Ok(()));
        assert!(!output.is_gated() || n.is_multiple_of(2), "gate and up of {n} rows are not of one size");
        assert!(!output.is_gated() || leaf == 0, "gate and up are not divided by their inputs");
        let expected = if output == Output::F32 { 4 } else { size_of::<T>() };
        assert_eq!(size_of::<O>(), expected, "{output:?} results have {expected} bytes");
        let columns = self.columns();
        assert!(out.len() >= rows * columns, "[{rows}, {columns}] does not fit {} results", out.len());
        assert!(x.len() >= rows * k, "x of {} is less than [{rows}, {k}]", x.len());
        let aligned = x.address().is_multiple_of(16) && out.address().is_multiple_of(16);
        assert!(aligned, "x at {:#x} or out at {:#x} is no multiple of 16", x.address(), out.address());
    }

    /// The arguments of `cu/gemv.cu` and `cu/gemm.cu`.
    pub(super) fn args(&self) -> Args<'static> {
        self.check();
        let Self { out, x, weight, rows, output } = *self;
        let LinearWeight { n, k, bias, values, leaf } = *weight;
        let (address, scales, shift, row_stride, k_stride, leaf_stride) = match values {
            WeightValues::Same(values) => (values.address(), DeviceSlice::NONE, 0, 0, 0, 0),
            WeightValues::E4m3 { values, scales, granularity } => {
                let (stride, _) = granularity.stride_and_count(n, k, weight.leaves());
                let blocks = leaf / 128; // of a leaf
                match granularity {
                    Granularity::Tensor => (values.address(), scales, 31, 0, 0, 0),
                    Granularity::Channel => (values.address(), scales, 0, stride, 0, 0),
                    Granularity::Leaf => (values.address(), scales, 0, stride, 0, 1),
                    Granularity::Block128 => (values.address(), scales, 7, stride, 1, blocks),
                }
            }
            WeightValues::Packed(_) => unreachable!("packed weights have kernels of their own"),
        };
        Args::new()
            .slice(out)
            .slice(x)
            .u64(address)
            .slice(scales)
            .size(shift)
            .size(row_stride)
            .size(k_stride)
            .size(leaf_stride)
            .slice(bias)
            .size(rows)
            .size(self.columns())
            .size(k)
            .u32(if let Output::Gated(by) = output { by.on_cuda() } else { 0 })
            .size(leaf)
    }
}

/// Number of ways to write results, including those of products with leaves.
const OUTPUTS: usize = 5;

/// The kernels of a file by output, by whether weights are e4m3, and by tile.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table<const TILES: usize>([[[Kernel; TILES]; 2]; OUTPUTS]);

impl<const TILES: usize> Table<TILES> {
    pub(super) fn new(
        kernels: &Kernels,
        names: &[[[&'static str; TILES]; 2]; OUTPUTS],
    ) -> Result<Self, CudaError> {
        let mut table = [[[kernels.get(names[0][0][0])?; TILES]; 2]; OUTPUTS];
        for (kernels_of, names) in
            table.as_flattened_mut().as_flattened_mut().iter_mut().zip(names.as_flattened().as_flattened())
        {
            *kernels_of = kernels.get(names)?;
        }
        Ok(Self(table))
    }

    pub(super) fn get<T, O>(&self, product: &Product<'_, T, O>, tile: usize) -> Kernel {
        let e4m3 = matches!(product.weight.values, WeightValues::E4m3 { .. });
        self.0[product.output.index(product.weight.leaf > 0)][usize::from(e4m3)][tile]
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (usize, bool, usize, Kernel)> + '_ {
        self.0.iter().enumerate().flat_map(|(output, of)| {
            of.iter().enumerate().flat_map(move |(e4m3, of)| {
                of.iter().enumerate().map(move |(tile, kernel)| (output, e4m3 == 1, tile, *kernel))
            })
        })
    }
}

/// Names of a file's kernels in the order of a [`Table`].
macro_rules! product_names {
    ($prefix:literal, $($tile:literal),*) => {[
        [[$(concat!($prefix, "_same_plain_", $tile)),*], [$(concat!($prefix, "_e4m3_plain_", $tile)),*]],
        [[$(concat!($prefix, "_same_f32_", $tile)),*], [$(concat!($prefix, "_e4m3_f32_", $tile)),*]],
        [[$(concat!($prefix, "_same_gated_", $tile)),*], [$(concat!($prefix, "_e4m3_gated_", $tile)),*]],
        [[$(concat!($prefix, "_same_leaves_", $tile)),*], [$(concat!($prefix, "_e4m3_leaves_", $tile)),*]],
        [[$(concat!($prefix, "_same_leaves_f32_", $tile)),*], [$(concat!($prefix, "_e4m3_leaves_f32_", $tile)),*]],
    ]};
}
pub(super) use product_names;
