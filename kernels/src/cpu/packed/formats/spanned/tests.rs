use super::super::super::{GivenRow, GivenRows, Layout, Order, PackError, Packed, pack_rows};
use super::*;
use crate::cpu::Cpu;
use crate::cpu::input::{Encoding, Input};
use crate::cpu::matmul::{Write, matmul};
use crate::cpu::simd::Isa;

fn hash(i: usize, seed: u32) -> u32 {
    (i as u32 ^ seed.rotate_left(16)).wrapping_mul(0x9E37_79B1).rotate_left(13).wrapping_mul(0x85EB_CA6B)
}

/// Random codes of `bits` bits with random scales and zero points; excludes FP8's codes of NaN.
struct Random {
    bits: u32,
}

impl GivenRows for Random {
    fn row(&self, row: usize, to: GivenRow<'_>) -> Result<(), PackError> {
        let most = 255u32 >> (8 - self.bits);
        let code = |i: usize, seed| (hash(i + 1000 * row, seed) >> 16 & most) as u8;
        let finite = |code: u8| if code & 0x7f == 0x7f { code & 0x87 } else { code };
        to.codes.iter_mut().enumerate().for_each(|(i, to)| *to = finite(code(i, 1)));
        to.zeros.iter_mut().enumerate().for_each(|(i, to)| *to = code(i, 2));
        let scale = |i: usize| (hash(i + 77 * row, 3) >> 8) as f32 / 1e9 + 1e-3;
        to.scales.iter_mut().enumerate().for_each(|(i, to)| *to = scale(i));
        Ok(())
    }

    fn table(&self) -> [f32; 16] {
        std::array::from_fn(|i| (i as f32 - 7.3) * 0.377_123)
    }
}

fn random(layout: Layout) -> Packed {
    let mut bytes = vec![0; layout.bytes()];
    let rows = Random { bits: layout.format.bits() };
    pack_rows(&mut Cpu::new(3), &rows, layout, &mut bytes).expect("nothing fails");
    Packed::new(layout, bytes.into())
}

fn x(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((hash(i, 9) >> 8) as f32 / (1 << 23) as f32 - 1.0) * 0.731).collect()
}

fn product(cpu: &mut Cpu, encoding: Encoding, x: &[f32], weights: &Packed) -> Vec<f32> {
    let (mut input, cols) = (Input::default(), weights.cols());
    let mut y = vec![0.0; x.len() / cols * weights.rows()];
    input.set_order(weights.order().cloned());
    input.set(cpu, encoding, x, cols);
    matmul(cpu, &input, &[weights.into()], &mut y, Write::Set);
    y
}

#[test]
fn given_codes_are_kept_as_they_are() {
    let all = [INT4_SPANS, INT8_SPANS, FP8_SPANS, TABLE_SPANS].concat();
    for format in all.into_iter().chain([TABLE_SPAN16]) {
        for (rows, cols, leaves) in [(1, 32, 1), (37, 200, 1), (16, 640, 4)] {
            let layout = Layout { leaves, ..Layout::new(format, rows, cols) };
            let (packed, given) = (random(layout), Random { bits: format.bits() });
            let starts = layout.scale_starts();
            for row in [0, rows - 1] {
                let (mut codes, mut zeros) = (vec![0; cols], vec![0; starts.len()]);
                let (mut scales, mut got) = (vec![0.0; starts.len()], vec![0.0; cols]);
                let to =
                    GivenRow { codes: &mut codes, scales: &mut scales, zeros: &mut zeros, starts: &starts };
                given.row(row, to).expect("nothing fails");
                packed.widen_row(row, &mut got);
                for (col, got) in got.iter().enumerate() {
                    let at = starts.iter().rposition(|start| *start <= col).expect("the first is 0");
                    let number = match format {
                        _ if TABLE_SPANS.contains(&format) || format == TABLE_SPAN16 => {
                            given.table()[usize::from(codes[col])]
                        }
                        _ if FP8_SPANS.contains(&format) => {
                            crate::cpu::simd::e4m3_in_256ths(codes[col]) * FP8_UNITS
                        }
                        _ => f32::from(codes[col]) - f32::from(zeros[at]),
                    };
                    assert_eq!(*got, number * scales[at], "{layout:?} {row} {col}");
                }
            }
        }
    }
}

