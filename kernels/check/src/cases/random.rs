//! Cases of [`skein_kernels::cuda::ops::random`] and of functions whose bits must equal the CPU's.

use super::Scale;
use super::case::Bench;
use skein_kernels::cpu::math::exp;
use skein_kernels::cuda::CudaError;
use skein_kernels::cuda::launch::{Args, Grid};
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::random::{Bits, FillBits, FillNormal, Randomised, bits, normal};

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let len = if bench.scale == Scale::Small { 9_001 } else { 10_000_001 };
    fill::<half::bf16>(
        bench,
        len,
        |value| half::bf16::from_f32(value).to_bits().into(),
        |it| it.to_bits().into(),
    )?;
    fill::<half::f16>(
        bench,
        len,
        |value| half::f16::from_f32(value).to_bits().into(),
        |it| it.to_bits().into(),
    )?;
    fill::<f32>(bench, len, f32::to_bits, f32::to_bits)?;
    fill::<E4m3>(bench, len, |value| E4m3::from_f32(value).0.into(), |it| it.0.into())?;
    for words in len..len + 4 {
        fill_bits(bench, words)?;
    }
    fill_pieces(bench, len / 100)?;
    exact_math(bench)
}

fn fill<T: Randomised>(
    bench: &mut Bench,
    len: usize,
    expected: fn(f32) -> u32,
    bits: fn(T) -> u32,
) -> Result<(), CudaError> {
    let name = format!("{} {len}", T::KERNEL);
    if !bench.wants(&name) {
        return Ok(());
    }
    let seed = u64::from(bench.bits()) << 32 | u64::from(bench.bits());
    let out = bench.output::<T>(len)?;
    FillNormal::<T>::new(&bench.kernels)?.launch(&bench.stream, *out, seed, 0.7)?;
    let values: Vec<f32> = (0..len as u64).map(|i| normal(seed, i, 0.7)).collect();
    let got: Vec<u32> = out.read(&bench.stream)?.into_iter().map(bits).collect();
    let reference: Vec<u32> = values.iter().map(|value| expected(*value)).collect();
    bench.compare_exact(&name, &got, &reference);
    Ok(())
}

/// Whole and partial vectors of four words, all bits and some.
fn fill_bits(bench: &mut Bench, words: usize) -> Result<(), CudaError> {
    let name = format!("fill_bits {words}");
    if !bench.wants(&name) {
        return Ok(());
    }
    let seed = u64::from(bench.bits()) << 32 | u64::from(bench.bits());
    let of = if words.is_multiple_of(2) { Bits::UNIFORM } else { Bits::of_halves(0x00ff, 0x1c00) };
    let out = bench.output::<u32>(words)?;
    FillBits::new(&bench.kernels)?.launch(&bench.stream, out.cast(), seed, of)?;
    let reference: Vec<u32> = (0..words as u64).map(|i| bits(seed, i, of)).collect();
    let got = out.read(&bench.stream)?;
    bench.compare_exact(&name, &got, &reference);
    Ok(())
}

/// A part of each piece; the rest keeps what is there.
fn fill_pieces(bench: &mut Bench, pieces: usize) -> Result<(), CudaError> {
    let name = format!("fill_bits {pieces} pieces");
    if !bench.wants(&name) {
        return Ok(());
    }
    let (run, stride) = (16, 48);
    let (first, second) = (Bits::UNIFORM, Bits::of_bytes(0x55, 0));
    let out = bench.output::<u32>(pieces * stride)?;
    let fill = FillBits::new(&bench.kernels)?;
    fill.launch(&bench.stream, out.cast(), 5, first)?;
    fill.launch_pieces(&bench.stream, out.cast(), (run * 4, stride * 4), 6, second)?;
    let word = |i: usize| match i % stride {
        at if at < run => bits(6, (i / stride * run + at) as u64, second),
        _ => bits(5, i as u64, first),
    };
    let reference: Vec<u32> = (0..pieces * stride).map(word).collect();
    let got = out.read(&bench.stream)?;
    bench.compare_exact(&name, &got, &reference);
    Ok(())
}

/// exp over its whole range and beyond; ln(1 - u) for the smallest, the largest and random words.
fn exact_math(bench: &mut Bench) -> Result<(), CudaError> {
    let name = "check_math, bit by bit";
    if !bench.wants(name) {
        return Ok(());
    }
    let len = if bench.scale == Scale::Small { 60_000 } else { 10_000_000 };
    let mut x: Vec<f32> = (0..len).map(|_| bench.bits() as f32 / u32::MAX as f32 * 190.0 - 95.0).collect();
    let ends = [0.0, -0.0, -87.3, -87.300_01, -87.299_99, 88.0, 88.1, f32::NEG_INFINITY, 1e-20, -1e-20];
    x[..ends.len()].copy_from_slice(&ends);
    // Uniform words are rarely small, so each is shifted by a random count.
    let mut words: Vec<u32> = (0..len)
        .map(|i| {
            let word = bench.bits() >> (bench.below(32) * u32::from(i % 2 == 0));
            if i % 4 == 1 { !word } else { word }
        })
        .collect();
    words[..4].copy_from_slice(&[0, 1, u32::MAX, u32::MAX - 1]);
    let (exps, logs) = (bench.output::<f32>(len)?, bench.output::<u64>(len)?);
    let (x_device, words_device) = (bench.upload(&x)?, bench.upload(&words)?);
    let args = Args::new().slice(*exps).slice(*logs).slice(*x_device).slice(*words_device).size(len);
    let kernel = bench.kernels.get("check_math")?;
    kernel.launch(&bench.stream, Grid::new(len.div_ceil(256) as u32, 256), &args)?;

    let got: Vec<u32> = exps.read(&bench.stream)?.into_iter().map(f32::to_bits).collect();
    let reference: Vec<u32> = x.iter().map(|x| exp(*x).to_bits()).collect();
    bench.compare_exact("check_math, exp", &got, &reference);
    let uniform = |word: u32| (f64::from(word) + 0.5) / 4_294_967_296.0;
    let reference: Vec<u64> = words.iter().map(|word| libm::log1p(-uniform(*word)).to_bits()).collect();
    let got = logs.read(&bench.stream)?;
    bench.compare_exact("check_math, log1p", &got, &reference);
    Ok(())
}
