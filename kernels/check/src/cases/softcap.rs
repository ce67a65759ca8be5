//! Cases of [`skein_kernels::cuda::ops::softcap`].

use super::Scale;
use super::case::{Bench, Tolerance};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::softcap::softcap;
use skein_kernels::cuda::CudaError;
use skein_kernels::cuda::ops::softcap::Softcap;

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let counts: &[usize] = match bench.scale {
        Scale::Small => &[1, 257, 5000],
        Scale::Full => &[1, 257, 256_000 * 8],
    };
    counts.iter().try_for_each(|count| [1.5, 30.0].into_iter().try_for_each(|cap| case(bench, *count, cap)))
}

fn case(bench: &mut Bench, count: usize, cap: f32) -> Result<(), CudaError> {
    let name = format!("softcap {count} cap {cap}");
    if !bench.wants(&name) {
        return Ok(());
    }
    let mut values: Vec<f32> = bench.normal(count).iter().map(|x| x * 20.0).collect();
    let on_device = bench.upload(&values)?;
    Softcap::new(&bench.kernels)?.launch(&bench.stream, *on_device, cap)?;
    softcap(&mut Cpu::new(1), &mut values, cap);
    let got = on_device.read(&bench.stream)?;
    bench.compare(&name, &got, &values, Tolerance { absolute: 1e-6, relative: 1e-6 });
    Ok(())
}
