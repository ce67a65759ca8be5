use super::super::Cpu;
use super::super::input::{Encoding, GROUP, Input};
use super::super::matmul::{Write, matmul};
use super::super::matrix::{Storage, WeightMatrix};
use super::super::rows::Rows;
use super::super::simd::Isa;
use super::formats::int4;
use super::*;

fn integer_formats() -> impl Iterator<Item = Format> {
    Format::all().filter(|format| format.is_integer())
}

fn matrix(weights: &[f32], cols: usize, stored: usize) -> WeightMatrix {
    let storage = match stored {
        0 => Storage::F32(weights.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>().into()),
        1 => Storage::Bf16(
            weights.iter().flat_map(|w| half::bf16::from_f32(*w).to_le_bytes()).collect::<Vec<_>>().into(),
        ),
        _ => Storage::F16(
            weights.iter().flat_map(|w| half::f16::from_f32(*w).to_le_bytes()).collect::<Vec<_>>().into(),
        ),
    };
    WeightMatrix::new(storage, weights.len() / cols, cols)
}

fn packed(cpu: &mut Cpu, matrix: &WeightMatrix, format: Format) -> Packed {
    Packed::of(cpu, matrix, format).expect("all weights are finite")
}

fn widened(row: impl Fn(usize, &mut [f32]), rows: usize, cols: usize) -> Vec<f32> {
    let mut all = vec![0.0; rows * cols];
    all.chunks_mut(cols).enumerate().for_each(|(i, to)| row(i, to));
    all
}

/// Difference between neighbouring weights of the format.
fn step(packed: &Packed, row: usize, col: usize) -> f32 {
    let scale = packed.scale_zero(row, col).0.abs();
    if packed.layout().format == Format::INT4 {
        scale * f32::from(int4::step(packed, row, col).0)
    } else {
        scale
    }
}

/// Roughly normally distributed weights, like a trained model's.
fn weights(count: usize) -> Vec<f32> {
    let noise = |i: usize, j: u32| {
        let hash = (i as u32).wrapping_mul(0x9E37_79B1).wrapping_add(j.wrapping_mul(0x85EB_CA6B));
        (hash ^ hash >> 15).wrapping_mul(0x2C1B_3C6D) as f32 / u32::MAX as f32 - 0.5
    };
    (0..count).map(|i| (0..6).map(|j| noise(i, j)).sum::<f32>() * 0.03).collect()
}

#[test]
fn packed_weights_are_near_the_original_on_every_instruction_set() {
    for (rows, cols) in [(1, 1), (16, 32), (37, 100), (48, 65)] {
        for stored in 0..3 {
            let matrix = matrix(&weights(rows * cols), cols, stored);
            let exact = widened(|row, to| matrix.widen_row(row, to), rows, cols);
            for format in integer_formats() {
                let packed_plain = packed(&mut Cpu::with_isa(1, Isa::available()[0]), &matrix, format);
                for isa in Isa::available() {
                    let again = packed(&mut Cpu::with_isa(3, isa), &matrix, format);
                    assert!(again.bytes() == packed_plain.bytes(), "{format:?} on {}", isa.name());
                }
                let got = widened(|row, to| packed_plain.widen_row(row, to), rows, cols);
                for (i, (got, exact)) in got.iter().zip(&exact).enumerate() {
                    let step = step(&packed_plain, i / cols, i % cols);
                    // Eight bits are off by half a step, plus the rounding of the scale at the ends. Four
                    // bits may clip the ends if that reduces the total error.
                    let most = if format.bits() == 8 { 0.56 } else { 2.5 };
                    assert!(
                        (got - exact).abs() <= step * most + 1e-9,
                        "{format:?} {got} for {exact}, step {step}"
                    );
                }
            }
        }
    }
}

