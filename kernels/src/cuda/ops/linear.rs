//! Linear layers: selects the kernel by the number of rows and the available libraries.
//!
//! | rows | weights | product |
//! |---|---|---|
//! | up to 16 | any | [`Gemv`], limited by reading the weight |
//! | more | activations' type | cuBLASLt |
//! | more | e4m3, one scale per row | cuBLASLt, with activations quantised to e4m3, one scale per row |
//! | more | other | [`Gemm`] |
//! | any | packed | [`PackedProducts`], with activations in 16 bits |
//!
//! If cuBLASLt is missing or lacks the product, [`Gemm`] is used. Gemv and Gemm give a row the same bits in
//! every batch, so batch-invariant mode does without cuBLASLt.

use std::sync::Arc;

use super::Activation;
use super::activation::{GateUp, Glu};
use super::gemm::Gemm;
use super::gemv::{Gemv, MAX_ROWS};
use super::low_rank::LowRankAdd;
use super::packed::PackedProducts;
pub use super::product::{Granularity, LinearWeight, WeightValues};
use super::product::{Output, Product};
use super::quantize::{self, Quantization, Quantize};
use crate::cuda::blaslt::{self, BlasElement, BlasLt, GemmKey, Scaling, WORKSPACE_BYTES};
use crate::cuda::memory::{E4m3, Element};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};
use crate::gate::Gate;

/// Guarantees of linear layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinearOptions {
    /// A row's result has the same bits whatever its batch.
    pub batch_invariant: bool,
}

/// The two products of a gated linear unit.
#[derive(Debug, Clone, Copy)]
pub struct Gated<'a, T> {
    /// Activation of the gate.
    pub by: Gate,
    /// Gate and up projection stacked, `[2 * inner, k]`.
    pub weight: &'a LinearWeight<T>,
}

/// Sums of gate and up, `[rows, gate | up]`.
#[derive(Debug, Clone, Copy)]
pub enum GateUpSums<T> {
    /// Of all rows, rounded to the activations' type.
    Rounded(DeviceSlice<T>),
    /// Of some rows, from the given one.
    Wide(DeviceSlice<f32>, usize),
}

/// `out = x weight^T + bias`.
#[derive(Debug, Clone)]
pub struct Linear<T> {
    gemv: Gemv<T>,
    gemm: Gemm<T>,
    packed: PackedProducts<T>,
    glu: Glu<T>,
    quantize: Quantize<T>,
    blas: Option<Arc<BlasLt>>,
}

/// Workspace of a cuBLASLt product, in consecutive parts.
#[derive(Debug, Clone, Copy)]
struct Workspace<T> {
    blas: DeviceSlice<u8>,
    /// x as e4m3, `[rows, k]`, and its scales, `[rows]`.
    codes: DeviceSlice<E4m3>,
    scales: DeviceSlice<f32>,
    /// Gate and up projection, `[rows, n]`.
    whole: DeviceSlice<T>,
}

/// Alignment of the workspace's parts, in bytes.
const ALIGNMENT: usize = 256;

impl<T: Activation> Workspace<T> {
    /// Sizes of the parts. `whole` is the number of gate and up columns kept between two launches, 0 for
    /// none.
    fn bytes(rows: usize, whole: usize, k: usize) -> [usize; 4] {
        [WORKSPACE_BYTES, rows * k, rows * 4, rows * whole * size_of::<T>()]
            .map(|bytes| bytes.next_multiple_of(ALIGNMENT))
    }

    fn new(memory: DeviceSlice<u8>, rows: usize, whole: usize, k: usize) -> Self {
        let bytes = Self::bytes(rows, whole, k);
        let needed: usize = bytes.iter().sum();
        assert!(
            memory.len() >= needed,
            "{rows} rows of {k} values with {whole} columns kept need a workspace of {needed} bytes, not {}",
            memory.len()
        );
        let part = |i: usize| {
            let start = bytes[..i].iter().sum();
            memory.slice(start..start + bytes[i])
        };
        Self { blas: part(0), codes: part(1).cast(), scales: part(2).cast(), whole: part(3).cast() }
    }
}

