//! Benchmarks projections with the kernels for few and many rows and with cuBLASLt, to find the row count
//! from which each is fastest.

use half::bf16;

use super::Model;
use super::time::{Rig, Work};
use skein_kernels::cuda::blaslt::{BlasLt, Gemm as BlasGemm, GemmKey, Scaling, WORKSPACE_BYTES};
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::gemm::Gemm;
use skein_kernels::cuda::ops::gemv::{Gemv, MAX_ROWS};
use skein_kernels::cuda::ops::packed::{Form, Meaning, PackedProducts, PackedValues, ScaleKind, Shape, Span};
use skein_kernels::cuda::ops::product::{Granularity, LinearWeight, Output, Product, WeightValues};
use skein_kernels::cuda::ops::random::Randomised;
use skein_kernels::cuda::{CudaError, DeviceBuffer, DeviceSlice};

/// Names and `[n, k]` of a layer's projections.
pub(super) fn shapes(model: &Model) -> [(&'static str, usize, usize); 4] {
    let Model { hidden, inner, .. } = *model;
    [
        ("qkv", model.qkv_width(), hidden),
        ("o", hidden, model.q_width()),
        ("gate_up", 2 * inner, hidden),
        ("down", hidden, inner),
    ]
}

/// The work of `out[rows, n] = x[rows, k] weight[n, k]^T` with 16-bit activations.
pub(super) fn work(rows: usize, n: usize, k: usize, weight_bytes: usize) -> Work {
    let operations = 2.0 * rows as f64 * n as f64 * k as f64;
    Work { bytes: n * k * weight_bytes + 2 * rows * (n + k), operations }
}

/// Consecutive copies of one weight.
pub(super) struct Weights<T: Randomised> {
    values: DeviceBuffer<T>,
    scales: DeviceBuffer<f32>,
    n: usize,
    k: usize,
    /// Number of copies.
    pub copies: usize,
}

impl<T: Randomised> Weights<T> {
    pub fn new(rig: &mut Rig<'_>, n: usize, k: usize) -> Result<Self, CudaError> {
        let copies = rig.copies(n * k * size_of::<T>());
        Ok(Self { values: rig.random(copies * n * k)?, scales: rig.random(n)?, n, k, copies })
    }

    fn copy(&self, copy: usize) -> DeviceSlice<T> {
        self.values.slice(copy * self.n * self.k..(copy + 1) * self.n * self.k)
    }
}

impl Weights<bf16> {
    pub fn get(&self, copy: usize) -> LinearWeight<bf16> {
        let values = WeightValues::Same(self.copy(copy));
        LinearWeight { n: self.n, k: self.k, bias: DeviceSlice::NONE, values, leaf: 0 }
    }
}

impl Weights<E4m3> {
    pub fn get_fp8(&self, copy: usize) -> LinearWeight<bf16> {
        let (values, scales) = (self.copy(copy), *self.scales);
        let values = WeightValues::E4m3 { values, scales, granularity: Granularity::Channel };
        LinearWeight { n: self.n, k: self.k, bias: DeviceSlice::NONE, values, leaf: 0 }
    }
}

/// Times each projection with each kernel, for each number of rows.
pub(super) fn by_rows(rig: &mut Rig<'_>, model: &Model, rows: &[usize]) -> Result<(), CudaError> {
    for (name, n, k) in shapes(model) {
        let name = format!("product {} {name} {n}x{k}", model.name);
        if !rig.wants(&name, 2 * n * k)? {
            continue;
        }
        let weights = Weights::<bf16>::new(rig, n, k)?;
        let fp8 = Weights::<E4m3>::new(rig, n, k)?;
        for &rows in rows {
            one(rig, &name, &weights, &fp8, rows)?;
        }
    }
    Ok(())
}

fn product(
    out: DeviceSlice<bf16>,
    x: DeviceSlice<bf16>,
    weight: &LinearWeight<bf16>,
    rows: usize,
) -> Product<'_, bf16, bf16> {
    Product { out, x, weight, rows, output: Output::Plain }
}

