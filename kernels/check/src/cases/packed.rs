//! Cases of [`skein_kernels::cuda::ops::packed`]. The dequantised matrix is read through the kernels, by a
//! product with the unit matrix in f32, and must be exact.

use half::{bf16, f16};

use super::Scale;
use super::case::{Bench, DEAR, Tolerance, dot, each};
use skein_kernels::cuda::blaslt::BlasElement;
use skein_kernels::cuda::memory::{E4m3, Element};
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::linear::{Linear, LinearOptions};
use skein_kernels::cuda::ops::packed::{
    EmbedPacked, EmbedPackedRows, Form, Meaning, PackedProducts, PackedTile, PackedValues, Row, ScaleKind,
    Shape, Span, Table, pack,
};
use skein_kernels::cuda::ops::product::{LinearWeight, Output, Product, WeightValues};
use skein_kernels::cuda::{CudaError, DeviceBuffer, DeviceSlice};
use skein_kernels::gate::Gate;

/// E2M1, whose values are exact in 16 bits.
const SHORT: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// A form and its table's values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub name: &'static str,
    pub form: Form,
    pub table: [f32; 16],
    /// Whether the units of scales in FP8 are factors, not divisors.
    pub is_multiplied: bool,
}

/// Forms that are checked at the sizes of real models. Most quantised models are in one of them. They have
/// zero points and 16-bit scales over wide spans; integer factors with units and minima; a table with FP8
/// scales over the narrowest spans. The other forms differ in what a code or a scale means, which does not
/// depend on the size: they have rows of 1024 inputs.
const COMMON: [&str; 3] = ["AWQ", "Q4_K", "NVFP4"];

impl Case {
    /// Whether the form is one of [`COMMON`].
    pub fn is_common(&self) -> bool {
        COMMON.contains(&self.name)
    }
}

/// The forms of the checkpoint formats.
pub(super) fn cases() -> Vec<Case> {
    use Meaning::{Integers, Table};
    use ScaleKind::{F16, F32, Factor, Power};
    let case = |name, form| Case { name, form, table: SHORT, is_multiplied: false };
    let form = |bits, meaning, scales, span| Form::new(bits, meaning, scales, Span::Inputs(span));
    let with_zeros = |form| Form { zero: None, ..form };
    let with_minima = |form| Form { has_minima: true, ..form };
    let around = |zero, form| Form { zero: Some(zero), ..form };
    // Values with all 24 bits, as NF4's.
    let long = std::array::from_fn(|i| (i as f32 - 7.0) / 7.3);
    vec![
        case("AWQ", with_zeros(form(4, Integers, F16, 128))),
        case("GPTQ act-order", Form { orders: 1, ..with_zeros(form(4, Integers, F32, 32)) }),
        case("Q4_0", around(8, form(4, Integers, F16, 32))),
        case("Q4_K", with_minima(form(4, Integers, Factor, 32))),
        case("Q2_K", with_minima(form(4, Integers, Factor, 16))),
        case("Q6_K", around(32, form(6, Integers, Factor, 16))),
        case("Q5_1", with_minima(form(6, Integers, F16, 32))),
        case("Q4_K and Q6_K", with_zeros(with_minima(form(6, Integers, Factor, 16)))),
        case("int8", around(128, Form::new(8, Integers, F32, Span::Leaf))),
        case("W8A16", with_zeros(form(8, Integers, F32, 64))),
        case("MXFP4", form(4, Table, Power, 32)),
        case("NVFP4", form(4, Table, ScaleKind::E4m3, 16)),
        Case { is_multiplied: true, ..case("NVFP4 by a factor", form(4, Table, ScaleKind::E4m3, 16)) },
        case("FP4 in groups of 16", form(4, Table, F32, 16)),
        Case { table: long, ..case("NF4", form(4, Table, F32, 64)) },
        case("FP8 blocks", form(8, Meaning::E4m3, F32, 128)),
        case("FP8 channel", Form::new(8, Meaning::E4m3, F32, Span::Leaf)),
    ]
}

