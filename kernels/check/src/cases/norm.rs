//! Cases of [`skein_kernels::cuda::ops::norm`].

use super::Scale;
use super::case::{Bench, Tolerance};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::norm::{rms_norm, rms_norm_add};
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::norm::{AddRmsNorm, Norm};
use skein_kernels::cuda::{CudaError, DeviceSlice};

const EPS: f32 = 1e-5;

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let shapes: &[(usize, usize)] = match bench.scale {
        Scale::Small => &[(1, 64), (3, 132), (5, 4096)],
        Scale::Full => &[(1, 64), (3, 132), (7, 896), (256, 4096), (4096, 8192), (33, 16384)],
    };
    for &(rows, hidden) in shapes {
        for delta in [Delta::None, Delta::Plain, Delta::Normalised] {
            case::<half::bf16>(bench, rows, hidden, delta)?;
            case::<half::f16>(bench, rows, hidden, delta)?;
        }
    }
    Ok(())
}

/// The values added before the norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delta {
    None,
    Plain,
    Normalised,
}

fn case<T: Activation>(bench: &mut Bench, rows: usize, hidden: usize, with: Delta) -> Result<(), CudaError> {
    let name = format!("add_rms_norm_{} {rows}x{hidden} delta {with:?}", T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let mut residual = bench.normal(rows * hidden);
    let delta: Vec<T> = bench.normal(rows * hidden).into_iter().map(T::from_f32).collect();
    let (weight, delta_weight) = (bench.normal(hidden), bench.normal(hidden));
    let out = bench.output::<T>(rows * hidden)?;
    let on_device = bench.upload(&residual)?;
    let (deltas, weights) = (bench.upload(&delta)?, bench.upload(&weight)?);
    let delta_weights = bench.upload(&delta_weight)?;
    let none = Norm {
        out: *out,
        residual: *on_device,
        delta: DeviceSlice::NONE,
        delta_weight: DeviceSlice::NONE,
        weight: *weights,
        rows,
        eps: EPS,
    };
    let plain = Norm { delta: *deltas, ..none };
    let norm = match with {
        Delta::None => none,
        Delta::Plain => plain,
        Delta::Normalised => Norm { delta_weight: *delta_weights, ..plain },
    };
    AddRmsNorm::<T>::new(&bench.kernels)?.launch(&bench.stream, norm)?;

    let wide: Vec<f32> = delta.iter().map(|d| d.to_f32()).collect();
    match with {
        Delta::None => {}
        Delta::Plain => residual.iter_mut().zip(&wide).for_each(|(x, d)| *x += d),
        Delta::Normalised => rms_norm_add(&mut Cpu::new(1), &wide, &delta_weight, EPS, &mut residual),
    }
    let mut reference = vec![0.0; rows * hidden];
    rms_norm(&mut Cpu::new(1), &residual, &weight, EPS, &mut reference);
    let got: Vec<f32> = out.read(&bench.stream)?.into_iter().map(T::to_f32).collect();
    bench.compare(&name, &got, &reference, Tolerance { absolute: 1e-3, relative: 1e-2 });
    let residual_after = on_device.read(&bench.stream)?;
    let name = format!("{name}, residual");
    match with {
        Delta::Normalised => {
            bench.compare(&name, &residual_after, &residual, Tolerance { absolute: 1e-5, relative: 1e-5 });
        }
        Delta::None | Delta::Plain => bench.compare_exact(&name, &residual_after, &residual),
    }
    Ok(())
}
