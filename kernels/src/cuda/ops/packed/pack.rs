//! Packs rows of codes for the device.

use std::ops::Range;

use half::f16;

use super::form::{BLOCK, MAX_PARTS, Meaning, OCTET, ScaleKind, Shape, TABLE_WORDS};
use crate::cpu::packed::to_e4m3;
use crate::cuda::ops::Activation;

/// A row to pack.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// `[k]` codes.
    pub codes: Vec<u8>,
    /// A scale, or a factor if the form has [`ScaleKind::Factor`], for each of [`Shape::span_starts`].
    pub scales: Vec<f32>,
    /// Likewise; not read in forms without minima.
    pub minima: Vec<f32>,
    /// Code of zero of each span; not read in forms with the same for all.
    pub zeros: Vec<u8>,
    /// What factors are multiplied by, for each of [`Shape::block_starts`]; the first is what FP8 scales are
    /// divided by.
    pub units: Vec<f32>,
    /// The same for factors of minima.
    pub minimum_units: Vec<f32>,
}

impl Row {
    /// A row of zeros.
    pub fn new(shape: &Shape) -> Self {
        let (spans, blocks) = (shape.spans(), shape.blocks());
        Self {
            codes: vec![0; shape.k],
            scales: vec![0.0; spans],
            minima: vec![0.0; spans],
            zeros: vec![0; spans],
            units: vec![0.0; blocks],
            minimum_units: vec![0.0; blocks],
        }
    }

    /// Sets all values to zero.
    pub fn clear(&mut self) {
        self.codes.fill(0);
        self.zeros.fill(0);
        for values in [&mut self.scales, &mut self.minima, &mut self.units, &mut self.minimum_units] {
            values.fill(0.0);
        }
    }
}

/// Some octets of a matrix, in the order of the parts of [`Places`](super::Places).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Octets {
    /// Codes, scales, units, minima, their units, zero points; with the bytes of an octet each.
    pub parts: [(Vec<u8>, usize); 6],
}

/// Packs `octets` of a matrix. `read` writes row `i` to a cleared [`Row`].
///
/// # Errors
/// Those of `read`.
///
/// # Panics
/// If a value does not fit the form: a large code, a scale that its kind cannot represent.
pub fn pack<E>(
    shape: &Shape,
    octets: Range<usize>,
    mut read: impl FnMut(usize, &mut Row) -> Result<(), E>,
) -> Result<Octets, E> {
    let (form, places) = (shape.form, shape.places());
    let each = [places.codes, places.scales, places.units, places.minima, places.minimum_units, places.zeros]
        .map(|part| part.len() / shape.octets().max(1));
    let mut parts = each.map(|each| (vec![0u8; each * octets.len()], each));
    let (mut row, most) = (Row::new(shape), (u16::MAX >> (16 - form.bits)) as u8);
    for at in octets.start * OCTET..(octets.end * OCTET).min(shape.n) {
        row.clear();
        read(at, &mut row)?;
        let (octet, g) = (at / OCTET - octets.start, at % OCTET);
        if let Some(code) = row.codes.iter().find(|code| **code > most) {
            panic!("row {at} has code {code} of at most {most}");
        }
        let [codes, scales, units, minima, minimum_units, zeros] =
            parts.each_mut().map(|(bytes, each)| &mut bytes[octet * *each..][..*each]);
        put_codes(shape, &row.codes, g, codes);
        put_scales(form.scales, &row.scales, g, scales);
        let has_units = form.scales == ScaleKind::Factor;
        match form.scales {
            ScaleKind::Factor => put_scales(ScaleKind::F16, &row.units, g, units),
            ScaleKind::E4m3 => put_scales(ScaleKind::F32, &row.units[..1], g, units),
            ScaleKind::F32 | ScaleKind::F16 | ScaleKind::Power => {}
        }
        if form.has_minima {
            put_scales(form.scales, &row.minima, g, minima);
        }
        if form.has_minima && has_units {
            put_scales(ScaleKind::F16, &row.minimum_units, g, minimum_units);
        }
        if !zeros.is_empty() {
            row.zeros.iter().enumerate().for_each(|(i, zero)| zeros[i * OCTET + g] = *zero);
        }
    }
    Ok(Octets { parts })
}

fn put_codes(shape: &Shape, codes: &[u8], g: usize, to: &mut [u8]) {
    let form = &shape.form;
    let mut put = |byte: usize, bit: usize, code: u8| to[byte + bit / 8] |= code << (bit % 8);
    let leaves = codes.chunks(shape.leaf_inputs()).enumerate();
    for (leaf, codes) in leaves {
        for (col, code) in codes.iter().enumerate() {
            let block = (leaf * shape.leaf_blocks() + col / BLOCK) * form.octet_bytes();
            // Instruction, lane, and which of the lane's four inputs of the instruction.
            let (i, lane, e) = (col % BLOCK / 16, 4 * g + col % 16 / 4, col % 4);
            match (form.bits, form.meaning) {
                (8, _) => put(block + i / 4 * 512 + lane * 16 + i % 4 * 4 + e, 0, *code),
                (_, Meaning::Table) => put(block + lane * 16 + i / 2 * 4, i % 2 * 16 + e * 4, *code),
                (bits, _) => {
                    let pair = i % 2 * 2 + e / 2;
                    put(block + lane * 16 + i / 2 * 4, pair * 4 + e % 2 * 16, code & 15);
                    if bits == 6 {
                        let pair = i % 4 * 2 + e / 2;
                        put(block + 512 + lane * 8 + i / 4 * 4, pair * 2 + e % 2 * 16, code >> 4);
                    }
                }
            }
        }
    }
}

