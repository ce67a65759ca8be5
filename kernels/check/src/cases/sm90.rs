//! Cases of `cu/probe_sm90.cu`: Hopper's asynchronous instructions against the layouts of the PTX ISA (9.0:
//! 9.7.15.5.1, 9.7.15.5.1.2, and 5.5.6 for swizzles). The reference writes matrices to memory; the kernel
//! reads them through descriptors.

use half::{bf16, f16};

use super::Scale;
use super::case::{Bench, Tolerance};
use skein_kernels::cuda::launch::{Args, Grid};
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::tensor_map::{Swizzle, TensorMap};
use skein_kernels::cuda::{CudaError, DeviceBuffer};

/// Bytes of shared memory for the matrices: A at the start, B at [`B_AT`].
const IMAGE: usize = 64 << 10;
const B_AT: usize = 16 << 10;
/// Rows of A in one wgmma.
const ROWS: usize = 64;
const DEPTH: usize = 16;

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    if bench.kernels.device().capability != (9, 0) {
        return Ok(()); // made for one architecture only
    }
    for layout in layouts(bench.scale) {
        wgmma::<bf16>(bench, layout)?;
        wgmma::<f16>(bench, layout)?;
    }
    for (swizzle, columns) in
        [(Swizzle::None, 8), (Swizzle::Bytes32, 16), (Swizzle::Bytes64, 32), (Swizzle::Bytes128, 64)]
    {
        for (x, y) in [(0, 0), (8, 5), (-8, -3), (56, 35), (0, 40)] {
            tensor_load(bench, swizzle, columns, x, y)?;
        }
    }
    barriers(bench)
}

/// Layout of A and B in memory.
#[derive(Debug, Clone, Copy)]
struct Layout {
    columns: usize,
    /// Bytes that a swizzle permutes; 0 = no swizzle.
    span: usize,
    mn_major_b: bool,
    from_registers: bool,
    accumulate: bool,
    /// Only K-major with a swizzle: index of the 16 values along k in the atom's rows.
    step: usize,
    leading: usize,
    stride: usize,
}

fn layouts(scale: Scale) -> Vec<Layout> {
    let mut layouts = Vec::new();
    for (i, columns) in [64, 128].into_iter().enumerate() {
        for span in [0, 32, 64, 128] {
            for mn_major_b in [false, true] {
                for from_registers in [false, true] {
                    // On the emulation, every second combination.
                    if scale == Scale::Small && (i + span / 32 + usize::from(from_registers)) % 2 == 1 {
                        continue;
                    }
                    let (leading, stride) = match (span, mn_major_b) {
                        (0, false) => (128, 256),
                        (0, true) => (128, 384),
                        (_, false) => (16, 2048),
                        (_, true) => (2048, 1024),
                    };
                    let step = if span == 128 { 2 } else { span / 64 };
                    let accumulate = columns == 64;
                    let base = Layout {
                        columns,
                        span,
                        mn_major_b,
                        from_registers,
                        accumulate,
                        step,
                        leading,
                        stride,
                    };
                    layouts.push(base);
                }
            }
        }
    }
    layouts
}

impl Layout {
    /// Offset of value (mn, k) in a K-major or MN-major matrix, from its first atom.
    fn place(&self, mn_major: bool, mn: usize, k: usize) -> usize {
        let (span, leading, stride) = (self.span, self.leading, self.stride);
        if span == 0 {
            let (row, col) = if mn_major { (k % 8, mn % 8) } else { (mn % 8, k % 8) };
            return mn / 8 * stride + k / 8 * leading + row * 16 + col * 2;
        }
        // An atom has rows of `span` bytes, whose 16-byte chunks are permuted by the row's number.
        let (atom, row, at) = if mn_major {
            let per_span = span / 2;
            (mn / per_span * leading + k / 8 * stride, k % 8, mn % per_span)
        } else {
            (mn / 8 * stride, mn % 8, self.step * DEPTH + k)
        };
        atom + row * span + permuted(at / 8, row, span) * 16 + at % 8 * 2
    }

    /// Start of the descriptor: inside the first row for later steps of a K-major matrix.
    fn start(&self, mn_major: bool) -> usize {
        if mn_major || self.span == 0 { 0 } else { self.step * DEPTH * 2 }
    }
}

/// Position of chunk `chunk` in row `row` of an atom, in units of 16 bytes.
fn permuted(chunk: usize, row: usize, span: usize) -> usize {
    match span {
        128 => chunk ^ row,
        64 => chunk ^ (row / 2),
        32 => chunk ^ (row / 4),
        _ => chunk,
    }
}

fn wgmma<T: Activation>(bench: &mut Bench, layout: Layout) -> Result<(), CudaError> {
    let Layout { columns, span, mn_major_b, from_registers, accumulate, step, .. } = layout;
    let name = format!(
        "sm90 wgmma {} n{columns} swizzle {span} step {step}, B {}-major, A in {}",
        T::SUFFIX,
        if mn_major_b { "MN" } else { "K" },
        if from_registers { "registers" } else { "shared memory" },
    );
    if !bench.wants(&name) {
        return Ok(());
    }
    let draw = |bench: &mut Bench, len| bench.normal_as(len, T::from_f32);
    let (a, b) = (draw(bench, ROWS * DEPTH), draw(bench, columns * DEPTH));
    let mut image = vec![T::from_f32(f32::NAN); IMAGE / 2];
    for (i, value) in a.iter().enumerate() {
        image[layout.place(false, i / DEPTH, i % DEPTH) / 2] = *value;
    }
    for (i, value) in b.iter().enumerate() {
        image[(B_AT + layout.place(mn_major_b, i / DEPTH, i % DEPTH)) / 2] = *value;
    }
    let got = launch_wgmma(bench, &layout, &image, &a)?;
    let mut reference = Vec::new();
    for (thread, i) in (0..128).flat_map(|thread| (0..columns / 2).map(move |i| (thread, i))) {
        let row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
        let column = i / 4 * 8 + thread % 4 * 2 + i % 2;
        let products = (0..DEPTH).map(|k| a[row * DEPTH + k].to_f32() * b[column * DEPTH + k].to_f32());
        reference.push(products.sum::<f32>() + if accumulate { 0.25 * i as f32 } else { 0.0 });
    }
    bench.compare(&name, &got, &reference, Tolerance { absolute: 1e-4, relative: 1e-4 });
    Ok(())
}