#[test]
fn floats_are_packed_without_loss_on_every_instruction_set() {
    for (rows, cols) in [(1, 1), (16, 32), (37, 101), (48, 65), (3, 97)] {
        for (stored, format) in [Format::F32, Format::BF16, Format::F16].into_iter().enumerate() {
            let matrix = matrix(&weights(rows * cols), cols, stored);
            let exact = widened(|row, to| matrix.widen_row(row, to), rows, cols);
            for isa in Isa::available() {
                let packed = packed(&mut Cpu::with_isa(3, isa), &matrix, format);
                let got = widened(|row, to| packed.widen_row(row, to), rows, cols);
                assert_eq!(got, exact, "{format:?} [{rows}, {cols}] on {}", isa.name());
                // Padding is zero.
                let width = format.bits() as usize / 8;
                let zeros = packed.bytes().chunks(width).filter(|value| value.iter().all(|byte| *byte == 0));
                let least = packed.bytes().len() / width - rows * cols;
                assert!(zeros.count() >= least, "{format:?} [{rows}, {cols}]");
            }
        }
    }
}

#[test]
fn subnormal_bfloat16_become_zero_and_nan_stays() {
    let bits = [0x0001u16, 0x807f, 0x0080, 0x8080, 0x7f80, 0xff80, 0x7fc1, 0x3f80];
    let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let matrix = WeightMatrix::new(Storage::Bf16(bytes.into()), 1, bits.len());
    for isa in Isa::available() {
        let packed = packed(&mut Cpu::with_isa(1, isa), &matrix, Format::BF16);
        let got = widened(|row, to| packed.widen_row(row, to), 1, bits.len());
        let got: Vec<u32> = got.iter().map(|value| value.to_bits() >> 16).collect();
        assert_eq!(got, [0, 0x8000, 0x0080, 0x8080, 0x7f80, 0xff80, 0x7fc1, 0x3f80], "{}", isa.name());
    }
}

/// Root of the mean squared error, relative to that of the weights.
fn relative_error(format: Format, exact: &[f32], cols: usize) -> f64 {
    let matrix = matrix(exact, cols, 0);
    let packed = packed(&mut Cpu::new(2), &matrix, format);
    let got = widened(|row, to| packed.widen_row(row, to), matrix.rows(), cols);
    let square = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let off = square(&mut got.iter().zip(exact).map(|(got, exact)| got - exact));
    (off / square(&mut exact.iter().copied())).sqrt()
}

#[test]
fn the_search_leaves_less_error_than_scaling_to_the_largest_weight() {
    let exact = weights(64 * 512);
    // The error of scales `largest / 7`.
    let plain: f64 = exact
        .chunks(32)
        .map(|group| {
            let scale = group.iter().fold(0f32, |most, w| most.max(w.abs())) / 7.0;
            group.iter().map(|w| f64::from((w / scale).round() * scale - w).powi(2)).sum::<f64>()
        })
        .sum();
    let all: f64 = exact.iter().map(|w| f64::from(*w).powi(2)).sum();
    let plain = (plain / all).sqrt();
    let [int8, int8_group, int4, int4_zero] =
        [Format::INT8, Format::INT8_GROUP, Format::INT4, Format::INT4_ZERO]
            .map(|format| relative_error(format, &exact, 512));
    println!(
        "plain 4 bits {plain:.4}, int4 {int4:.4}, int4 with zeros {int4_zero:.4}, int8 {int8:.5} {int8_group:.5}"
    );
    assert!(int4 < plain * 0.9 && int4_zero < plain * 0.9, "{int4} {int4_zero} {plain}");
    assert!(int8_group < int8 && int8 < 0.01, "{int8} {int8_group}");
}

