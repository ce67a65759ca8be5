//! Warp matrix instructions and conversions, on hardware or emulated, against the tables of PTX ISA 9.0.
//! Kernels build on them: if only these cases fail, the device interprets an instruction differently from the
//! kernels. See `cu/probe_mma.cu`.

use half::{bf16, f16};

use super::Scale;
use super::case::{Bench, Tolerance};
use skein_kernels::cuda::CudaError;
use skein_kernels::cuda::launch::{Args, Grid};
use skein_kernels::cuda::ops::Activation;

const LANES: usize = 32;
/// Rows and columns of the product, and the length of its sums.
const SHAPE: (usize, usize, usize) = (16, 8, 16);

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    mma::<bf16>(bench, bf16::to_bits)?;
    mma::<f16>(bench, f16::to_bits)?;
    ldmatrix(bench)?;
    convert(bench)
}

/// (row, k) of value `half` in register `register` of A's fragment: ISA 9.7.14.5.8, tables of `.f16` and
/// `.bf16`.
fn place_in_a(lane: usize, register: usize, half: usize) -> (usize, usize) {
    let (group, in_group) = (lane / 4, lane % 4);
    (group + 8 * (register % 2), 2 * in_group + half + 8 * (register / 2))
}

/// (row, k) as above, for B: returns (k, column).
fn place_in_b(lane: usize, register: usize, half: usize) -> (usize, usize) {
    (2 * (lane % 4) + half + 8 * register, lane / 4)
}

/// (row, column) for C and D.
fn place_in_d(lane: usize, register: usize) -> (usize, usize) {
    (lane / 4 + 8 * (register / 2), 2 * (lane % 4) + register % 2)
}

