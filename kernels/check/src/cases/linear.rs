//! Cases of the `gemv`, `gemm` and `linear` modules of [`skein_kernels::cuda::ops`].

use std::sync::Arc;

use half::{bf16, f16};

use super::Scale;
use super::case::{Bench, DEAR, Tolerance, dot, each};
use skein_kernels::cuda::blaslt::{BlasElement, BlasLt};
use skein_kernels::cuda::memory::{E4m3, Element};
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::gemm::{Gemm, Tile};
use skein_kernels::cuda::ops::gemv::{self, Gemv};
use skein_kernels::cuda::ops::linear::{Gated, Linear, LinearOptions};
use skein_kernels::cuda::ops::product::{Granularity, LinearWeight, Output, Product, WeightValues};
use skein_kernels::cuda::{CudaError, DeviceBuffer, DeviceSlice};
use skein_kernels::gate::Gate;

/// Weights with at least this many values run with one kernel of each kind and one type, because drawing them
/// is slow.
const LARGE: usize = 1 << 26;
/// Rows of NaN after the last row of `x`.
const ROWS_BEYOND: usize = 3;

/// The kernel to run: the one for few rows, the one for many with a given tile, or the choice of [`Linear`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Gemv,
    Gemm(Tile),
    Linear { batch_invariant: bool },
}

const BY_ALL: [By; 5] = [
    By::Gemv,
    By::Gemm(Tile::Small),
    By::Gemm(Tile::Medium),
    By::Gemm(Tile::Large),
    By::Linear { batch_invariant: false },
];

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let granularities =
        [None, Some(Granularity::Tensor), Some(Granularity::Channel), Some(Granularity::Block128)];
    let small = bench.scale == Scale::Small;
    // Odd n; k that ends inside a step, a stage and a slice; more than eight slices of 128.
    let few: &[ProductShape] = if small {
        &[(1, 37, 64), (3, 24, 1360), (8, 16, 1040), (13, 50, 272)]
    } else {
        &[(1, 37, 64), (1, 4096, 4096), (1, 4096, 14336), (5, 6144, 4096), (8, 28672, 4096), (16, 8192, 2048)]
    };
    let many: &[ProductShape] = if small {
        &[(33, 40, 208)]
    } else {
        &[
            (17, 37, 208),
            (33, 4096, 4096),
            (150, 6144, 4096),
            (512, 2048, 14336),
            (2049, 4096, 512),
            (300, 28672, 1024),
        ]
    };
    for granularity in granularities {
        for by in BY_ALL {
            let shapes = if matches!(by, By::Gemv) { few } else { many };
            for (i, shape) in shapes.iter().enumerate() {
                let output = [Output::Plain, Output::Gated(Gate::Silu), Output::F32][i % 3];
                let is_large = shape.1 * shape.2 >= LARGE;
                if is_large && matches!(by, By::Gemm(Tile::Small | Tile::Medium)) {
                    continue;
                }
                let is_rich = if small { granularity.is_none() } else { i < 2 };
                // `Linear` halves its results by a kernel of its own, for widths of real models.
                let is_possible = |output: &Output| {
                    !(matches!(by, By::Linear { .. }) && output.is_gated()) || shape.1.is_multiple_of(8)
                };
                let outputs = if is_rich { OUTPUTS.to_vec() } else { vec![output] };
                for output in outputs.into_iter().filter(is_possible) {
                    accuracy::<bf16>(bench, by, *shape, output, granularity)?;
                }
                if !is_large {
                    accuracy::<f16>(bench, by, *shape, output, granularity)?;
                }
            }
        }
        invariance::<bf16>(bench, if small { (35, 20, 1168) } else { (300, 1000, 4096) }, granularity)?;
    }
    Ok(())
}

const OUTPUTS: [Output; 4] =
    [Output::Plain, Output::F32, Output::Gated(Gate::Silu), Output::Gated(Gate::GeluTanh)];
/// Rows, n (results in a row), k.
type ProductShape = (usize, usize, usize);

/// A weight as it is stored.
struct Stored<T> {
    same: Vec<T>,
    codes: Vec<E4m3>,
    /// The number that each of the 256 codes stands for.
    of_codes: Vec<f32>,
    scales: Vec<f32>,
    stride: usize,
    granularity: Option<Granularity>,
}

impl<T: Activation> Stored<T> {
    /// Row `row` of `[n, k]`. Few rows of a large matrix are compared, so that the others are never widened.
    fn row(&self, row: usize, k: usize) -> Vec<f32> {
        let at = row * k..(row + 1) * k;
        if self.granularity.is_none() {
            return self.same[at].iter().map(|value| value.to_f32()).collect();
        }
        let mut weights = Vec::with_capacity(k);
        for (block, codes) in self.codes[at].chunks(128).enumerate() {
            let scale = match self.granularity {
                Some(Granularity::Channel) => self.scales[row],
                Some(Granularity::Block128) => self.scales[row / 128 * self.stride + block],
                _ => self.scales[0],
            };
            weights.extend(codes.iter().map(|code| self.of_codes[usize::from(code.0)] * scale));
        }
        weights
    }
}