/// Rows, n (results in a row), k, leaf.
#[derive(Debug, Clone, Copy)]
struct Size(usize, usize, usize, usize);

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let small = bench.scale == Scale::Small;
    // Odd n; k that ends inside a block and a slice; leaves that end inside a block; more than eight slices.
    let few_small = [Size(1, 37, 64, 0), Size(9, 24, 1360, 0), Size(3, 40, 640, 160)];
    let few_full = [Size(1, 4096, 4096, 0), Size(8, 14336, 4096, 0), Size(16, 4096, 14336, 1792)];
    let few_short = [Size(1, 4096, 1024, 0), Size(8, 1536, 1024, 0), Size(16, 1024, 1024, 128)];
    let many_small = [Size(33, 40, 208, 0), Size(35, 72, 384, 96)];
    let many_full = [Size(33, 4096, 4096, 0), Size(300, 1024, 14336, 1792), Size(2049, 4096, 4096, 0)];
    let many_short = [Size(33, 1536, 1024, 0), Size(300, 1024, 1024, 128), Size(2049, 1024, 1024, 0)];
    for (i, case) in cases().iter().enumerate() {
        let (few, many) = match (small, case.is_common()) {
            (true, _) => (&few_small[..], &many_small[..]),
            (false, true) => (&few_full[..], &many_full[..]),
            (false, false) => (&few_short[..], &many_short[..]),
        };
        let leaf = if case.form.orders > 0 { 0 } else { 96 };
        dequantised::<bf16>(bench, case, Size(0, 20, 384, leaf))?;
        dequantised::<f16>(bench, case, Size(0, 16, 272, 0))?;
        for (tile, sizes) in [(None, few), (Some(PackedTile::Small), many), (Some(PackedTile::Large), many)] {
            for (j, size) in sizes.iter().enumerate() {
                if case.form.orders > 0 && size.3 > 0 {
                    continue;
                }
                let is_gated = size.1.is_multiple_of(8) && size.3 == 0;
                let outputs: &[Output] = if is_gated {
                    &[Output::Plain, Output::F32, Output::Gated(Gate::Silu), Output::Gated(Gate::GeluTanh)]
                } else {
                    &[Output::Plain, Output::F32]
                };
                let output = outputs[(i + j) % outputs.len()];
                // Of large sizes, each tile has one type and the other tile the other.
                let is_both = small || tile.is_none();
                if is_both || (tile == Some(PackedTile::Small)) == (j % 2 == 0) {
                    accuracy::<bf16>(bench, case, tile, *size, output)?;
                }
                if is_both || (tile == Some(PackedTile::Small)) != (j % 2 == 0) {
                    accuracy::<f16>(bench, case, tile, *size, outputs[(i + j + 1) % outputs.len()])?;
                }
            }
        }
        let leaf = if case.form.orders > 0 || i % 2 == 0 { 0 } else { 160 };
        let size = if small { Size(35, 20, 640, leaf) } else { Size(300, 1000, 5120, leaf * 8) };
        if i % 3 == 0 {
            invariance::<f16>(bench, case, size)?;
        } else {
            invariance::<bf16>(bench, case, size)?;
        }
        if case.form.orders == 0 {
            embed::<bf16>(bench, case, 1.0)?;
            embed::<f16>(bench, case, 3.5)?;
        }
    }
    Ok(())
}

/// A packed matrix on host and device.
pub(super) struct Matrix<T: Element> {
    /// `[n, k]` as defined by the form, computed in f32, with inputs in their order.
    pub weight: Vec<f32>,
    pub bias: Vec<T>,
    pub linear: LinearWeight<T>,
    // Memory that `linear` points to.
    _memory: DeviceBuffer<u8>,
    _bias: DeviceBuffer<T>,
}