fn mma<T: Activation>(bench: &mut Bench, bits: impl Fn(T) -> u16) -> Result<(), CudaError> {
    let name = format!("mma_m16n8k16_{}", T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let (rows, columns, depth) = SHAPE;
    let mut values = |len| bench.normal_as(len, T::from_f32);
    let (a, b) = (values(rows * depth), values(depth * columns));
    let c = bench.normal(rows * columns);
    let pack = |low: T, high: T| u32::from(bits(low)) | u32::from(bits(high)) << 16;
    let word = |register,
                lane: usize,
                place: &dyn Fn(usize, usize, usize) -> (usize, usize),
                of: &[T],
                width: usize| {
        let at = |half| {
            let (row, column) = place(lane, register, half);
            of[row * width + column]
        };
        pack(at(0), at(1))
    };
    let (mut a_words, mut b_words, mut c_words) = (Vec::new(), Vec::new(), Vec::new());
    for lane in 0..LANES {
        a_words.extend((0..4).map(|register| word(register, lane, &place_in_a, &a, depth)));
        b_words.extend((0..2).map(|register| word(register, lane, &place_in_b, &b, columns)));
        c_words.extend((0..4).map(|register| {
            let (row, column) = place_in_d(lane, register);
            c[row * columns + column]
        }));
    }
    let d = bench.output::<f32>(LANES * 4)?;
    let (a_words, b_words, c_words) =
        (bench.upload(&a_words)?, bench.upload(&b_words)?, bench.upload(&c_words)?);
    let args = Args::new().slice(*d).slice(*c_words).slice(*a_words).slice(*b_words);
    let probe = if T::SUFFIX == "bf16" { "probe_mma_bf16" } else { "probe_mma_f16" };
    bench.kernels.get(probe)?.launch(&bench.stream, Grid::new(1, LANES as u32), &args)?;

    let product = |(row, column): (usize, usize)| {
        let term =
            |k: usize| f64::from(a[row * depth + k].to_f32()) * f64::from(b[k * columns + column].to_f32());
        (f64::from(c[row * columns + column]) + (0..depth).map(term).sum::<f64>()) as f32
    };
    let reference: Vec<f32> = (0..LANES * 4).map(|i| product(place_in_d(i / 4, i % 4))).collect();
    bench.compare(&name, &d.read(&bench.stream)?, &reference, Tolerance { absolute: 1e-5, relative: 1e-5 });
    Ok(())
}

fn ldmatrix(bench: &mut Bench) -> Result<(), CudaError> {
    let name = "ldmatrix_x4 after cp_async16";
    if !bench.wants(name) {
        return Ok(());
    }
    let values: Vec<u16> = (0..LANES * 8).map(|_| bench.bits() as u16).collect();
    let mut rows: Vec<u32> = (0..LANES as u32).collect();
    for i in (1..LANES).rev() {
        rows.swap(i, bench.below(i as u32 + 1) as usize);
    }
    let out = bench.output::<u32>(2 * LANES * 4)?;
    let (on_device, rows) = (bench.upload(&values)?, bench.upload(&rows)?);
    let args = Args::new().slice(*out).slice(*on_device).slice(*rows);
    bench.kernels.get("probe_ldmatrix")?.launch(&bench.stream, Grid::new(1, LANES as u32), &args)?;

    // Register m of a lane holds row lane / 4, columns 2 * (lane % 4) and the next, of matrix m, or the
    // transpose.
    let value = |matrix: usize, row: usize, column: usize| {
        let row = matrix * 8 + row;
        if row.is_multiple_of(5) { 0 } else { u32::from(values[row * 8 + column]) }
    };
    let mut reference = Vec::new();
    for transposed in [false, true] {
        for (lane, matrix) in (0..LANES * 4).map(|i| (i / 4, i % 4)) {
            let (line, first) = (lane / 4, 2 * (lane % 4));
            let at = |i| if transposed { value(matrix, i, line) } else { value(matrix, line, i) };
            reference.push(at(first) | at(first + 1) << 16);
        }
    }
    let got = out.read(&bench.stream)?;
    bench.compare_exact(name, &got, &reference);
    Ok(())
}

fn convert(bench: &mut Bench) -> Result<(), CudaError> {
    if !bench.wants("convert") {
        return Ok(());
    }
    let count = match bench.scale {
        Scale::Small => 1 << 16,
        Scale::Full => 1 << 20,
    };
    let bits: Vec<u32> = (0..count as u32).map(|i| i & 0xffff).collect();
    // Every second value is in the range where all three types round; the others have random bits.
    let mut draw = |i: usize| {
        let bits = bench.bits();
        let near = f32::from_bits((bits & 0x80ff_ffff) | (112 + bits % 24) << 23);
        if i.is_multiple_of(2) { near } else { f32::from_bits(bits) }
    };
    let values: Vec<f32> = (0..count).map(&mut draw).collect();
    let (widened, narrowed) = (bench.output::<f32>(3 * count)?, bench.output::<u32>(3 * count)?);
    let (bits_on_device, on_device) = (bench.upload(&bits)?, bench.upload(&values)?);
    let args =
        Args::new().slice(*widened).slice(*narrowed).slice(*bits_on_device).slice(*on_device).size(count);
    bench.kernels.get("probe_convert")?.launch(&bench.stream, Grid::new(4, 256), &args)?;

    let (widened, narrowed) = (widened.read(&bench.stream)?, narrowed.read(&bench.stream)?);
    let compare = |bench: &mut Bench,
                   name: &str,
                   kind: usize,
                   widen: &dyn Fn(u32) -> f32,
                   narrow: &dyn Fn(f32) -> u32| {
        let range = kind * count..(kind + 1) * count;
        // NaN has many bit patterns; accept any.
        let same = |x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
        let got: Vec<u32> = widened[range.clone()].iter().map(|x| same(*x)).collect();
        let reference: Vec<u32> = bits.iter().map(|bits| same(widen(*bits))).collect();
        bench.compare_exact(&format!("convert {name} to f32"), &got, &reference);
        let got: Vec<u32> = narrowed[range].iter().map(|bits| same(widen(*bits))).collect();
        let reference: Vec<u32> = values.iter().map(|x| same(widen(narrow(*x)))).collect();
        bench.compare_exact(&format!("convert f32 to {name}"), &got, &reference);
    };
    let bf16_bits = |x: f32| u32::from(bf16::from_f32(x).to_bits());
    compare(bench, "bf16", 0, &|bits| bf16::from_bits(bits as u16).to_f32(), &bf16_bits);
    let f16_bits = |x: f32| u32::from(f16::from_f32(x).to_bits());
    compare(bench, "f16", 1, &|bits| f16::from_bits(bits as u16).to_f32(), &f16_bits);
    let sizes: Vec<f32> = (0..0x7f).map(e4m3_to_f32).collect();
    compare(bench, "e4m3", 2, &|bits| e4m3_to_f32(bits as u8), &|x| u32::from(f32_to_e4m3(&sizes, x)));
    Ok(())
}

/// OCP 8-bit floating point, e4m3: bias 7, no infinities, NaN where exponent and mantissa are all ones.
fn e4m3_to_f32(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match exponent {
        15 if mantissa == 7.0 => f32::NAN,
        0 => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if code & 0x80 == 0 { size } else { -size }
}

/// The nearest code. Ties go to the even code; values beyond the largest are clamped. `sizes` holds the
/// values of the non-negative codes in ascending order.
fn f32_to_e4m3(sizes: &[f32], value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return sign | 0x7f;
    }
    let above = sizes.partition_point(|size| *size < value.abs()).min(sizes.len() - 1);
    let distance = |code: usize| (f64::from(sizes[code]) - f64::from(value.abs())).abs();
    let below = above.saturating_sub(1);
    let is_below = match distance(below).total_cmp(&distance(above)) {
        std::cmp::Ordering::Equal => below % 2 == 0,
        order => order.is_lt(),
    };
    sign | if is_below { below } else { above } as u8
}
