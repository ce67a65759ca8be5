//! Cases of [`crate::cuda::ops::norm`].

use super::Scale;
use super::case::{Bench, Tolerance};
use crate::cpu::Cpu;
use crate::cpu::norm::rms_norm;
use crate::cuda::ops::Activation;
use crate::cuda::ops::norm::{AddRmsNorm, Norm};
use crate::cuda::{CudaError, DeviceSlice};

const EPS: f32 = 1e-5;

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let shapes: &[(usize, usize)] = match bench.scale {
        Scale::Small => &[(1, 64), (3, 132), (5, 4096)],
        Scale::Full => &[(1, 64), (3, 132), (7, 896), (256, 4096), (4096, 8192), (33, 16384)],
    };
    for &(rows, hidden) in shapes {
        for with_delta in [false, true] {
            case::<half::bf16>(bench, rows, hidden, with_delta)?;
            case::<half::f16>(bench, rows, hidden, with_delta)?;
        }
    }
    Ok(())
}

fn case<T: Activation>(
    bench: &mut Bench,
    rows: usize,
    hidden: usize,
    with_delta: bool,
) -> Result<(), CudaError> {
    let name = format!("add_rms_norm_{} {rows}x{hidden} delta {with_delta}", T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let mut residual = bench.normal(rows * hidden);
    let delta: Vec<T> = bench.normal(rows * hidden).into_iter().map(T::from_f32).collect();
    let weight = bench.normal(hidden);
    let out = bench.output::<T>(rows * hidden)?;
    let on_device = bench.upload(&residual)?;
    let (deltas, weights) = (bench.upload(&delta)?, bench.upload(&weight)?);
    let deltas = if with_delta { *deltas } else { DeviceSlice::NONE };
    let norm = Norm { out: *out, residual: *on_device, delta: deltas, weight: *weights, rows, eps: EPS };
    AddRmsNorm::<T>::new(&bench.kernels)?.launch(&bench.stream, norm)?;

    if with_delta {
        residual.iter_mut().zip(&delta).for_each(|(x, d)| *x += d.to_f32());
    }
    let mut reference = vec![0.0; rows * hidden];
    rms_norm(&mut Cpu::new(1), &residual, &weight, EPS, &mut reference);
    let got: Vec<f32> = out.read(&bench.stream)?.into_iter().map(T::to_f32).collect();
    bench.compare(&name, &got, &reference, Tolerance { absolute: 1e-3, relative: 1e-2 });
    let residual_after = on_device.read(&bench.stream)?;
    bench.compare_exact(&format!("{name}, residual"), &residual_after, &residual);
    Ok(())
}