#[test]
fn groups_of_one_sign_are_within_a_step_too() {
    for sign in [1.0, -1.0] {
        // From half of the largest weight to all of it, and from zero to a hundredth of it.
        let exact: Vec<f32> =
            (0..64).map(|i| sign * if i < 32 { 0.5 + i as f32 / 62.0 } else { i as f32 / 6300.0 }).collect();
        let matrix = matrix(&exact, 64, 0);
        for format in integer_formats() {
            let packed = packed(&mut Cpu::new(1), &matrix, format);
            let got = widened(|row, to| packed.widen_row(row, to), 1, 64);
            for (col, (got, exact)) in got.iter().zip(&exact).enumerate() {
                let step = step(&packed, 0, col);
                assert!((got - exact).abs() <= step, "{format:?} {got} for {exact}, step {step}");
                assert!(step < 0.1, "{format:?}: fifteen steps reach from zero to the largest weight");
            }
        }
    }
}

#[test]
fn extreme_weights_stay_finite() {
    for value in [0.0, 1e-45, 1e-30, 3e38, -3e38] {
        let mut exact = vec![0.0; 40];
        (exact[3], exact[33]) = (value, -value / 2.0);
        let matrix = matrix(&exact, 40, 0);
        for format in integer_formats() {
            let packed = packed(&mut Cpu::new(1), &matrix, format);
            let got = widened(|row, to| packed.widen_row(row, to), 1, 40);
            assert!(got.iter().all(|got| got.is_finite()), "{format:?} {value} {got:?}");
            assert!(got[0] == 0.0 && got[39] == 0.0, "{format:?} {value}: zero stays zero");
        }
    }
}

#[test]
fn weights_that_are_not_finite_are_reported() {
    for (value, stored) in [(f32::NAN, 0), (f32::INFINITY, 1), (f32::NEG_INFINITY, 2)] {
        let mut exact = weights(50 * 40);
        (exact[37 * 40 + 39], exact[45 * 40]) = (value, value);
        let matrix = matrix(&exact, 40, stored);
        for format in integer_formats() {
            let layout = Layout::new(format, 50, 40);
            let got = pack(&mut Cpu::new(2), &matrix, layout, &mut vec![0; layout.bytes()]);
            let Err(PackError::NotFinite(NotFinite { row, col, value: got })) = got else {
                panic!("a weight is not finite")
            };
            assert_eq!((row, col, got.to_bits()), (37, 39, value.to_bits()));
        }
    }
}

/// Random bfloat16 with exponents from 114 to 127, or with any exponent where `is_rare`.
fn halves(count: usize, is_rare: impl Fn(usize) -> bool) -> Vec<u16> {
    let hash = |i: usize| (i as u32).wrapping_mul(0x9E37_79B1).rotate_left(13).wrapping_mul(0x85EB_CA6B) >> 8;
    (0..count)
        .map(|i| {
            let exponent = if is_rare(i) { 1 + hash(i + 7) % 254 } else { 114 + hash(i + 7) % 14 };
            (hash(i) & 0x807f | exponent << 7) as u16
        })
        .collect()
}

fn stored_halves(halves: &[u16], cols: usize) -> WeightMatrix {
    let bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
    WeightMatrix::new(Storage::Bf16(bytes.into()), halves.len() / cols, cols)
}

#[test]
fn folded_weights_are_the_same_numbers_on_every_instruction_set() {
    for (rows, cols) in [(1, 1), (16, 32), (37, 101), (48, 65), (3, 97), (300, 512)] {
        for every in [3001, 601] {
            let matrix = stored_halves(&halves(rows * cols, |i| i % every == every / 3), cols);
            let exact = widened(|row, to| matrix.widen_row(row, to), rows, cols);
            let packed_plain =
                packed(&mut Cpu::with_isa(1, Isa::available()[0]), &matrix, Format::BF16_FOLDED);
            assert_eq!(
                widened(|row, to| packed_plain.widen_row(row, to), rows, cols),
                exact,
                "[{rows}, {cols}]"
            );
            for isa in Isa::available() {
                let again = packed(&mut Cpu::with_isa(3, isa), &matrix, Format::BF16_FOLDED);
                assert!(again.bytes() == packed_plain.bytes(), "[{rows}, {cols}] on {}", isa.name());
            }
        }
    }
}

