//! Cases of [`skein_kernels::cuda::ops::activation`].

use super::Scale;
use super::case::{Bench, Tolerance};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::mlp::glu;
use skein_kernels::cuda::CudaError;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::activation::{GateUp, Glu};
use skein_kernels::gate::Gate;

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let shapes: &[(usize, usize)] = match bench.scale {
        Scale::Small => &[(1, 8), (3, 136), (2, 4864)],
        Scale::Full => &[(1, 8), (3, 136), (256, 14_336), (4096, 9728)],
    };
    for &(rows, inner) in shapes {
        for by in [Gate::Silu, Gate::GeluTanh] {
            case::<half::bf16>(bench, by, rows, inner)?;
            case::<half::f16>(bench, by, rows, inner)?;
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
