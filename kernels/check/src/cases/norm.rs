//! Cases of [`skein_kernels::cuda::ops::norm`].

use super::Scale;
use super::case::{Bench, Tolerance};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::input::{Encoding, Input};
use skein_kernels::cpu::layer_norm::{LayerNorm, layer_norm_into};
use skein_kernels::cpu::norm::{rms_norm, rms_norm_add};
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::norm::{AddNorm, Formula, Norm};
use skein_kernels::cuda::{CudaError, DeviceSlice};

const EPS: f32 = 1e-5;
/// Mean of the residual stream, so that a norm that does not subtract it is detected.
const MEAN: f32 = 3.0;

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let shapes: &[(usize, usize)] = match bench.scale {
        Scale::Small => &[(1, 64), (3, 132), (5, 4096)],
        // Many rows and wide rows apart: the product of both only costs time.
        Scale::Full => &[(1, 64), (3, 132), (4097, 896), (256, 4096), (70, 8192), (33, 16384)],
    };
    for &(rows, hidden) in shapes {
        for by in [By::Rms, By::Layer, By::LayerWithBias, By::Nothing] {
            for added in [Added::Nothing, Added::Delta, Added::Two, Added::Normalised] {
                case::<half::bf16>(bench, (rows, hidden), by, added)?;
                case::<half::f16>(bench, (rows, hidden), by, added)?;
            }
        }
    }
    Ok(())
}

/// The norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Rms,
    Layer,
    LayerWithBias,
    /// The residual is only rounded.
    Nothing,
}

impl By {
    fn formula(self) -> Formula {
        match self {
            Self::Rms | Self::Nothing => Formula::Rms,
            Self::Layer | Self::LayerWithBias => Formula::Layer,
        }
    }
}

/// The values added before the norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Added {
    Nothing,
    Delta,
    Two,
    Normalised,
}

fn case<T: Activation>(
    bench: &mut Bench,
    (rows, hidden): (usize, usize),
    by: By,
    added: Added,
) -> Result<(), CudaError> {
    let kernel = if by.formula() == Formula::Rms { "add_rms_norm" } else { "add_layer_norm" };
    let name = format!("{kernel}_{} {rows}x{hidden} by {by:?} added {added:?}", T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let mut residual: Vec<f32> = bench.normal_as(rows * hidden, |x| x + MEAN);
    let [delta, beside] = [(); 2].map(|()| -> Vec<T> { bench.normal_as(rows * hidden, T::from_f32) });
    let [weight, delta_weight, bias] = [(); 3].map(|()| bench.normal(hidden));
    let out = bench.output::<T>(rows * hidden)?;
    let on_device = bench.upload(&residual)?;
    let (deltas, besides) = (bench.upload(&delta)?, bench.upload(&beside)?);
    let (weights, delta_weights) = (bench.upload(&weight)?, bench.upload(&delta_weight)?);
    let biases = bench.upload(&bias)?;
    let if_any = |is_any, slice: DeviceSlice<f32>| if is_any { slice } else { DeviceSlice::NONE };
    let norm = Norm {
        out: *out,
        residual: *on_device,
        delta: if added == Added::Nothing { DeviceSlice::NONE } else { *deltas },
        beside: if added == Added::Two { *besides } else { DeviceSlice::NONE },
        delta_weight: if_any(added == Added::Normalised, *delta_weights),
        weight: if_any(by != By::Nothing, *weights),
        bias: if_any(by == By::LayerWithBias, *biases),
        rows,
        hidden,
        eps: EPS,
    };
    AddNorm::<T>::new(&bench.kernels, by.formula())?.launch(&bench.stream, norm)?;

    let wide = |values: &[T]| -> Vec<f32> { values.iter().map(|value| value.to_f32()).collect() };
    let add = |to: &mut [f32], values: &[T]| to.iter_mut().zip(wide(values)).for_each(|(x, d)| *x += d);
    match added {
        Added::Nothing => {}
        Added::Delta => add(&mut residual, &delta),
        Added::Two => {
            add(&mut residual, &delta);
            add(&mut residual, &beside);
        }
        Added::Normalised => {
            rms_norm_add(&mut Cpu::new(1), &wide(&delta), &delta_weight, EPS, &mut residual);
        }
    }
    let reference = normalised(&residual, &weight, (by == By::LayerWithBias).then_some(&bias), by);
    let got: Vec<f32> = out.read(&bench.stream)?.into_iter().map(T::to_f32).collect();
    bench.compare(&name, &got, &reference, Tolerance { absolute: 1e-3, relative: 1e-2 });
    let residual_after = on_device.read(&bench.stream)?;
    let name = format!("{name}, residual");
    match added {
        Added::Normalised => {
            bench.compare(&name, &residual_after, &residual, Tolerance { absolute: 1e-5, relative: 1e-5 });
        }
        Added::Nothing | Added::Delta | Added::Two => {
            bench.compare_exact(&name, &residual_after, &residual);
        }
    }
    Ok(())
}

/// The rows of `x` as the CPU normalises them.
fn normalised(x: &[f32], weight: &[f32], bias: Option<&Vec<f32>>, by: By) -> Vec<f32> {
    let (cpu, mut out) = (&mut Cpu::new(1), vec![0.0; x.len()]);
    match by {
        By::Nothing => out.copy_from_slice(x),
        By::Rms => rms_norm(cpu, x, weight, EPS, &mut out),
        By::Layer | By::LayerWithBias => {
            let norm = LayerNorm { weight, bias: bias.map(Vec::as_slice), eps: EPS };
            let mut encoded = Input::default();
            layer_norm_into(cpu, x, norm, Encoding::F32, &mut encoded);
            encoded.copy_to(&mut out);
        }
    }
    out
}
