//! Products of one layer in several weight formats, alternating in one process. All formats run under the
//! same conditions, so that differences of one percent are visible; separate runs differ by six.
//!
//! `cargo bench -p skein-bench --bench formats [-- 0.5b|1b] [FORMAT...] [--rows M]... [--rounds N] [--threads
//! N] [--isa NAME]` with the formats `bf16`, `folded`, `int8` and `int4`; default: the first two. `bf16/1`
//! uses one leaf where a model has several (o and down). Prints medians, and each format's time relative to
//! the first. Weights are normally distributed, similar to a real model's; activations have the encoding that
//! each format requires.

use std::hint::black_box;
use std::sync::Mutex;

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::aligned::Aligned;
use skein_kernels::cpu::input::Input;
use skein_kernels::cpu::matmul::{Gated, Write, gated_matmul, matmul};
use skein_kernels::cpu::matrix::{Storage, WeightMatrix};
use skein_kernels::cpu::packed::{Format, Layout, Packed};
use skein_kernels::cpu::simd::Isa;
use skein_kernels::gate::Gate;
use skein_kernels::leaves;
use skein_node::clock;

/// Bytes of weights per format, used in turn: more than any cache of one core.
const BUFFER_BYTES: usize = 256 << 20;
const FORMATS: [(&str, Format); 4] =
    [("bf16", Format::BF16), ("folded", Format::BF16_FOLDED), ("int8", Format::INT8), ("int4", Format::INT4)];
const PRODUCTS: [&str; 4] = ["qkv", "o", "gated", "down"];

/// Widths of a layer's products.
struct ProductShape {
    name: &'static str,
    hidden: usize,
    /// Of q, k and v together.
    qkv: usize,
    head: usize,
    inner: usize,
}

const SHAPES: [ProductShape; 2] = [
    ProductShape { name: "0.5b", hidden: 896, qkv: 1152, head: 64, inner: 4864 },
    ProductShape { name: "1b", hidden: 2048, qkv: 3072, head: 64, inner: 8192 },
];

struct Layer {
    qkv: Packed,
    o: Packed,
    gate: Packed,
    up: Packed,
    down: Packed,
}

impl Layer {
    fn new(cpu: &mut Cpu, shape: &ProductShape, choice: &Choice) -> Self {
        let ProductShape { hidden, qkv, head, inner, .. } = *shape;
        let mut packed = |rows, cols, leaves: usize| {
            let leaves = if choice.one_leaf { 1 } else { leaves };
            let layout = Layout { leaves, ..Layout::new(choice.format, rows, cols) };
            Packed::in_layout(cpu, &normal(rows, cols), layout).expect("they are finite, and fold")
        };
        Self {
            qkv: packed(qkv, hidden, 1),
            o: packed(hidden, hidden, leaves::count(hidden, head)),
            gate: packed(inner, hidden, 1),
            up: packed(inner, hidden, 1),
            down: packed(hidden, inner, leaves::count(inner, 1)),
        }
    }
}

/// Format to measure.
#[derive(Clone)]
struct Choice {
    name: String,
    format: Format,
    /// Whether to use a single leaf instead of the model's.
    one_leaf: bool,
}

impl Choice {
    fn parse(name: &str) -> Option<Self> {
        let (format, one_leaf) = name.strip_suffix("/1").map_or((name, false), |format| (format, true));
        let (_, format) = FORMATS.iter().find(|known| known.0 == format)?;
        Some(Self { name: name.to_owned(), format: *format, one_leaf })
    }
}

fn main() {
    let options = Options::parse();
    let cpu = &mut Cpu::with_isa(options.threads, options.isa);
    let ProductShape { hidden, qkv, inner, name, .. } = *options.shape;
    let weights = hidden * (qkv + hidden + 3 * inner);
    let layers: Vec<Vec<Layer>> = options
        .formats
        .iter()
        .map(|choice| {
            let first = Layer::new(cpu, options.shape, choice);
            let count = (BUFFER_BYTES / (weights * choice.format.bits() as usize / 8)).max(2);
            std::iter::once(first).chain((1..count).map(|_| Layer::new(cpu, options.shape, choice))).collect()
        })
        .collect();
    println!("{name}, {} threads, {}, {} rounds", options.threads, options.isa.name(), options.rounds);
    for m in options.rows {
        let mut times = vec![[const { Vec::new() }; PRODUCTS.len()]; options.formats.len()];
        for _ in 0..options.rounds {
            for (layers, times) in layers.iter().zip(&mut times) {
                for (times, seconds) in times.iter_mut().zip(one_round(cpu, options.shape, layers, m)) {
                    times.push(seconds / layers.len() as f64);
                }
            }
        }
        let medians: Vec<[f64; PRODUCTS.len()]> = times.into_iter().map(|times| times.map(median)).collect();
        let operations = [qkv, hidden, 2 * inner, inner].map(|width| 2.0 * (m * hidden * width) as f64);
        for (Choice { name, .. }, seconds) in options.formats.iter().zip(&medians) {
            let all: f64 = seconds.iter().sum();
            print!(
                "{m:>4} rows {name:>8}: {:7.3} ms a layer, {:4.2} of the first;",
                all * 1e3,
                all / medians[0].iter().sum::<f64>()
            );
            for ((product, seconds), operations) in PRODUCTS.iter().zip(seconds).zip(operations) {
                print!("  {product} {:.0}", operations / seconds / 1e9);
            }
            println!(" Gop/s");
        }
    }
}