/// Largest code of a case, and the typical size of its number.
fn range(form: &Form) -> (u32, f32) {
    match (form.meaning, form.bits) {
        (Meaning::Table, _) => (16, 2.0),
        (Meaning::E4m3, _) => (256, 100.0),
        (Meaning::Integers, bits) => (1 << bits, (1 << bits) as f32 / 2.0),
    }
}

impl<T: Activation> Matrix<T> {
    pub fn new(
        bench: &mut Bench,
        case: &Case,
        (n, k, leaf): (usize, usize, usize),
        with_bias: bool,
    ) -> Result<Self, CudaError> {
        let Some(table) = Table::of::<T>(&case.table) else {
            panic!("{} has a table without loss", case.name)
        };
        let parts = if case.form.meaning == Meaning::Table { table.parts } else { 1 };
        let form = Form { parts, ..case.form };
        let shape = Shape { form, n, k, leaf };
        let (most, size) = range(&form);
        let (spans, blocks) = (shape.spans(), shape.blocks());
        let codes = bench.bytes(n * k);
        let zeros = bench.bytes(n * spans);
        let scales = bench.normal(n * spans * 2);
        let units = bench.normal(n * blocks * 2);
        let spread = 1.0 / (k as f32).sqrt() / size;
        let scale = |value: f32| match form.scales {
            ScaleKind::F32 => (1.5 + value / 4.0) * spread,
            ScaleKind::F16 => f16::from_f32((1.5 + value / 4.0) * spread).to_f32(),
            ScaleKind::Power => (spread * (1.5 + value / 4.0)).log2().round().exp2(),
            ScaleKind::E4m3 => E4m3::from_f32(40.0 + value * 16.0).to_f32(),
            ScaleKind::Factor => (20.0 + value * 8.0).round().clamp(-128.0, 127.0),
        } * if form.meaning == Meaning::Table { table.unit } else { 1.0 };
        let unit = |value: f32| match form.scales {
            ScaleKind::E4m3 if case.is_multiplied => -spread / 40.0 * (1.5 + value / 4.0),
            ScaleKind::E4m3 => 40.0 / spread * (1.5 + value / 4.0),
            _ => f16::from_f32((1.5 + value / 4.0) * spread / 20.0).to_f32(),
        };
        let row = |at: usize| {
            let mut row = Row::new(&shape);
            for (to, code) in row.codes.iter_mut().zip(&codes[at * k..]) {
                *to = (u32::from(*code) % most) as u8;
                // The code of NaN is refused when weights are loaded.
                let is_nan = form.meaning == Meaning::E4m3 && *to & 0x7f == 0x7f;
                *to = if is_nan { 0x7e } else { *to };
            }
            // Those of padding, too: no result depends on them.
            for i in 0..spans {
                row.scales[i] = scale(scales[at * spans + i]);
                row.minima[i] = -scale(scales[(n + at) * spans + i]);
                row.zeros[i] = (u32::from(zeros[at * spans + i]) % most) as u8;
            }
            for i in 0..blocks {
                row.units[i] = unit(units[at * blocks + i]);
                row.minimum_units[i] = unit(units[(n + at) * blocks + i]);
            }
            row
        };
        // One that changes nothing, if columns have the inputs' order.
        let mut orders = vec![(0..k as u32).collect::<Vec<_>>(); form.orders.max(1)];
        for order in orders.iter_mut().take(form.orders) {
            (1..k).rev().for_each(|i| order.swap(i, bench.below(i as u32 + 1) as usize));
        }
        let order = |at: usize| &orders[at / n.div_ceil(orders.len())];
        let runs = Runs::of(&shape);
        let of_row = |at| dequantise(form, &runs, &row(at), &case.table, table.unit, order(at));
        let weight = each(n, DEAR, of_row).concat();
        let memory = bench.output::<u8>(shape.bytes())?;
        let packed = PackedValues { form, memory: *memory };
        // In two pieces, as large matrices are uploaded.
        let middle = shape.octets() / 2;
        for octets in [0..middle, middle..shape.octets()] {
            let first = octets.start;
            let Ok(packed_octets) = pack(&shape, octets, |at, to| {
                *to = row(at);
                Ok::<(), std::convert::Infallible>(())
            });
            packed.write_octets(&bench.stream, &shape, first, &packed_octets)?;
        }
        if form.meaning == Meaning::Table {
            packed.write_table(&bench.stream, &shape, &table)?;
        }
        for (index, order) in orders.iter().enumerate().take(form.orders) {
            packed.write_order(&bench.stream, &shape, index, order)?;
        }
        let bias: Vec<T> = bench.normal_as(n, T::from_f32);
        let bias_device = bench.upload(&bias)?;
        let values = WeightValues::Packed(packed);
        Ok(Self {
            weight,
            bias: if with_bias { bias } else { vec![T::from_f32(0.0); n] },
            linear: LinearWeight {
                n,
                k,
                bias: if with_bias { *bias_device } else { DeviceSlice::NONE },
                values,
                leaf,
            },
            _memory: memory,
            _bias: bias_device,
        })
    }
}

