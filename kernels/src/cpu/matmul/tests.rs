use proptest::prelude::*;

use super::super::packed::{Format, Packed};
use super::super::simd::Isa;
use super::shares::Cut;
use super::tiles::Streams;
use super::*;
use crate::cpu::input::{CodeGroup, Encoding};
use crate::cpu::matrix::{Storage, WeightMatrix};
use crate::cpu::mlp::glu;
use crate::cpu::rows::Rows;
use crate::gate::Gate;

/// Small pseudo-random numbers from `seed` that are exact in all formats.
fn values(count: usize, seed: u32) -> Vec<f32> {
    let hash = |i: usize| {
        (i as u32 ^ seed.rotate_left(16)).wrapping_mul(0x9E37_79B1).rotate_left(13).wrapping_mul(0x85EB_CA6B)
    };
    (0..count).map(|i| (hash(i) >> 24) as f32 / 64.0 - 2.0).collect()
}

fn stored(format: usize, values: &[f32]) -> Storage {
    match format {
        0 => Storage::Bf16(
            values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect::<Vec<_>>().into(),
        ),
        1 => Storage::F16(
            values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect::<Vec<_>>().into(),
        ),
        _ => Storage::F32(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>().into()),
    }
}

/// Packs `[n, k]` in the format in which it is stored.
fn packed(format: usize, values: &[f32], n: usize, k: usize) -> Packed {
    let matrix = WeightMatrix::new(stored(format, values), n, k);
    Packed::of(
        &mut Cpu::new(1),
        &matrix,
        *Format::keeping(matrix.storage()).last().expect("every storage has a lossless format"),
    )
    .expect("the format is lossless")
}