impl<T: Activation + BlasElement> Linear<T> {
    /// Looks the kernels up. Without `blas` all products use them.
    pub fn new(
        kernels: &Kernels,
        blas: Option<Arc<BlasLt>>,
        options: LinearOptions,
    ) -> Result<Self, CudaError> {
        let blas = blas.filter(|_| !options.batch_invariant);
        let (gemv, gemm) = (Gemv::new(kernels)?, Gemm::new(kernels)?);
        let (glu, quantize) = (Glu::new(kernels)?, Quantize::new(kernels)?);
        Ok(Self { gemv, gemm, packed: PackedProducts::new(kernels)?, glu, quantize, blas })
    }

    /// cuBLASLt, if it is used.
    pub fn blas(&self) -> Option<&BlasLt> {
        self.blas.as_deref()
    }

    /// Bytes of the workspace for launches of up to `max_rows` rows with weights of these `[n, k]`. All
    /// launches of a stream can share one workspace.
    pub fn workspace_bytes(&self, max_rows: usize, shapes: &[(usize, usize)]) -> usize {
        if self.blas.is_none() || max_rows <= MAX_ROWS {
            return 0;
        }
        let most = |size: fn(&(usize, usize)) -> usize| shapes.iter().map(size).max().unwrap_or(0);
        Workspace::<T>::bytes(max_rows, most(|(n, _)| *n), most(|(_, k)| *k)).iter().sum()
    }

    /// Queues `out[rows, n] = x[rows, k] weight^T + bias`.
    pub fn launch(
        &self,
        stream: &Stream,
        out: DeviceSlice<T>,
        x: DeviceSlice<T>,
        weight: &LinearWeight<T>,
        rows: usize,
        workspace: DeviceSlice<u8>,
    ) -> Result<(), CudaError> {
        let product = Product { out, x, weight, rows, output: Output::Plain };
        self.multiply(stream, &product, workspace)
    }

    /// As [`Self::launch`], with results in f32, for logits.
    pub fn launch_f32(
        &self,
        stream: &Stream,
        out: DeviceSlice<f32>,
        x: DeviceSlice<T>,
        weight: &LinearWeight<T>,
        rows: usize,
        workspace: DeviceSlice<u8>,
    ) -> Result<(), CudaError> {
        self.multiply(stream, &Product { out, x, weight, rows, output: Output::F32 }, workspace)
    }

    /// Queues `out[rows, inner] = activation(gate) * up`.
    pub fn launch_gate_up(
        &self,
        stream: &Stream,
        out: DeviceSlice<T>,
        x: DeviceSlice<T>,
        gated: Gated<'_, T>,
        rows: usize,
        workspace: DeviceSlice<u8>,
    ) -> Result<(), CudaError> {
        let Gated { by, weight } = gated;
        let whole = Product { out, x, weight, rows, output: Output::Plain };
        if let Some(blas) = self.blas_for(&whole)? {
            let gate_up = Workspace::<T>::new(workspace, rows, weight.n, weight.k).whole;
            self.by_blas(blas, stream, &Product { out: gate_up, ..whole }, workspace)?;
            return self.glu.launch(stream, GateUp { out, gate_up, by, rows, inner: weight.n / 2 });
        }
        self.by_kernels(stream, &Product { output: Output::Gated(by), ..whole }, workspace)
    }

    /// As [`Self::launch_gate_up`], with `change` queued between the products and the activation: it gets the
    /// sums of some of the rows, from the given one. Rows that it leaves alone have the bits of
    /// `launch_gate_up`. `wide` has room for some rows, `[any, 2 * inner]`.
    pub fn launch_gate_up_changed(
        &self,
        stream: &Stream,
        (out, x): (DeviceSlice<T>, DeviceSlice<T>),
        gated: Gated<'_, T>,
        rows: usize,
        (workspace, wide, glu_wide): (DeviceSlice<u8>, DeviceSlice<f32>, &LowRankAdd<T>),
        change: impl Fn(GateUpSums<T>) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let Gated { by, weight } = gated;
        let LinearWeight { n, k, .. } = *weight;
        let whole = Product { out, x, weight, rows, output: Output::Plain };
        if let Some(blas) = self.blas_for(&whole)? {
            let gate_up = Workspace::<T>::new(workspace, rows, n, k).whole;
            self.by_blas(blas, stream, &Product { out: gate_up, ..whole }, workspace)?;
            change(GateUpSums::Rounded(gate_up.slice(0..rows * n)))?;
            return self.glu.launch(stream, GateUp { out, gate_up, by, rows, inner: n / 2 });
        }
        let most = wide.len() / n;
        assert!(most > 0, "{} values are less than a row of {n}", wide.len());
        for first in (0..rows).step_by(most) {
            let rows = most.min(rows - first);
            let (sums, x) = (wide.slice(0..rows * n), x.slice(first * k..(first + rows) * k));
            self.by_kernels(stream, &Product { out: sums, x, weight, rows, output: Output::F32 }, workspace)?;
            change(GateUpSums::Wide(sums, first))?;
            let out = out.slice(first * n / 2..(first + rows) * n / 2);
            glu_wide.glu(stream, out, sums, by, n / 2)?;
        }
        Ok(())
    }