/// Runs of a row's inputs that share a scale, and a block of 256 inputs with its unit.
///
/// Computed once for a matrix: looking for the scale of each input takes hours at the sizes of real models.
struct Runs(Vec<Run>);

/// Inputs from the end of the run before up to `end`.
struct Run {
    end: usize,
    span: usize,
    block: usize,
}

impl Runs {
    fn of(shape: &Shape) -> Self {
        let spans = shape.span_starts().into_iter().enumerate().filter_map(|(i, start)| Some((start?, i)));
        let (spans, blocks) = (spans.collect::<Vec<_>>(), shape.block_starts());
        // The last of two spans that start at one input has it, as for all inputs that follow.
        let last_before = |ends: usize, start_of: &dyn Fn(usize) -> usize, input: usize| {
            (0..ends).take_while(|i| start_of(*i) <= input).count() - 1
        };
        let mut starts: Vec<usize> =
            spans.iter().map(|(start, _)| *start).chain(blocks.iter().copied()).collect();
        starts.retain(|start| *start < shape.k);
        starts.sort_unstable();
        starts.dedup();
        let ends = starts.iter().skip(1).copied().chain([shape.k]);
        let run = |(start, end): (&usize, usize)| Run {
            end,
            span: spans[last_before(spans.len(), &|i| spans[i].0, *start)].1,
            block: last_before(blocks.len(), &|i| blocks[i], *start),
        };
        Self(starts.iter().zip(ends).map(run).collect())
    }
}

/// The weights of a row, from the definition of its form.
fn dequantise(form: Form, runs: &Runs, row: &Row, table: &[f32; 16], unit: f32, order: &[u32]) -> Vec<f32> {
    let mut weights = vec![0.0; row.codes.len()];
    let mut start = 0;
    for &Run { end, span, block } in &runs.0 {
        let [times, minimum_times] = match form.scales {
            ScaleKind::Factor => [row.units[block], row.minimum_units[block]],
            _ => [1.0; 2],
        };
        // The table's unit only moves the exponent between scale and numbers.
        let scale = if form.meaning == Meaning::Table { row.scales[span] / unit } else { row.scales[span] };
        let scale = match form.scales {
            ScaleKind::E4m3 if row.units[0] < 0.0 => scale * -row.units[0],
            ScaleKind::E4m3 => scale / row.units[0],
            _ => times * scale,
        };
        let zero = i16::from(form.zero.unwrap_or(row.zeros[span]));
        let minimum = if form.has_minima { minimum_times * row.minima[span] } else { 0.0 };
        for (code, to) in row.codes[start..end].iter().zip(&order[start..end]) {
            let number = match form.meaning {
                Meaning::Integers => f32::from(i16::from(*code) - zero),
                Meaning::Table => table[usize::from(*code)],
                Meaning::E4m3 => E4m3(*code).to_f32(),
            };
            let weight = scale * number;
            weights[*to as usize] = if form.has_minima { weight + minimum } else { weight };
        }
        start = end;
    }
    weights
}