/// Duration of each product over all layers, in seconds.
fn one_round(cpu: &mut Cpu, shape: &ProductShape, layers: &[Layer], m: usize) -> [f64; PRODUCTS.len()] {
    let [for_qkv, for_o, for_gate, for_down] =
        [&layers[0].qkv, &layers[0].o, &layers[0].gate, &layers[0].down]
            .map(|weights| weights.layout().encoding(true));
    let (mut x, mut attended, mut gated) = (Input::default(), Input::default(), Input::default());
    assert_eq!(for_qkv, for_gate, "they read the same rows");
    let values: Vec<f32> = (0..m * shape.hidden).map(|i| (i % 997) as f32 * 0.003 - 1.5).collect();
    x.set(cpu, for_qkv, &values, shape.hidden);
    attended.set(cpu, for_o, &values, shape.hidden);
    gated.set(cpu, for_down, &vec![0.0; m * shape.inner], shape.inner);
    let (mut qkv, mut hidden) = (Aligned::zeros(m * shape.qkv), Aligned::zeros(m * shape.hidden));
    let mut seconds = [0.0; PRODUCTS.len()];
    for layer in layers {
        let start = clock::now();
        matmul(cpu, &x, &[(&layer.qkv).into()], &mut qkv, Write::Set);
        let after_qkv = clock::now();
        matmul(cpu, &attended, &[(&layer.o).into()], &mut hidden, Write::Add);
        let after_o = clock::now();
        let both = Gated { activation: Gate::Silu, gate: (&layer.gate).into(), up: (&layer.up).into() };
        gated_matmul(cpu, &x, both, for_down, &mut gated);
        let after_gated = clock::now();
        matmul(cpu, &gated, &[(&layer.down).into()], &mut hidden, Write::Add);
        let moments = [start, after_qkv, after_o, after_gated, clock::now()];
        for (seconds, pair) in seconds.iter_mut().zip(moments.windows(2)) {
            *seconds += pair[1].since(pair[0]).as_secs_f64();
        }
    }
    black_box((qkv, hidden));
    seconds
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// Normally distributed weights (Box and Muller 1958) in bfloat16, cached by shape.
fn normal(rows: usize, cols: usize) -> WeightMatrix {
    static MADE: Mutex<Vec<WeightMatrix>> = Mutex::new(Vec::new());
    let mut made = MADE.lock().expect("no thread panics with it");
    if let Some(matrix) = made.iter().find(|matrix| (matrix.rows(), matrix.cols()) == (rows, cols)) {
        return matrix.clone();
    }
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let mut weight = || {
        let radius = (-2.0 * (1.0 - uniform()).ln()).sqrt();
        half::bf16::from_f32(0.02 * radius * (uniform() * std::f32::consts::TAU).cos())
    };
    let bytes: Vec<u8> = (0..rows * cols).flat_map(|_| weight().to_le_bytes()).collect();
    made.push(WeightMatrix::new(Storage::Bf16(bytes.into()), rows, cols));
    made[made.len() - 1].clone()
}

struct Options {
    shape: &'static ProductShape,
    formats: Vec<Choice>,
    rows: Vec<usize>,
    rounds: usize,
    threads: usize,
    isa: Isa,
}

impl Options {
    fn parse() -> Self {
        let mut options = Self {
            shape: &SHAPES[0],
            formats: Vec::new(),
            rows: Vec::new(),
            rounds: 9,
            threads: std::thread::available_parallelism().map_or(1, |count| count.get()),
            isa: Isa::best(),
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut number = || {
                arguments.next().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{argument} N"))
            };
            match argument.as_str() {
                "--rows" => options.rows.push(number()),
                "--rounds" => options.rounds = number(),
                "--threads" => options.threads = number(),
                "--isa" => {
                    let name = arguments.next().unwrap_or_default();
                    let known = Isa::available();
                    options.isa = *known.iter().find(|isa| isa.name() == name).unwrap_or_else(|| {
                        panic!(
                            "--isa {name}: this machine has {:?}",
                            known.iter().map(|isa| isa.name()).collect::<Vec<_>>()
                        )
                    });
                }
                "--bench" => {} // cargo passes it
                name => match (SHAPES.iter().find(|shape| shape.name == name), Choice::parse(name)) {
                    (Some(shape), _) => options.shape = shape,
                    (_, Some(format)) => options.formats.push(format),
                    _ => panic!("{name}: neither a shape (0.5b, 1b) nor a format (bf16, folded, int8, int4)"),
                },
            }
        }
        if options.formats.is_empty() {
            options.formats = FORMATS[..2].iter().filter_map(|(name, _)| Choice::parse(name)).collect();
        }
        if options.rows.is_empty() {
            options.rows = vec![1, 8, 32, 512];
        }
        options
    }
}