    fn multiply<O: BlasElement>(
        &self,
        stream: &Stream,
        product: &Product<'_, T, O>,
        workspace: DeviceSlice<u8>,
    ) -> Result<(), CudaError> {
        match self.blas_for(product)? {
            Some(blas) => self.by_blas(blas, stream, product, workspace),
            None => self.by_kernels(stream, product, workspace),
        }
    }

    fn by_kernels<O: Element>(
        &self,
        stream: &Stream,
        product: &Product<'_, T, O>,
        workspace: DeviceSlice<u8>,
    ) -> Result<(), CudaError> {
        if matches!(product.weight.values, WeightValues::Packed(_)) {
            self.packed.launch(stream, product, workspace)
        } else if product.rows <= MAX_ROWS {
            self.gemv.launch(stream, product)
        } else {
            self.gemm.launch(stream, product)
        }
    }

    /// cuBLASLt, if it supports this product. Its bias has the type of the result, so f32 results cannot have
    /// our bias.
    fn blas_for<O: BlasElement>(&self, product: &Product<'_, T, O>) -> Result<Option<&BlasLt>, CudaError> {
        let Product { weight, rows, output, .. } = *product;
        let Some(blas) = &self.blas else { return Ok(None) };
        let (n, k, bias) = (weight.n, weight.k, !weight.bias.is_empty());
        if rows <= MAX_ROWS || (bias && output == Output::F32) {
            return Ok(None);
        }
        let key = match weight.values {
            WeightValues::Same(_) => GemmKey::new::<T, O>(rows, n, k, Scaling::None, bias),
            WeightValues::E4m3 { granularity: Granularity::Channel, .. } => {
                GemmKey::new::<E4m3, O>(rows, n, k, Scaling::Outer, bias)
            }
            WeightValues::E4m3 { .. } | WeightValues::Packed(_) => return Ok(None),
        };
        Ok(blas.supports(key)?.then_some(blas))
    }

    fn by_blas<O: BlasElement>(
        &self,
        blas: &BlasLt,
        stream: &Stream,
        product: &Product<'_, T, O>,
        workspace: DeviceSlice<u8>,
    ) -> Result<(), CudaError> {
        let Product { out, x, weight, rows, .. } = *product;
        let LinearWeight { n, k, .. } = *weight;
        // No columns are kept: the many columns of the head need no space here.
        let workspace = Workspace::<T>::new(workspace, rows, 0, k);
        let bias = weight.bias.cast::<O>(); // there is only a bias if O is T
        match weight.values {
            WeightValues::Same(values) => {
                let gemm = blaslt::Gemm { bias, ..blaslt::Gemm::<T, O>::new(out, x, values, rows, n, k) };
                blas.matmul(stream, gemm, workspace.blas)
            }
            WeightValues::E4m3 { values, scales, .. } => {
                let (codes, x_scales) = (workspace.codes, workspace.scales);
                let granularity = quantize::Granularity::Row;
                let scratch = DeviceSlice::NONE;
                let rounding =
                    Quantization { out: codes, scales: x_scales, x, rows, cols: k, granularity, scratch };
                self.quantize.launch(stream, rounding)?;
                let gemm = blaslt::Gemm::<E4m3, O>::new(out, codes, values, rows, n, k);
                let scaled =
                    blaslt::Gemm { bias, scaling: Scaling::Outer, x_scales, weight_scales: scales, ..gemm };
                blas.matmul(stream, scaled, workspace.blas)
            }
            WeightValues::Packed(_) => unreachable!("cuBLASLt has no product with packed weights"),
        }
    }
}