fn one(
    rig: &mut Rig<'_>,
    name: &str,
    weights: &Weights<bf16>,
    fp8: &Weights<E4m3>,
    rows: usize,
) -> Result<(), CudaError> {
    let Weights { n, k, copies, .. } = *weights;
    let (x, out) = (rig.random::<bf16>(rows * k)?, rig.zeros::<bf16>(rows * n)?);
    let (gemv, gemm) = (Gemv::<bf16>::new(rig.kernels())?, Gemm::<bf16>::new(rig.kernels())?);
    let (bf16_work, fp8_work) = (work(rows, n, k, 2), work(rows, n, k, 1));
    if rows <= MAX_ROWS {
        rig.measure(&format!("{name}, {rows} rows, gemv"), bf16_work, copies, |stream, copy| {
            gemv.launch(stream, &product(*out, *x, &weights.get(copy), rows))
        })?;
        rig.measure(&format!("{name}, {rows} rows, gemv fp8"), fp8_work, fp8.copies, |stream, copy| {
            gemv.launch(stream, &product(*out, *x, &fp8.get_fp8(copy), rows))
        })?;
    } else {
        rig.measure(&format!("{name}, {rows} rows, own gemm"), bf16_work, copies, |stream, copy| {
            gemm.launch(stream, &product(*out, *x, &weights.get(copy), rows))
        })?;
    }
    packed(rig, name, (rows, n, k), (*x, *out))?;
    let Some(blas) = BlasLt::open(rig.kernels().device())? else { return Ok(()) };
    let workspace = rig.zeros::<u8>(WORKSPACE_BYTES)?;
    rig.measure(&format!("{name}, {rows} rows, cublaslt"), bf16_work, copies, |stream, copy| {
        blas.matmul(stream, BlasGemm::new(*out, *x, weights.copy(copy), rows, n, k), *workspace)
    })?;
    let key = GemmKey::new::<E4m3, bf16>(rows, n, k, Scaling::Outer, false);
    if rows > MAX_ROWS && blas.supports(key)? {
        let (codes, scales) = (rig.random::<E4m3>(rows * k)?, rig.random::<f32>(rows)?);
        rig.measure(&format!("{name}, {rows} rows, cublaslt fp8"), fp8_work, fp8.copies, |stream, copy| {
            let gemm = BlasGemm {
                scaling: Scaling::Outer,
                x_scales: *scales,
                weight_scales: *fp8.scales,
                ..BlasGemm::new(*out, *codes, fp8.copy(copy), rows, n, k)
            };
            blas.matmul(stream, gemm, *workspace)
        })?;
    }
    Ok(())
}

/// Times the products with weights in codes of 4 bits, in groups as GPTQ's and as Q4_K's, and of 8 bits.
fn packed(
    rig: &mut Rig<'_>,
    name: &str,
    (rows, n, k): (usize, usize, usize),
    (x, out): (DeviceSlice<bf16>, DeviceSlice<bf16>),
) -> Result<(), CudaError> {
    let integers = |bits, scales, span| Form::new(bits, Meaning::Integers, scales, span);
    let kernels = PackedProducts::<bf16>::new(rig.kernels())?;
    for (how, form) in [
        ("4 bits", Form { zero: None, ..integers(4, ScaleKind::F16, Span::Inputs(128)) }),
        ("q4_k", Form { has_minima: true, ..integers(4, ScaleKind::Factor, Span::Inputs(32)) }),
        ("8 bits", integers(8, ScaleKind::F32, Span::Leaf)),
    ] {
        let bytes = Shape { form, n, k, leaf: 0 }.bytes();
        let copies = rig.copies(bytes);
        // Any bytes will do: results are not read.
        let random = rig.random::<f32>(copies * bytes / size_of::<f32>())?;
        let memory = random.cast::<u8>();
        let work = Work { bytes: bytes + 2 * rows * (n + k), ..work(rows, n, k, 1) };
        rig.measure(&format!("{name}, {rows} rows, packed {how}"), work, copies, |stream, copy| {
            let memory = memory.slice(copy * bytes..(copy + 1) * bytes);
            let values = WeightValues::Packed(PackedValues { form, memory });
            let weight = LinearWeight { n, k, bias: DeviceSlice::NONE, values, leaf: 0 };
            kernels.launch(stream, &product(out, x, &weight, rows), DeviceSlice::NONE)
        })?;
    }
    Ok(())
}