fn put_scales(kind: ScaleKind, scales: &[f32], g: usize, to: &mut [u8]) {
    for (i, scale) in scales.iter().enumerate() {
        let at = (i * OCTET + g) * kind.bytes();
        match kind {
            ScaleKind::F32 => to[at..at + 4].copy_from_slice(&scale.to_le_bytes()),
            ScaleKind::F16 => {
                let half = f16::from_f32(*scale);
                let is_same = half.to_f32() == *scale || !scale.is_finite();
                assert!(is_same, "{scale} is exact in half precision");
                to[at..at + 2].copy_from_slice(&half.to_le_bytes());
            }
            ScaleKind::Power => {
                let bits = scale.to_bits();
                let exponent = (bits >> 23) as u8;
                let of_exponent = if exponent == 0 { 1 << 22 } else { u32::from(exponent) << 23 };
                assert!(bits == of_exponent || bits == 0, "{scale} is a power of two");
                to[at] = exponent;
            }
            ScaleKind::E4m3 => {
                let code = to_e4m3(*scale);
                assert!(crate::cuda::memory::E4m3(code).to_f32() == *scale, "{scale} is an FP8 number");
                to[at] = code;
            }
            ScaleKind::Factor => {
                assert!(scale.fract() == 0.0 && (-128.0..128.0).contains(scale), "{scale} is a factor");
                to[at] = *scale as i8 as u8;
            }
        }
    }
}

/// A table for the device.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Numbers of the activations' type that each value is the sum of.
    pub parts: usize,
    /// `[parts][8]`: the low bytes of sixteen numbers, then their high bytes.
    pub words: Vec<u32>,
    /// Power of two by which scales must be multiplied.
    pub unit: f32,
}

impl Table {
    /// `values` as sums of few numbers of the activations' type, without loss; `None` if that needs too many.
    pub fn of<T: Activation>(values: &[f32; 16]) -> Option<Self> {
        // In half precision the last bits of small values would be subnormal, so they are made larger.
        [1.0, 2f32.powi(14)].into_iter().find_map(|by| Self::scaled::<T>(values, by))
    }

    fn scaled<T: Activation>(values: &[f32; 16], by: f32) -> Option<Self> {
        let mut rest = values.map(|value| value * by);
        let mut words = Vec::new();
        for parts in 1..=MAX_PARTS {
            let numbers = rest.map(T::from_f32);
            let bits = numbers.map(T::to_bits);
            for shift in [0, 8] {
                for four in bits.as_chunks::<4>().0 {
                    words.push(u32::from_le_bytes(four.map(|bits| (bits >> shift) as u8)));
                }
            }
            for (rest, number) in rest.iter_mut().zip(numbers) {
                *rest -= number.to_f32();
            }
            if rest.iter().any(|rest| !rest.is_finite()) {
                return None;
            }
            if rest.iter().all(|rest| *rest == 0.0) {
                return Some(Self { parts, words, unit: 1.0 / by });
            }
        }
        None
    }

    /// Bytes for the device.
    pub fn bytes(&self) -> Vec<u8> {
        debug_assert_eq!(self.words.len(), self.parts * TABLE_WORDS);
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::super::form::{Form, Span};
    use super::*;

    #[test]
    fn tables_are_split_without_loss() {
        fn check<T: Activation>(values: [f32; 16], parts: usize) {
            let table = Table::of::<T>(&values).unwrap();
            assert_eq!((table.parts, table.words.len()), (parts, 8 * parts));
            for (code, value) in values.iter().enumerate() {
                let number = |part: usize| {
                    let byte = |at: usize| table.words[part * 8 + at + code / 4] >> (code % 4 * 8) & 255;
                    T::from_bits((byte(0) | byte(4) << 8) as u16).to_f32()
                };
                let sum: f64 = (0..parts).map(|part| f64::from(number(part))).sum();
                assert_eq!(sum * f64::from(table.unit), f64::from(*value));
            }
        }
        let integers = std::array::from_fn(|i| i as f32 * 15.0 - 112.0);
        check::<bf16>(integers, 1);
        check::<f16>(integers, 1);
        // As long as NF4's.
        let long = std::array::from_fn(|i| (i as f32 - 7.0) / 7.3);
        check::<bf16>(long, 3);
        check::<f16>(long, 2);
        assert_eq!(Table::of::<f16>(&[1e30; 16]), None);
    }

    #[test]
    fn codes_are_where_the_lane_that_multiplies_them_reads_them() {
        let form = Form::new(8, Meaning::Integers, ScaleKind::F32, Span::Inputs(32));
        let shape = Shape { form, n: 3, k: 128, leaf: 0 };
        let packed = pack(&shape, 0..1, |row, to| {
            to.codes.iter_mut().enumerate().for_each(|(col, code)| *code = (col + 64 * row) as u8);
            Ok::<(), ()>(())
        });
        let codes = &packed.unwrap().parts[0].0;
        // Row 2, k = 16 * 5 + 4 * 3 + 1: lane 11, second half, word 1, byte 1.
        assert_eq!(codes[512 + 11 * 16 + 4 + 1], 93 + 128);
        assert!(codes[12 * 16..512].iter().all(|code| *code == 0), "rows of padding");
    }
}