fn launch_wgmma<T: Activation>(
    bench: &Bench,
    layout: &Layout,
    image: &[T],
    a: &[T],
) -> Result<Vec<f32>, CudaError> {
    // The fragment of A in registers: pairs along K, as in 9.7.15.5.1.1.
    let mut registers = Vec::new();
    for (thread, i) in (0..128).flat_map(|thread| (0..4).map(move |i| (thread, i))) {
        let (row, k) = (thread / 32 * 16 + thread % 32 / 4 + i % 2 * 8, thread % 4 * 2 + i / 2 * 8);
        registers.extend([a[row * DEPTH + k], a[row * DEPTH + k + 1]]);
    }
    let (image, registers) = (bench.upload(image)?, bench.upload(&registers)?);
    let out: DeviceBuffer<f32> = bench.output(128 * layout.columns / 2)?;
    let name = if T::SUFFIX == "bf16" { "probe_wgmma_bf16" } else { "probe_wgmma_f16" };
    let kernel = bench.kernels.get(name)?;
    kernel.allow_shared(IMAGE as u32)?;
    let swizzle = match layout.span {
        128 => 1,
        64 => 2,
        32 => 3,
        _ => 0,
    };
    let args = Args::new()
        .slice(*out)
        .slice(*image)
        .slice(*registers)
        .size(IMAGE)
        .size(layout.columns)
        .u32(layout.start(false) as u32)
        .u32((B_AT + layout.start(layout.mn_major_b)) as u32)
        .u32(layout.leading as u32)
        .u32(layout.stride as u32)
        .u32(swizzle)
        .u32(u32::from(layout.from_registers))
        .u32(u32::from(layout.mn_major_b))
        .u32(u32::from(layout.accumulate));
    kernel.launch(&bench.stream, Grid::new(1, 128).shared(IMAGE as u32), &args)?;
    out.read(&bench.stream)
}

/// A box of 16 rows of a `[40, 64]` tensor.
fn tensor_load(bench: &mut Bench, swizzle: Swizzle, columns: usize, x: i32, y: i32) -> Result<(), CudaError> {
    let name = format!("sm90 tensor load {swizzle:?} at {x}, {y}");
    if !bench.wants(&name) {
        return Ok(());
    }
    const DIMS: [usize; 2] = [40, 64];
    const BOX_ROWS: usize = 16;
    let tensor: Vec<u16> = (0..DIMS[0] * DIMS[1]).map(|_| bench.bits() as u16).collect();
    let on_device = bench.upload(&tensor)?;
    let map = TensorMap::new(on_device.cast::<bf16>(), &DIMS, &[BOX_ROWS, columns], swizzle)?;
    let bytes = BOX_ROWS * columns * 2;
    let out = bench.output::<u16>(bytes / 2)?;
    let args = Args::new().slice(*out).bytes(map.as_bytes()).i32(x).i32(y).size(bytes);
    let grid = Grid::new(1, 32).shared(bytes as u32 + 16);
    bench.kernels.get("probe_tensor_load")?.launch(&bench.stream, grid, &args)?;

    let span = if swizzle == Swizzle::None { 0 } else { columns * 2 };
    let mut reference = vec![0; bytes / 2];
    for (row, col) in (0..BOX_ROWS).flat_map(|row| (0..columns).map(move |col| (row, col))) {
        let (from_row, from_col) = (y + row as i32, x + col as i32);
        let inside = (0..DIMS[0] as i32).contains(&from_row) && (0..DIMS[1] as i32).contains(&from_col);
        let permuted = permuted(col / 8, row % 8, span);
        let value = if inside { tensor[from_row as usize * DIMS[1] + from_col as usize] } else { 0 };
        reference[row * columns + permuted * 8 + col % 8] = value;
    }
    let got = out.read(&bench.stream)?;
    bench.compare_exact(&name, &got, &reference);
    Ok(())
}

fn barriers(bench: &mut Bench) -> Result<(), CudaError> {
    for rounds in [1, 2, 7, 64] {
        let name = format!("sm90 mbarriers and named barriers, {rounds} rounds");
        if !bench.wants(&name) {
            continue;
        }
        let data: Vec<u32> = (0..rounds * 32).map(|_| bench.bits()).collect();
        let (on_device, out) = (bench.upload(&data)?, bench.output::<u32>(64)?);
        let args = Args::new().slice(*out).slice(*on_device).size(rounds);
        bench.kernels.get("probe_barriers")?.launch(&bench.stream, Grid::new(1, 64).shared(512), &args)?;
        let hash = |lane: usize| {
            let words = (0..rounds).map(|round| data[round * 32 + (lane * 7 + 3) % 32]);
            words.fold(0u32, |hash, word| (hash ^ word).wrapping_mul(0x0100_0193))
        };
        let reference: Vec<u32> = (0..64).map(|i| hash(i % 32)).collect();
        let got = out.read(&bench.stream)?;
        bench.compare_exact(&name, &got, &reference);
    }
    Ok(())
}
