//! Cases of [`skein_kernels::cuda::ops::quantize`].

use super::Scale;
use super::case::Bench;
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::e4m3;
use skein_kernels::cuda::ops::quantize::{GROUP, Granularity, Quantization, Quantize, Quantized};
use skein_kernels::cuda::{CudaError, DeviceSlice};

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let shapes: &[(usize, usize)] = match bench.scale {
        Scale::Small => &[(1, 4), (3, 132), (130, 260)],
        Scale::Full => &[(1, 4), (3, 132), (257, 4096), (1024, 14_336)],
    };
    for &(rows, cols) in shapes {
        for granularity in [Granularity::Tensor, Granularity::Row, Granularity::Group, Granularity::Block] {
            case(bench, rows, cols, granularity, half::bf16::from_f32, half::bf16::to_f32)?;
            case(bench, rows, cols, granularity, half::f16::from_f32, half::f16::to_f32)?;
            case::<f32>(bench, rows, cols, granularity, |value| value, |value| value)?;
        }
    }
    nan_and_infinity_reach_the_scale(bench)
}

/// Rows with NaN or infinite values get an infinite scale; other rows keep theirs.
fn nan_and_infinity_reach_the_scale(bench: &mut Bench) -> Result<(), CudaError> {
    let name = "quantize_f32 rows with a NaN or an infinite value";
    if !bench.wants(name) {
        return Ok(());
    }
    let (rows, cols) = (5, 264);
    let mut x = bench.normal(rows * cols);
    for (row, value) in [(1, f32::NAN), (3, f32::NEG_INFINITY), (4, -f32::NAN)] {
        x[row * cols + bench.below(cols as u32) as usize] = value;
    }
    // Finite values whose sum is not finite.
    x[2 * cols..2 * cols + 4].copy_from_slice(&[f32::MAX, f32::MAX, f32::MIN, f32::MIN]);
    let (_, scales) = quantized(bench, &x, rows, cols, Granularity::Row)?;
    let finite: Vec<bool> = scales.into_iter().map(f32::is_finite).collect();
    bench.compare_exact(name, &finite, &[true, false, true, false, false]);
    Ok(())
}

/// Values and scales that the device computes from `x`.
fn quantized<T: Quantized>(
    bench: &Bench,
    x: &[T],
    rows: usize,
    cols: usize,
    granularity: Granularity,
) -> Result<(Vec<E4m3>, Vec<f32>), CudaError> {
    let (out, scratch) = (bench.output::<E4m3>(rows * cols)?, bench.output::<u32>(1)?);
    let scales = bench.output::<f32>(granularity.scales(rows, cols))?;
    let on_device = bench.upload(x)?;
    let quantization = Quantization {
        out: *out,
        scales: *scales,
        x: *on_device,
        rows,
        cols,
        granularity,
        scratch: if granularity == Granularity::Tensor { *scratch } else { DeviceSlice::NONE },
    };
    Quantize::<T>::new(&bench.kernels)?.launch(&bench.stream, quantization)?;
    Ok((out.read(&bench.stream)?, scales.read(&bench.stream)?))
}

fn case<T: Quantized>(
    bench: &mut Bench,
    rows: usize,
    cols: usize,
    granularity: Granularity,
    narrow: fn(f32) -> T,
    widen: fn(T) -> f32,
) -> Result<(), CudaError> {
    let name = format!("{} {rows}x{cols} {granularity:?}", T::KERNELS[1].replace("tensor_", ""));
    if !bench.wants(&name) {
        return Ok(());
    }
    let mut x: Vec<T> = bench.normal_as(rows * cols, narrow);
    // A row of zeros needs a scale, too.
    x[(rows / 2) * cols..][..cols].fill(narrow(0.0));
    let (got, got_scales) = quantized(bench, &x, rows, cols, granularity)?;

    let group_of = |i: usize| {
        let (row, col) = (i / cols, i % cols);
        match granularity {
            Granularity::Tensor => 0,
            Granularity::Row => row,
            Granularity::Group => row * cols.div_ceil(GROUP) + col / GROUP,
            Granularity::Block => row / GROUP * cols.div_ceil(GROUP) + col / GROUP,
        }
    };
    let mut largest = vec![0f32; got_scales.len()];
    for (i, value) in x.iter().enumerate() {
        largest[group_of(i)] = largest[group_of(i)].max(widen(*value).abs());
    }
    let scale = |largest: f32| if largest > 0.0 { (largest / e4m3::MAX).max(f32::MIN_POSITIVE) } else { 1.0 };
    let expected: Vec<f32> = largest.into_iter().map(scale).collect();
    let reference: Vec<u8> = x
        .iter()
        .enumerate()
        .map(|(i, value)| E4m3::from_f32(widen(*value) * (1.0 / expected[group_of(i)])).0)
        .collect();
    let got: Vec<u8> = got.into_iter().map(|value| value.0).collect();
    bench.compare_exact(&name, &got, &reference);
    bench.compare_exact(&format!("{name}, scales"), &got_scales, &expected);
    Ok(())
}