#[test]
fn folding_keeps_infinities_and_nan() {
    let mut values = halves(64 * 64, |_| false);
    let odd = [0x0000u16, 0x8000, 0x0001, 0x807f, 0x0080, 0x7f80, 0xff80, 0x7fc1];
    values[500..508].copy_from_slice(&odd);
    let matrix = stored_halves(&values, 64);
    let [folded, unfolded] = [Format::BF16_FOLDED, Format::BF16].map(|format| {
        let packed = packed(&mut Cpu::new(1), &matrix, format);
        widened(|row, to| packed.widen_row(row, to), 64, 64).iter().map(|v| v.to_bits()).collect::<Vec<_>>()
    });
    assert_eq!(folded, unfolded);
    let high: Vec<u32> = folded[500..508].iter().map(|bits| bits >> 16).collect();
    assert_eq!(high, [0, 0x8000, 0, 0x8000, 0x0080, 0x7f80, 0xff80, 0x7fc1], "subnormals are zeros");
}

#[test]
fn weights_of_many_exponents_are_not_folded_but_single_panels_may_have_many() {
    let layout = Layout::new(Format::BF16_FOLDED, 320, 256);
    let pack = |is_rare: &dyn Fn(usize) -> bool| {
        let matrix = stored_halves(&halves(320 * 256, is_rare), 256);
        pack(&mut Cpu::new(2), &matrix, layout, &mut vec![0; layout.bytes()])
    };
    let Err(PackError::ManyExponents { patches, room }) = pack(&|i| i % 100 == 0) else { panic!("too many") };
    assert!(room == 320 && patches > room && patches < 830, "{patches} {room}");
    assert_eq!(pack(&|i| i / 256 == 77), Ok(()), "all of one row");
    let matrix = stored_halves(&halves(320 * 256, |i| i % 1000 == 0), 256);
    let read = packed(&mut Cpu::new(1), &matrix, Format::BF16_FOLDED).read_bytes();
    let codes = 320 * 256 * 3 / 2;
    assert!((codes + 20 * 16 + 20 * 4..codes + 20 * 16 + 20 * 4 + 130 + 82 * 4).contains(&read), "{read}");
}

/// Codes, scales and zero points of a matrix quantised elsewhere.
struct Given {
    codes: Vec<u8>,
    scales: Vec<half::f16>,
    zeros: Option<Vec<u8>>,
}

impl Given {
    fn new(layout: &Layout) -> Self {
        let hash =
            |i: usize| (i as u32).wrapping_mul(0x9E37_79B1).rotate_left(13).wrapping_mul(0x85EB_CA6B) >> 8;
        let most = (1 << layout.format.bits()) as u32;
        let groups = layout.rows * layout.groups();
        Self {
            codes: (0..layout.rows * layout.cols).map(|i| (hash(i) % most) as u8).collect(),
            scales: (0..groups).map(|i| half::f16::from_f32((hash(i + 9) % 1000) as f32 * 1e-5)).collect(),
            // GPTQ's zero points go up to 16.
            zeros: (layout.format == Format::INT4_ZERO)
                .then(|| (0..groups).map(|i| (hash(i + 7) % 17) as u8).collect()),
        }
    }

    fn borrowed(&self) -> GivenCodes<'_> {
        GivenCodes { codes: &self.codes, scales: &self.scales, zeros: self.zeros.as_deref() }
    }

    /// The weight of an output and column.
    fn weight(&self, layout: &Layout, row: usize, col: usize) -> f32 {
        let group = row * layout.groups() + col / GROUP;
        let zero = self.zeros.as_ref().map_or(128, |zeros| zeros[group]);
        let code = self.codes[row * layout.cols + col];
        self.scales[group].to_f32() * (i32::from(code) - i32::from(zero)) as f32
    }
}

