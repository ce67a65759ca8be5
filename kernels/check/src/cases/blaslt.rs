//! Cases of [`skein_kernels::cuda::blaslt`]: every operand type, result type and scaling that the library
//! claims to support. Without the library they fail: it multiplies everything beyond a few rows, so that a
//! device that was checked without it has not been checked.

use super::Scale;
use super::case::{Bench, DEAR, Tolerance, each};
use skein_kernels::cuda::blaslt::{BlasElement, BlasLt, Gemm, GemmKey, Scaling, WORKSPACE_BYTES};
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::{CudaError, DeviceBuffer, DeviceSlice};

/// Properties of an operand type.
trait Operand: BlasElement {
    const NAME: &'static str;
    fn round(value: f32) -> Self;
    fn value(self) -> f32;
}

macro_rules! operands {
    ($($type:ty => $name:literal, $round:expr, $value:expr);*) => {$(
        impl Operand for $type {
            const NAME: &'static str = $name;
            fn round(value: f32) -> Self {
                $round(value)
            }
            fn value(self) -> f32 {
                $value(self)
            }
        }
    )*};
}
operands!(
    half::bf16 => "bf16", Activation::from_f32, Activation::to_f32;
    half::f16 => "f16", Activation::from_f32, Activation::to_f32;
    f32 => "f32", std::convert::identity, std::convert::identity;
    E4m3 => "e4m3", E4m3::from_f32, E4m3::to_f32
);

/// Why cases fail without the library.
const NOT_FOUND: &str = "cuBLASLt was not found, or is older than CUDA 12; install CUDA 13's libcublasLt.so.13 where \
                         the loader finds it (LD_LIBRARY_PATH; package nvidia-cublas of PyPI), or check without it \
                         by --without-cublaslt";

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let blas = BlasLt::open(bench.kernels.device())?;
    let blas = blas.as_ref();
    let workspace = bench.output::<u8>(WORKSPACE_BYTES)?;
    let shapes: &[(usize, usize, usize)] = match bench.scale {
        Scale::Small => &[(4, 48, 64), (20, 144, 272)],
        Scale::Full => {
            &[(4, 48, 64), (1, 4096, 4096), (20, 1040, 4096), (300, 6144, 4096), (1028, 1024, 14336)]
        }
    };
    for &shape in shapes {
        for bias in [false, true] {
            case::<half::bf16, half::bf16>(bench, blas, *workspace, shape, Scaling::None, bias)?;
            case::<half::f16, half::f16>(bench, blas, *workspace, shape, Scaling::None, bias)?;
        }
        case::<half::bf16, f32>(bench, blas, *workspace, shape, Scaling::None, false)?;
        for scaling in [Scaling::Tensor, Scaling::Outer, Scaling::Block128] {
            case::<E4m3, half::bf16>(bench, blas, *workspace, shape, scaling, false)?;
        }
    }
    Ok(())
}

fn case<I: Operand, O: Operand>(
    bench: &mut Bench,
    blas: Option<&BlasLt>,
    workspace: DeviceSlice<u8>,
    (rows, n, k): (usize, usize, usize),
    scaling: Scaling,
    with_bias: bool,
) -> Result<(), CudaError> {
    let name = format!("cublaslt {} to {} {rows}x{n}x{k} {scaling:?} bias {with_bias}", I::NAME, O::NAME);
    if !bench.wants(&name) {
        return Ok(());
    }
    let Some(blas) = blas else {
        bench.fail(&name, NOT_FOUND);
        return Ok(());
    };
    if !blas.supports(GemmKey::new::<I, O>(rows, n, k, scaling, with_bias))? {
        return Ok(());
    }
    let (x, weight) = (bench.normal_as(rows * k, I::round), bench.normal_as(n * k, I::round));
    let bias: Vec<O> = bench.normal_as(if with_bias { n } else { 0 }, O::round);
    let (weight_count, x_count) = scaling.counts(rows, n, k);
    let scales = |values: Vec<f32>| values.into_iter().map(|value| value.abs() + 0.1).collect::<Vec<_>>();
    let (x_scales, weight_scales) = (scales(bench.normal(x_count)), scales(bench.normal(weight_count)));

    let out = bench.output::<O>(rows * n)?;
    let (x_there, weight_there, bias_there) =
        (bench.upload(&x)?, bench.upload(&weight)?, bench.upload(&bias)?);
    let (x_scales_there, weight_scales_there) = (bench.upload(&x_scales)?, bench.upload(&weight_scales)?);
    let gemm = Gemm {
        bias: some(&bias_there),
        scaling,
        x_scales: some(&x_scales_there),
        weight_scales: some(&weight_scales_there),
        ..Gemm::new(*out, *x_there, *weight_there, rows, n, k)
    };
    blas.matmul(&bench.stream, gemm, workspace)?;

    let scale = |row: usize, column: usize, at: usize| -> f64 {
        let (of_x, of_weight) = match scaling {
            Scaling::None => return 1.0,
            Scaling::Tensor => (0, 0),
            Scaling::Outer => (row, column),
            Scaling::Block128 => {
                let stride = k.div_ceil(128).next_multiple_of(4);
                (at / 128 * rows + row, column / 128 * stride + at / 128)
            }
        };
        f64::from(x_scales[of_x]) * f64::from(weight_scales[of_weight])
    };
    let exact = |row: usize, column: usize| {
        let products = (0..k).map(|at| {
            let product = f64::from(x[row * k + at].value()) * f64::from(weight[column * k + at].value());
            product * scale(row, column, at)
        });
        let bias = bias.get(column).map_or(0.0, |bias| f64::from(bias.value()));
        (products.sum::<f64>() + bias) as f32
    };
    let got: Vec<f32> = out.read(&bench.stream)?.into_iter().map(O::value).collect();
    let written = got.iter().filter(|value| value.is_finite()).count();
    bench.compare_exact(&format!("{name}, written"), &[written], &[got.len()]);
    let compared = bench.compared(got.len());
    let reference = each(compared.len(), DEAR, |i| exact(compared[i] / n, compared[i] % n));
    let got: Vec<f32> = compared.iter().map(|i| got[*i]).collect();
    // Sums of k products of standard deviation 1. For FP8, tensor cores accumulate in fewer bits than f32
    // has.
    let absolute = (k as f64).sqrt() * if I::NAME == "e4m3" { 2e-2 } else { 1e-3 };
    bench.compare(&name, &got, &reference, Tolerance { absolute, relative: 1e-2 });
    Ok(())
}

fn some<T: BlasElement>(buffer: &DeviceBuffer<T>) -> DeviceSlice<T> {
    if buffer.is_empty() { DeviceSlice::NONE } else { **buffer }
}