/// Operands on host and device.
struct Operands<T: Element> {
    x: Vec<f32>,
    stored: Stored<T>,
    bias: Vec<T>,
    x_device: DeviceBuffer<T>,
    linear: LinearWeight<T>,
    // Memory that `linear` points to.
    _bias: DeviceBuffer<T>,
    _same: DeviceBuffer<T>,
    _e4m3: DeviceBuffer<E4m3>,
    _scales: DeviceBuffer<f32>,
}

impl<T: Activation> Operands<T> {
    fn new(
        bench: &mut Bench,
        (rows, n, k): ProductShape,
        output: Output,
        granularity: Option<Granularity>,
        with_bias: bool,
    ) -> Result<Self, CudaError> {
        let n = if output.is_gated() { 2 * n } else { n };
        let mut x = bench.normal_as(rows * k, T::from_f32);
        x.extend(vec![T::from_f32(f32::NAN); ROWS_BEYOND * k]);
        let drawn = bench.normal(n).into_iter().map(|bias| if with_bias { bias } else { 0.0 });
        let bias: Vec<T> = drawn.map(T::from_f32).collect();
        let spread = 1.0 / (k as f32).sqrt();
        let (same_len, codes_len) = if granularity.is_none() { (n * k, 0) } else { (0, n * k) };
        let same: Vec<T> = bench.normal_as(same_len, |value| T::from_f32(value * spread));
        let codes: Vec<E4m3> = bench.normal_as(codes_len, |value| E4m3::from_f32(value * 64.0));
        let (stride, count) = granularity.map_or((0, 1), |granularity| granularity.stride_and_count(n, k, 1));
        let scales: Vec<f32> =
            bench.normal(count).into_iter().map(|value| (1.5 + value / 4.0) * spread / 64.0).collect();
        let x_device = bench.upload(&x)?;
        let x = x.into_iter().map(T::to_f32).collect();
        let (bias_device, same_device) = (bench.upload(&bias)?, bench.upload(&same)?);
        let (codes_device, scales_device) = (bench.upload(&codes)?, bench.upload(&scales)?);
        let values = match granularity {
            None => WeightValues::Same(*same_device),
            Some(granularity) => {
                WeightValues::E4m3 { values: *codes_device, scales: *scales_device, granularity }
            }
        };
        Ok(Self {
            x,
            stored: Stored {
                same,
                codes,
                of_codes: (0..=u8::MAX).map(|code| E4m3(code).to_f32()).collect(),
                scales,
                stride,
                granularity,
            },
            bias,
            x_device,
            linear: LinearWeight {
                n,
                k,
                bias: if with_bias { *bias_device } else { DeviceSlice::NONE },
                values,
                leaf: 0,
            },
            _bias: bias_device,
            _same: same_device,
            _e4m3: codes_device,
            _scales: scales_device,
        })
    }

    /// The result at `row` and `column`, in f64.
    fn exact(&self, row: usize, column: usize, output: Output) -> f64 {
        let k = self.linear.k;
        let result = |column: usize| -> f64 {
            let sum = dot(&self.x[row * k..][..k], &self.stored.row(column, k));
            sum + f64::from(self.bias[column].to_f32())
        };
        match output {
            Output::Gated(by) => {
                let gate = result(column);
                let logit = match by {
                    Gate::Silu => gate,
                    Gate::GeluTanh => (8.0 / std::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3)),
                    Gate::Clamped { .. } | Gate::SquaredRelu | Gate::Gelu | Gate::Relu => {
                        unreachable!("it has no kernel")
                    }
                };
                gate / (1.0 + (-logit).exp()) * result(self.linear.n / 2 + column)
            }
            Output::Plain | Output::F32 => result(column),
        }
    }
}

/// Runs one product; returns the results as f32.
fn multiply<T: Activation + BlasElement>(
    bench: &mut Bench,
    by: By,
    operands: &Operands<T>,
    rows: usize,
    output: Output,
) -> Result<Vec<f32>, CudaError> {
    let weight = &operands.linear;
    let columns = if output.is_gated() { weight.n / 2 } else { weight.n };
    let x = *operands.x_device;
    if output == Output::F32 {
        let out = bench.output::<f32>(rows * columns)?;
        launch(bench, by, &Product { out: *out, x, weight, rows, output })?;
        return out.read(&bench.stream);
    }
    let out = bench.output::<T>(rows * columns)?;
    launch(bench, by, &Product { out: *out, x, weight, rows, output })?;
    Ok(out.read(&bench.stream)?.into_iter().map(T::to_f32).collect())
}

