//! Cases of [`skein_kernels::cuda::ops::activation`].

use super::Scale;
use super::case::{Bench, Tolerance};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::input::{Encoding, Input};
use skein_kernels::cpu::mlp::{activate_into, glu};
use skein_kernels::cuda::CudaError;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::activation::{Activate, GateUp, Glu};
use skein_kernels::gate::Gate;

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let shapes: &[(usize, usize)] = match bench.scale {
        Scale::Small => &[(1, 8), (3, 136), (2, 4864)],
        Scale::Full => &[(1, 8), (3, 136), (256, 14_336), (4097, 1216)],
    };
    for &(rows, inner) in shapes {
        for by in [Gate::Silu, Gate::GeluTanh] {
            case::<half::bf16>(bench, by, rows, inner)?;
            case::<half::f16>(bench, by, rows, inner)?;
            ungated::<half::bf16>(bench, by, rows * inner)?;
            ungated::<half::f16>(bench, by, rows * inner)?;
        }
    }
    Ok(())
}

fn case<T: Activation>(bench: &mut Bench, by: Gate, rows: usize, inner: usize) -> Result<(), CudaError> {
    let name = format!("glu_{} {by:?} {rows}x{inner}", T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let mut values = bench.normal(2 * rows * inner);
    // Gates whose exponential overflows or underflows.
    (values[0], values[1], values[2]) = (-200.0, 200.0, -88.5);
    let gate_up: Vec<T> = values.into_iter().map(T::from_f32).collect();
    let out = bench.output::<T>(rows * inner)?;
    let on_device = bench.upload(&gate_up)?;
    let launch = GateUp { out: *out, gate_up: *on_device, by, rows, inner };
    Glu::<T>::new(&bench.kernels)?.launch(&bench.stream, launch)?;

    let wide: Vec<f32> = gate_up.iter().map(|value| value.to_f32()).collect();
    let mut reference = vec![0.0; rows * inner];
    glu(&mut Cpu::new(1), by, &wide, inner, &mut reference);
    let got: Vec<f32> = out.read(&bench.stream)?.into_iter().map(T::to_f32).collect();
    bench.compare(&name, &got, &reference, Tolerance { absolute: 1e-6, relative: 4e-3 });
    Ok(())
}

fn ungated<T: Activation>(bench: &mut Bench, by: Gate, len: usize) -> Result<(), CudaError> {
    let name = format!("activate_{} {by:?} {len}", T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let mut values = bench.normal(len);
    (values[0], values[1], values[2]) = (-200.0, 200.0, -88.5);
    let x: Vec<T> = values.into_iter().map(T::from_f32).collect();
    let on_device = bench.upload(&x)?;
    Activate::<T>::new(&bench.kernels)?.launch(&bench.stream, *on_device, by)?;

    let wide: Vec<f32> = x.iter().map(|value| value.to_f32()).collect();
    let (mut encoded, mut reference) = (Input::default(), vec![0.0; len]);
    activate_into(&mut Cpu::new(1), by, &wide, len, Encoding::F32, &mut encoded);
    encoded.copy_to(&mut reference);
    let got: Vec<f32> = on_device.read(&bench.stream)?.into_iter().map(T::to_f32).collect();
    bench.compare(&name, &got, &reference, Tolerance { absolute: 1e-6, relative: 4e-3 });
    Ok(())
}