/// Multiplies `x` `[m, k]` by the matrices in `stack`.
fn multiply(cpu: &mut Cpu, encoding: Encoding, x: &[f32], stack: &[Linear<'_>], y: &mut [f32], write: Write) {
    let mut input = Input::default();
    input.set(cpu, encoding, x, stack[0].weights.cols());
    matmul(cpu, &input, stack, y, write);
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn longer_rows_get_the_same_bits_and_keep_the_rest() {
    let (m, k, outputs, stride) = (37, 96, [40, 21], 70);
    let weights = [0, 1].map(|i| packed(i, &values(outputs[i] * k, i as u32 + 5), outputs[i], k));
    let stack = weights.each_ref().map(Linear::from);
    let (cpu, mut x) = (&mut Cpu::new(2), Input::default());
    x.set(cpu, Encoding::F32, &values(m * k, 9), k);
    let mut y = vec![0.0; m * 61];
    matmul(cpu, &x, &stack, &mut y, Write::Set);
    let mut longer = vec![7.0; m * stride];
    matmul_rows(cpu, &x, &stack, RowsMut { values: &mut longer[4..], stride }, Write::Set);
    for (row, longer) in y.chunks_exact(61).zip(longer.chunks_exact(stride)) {
        assert_eq!(bits(&longer[4..65]), bits(row));
        assert!(longer[..4].iter().chain(&longer[65..]).all(|kept| *kept == 7.0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn it_agrees_with_f64_and_every_way_to_compute_it_gives_the_same_bits(
        m in 1usize..90, n in 1usize..60, k in 1usize..150, format in 0usize..4, seed: u32, with_bias: bool, add: bool,
    ) {
        let (encoding, format) = if format == 3 { (Encoding::Bf16, 0) } else { (Encoding::F32, format) };
        let (x, w, bias) = (values(m * k, seed), values(n * k, !seed), values(n, seed ^ 77));
        // Factor with many digits, so that sums round and their order shows.
        let mut x: Vec<f32> = x.iter().map(|value| value * 0.377_123_4).collect();
        if encoding == Encoding::Bf16 {
            x.iter_mut().for_each(|value| *value = half::bf16::from_f32(*value).to_f32());
        }
        let matrix = packed(format, &w, n, k);
        let linear = Linear { weights: &matrix, bias: with_bias.then_some(&bias) };
        let write = if add { Write::Add } else { Write::Set };
        let widened = {
            let mut row = vec![0.0; k];
            (0..n).flat_map(|r| { matrix.widen_row(r, &mut row); row.clone() }).collect::<Vec<f32>>()
        };
        let before = values(m * n, 5);
        let mut expected = Vec::new();
        for isa in Isa::available() {
            for threads in [1, 3] {
                let cpu = &mut Cpu::with_isa(threads, isa);
                let mut y = before.clone();
                multiply(cpu, encoding, &x, &[linear], &mut y, write);
                if expected.is_empty() {
                    for (i, got) in y.iter().enumerate() {
                        let (row, col) = (i / n, i % n);
                        let dot: f64 = (0..k).map(|j| f64::from(x[row * k + j]) * f64::from(widened[col * k + j])).sum();
                        let exact = dot + f64::from(if with_bias { bias[col] } else { 0.0 } + if add { before[i] } else { 0.0 });
                        prop_assert!((f64::from(*got) - exact).abs() <= 1e-5 * (1.0 + k as f64), "{got} for {exact}");
                    }
                    expected = bits(&y);
                }
                prop_assert_eq!(&bits(&y), &expected, "{} threads on {}", threads, isa.name());
            }
        }
        // Each row alone.
        for row in 0..m {
            let mut y = before[row * n..][..n].to_vec();
            multiply(&mut Cpu::new(1), encoding, &x[row * k..][..k], &[linear], &mut y, write);
            prop_assert_eq!(&bits(&y), &expected[row * n..][..n], "row {} alone", row);
        }
    }
}

#[test]
fn stacked_matrices_lie_side_by_side() {
    let (m, k) = (5, 33);
    let x = values(m * k, 1);
    let parts = [(100, 0), (7, 1), (40, 2)].map(|(n, format)| packed(format, &values(n * k, 9), n, k));
    let cpu = &mut Cpu::new(2);
    let mut together = vec![0.0; m * 147];
    multiply(cpu, Encoding::F32, &x, &parts.each_ref().map(Linear::from), &mut together, Write::Set);
    let mut column = 0;
    for part in &parts {
        let mut alone = vec![0.0; m * part.rows()];
        multiply(cpu, Encoding::F32, &x, &[part.into()], &mut alone, Write::Set);
        for row in 0..m {
            let n = part.rows();
            assert_eq!(together[row * 147 + column..][..n], alone[row * n..][..n]);
        }
        column += part.rows();
    }
}

/// A dot product in the order that `float::arithmetic` defines.
fn defined(is_bf16: bool, x: &[f32], w: &[f32]) -> f32 {
    let mut order: Vec<usize> = (0..x.len()).collect();
    if is_bf16 {
        order.chunks_mut(2).for_each(<[usize]>::reverse);
    }
    order.into_iter().fold(0.0, |sum, col| x[col].mul_add(w[col], sum))
}

#[test]
fn sums_are_in_the_order_they_are_defined_in_whatever_the_tile() {
    // Whole steps of columns and a remainder; rows in tiles of every height; panels that fill a tile and some
    // that remain.
    let few = (1..24).map(|m| (m, 70 + m, 31 + 7 * m));
    let others = [(1, 9, 9000), (2, 600, 410), (13, 300, 263), (64, 16, 31), (65, 37, 1057), (71, 170, 300)];
    for (m, n, k) in few.chain(others) {
        let (x, w) = (values(m * k, 3), values(n * k, 4));
        // Values that round, and whose second half nearly cancels the sum of the first.
        let x: Vec<f32> =
            x.iter().enumerate().map(|(i, x)| if i % k < k / 2 { x * 97.3 } else { x * -0.731 }).collect();
        for (encoding, format) in
            [(Encoding::F32, 0), (Encoding::F32, 1), (Encoding::F32, 2), (Encoding::Bf16, 0)]
        {
            let matrix = packed(format, &w, n, k);
            for isa in Isa::available() {
                let cpu = &mut Cpu::with_isa(2, isa);
                let mut y = vec![0.0; m * n];
                multiply(cpu, encoding, &x, &[(&matrix).into()], &mut y, Write::Set);
                let round =
                    |x: &f32| if encoding == Encoding::Bf16 { half::bf16::from_f32(*x).to_f32() } else { *x };
                let x: Vec<f32> = x.iter().map(round).collect();
                for (i, got) in y.iter().enumerate() {
                    let expected = defined(format == 0, &x[i / n * k..][..k], &w[i % n * k..][..k]);
                    assert_eq!(
                        got.to_bits(),
                        expected.to_bits(),
                        "{encoding:?} {format} [{m}, {n}, {k}] {i} {}",
                        isa.name()
                    );
                }
            }
        }
    }
}

/// bfloat16 `[n, k]` whose exponents fold, except for one value in a thousand.
fn foldable(n: usize, k: usize) -> WeightMatrix {
    let hash = |i: usize| (i as u32).wrapping_mul(0x9E37_79B1).rotate_left(15).wrapping_mul(0x85EB_CA6B) >> 8;
    let value = |i: usize| {
        let rare = if hash(i + 1) % 1000 == 0 { 1e-20 } else { 1.0 };
        half::bf16::from_f32((hash(i) as f32 / (1 << 23) as f32 - 1.0) * rare)
    };
    let bytes: Vec<u8> = (0..n * k).flat_map(|i| value(i).to_le_bytes()).collect();
    WeightMatrix::new(Storage::Bf16(bytes.into()), n, k)
}

#[test]
fn folded_weights_give_the_same_bits() {
    // Full and partial units; tiles of every height; one segment of columns, and several.
    let few = (1..24).map(|m| (m, 130 + m, 131 + 7 * m));
    for (m, n, k) in few.chain([(1, 1000, 1100), (8, 300, 263), (33, 170, 1111), (71, 170, 300)]) {
        let (matrix, x) = (foldable(n, k), values(m * k, 3));
        let x: Vec<f32> = x.iter().map(|x| x * 0.377_123_4).collect();
        for (encoding, isa) in [Encoding::F32, Encoding::Bf16]
            .into_iter()
            .flat_map(|encoding| Isa::available().into_iter().map(move |isa| (encoding, isa)))
        {
            let cpu = &mut Cpu::with_isa(2, isa);
            let [folded, unfolded] = [Format::BF16_FOLDED, Format::BF16].map(|format| {
                let packed = Packed::of(cpu, &matrix, format).unwrap();
                let mut y = vec![0.0; m * n];
                multiply(cpu, encoding, &x, &[(&packed).into()], &mut y, Write::Set);
                bits(&y)
            });
            assert!(folded == unfolded, "{encoding:?} [{m}, {n}, {k}] {}", isa.name());
        }
    }
}

/// The encoded content of `input`, as bits.
fn encoded(input: &Input) -> Vec<u32> {
    let halves = |rows: Rows<'_, u16>| rows.values.iter().map(|half| u32::from(*half) << 16).collect();
    match input.encoding() {
        Encoding::Int8 => {
            let group = |group: &CodeGroup| {
                let CodeGroup { codes, scale, sum, offset, value } = *group;
                codes.map(|code| code as u32).into_iter().chain([
                    scale.to_bits(),
                    value.to_bits(),
                    sum as u32,
                    offset as u32,
                ])
            };
            input.codes().values.iter().flat_map(group).collect()
        }
        Encoding::Bf16 if input.has_halves() => halves(input.halves()),
        Encoding::Bf16 | Encoding::F32 => bits(input.values().values),
    }
}

#[test]
fn a_gated_product_is_the_gate_of_two_products() {
    // Less than a panel; several tasks; more rows than a tile; columns with and without padding.
    for (m, n, k) in [(0, 40, 64), (1, 7, 33), (1, 700, 96), (9, 150, 32), (70, 333, 65)] {
        let (x, w) = (values(m * k, 1), values(2 * n * k, 2));
        let biases = [values(n, 3), values(n, 4)];
        for (encoding, to) in [Encoding::F32, Encoding::Bf16, Encoding::Int8]
            .into_iter()
            .flat_map(|encoding| [Encoding::F32, Encoding::Bf16, Encoding::Int8].map(|to| (encoding, to)))
        {
            let format = match encoding {
                Encoding::Int8 => Format::INT4_ZERO,
                Encoding::F32 | Encoding::Bf16 => Format::BF16,
            };
            let [gate, up] = [&w[..n * k], &w[n * k..]].map(|w| {
                let matrix = WeightMatrix::new(stored(0, w), n, k);
                Packed::of(&mut Cpu::new(1), &matrix, format).unwrap()
            });
            let gate = Linear { weights: &gate, bias: Some(&biases[0]) };
            let up = Linear { weights: &up, bias: Some(&biases[1]) };
            for isa in Isa::available() {
                for threads in [1, 3] {
                    let cpu = &mut Cpu::with_isa(threads, isa);
                    let mut input = Input::default();
                    input.set(cpu, encoding, &x, k);
                    let (mut both, mut gated) = (vec![0.0; m * 2 * n], vec![0.0; m * n]);
                    matmul(cpu, &input, &[gate, up], &mut both, Write::Set);
                    let clamped = Gate::Clamped { alpha: 1.7, limit: 0.5 };
                    let activation =
                        [Gate::Silu, Gate::GeluTanh, clamped, Gate::SquaredRelu][(threads / 2 + m) % 4];
                    glu(cpu, activation, &both, n, &mut gated);
                    let (mut expected, mut got) = (Input::default(), Input::default());
                    expected.set(cpu, to, &gated, n);
                    // Leftovers of a different shape and encoding.
                    got.set(cpu, Encoding::F32, &vec![f32::NAN; (m + 1) * (n + 50)], n + 50);
                    got.set(cpu, to, &vec![7.0; (m + 1) * (n + 50)], n + 50);
                    gated_matmul(cpu, &input, Gated { activation, gate, up }, to, &mut got);
                    assert_eq!((got.rows(), got.width(), got.encoding()), (m, n, to));
                    assert!(
                        encoded(&got) == encoded(&expected),
                        "[{m}, {n}, {k}] {encoding:?} {to:?} {}",
                        isa.name()
                    );
                }
            }
        }
    }
}

#[test]
fn every_panel_meets_every_row_once_and_tasks_stay_within_their_size() {
    let cpu = &mut Cpu::new(1);
    for (threads, multiple, most, passes, streams) in [
        (1, 3, 1, 1, None),
        (2, 3, 1, 3, None),
        (2, 4, 2, 1, None),
        (3, 3, 3, 2, None),
        (2, 1, 5, 1, None),
        (16, 4, 1, 7, None),
        (1, 3, 1, 1, Some(3)),
        (2, 4, 2, 1, Some(4)),
        (3, 4, 3, 1, Some(2)),
        (2, 2, 200, 1, Some(1)),
    ] {
        for sizes in (1..150).flat_map(|panels| [vec![panels], vec![panels, 1 + panels / 4, 2 + panels / 5]])
        {
            let matrices: Vec<Packed> = sizes
                .iter()
                .map(|panels| {
                    WeightMatrix::new(Storage::F32(vec![0; panels * PANEL * 4].into()), panels * PANEL, 1)
                })
                .map(|matrix| Packed::of(cpu, &matrix, Format::F32).expect("zeros are finite"))
                .collect();
            let stack: Vec<Linear<'_>> = matrices.iter().map(Linear::from).collect();
            let (panels, m) = (sizes.iter().sum::<usize>(), 57 + sizes[0]);
            let shares = Shares::cut(&stack, threads, Cut { multiple, most, passes, streams });
            let starts: Vec<usize> = (0..sizes.len()).map(|i| sizes[..i].iter().sum()).collect();
            let mut met = vec![0; panels * m];
            for task in 0..shares.tasks() {
                let Task { panels: share, streams, pass } = shares.task(task);
                let rows = pass.rows(m);
                assert!(streams.is_some() || share.len() <= shares.widest(), "{share:?}");
                assert!(rows.len() <= shares.highest(m), "{rows:?}");
                assert!(
                    !starts.iter().any(|start| share.start < *start && *start < share.end),
                    "{share:?} is of several of {sizes:?}"
                );
                let panels: Vec<usize> = match streams {
                    None => share.collect(),
                    Some(Streams { width, full, apart, rest_at, rest }) => (0..width)
                        .flat_map(|stream| (0..full).map(move |panel| stream * apart + panel))
                        .chain(rest_at..rest_at + rest)
                        .map(|panel| share.start + panel)
                        .collect(),
                };
                panels.iter().for_each(|panel| rows.clone().for_each(|row| met[panel * m + row] += 1));
            }
            assert!(met.iter().all(|times| *times == 1), "{sizes:?} panels, {m} rows");
        }
    }
}
