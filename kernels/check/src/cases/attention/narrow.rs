//! Latents in 8 bits: attention over codes has the bits of attention over the values that they stand for.

use half::{bf16, f16};

use super::name;
use super::step::{AttentionStep, Case, Stored, compute, launch_over};
use crate::cases::case::Bench;
use skein_kernels::cuda::CudaError;
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::e4m3::MAX;
use skein_kernels::cuda::ops::latent::{NARROW_GROUP, NARROW_SCALES_BYTES, key_bytes};

/// Compares the output over keys in 8 bits with that over the same keys in 16.
pub(super) fn check<T: Stored>(bench: &mut Bench, case: Case) -> Result<(), CudaError> {
    let name = name::<T, E4m3>(&case);
    if !bench.wants(&name) {
        return Ok(());
    }
    let mut step = AttentionStep::<T, T>::draw(bench, &case);
    let codes = step.narrow(&case, narrow::<T>);
    let expected = compute(bench, &case, &step)?;
    let got = match T::NAME {
        "f16" => {
            let queries = step.queries().map(f16::from_f32).collect();
            launch_over::<f16, E4m3>(bench, &case, queries, (&codes, &codes), &step)?
        }
        _ => {
            let queries = step.queries().map(bf16::from_f32).collect();
            launch_over::<bf16, E4m3>(bench, &case, queries, (&codes, &codes), &step)?
        }
    };
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    bench.compare_exact(&name, &bits(&got), &bits(&expected));
    Ok(())
}

/// The bytes of a key whose first `rank` values become codes, and its values as they are afterwards. Scales
/// are no powers of two. A key that must not be read has NaN everywhere.
fn narrow<T: Stored>(key: &[T], rank: usize) -> (Vec<u8>, Vec<T>) {
    let wide: Vec<f32> = key.iter().map(|value| value.widen()).collect();
    let bytes = key_bytes::<E4m3>(rank, key.len() - rank);
    if wide[0].is_nan() {
        return (vec![0xff; bytes], key.to_vec());
    }
    let groups: Vec<&[f32]> = wide[..rank].chunks(NARROW_GROUP).collect();
    let largest = |group: &&[f32]| group.iter().fold(0f32, |most, value| most.max(value.abs()));
    let scales: Vec<f32> = groups.iter().map(|group| largest(group) / MAX).collect();
    let (mut codes, mut values) = (Vec::with_capacity(bytes), Vec::with_capacity(key.len()));
    for (group, scale) in groups.iter().zip(&scales) {
        for value in *group {
            let code = E4m3::from_f32(value / scale);
            codes.push(code.0);
            values.push(T::round(code.to_f32() * scale));
        }
    }
    let all = scales.into_iter().chain(std::iter::repeat(1.0)).take(NARROW_SCALES_BYTES / size_of::<f32>());
    codes.extend(all.flat_map(f32::to_le_bytes));
    codes.extend(key[rank..].iter().flat_map(|value| value.bytes()));
    values.extend_from_slice(&key[rank..]);
    (codes, values)
}