/// Runs one product by the kernel for few rows or by a tile; returns the results as f32.
fn multiply<T: Activation>(
    bench: &mut Bench,
    tile: Option<PackedTile>,
    weight: &LinearWeight<T>,
    (x, rows): (&[T], usize),
    output: Output,
) -> Result<Vec<f32>, CudaError> {
    let columns = if output.is_gated() { weight.n / 2 } else { weight.n };
    let (x, kernels) = (bench.upload(x)?, PackedProducts::<T>::new(&bench.kernels)?);
    let workspace = bench.output::<u8>(PackedProducts::<T>::workspace_bytes(rows, weight.k))?;
    if output == Output::F32 {
        let out = bench.output::<f32>(rows * columns)?;
        let product = Product { out: *out, x: *x, weight, rows, output };
        kernels.launch_by(&bench.stream, &product, tile, *workspace)?;
        return out.read(&bench.stream);
    }
    let out = bench.output::<T>(rows * columns)?;
    let product = Product { out: *out, x: *x, weight, rows, output };
    kernels.launch_by(&bench.stream, &product, tile, *workspace)?;
    Ok(out.read(&bench.stream)?.into_iter().map(T::to_f32).collect())
}

/// The kernels' weights are exactly those of the form's definition.
fn dequantised<T: Activation>(
    bench: &mut Bench,
    case: &Case,
    Size(_, n, k, leaf): Size,
) -> Result<(), CudaError> {
    let name = format!("packed {} {} {n}x{k} in {leaf} dequantised", case.name, T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let matrix = Matrix::<T>::new(bench, case, (n, k, leaf), false)?;
    let unit: Vec<T> = (0..k * k).map(|i| T::from_f32(f32::from(u8::from(i / k == i % k)))).collect();
    let got = multiply(bench, Some(PackedTile::Small), &matrix.linear, (&unit, k), Output::F32)?;
    let expected: Vec<f32> = (0..k * n).map(|i| matrix.weight[i % n * k + i / n]).collect();
    bench.compare_exact(&name, &got, &expected);
    let few = multiply(bench, None, &matrix.linear, (&unit[..8 * k], 8), Output::F32)?;
    bench.compare_exact(&format!("{name}, few rows"), &few, &expected[..8 * n]);
    Ok(())
}

/// `rows` random rows, followed by some of NaN.
fn activations<T: Activation>(bench: &mut Bench, rows: usize, k: usize) -> Vec<T> {
    let mut x: Vec<T> = bench.normal_as(rows * k, T::from_f32);
    x.extend(vec![T::from_f32(f32::NAN); 3 * k]);
    x
}

fn accuracy<T: Activation>(
    bench: &mut Bench,
    case: &Case,
    tile: Option<PackedTile>,
    Size(rows, n, k, leaf): Size,
    output: Output,
) -> Result<(), CudaError> {
    let by = tile.map_or("few rows".into(), |tile| format!("{tile:?}"));
    let name = format!("packed {} {by} {} {output:?} {rows}x{n}x{k} in {leaf}", case.name, T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let stacked = if output.is_gated() { 2 * n } else { n };
    let matrix = Matrix::<T>::new(bench, case, (stacked, k, leaf), true)?;
    let x = activations::<T>(bench, rows, k);
    let got = multiply(bench, tile, &matrix.linear, (&x, rows), output)?;
    let written = got.iter().filter(|value| value.is_finite()).count();
    bench.compare_exact(&format!("{name}, written"), &[written], &[got.len()]);
    let x: Vec<f32> = x.into_iter().map(T::to_f32).collect();
    let result = |row: usize, column: usize| -> f64 {
        let sum = dot(&x[row * k..][..k], &matrix.weight[column * k..][..k]);
        sum + f64::from(matrix.bias[column].to_f32())
    };
    let exact = |row: usize, column: usize| match output {
        Output::Gated(by) => {
            let gate = result(row, column);
            let logit = match by {
                Gate::GeluTanh => (8.0 / std::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3)),
                _ => gate,
            };
            gate / (1.0 + (-logit).exp()) * result(row, n + column)
        }
        Output::Plain | Output::F32 => result(row, column),
    };
    let compared = bench.compared(got.len());
    let reference: Vec<f32> = each(compared.len(), DEAR, |i| exact(compared[i] / n, compared[i] % n) as f32);
    let got: Vec<f32> = compared.iter().map(|i| got[*i]).collect();
    // Sums are accurate to about 1e-5; add half of the last of 8 or 11 bits.
    let tolerance = match (output, T::SUFFIX) {
        (Output::F32, _) => Tolerance { absolute: 1e-4, relative: 1e-4 },
        (_, "bf16") => Tolerance { absolute: 1e-4, relative: 4e-3 },
        _ => Tolerance { absolute: 1e-4, relative: 6e-4 },
    };
    bench.compare(&name, &got, &reference, tolerance);
    Ok(())
}

/// A row has the same bits alone, in any batch and with any tile.
fn invariance<T: Activation + BlasElement>(
    bench: &mut Bench,
    case: &Case,
    Size(rows, n, k, leaf): Size,
) -> Result<(), CudaError> {
    let name = format!("packed {} bits {} {rows}x{n}x{k} in {leaf}", case.name, T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let matrix = Matrix::<T>::new(bench, case, (n, k, leaf), true)?;
    let x = activations::<T>(bench, rows, k);
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let whole = multiply(bench, Some(PackedTile::Large), &matrix.linear, (&x, rows), Output::F32)?;
    let whole = bits(&whole);
    for (tile, count) in
        [(Some(PackedTile::Small), rows - 2), (Some(PackedTile::Large), rows / 2), (None, 1), (None, 9)]
    {
        let got = bits(&multiply(bench, tile, &matrix.linear, (&x, count), Output::F32)?);
        bench.compare_exact(&format!("{name}, {tile:?} of {count}"), &got, &whole[..count * n]);
    }
    // The choice of `Linear`, in both modes: cuBLASLt never multiplies codes.
    for (count, batch_invariant) in [(3, false), (rows - 1, false), (rows, true)] {
        let linear = Linear::<T>::new(&bench.kernels, None, LinearOptions { batch_invariant })?;
        let (x, out) = (bench.upload(&x)?, bench.output::<f32>(count * n)?);
        let workspace = bench.output::<u8>(PackedProducts::<T>::workspace_bytes(count, k))?;
        linear.launch_f32(&bench.stream, *out, *x, &matrix.linear, count, *workspace)?;
        let got = bits(&out.read(&bench.stream)?);
        bench.compare_exact(&format!("{name}, Linear of {count}"), &got, &whole[..count * n]);
    }
    Ok(())
}

fn embed<T: Activation>(bench: &mut Bench, case: &Case, scale: f32) -> Result<(), CudaError> {
    let (rows, vocab, hidden) = (4, 37, 272);
    let name = format!("embed_packed {} {} {rows}x{hidden} of {vocab}", case.name, T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let table = Matrix::<T>::new(bench, case, (vocab, hidden, 0), false)?;
    let tokens = [bench.below(vocab as u32), vocab as u32 - 1, vocab as u32, bench.below(vocab as u32)];
    let (out, ids) = (bench.output::<f32>(rows * hidden)?, bench.upload(&tokens)?);
    let embed = EmbedPackedRows { out: *out, table: &table.linear, tokens: *ids, rows, scale };
    EmbedPacked::<T>::new(&bench.kernels)?.launch(&bench.stream, embed)?;
    let row = |token: u32| if (token as usize) < vocab { token as usize } else { 0 };
    let values = |token: &u32| table.weight[row(*token) * hidden..][..hidden].iter();
    let reference: Vec<f32> = tokens.iter().flat_map(values).map(|value| value * scale).collect();
    bench.compare_exact(&name, &out.read(&bench.stream)?, &reference);
    Ok(())
}