/// One output for one row in the order defined in [`numbers`], without leaves.
fn defined(layout: &Layout, packed: &Packed, row: usize, x: &[f32]) -> f32 {
    let number = if FP8_SPANS.contains(&layout.format) { numbers::fp8 } else { numbers::looked_up };
    let mut result = 0f32;
    for start in (0..layout.cols).step_by(layout.scale_cols()) {
        let columns = start..layout.cols.min(start + layout.scale_cols());
        let sum = columns.fold(0f32, |sum, col| x[col].mul_add(number(packed, row, col), sum));
        result = sum.mul_add(packed.scale_zero(row, start).0, result);
    }
    result
}

#[test]
fn numbers_are_summed_in_the_order_they_are_defined_in_whatever_the_tile() {
    let few = (1..18).map(|m| (m, 70 + m, 31 + 17 * m));
    for (m, n, k) in few.chain([(1, 600, 410), (33, 90, 263), (70, 170, 128)]) {
        for format in [FP8_SPANS[2], FP8_SPANS[0], TABLE_SPAN16, TABLE_SPANS[1], TABLE_SPANS[2]] {
            let layout = Layout::new(format, n, k);
            let (packed, x) = (random(layout), x(m * k));
            let expected: Vec<u32> = (0..m * n)
                .map(|i| defined(&layout, &packed, i % n, &x[i / n * k..][..k]).to_bits())
                .collect();
            for isa in Isa::available() {
                for threads in [1, 3] {
                    let y = product(&mut Cpu::with_isa(threads, isa), Encoding::F32, &x, &packed);
                    let y: Vec<u32> = y.iter().map(|value| value.to_bits()).collect();
                    assert!(y == expected, "{format:?} [{m}, {n}, {k}] {threads} on {}", isa.name());
                }
            }
        }
    }
}

#[test]
fn columns_in_another_order_meet_their_own_inputs() {
    let (m, n, k) = (5, 40, 256);
    let order: Order = (0..k as u32).map(|i| (i * 77 + 13) % k as u32).collect();
    for format in [INT4_SPANS[2], INT8_SPANS[1]] {
        let (packed, x) = (random(Layout::new(format, n, k)), x(m * k));
        let sorted: Vec<f32> =
            x.chunks(k).flat_map(|row| order.iter().map(|from| row[*from as usize])).collect();
        let expected = product(&mut Cpu::new(2), Encoding::Int8, &sorted, &packed);
        let got = product(&mut Cpu::new(2), Encoding::Int8, &x, &packed.with_order(Some(order.clone())));
        assert!(got == expected, "{format:?}");
    }
}

#[test]
#[should_panic(expected = "x has the order of the weights' columns")]
fn an_input_in_another_order_is_refused() {
    let order: Order = (0..64u32).rev().collect();
    let (packed, mut input) = (random(Layout::new(INT4_SPANS[0], 16, 64)), Input::default());
    let packed = packed.with_order(Some(order));
    input.set(&mut Cpu::new(1), Encoding::Int8, &x(64), 64);
    matmul(&mut Cpu::new(1), &input, &[(&packed).into()], &mut [0.0; 16], Write::Set);
}

#[test]
fn the_first_row_that_fails_is_named() {
    struct Failing;
    impl GivenRows for Failing {
        fn row(&self, row: usize, _: GivenRow<'_>) -> Result<(), PackError> {
            let error = super::super::super::NotFinite { row, col: 0, value: f32::NAN };
            if row >= 20 { Err(error.into()) } else { Ok(()) }
        }
    }
    let layout = Layout::new(INT4_SPANS[0], 100, 32);
    let failed = pack_rows(&mut Cpu::new(3), &Failing, layout, &mut vec![0; layout.bytes()]);
    assert!(failed.unwrap_err().to_string().contains("output 20 and input 0 is NaN"));
}

#[test]
fn every_fp8_number_rounds_to_itself() {
    for code in (0..=255u8).filter(|code| code & 0x7f != 0x7f) {
        let value = crate::cpu::simd::e4m3_in_256ths(code) * FP8_UNITS;
        assert_eq!(round::to_e4m3(value), code, "{value}");
    }
    for (value, code) in [(449.0, 0x7e), (-1e9, 0xfe), (1.0625, 0x38), (1.1875, 0x3a), (0.000_9, 0)] {
        assert_eq!(round::to_e4m3(value), code, "{value}");
    }
}