#[test]
fn given_codes_are_multiplied_like_the_weights_they_encode_on_every_instruction_set() {
    for format in [Format::INT8_GROUP, Format::INT4_ZERO] {
        for (m, rows, cols) in [(1, 1, 1), (1, 37, 100), (5, 48, 65), (9, 100, 256), (40, 33, 95)] {
            let layout = Layout::new(format, rows, cols);
            let (given, mut bytes) = (Given::new(&layout), vec![0; layout.bytes()]);
            pack_codes(&mut Cpu::new(2), given.borrowed(), layout, &mut bytes).expect("codes fit");
            let packed = Packed::new(layout, bytes.into());
            let got = widened(|row, to| packed.widen_row(row, to), rows, cols);
            let weights: Vec<f32> =
                (0..rows * cols).map(|i| given.weight(&layout, i / cols, i % cols)).collect();
            assert_eq!(got, weights, "{format:?} [{rows}, {cols}]");
            for isa in Isa::available() {
                let (cpu, mut x) = (&mut Cpu::with_isa(2, isa), Input::default());
                x.set(cpu, Encoding::Int8, &super::tests::weights(m * cols), cols);
                let mut y = vec![0.0; m * rows];
                matmul(cpu, &x, &[(&packed).into()], &mut y, Write::Set);
                let Rows { values: groups, stride } = x.codes();
                for (i, got) in y.iter().enumerate() {
                    let (row, output) = (i / rows, i % rows);
                    let values = groups[row * stride..][..stride]
                        .iter()
                        .flat_map(|group| group.codes.map(|code| f64::from(code) * f64::from(group.scale)));
                    let products = values
                        .zip(&weights[output * cols..][..cols])
                        .map(|(x, weight)| x * f64::from(*weight));
                    let (exact, size) =
                        products.fold((0.0, 0.0), |(sum, size), it| (sum + it, size + it.abs()));
                    assert!(
                        (f64::from(*got) - exact).abs() <= 1e-6 * size + 1e-30,
                        "{format:?} [{m}, {rows}, {cols}] {got} for {exact} on {}",
                        isa.name()
                    );
                }
            }
        }
    }
}

#[test]
fn a_code_that_is_too_large_for_the_format_is_reported() {
    let layout = Layout::new(Format::INT4_ZERO, 50, 40);
    let mut given = Given::new(&layout);
    (given.codes[37 * 40 + 39], given.codes[45 * 40]) = (16, 255);
    let got = pack_codes(&mut Cpu::new(2), given.borrowed(), layout, &mut vec![0; layout.bytes()]);
    assert_eq!(got, Err(PackError::LargeCode { row: 37, col: 39, code: 16, most: 15 }));
}

#[test]
fn names_of_packed_files_do_not_change() {
    let names: Vec<String> =
        Format::all().map(|format| format!("{format:?} {}", format.file_name())).collect();
    let expected = [
        "F32 f32",
        "F16 f16",
        "Bf16 bf16",
        "Bf16Folded bf16-folded",
        "Int8 int8",
        "Int8Group int8-group",
        "Int4 int4",
        "Int4Zero int4-zero",
        "Int4Span32 int4-span32",
        "Int4Span64 int4-span64",
        "Int4Span128 int4-span128",
        "Int8Span32 int8-span32",
        "Int8Span64 int8-span64",
        "Int8Span128 int8-span128",
        "Fp8Span32 fp8-span32",
        "Fp8Span64 fp8-span64",
        "Fp8Span128 fp8-span128",
        "Table4Span16 table4-span16",
        "Table4Span32 table4-span32",
        "Table4Span64 table4-span64",
        "Table4Span128 table4-span128",
    ];
    assert_eq!(names, expected);
    let layout = Layout::new(Format::INT4, 5, 40);
    assert_eq!(format!("{layout:?}"), "Layout { format: Int4, rows: 5, cols: 40, leaves: 1 }");
}