fn launch<T: Activation + BlasElement, O: Element>(
    bench: &Bench,
    by: By,
    product: &Product<'_, T, O>,
) -> Result<(), CudaError> {
    match by {
        By::Gemv => Gemv::new(&bench.kernels)?.launch(&bench.stream, product),
        By::Gemm(tile) => Gemm::new(&bench.kernels)?.launch_tile(&bench.stream, product, tile),
        By::Linear { batch_invariant } => by_linear(bench, LinearOptions { batch_invariant }, product),
    }
}

fn by_linear<T: Activation + BlasElement, O: Element>(
    bench: &Bench,
    options: LinearOptions,
    product: &Product<'_, T, O>,
) -> Result<(), CudaError> {
    let Product { out, x, weight, rows, output } = *product;
    let blas = BlasLt::open(bench.kernels.device())?.map(Arc::new);
    let linear = Linear::<T>::new(&bench.kernels, blas, options)?;
    // Only gate and up need memory for their columns; the many columns of a head must not take any.
    let columns = if output.is_gated() { weight.n } else { 0 };
    let workspace = bench.output::<u8>(linear.workspace_bytes(rows, &[(columns, weight.k)]))?;
    let stream = &bench.stream;
    match output {
        Output::Plain => linear.launch(stream, out.cast(), x, weight, rows, *workspace),
        Output::F32 => linear.launch_f32(stream, out.cast(), x, weight, rows, *workspace),
        Output::Gated(by) => {
            linear.launch_gate_up(stream, out.cast(), x, Gated { by, weight }, rows, *workspace)
        }
    }?;
    stream.synchronize() // the workspace is freed on return
}

fn accuracy<T: Activation + BlasElement>(
    bench: &mut Bench,
    by: By,
    (rows, n, k): ProductShape,
    output: Output,
    granularity: Option<Granularity>,
) -> Result<(), CudaError> {
    let name = format!("linear {by:?} {} {output:?} {rows}x{n}x{k} e4m3 {granularity:?}", T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    // With cuBLASLt, logits have no bias.
    let by_kernel = !matches!(by, By::Linear { .. });
    let with_bias = by_kernel || output != Output::F32;
    let operands = Operands::<T>::new(bench, (rows, n, k), output, granularity, with_bias)?;
    let got = multiply(bench, by, &operands, rows, output)?;
    let compared = bench.compared(got.len());
    let written = got.iter().filter(|value| value.is_finite()).count();
    bench.compare_exact(&format!("{name}, written"), &[written], &[got.len()]);
    let reference: Vec<f32> =
        each(compared.len(), DEAR, |i| operands.exact(compared[i] / n, compared[i] % n, output) as f32);
    let got: Vec<f32> = compared.iter().map(|i| got[*i]).collect();
    // Sums are accurate to about 1e-5; add half of the last of 8 or 11 bits.
    let tolerance = match (output, T::SUFFIX) {
        // Activations may be rounded to 4 bits here, which gives sums of k errors of 3% of x times w.
        _ if !by_kernel && granularity == Some(Granularity::Channel) => {
            Tolerance { absolute: 0.5, relative: 0.05 }
        }
        (Output::F32, _) => Tolerance { absolute: 1e-4, relative: 1e-4 },
        // With cuBLASLt, gate and up are rounded as well.
        (Output::Gated(_), "bf16") if !by_kernel => Tolerance { absolute: 1e-3, relative: 1.6e-2 },
        (Output::Gated(_), _) if !by_kernel => Tolerance { absolute: 1e-3, relative: 2e-3 },
        (_, "bf16") => Tolerance { absolute: 1e-4, relative: 4e-3 },
        _ => Tolerance { absolute: 1e-4, relative: 6e-4 },
    };
    bench.compare(&name, &got, &reference, tolerance);
    Ok(())
}

/// A row has the same bits alone, in any batch and with any tile.
fn invariance<T: Activation + BlasElement>(
    bench: &mut Bench,
    (rows, n, k): ProductShape,
    granularity: Option<Granularity>,
) -> Result<(), CudaError> {
    let name = format!("linear bits {} {rows}x{n}x{k} e4m3 {granularity:?}", T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let operands = Operands::<T>::new(bench, (rows, n, k), Output::F32, granularity, true)?;
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let whole = bits(&multiply(bench, By::Gemm(Tile::Large), &operands, rows, Output::F32)?);
    let mut batches = vec![(By::Gemm(Tile::Small), rows), (By::Gemm(Tile::Medium), rows - 2)];
    let counts: &[usize] = if bench.scale == Scale::Small { &[1, 9] } else { &[1, 2, 7, 8, 9, 16] };
    batches.extend(counts.iter().map(|count| (By::Gemv, *count.min(&gemv::MAX_ROWS))));
    batches.push((By::Gemm(Tile::Large), rows / 2));
    batches.extend([3, 17, rows - 1].map(|count| (By::Linear { batch_invariant: true }, count)));
    for (by, count) in batches {
        let got = bits(&multiply(bench, by, &operands, count, Output::F32)?);
        bench.compare_exact(&format!("{name}, {by:?} of {count}"), &got, &whole[..count * n]);
    }
    Ok(())
}
