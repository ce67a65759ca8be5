//! Memory of encoded rows, and what fills it.

use super::super::aligned::{Aligned, LINE_BYTES};
use super::super::disjoint::DisjointMut;
use super::super::rows::Rows;
use super::super::simd::{Isa, LANES};
use super::super::{Cpu, for_each_row_of};
use super::encode::{Columns, EncodeRow, EncodedRows};
use super::encoding::{CodeGroup, Encoding, INPUT_GROUP, Order};

/// Rows of activations `[rows, width]`. Reused between steps; grows to the largest size seen.
///
/// Each row is padded with zeros to an odd number of cache lines, so that the rows of a tile fall into
/// different cache sets whatever the width, and reading past a row's end finds zeros.
#[derive(Debug, Default)]
pub struct Input {
    encoding: Encoding,
    /// Whether [`Encoding::Bf16`] is stored as bfloat16. Otherwise it is stored as `f32` of the same value,
    /// for machines that multiply those faster.
    has_halves: bool,
    rows: usize,
    width: usize,
    /// Values not yet encoded: one row or some columns per thread, or all rows.
    unencoded: Aligned<f32>,
    /// `[rows, padded]`, for [`Encoding::F32`], and for [`Encoding::Bf16`] unless `has_halves`.
    values: Aligned<f32>,
    /// `[rows, padded]` bfloat16 bits, for [`Encoding::Bf16`] if `has_halves`.
    halves: Aligned<u16>,
    /// `[rows, padded]`, for [`Encoding::Int8`].
    codes: Aligned<CodeGroup>,
    /// Source column of each encoded value, if reordered.
    order: Option<Order>,
}

/// Division of `[rows, width]` among tasks that compute some columns of all rows.
pub(in crate::cpu) struct ColumnTasks {
    pub(in crate::cpu) rows: usize,
    pub(in crate::cpu) width: usize,
    pub(in crate::cpu) tasks: usize,
    /// Values of memory that each task has for itself.
    pub(in crate::cpu) scratch_len: usize,
}

/// `values` reordered by `order`, whose entries must be below their number.
fn in_order<'a>(order: Option<&[u32]>, values: &'a mut [f32], reordered: &'a mut [f32]) -> &'a [f32] {
    let Some(order) = order else { return values };
    for (to, from) in reordered.iter_mut().zip(order) {
        *to = values[*from as usize];
    }
    reordered
}

/// Values in a row with its padding.
fn padded<T>(width: usize) -> usize {
    ((width * size_of::<T>()).div_ceil(LINE_BYTES) | 1) * (LINE_BYTES / size_of::<T>())
}

impl Input {
    /// Sets `rows` rows of `width` values in `encoding`; `row(i, out)` computes row `i`.
    pub fn fill(
        &mut self,
        cpu: &mut Cpu,
        encoding: Encoding,
        rows: usize,
        width: usize,
        row: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let reordered_at = cpu.threads.count() * width;
        self.unencoded.grow(2 * reordered_at);
        let (isa, order) = (cpu.isa, self.order.clone());
        let (unencoded, encoded) = self.reshape(isa, encoding, rows, width);
        let unencoded = DisjointMut::new(unencoded);
        for_each_row_of(cpu, rows, width, |i, participant| {
            // SAFETY: each row is in one task, and a participant computes one row at a time.
            unsafe {
                if encoding == Encoding::F32 {
                    let (values, padding) =
                        encoded.values.part(i * encoded.stride, encoded.stride).split_at_mut(width);
                    row(i, values);
                    return padding.fill(0.0);
                }
                let values = unencoded.part(participant * width, width);
                row(i, values);
                let reordered = unencoded.part(reordered_at + participant * width, width);
                let values = in_order(order.as_deref(), values, reordered);
                isa.run(EncodeRow { to: &encoded, row: i, values });
            }
        });
    }

    /// As [`Self::fill`], but each task computes some columns of all rows. `task(i, scratch, columns)`
    /// [puts](Columns::put) each of its values once, in whole groups of sixteen columns but at a row's end.
    pub(in crate::cpu) fn fill_columns(
        &mut self,
        cpu: &mut Cpu,
        encoding: Encoding,
        division: ColumnTasks,
        task: impl Fn(usize, &mut [f32], &Columns<'_>) + Sync,
    ) {
        let ColumnTasks { rows, width, tasks, scratch_len } = division;
        // The values of a group are apart if columns have another order.
        let (isa, order) = (cpu.isa, self.order.clone());
        let whole = if order.is_some() { (rows * width).next_multiple_of(LANES) } else { 0 };
        let scratch_len = if order.is_some() { scratch_len.max(width) } else { scratch_len };
        self.unencoded.grow(whole + cpu.threads.count() * scratch_len);
        let (unencoded, encoded) = self.reshape(isa, encoding, rows, width);
        let (whole, scratch) = unencoded.split_at_mut(whole);
        let whole = order.as_ref().map(|_| DisjointMut::new(whole));
        let (columns, scratch) = (Columns { whole, encoded }, DisjointMut::new(scratch));
        cpu.threads.run(tasks, |i, participant| {
            // SAFETY: participants are distinct among concurrent calls.
            task(i, unsafe { scratch.part(participant * scratch_len, scratch_len) }, &columns);
        });
        if let Columns { whole: Some(whole), encoded } = &columns {
            for_each_row_of(cpu, rows, width, |row, participant| {
                // SAFETY: all columns are written, each row belongs to one task, and a participant encodes
                // one row at a time.
                unsafe {
                    let values = whole.part(row * width, width);
                    let reordered = scratch.part(participant * scratch_len, width);
                    let values = in_order(order.as_deref(), values, reordered);
                    isa.run(EncodeRow { to: encoded, row, values });
                }
            });
        }
    }

    /// Prepares for rows of this shape; returns the buffer for unencoded values and the encoded rows.
    fn reshape(
        &mut self,
        isa: Isa,
        encoding: Encoding,
        rows: usize,
        width: usize,
    ) -> (&mut [f32], EncodedRows<'_>) {
        let fits = self
            .order
            .as_ref()
            .is_none_or(|order| order.len() == width && order.iter().all(|from| (*from as usize) < width));
        assert!(fits, "an order has an entry for each value of a row");
        assert!(self.order.is_none() || encoding.is_codes(), "only codes are reordered");
        self.has_halves = encoding == Encoding::Bf16 && isa.has_dot();
        (self.encoding, self.rows, self.width) = (encoding, rows, width);
        let stride = match encoding {
            Encoding::Int8 => padded::<CodeGroup>(width.div_ceil(INPUT_GROUP)),
            Encoding::Bf16 if self.has_halves => padded::<u16>(width),
            Encoding::F32 | Encoding::Bf16 => padded::<f32>(width),
        };
        match encoding {
            Encoding::Int8 => self.codes.grow(rows * stride),
            Encoding::Bf16 if self.has_halves => self.halves.grow(rows * stride),
            Encoding::F32 | Encoding::Bf16 => self.values.grow(rows * stride),
        }
        let encoded = EncodedRows {
            encoding,
            has_halves: self.has_halves,
            width,
            stride,
            values: DisjointMut::new(&mut self.values),
            halves: DisjointMut::new(&mut self.halves),
            codes: DisjointMut::new(&mut self.codes),
        };
        (&mut self.unencoded, encoded)
    }

    /// Encodes rows of `width` values that are already computed.
    ///
    /// # Panics
    /// If `x` is not `[rows, width]`.
    pub fn set(&mut self, cpu: &mut Cpu, encoding: Encoding, x: &[f32], width: usize) {
        assert!(width > 0 && x.len().is_multiple_of(width), "x is [rows, width]");
        self.fill(cpu, encoding, x.len() / width, width, |i, out| {
            out.copy_from_slice(&x[i * width..][..width])
        });
    }

    /// Copies the rows to `to` without padding.
    ///
    /// # Panics
    /// If they are not stored as `f32`, or `to` has a different size.
    pub fn copy_to(&self, to: &mut [f32]) {
        let Rows { values, stride } = self.values();
        assert_eq!(to.len(), self.rows * self.width, "to is [rows, width]");
        let rows = values.chunks_exact(stride).zip(to.chunks_exact_mut(self.width));
        rows.for_each(|(row, to)| to.copy_from_slice(&row[..self.width]));
    }

    /// The rows as `f32`.
    ///
    /// # Panics
    /// If they are encoded otherwise.
    pub fn as_f32(&self) -> Rows<'_> {
        assert_eq!(self.encoding, Encoding::F32, "rows are f32");
        self.values()
    }

    /// From now on, encoded value `i` is value `order[i]` of its row, for products with a matrix of that
    /// [order](super::super::packed::Packed::with_order); `None` keeps the order.
    pub fn set_order(&mut self, order: Option<Order>) {
        self.order = order;
    }

    /// Order set by [`Input::set_order`].
    pub(in crate::cpu) fn order(&self) -> Option<&Order> {
        self.order.as_ref()
    }

    /// How the rows are encoded.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether rows are stored as bfloat16 bits.
    #[cfg(test)]
    pub(in crate::cpu) fn has_halves(&self) -> bool {
        self.has_halves
    }

    /// `f32` rows. For [`Encoding::F32`], and for bfloat16 stored as `f32`.
    ///
    /// # Panics
    /// If the rows are stored differently.
    pub(in crate::cpu) fn values(&self) -> Rows<'_> {
        assert!(!self.encoding.is_codes() && !self.has_halves, "rows are f32");
        let stride = padded::<f32>(self.width);
        Rows { values: &self.values[..self.rows * stride], stride }
    }

    /// Rows of bfloat16 bits.
    ///
    /// # Panics
    /// If the rows are stored differently.
    pub(in crate::cpu) fn halves(&self) -> Rows<'_, u16> {
        assert!(self.has_halves, "rows are bfloat16");
        let stride = padded::<u16>(self.width);
        Rows { values: &self.halves[..self.rows * stride], stride }
    }

    /// Rows of codes.
    ///
    /// # Panics
    /// If the rows are no codes.
    pub(in crate::cpu) fn codes(&self) -> Rows<'_, CodeGroup> {
        assert!(self.encoding.is_codes(), "rows are codes");
        let stride = padded::<CodeGroup>(self.width.div_ceil(INPUT_GROUP));
        Rows { values: &self.codes[..self.rows * stride], stride }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::nearest_bf16;

    #[test]
    fn every_encoding_is_within_its_rounding_and_the_same_on_every_instruction_set() {
        let (rows, width) = (11, 77);
        let x: Vec<f32> = (0..rows * width).map(|i| ((i * 71 % 997) as f32 - 498.0) * 0.013).collect();
        for encoding in [Encoding::F32, Encoding::Bf16, Encoding::Int8] {
            let mut first = None;
            for isa in Isa::available() {
                let mut input = Input::default();
                input.set(&mut Cpu::with_isa(2, isa), encoding, &x, width);
                assert_eq!((input.rows(), input.width(), input.encoding()), (rows, width, encoding));
                let Rows { values: groups, stride } = match encoding {
                    Encoding::Int8 => input.codes(),
                    _ => Rows { values: &[], stride: 0 },
                };
                // The encoded floats as bits of `f32`.
                let (floats, float_stride) = match encoding {
                    Encoding::Int8 => (Vec::new(), width),
                    Encoding::Bf16 if isa.has_dot() => {
                        let Rows { values, stride } = input.halves();
                        (values.iter().map(|half| u32::from(*half) << 16).collect(), stride)
                    }
                    _ => {
                        let Rows { values, stride } = input.values();
                        (values.iter().map(|value| value.to_bits()).collect(), stride)
                    }
                };
                let floats: Vec<u32> = floats
                    .chunks(float_stride)
                    .flat_map(|row| {
                        assert!(row[width..].iter().all(|padding| *padding == 0));
                        row[..width].to_vec()
                    })
                    .collect();
                for (got, x) in floats.iter().zip(&x) {
                    let round = |x: f32| half::bf16::from_f32(x).to_f32();
                    let expected = if encoding == Encoding::Bf16 { round(*x) } else { *x };
                    assert_eq!(*got, expected.to_bits(), "{x}");
                }
                for (i, group) in groups.iter().enumerate() {
                    let (row, col) = (i / stride, i % stride * INPUT_GROUP);
                    let end = width.min(col + INPUT_GROUP);
                    let values = x[row * width..][..width].get(col..end).unwrap_or_default();
                    let largest = values.iter().fold(0f32, |largest, x| largest.max(x.abs()));
                    assert_eq!(group.scale, largest / 127.0);
                    for (code, x) in group.codes.iter().zip(values) {
                        assert!((f32::from(*code) * group.scale - x).abs() <= group.scale * 0.5001);
                    }
                    assert!(group.codes[values.len()..].iter().all(|code| *code == 0));
                    let sum = group.codes.iter().map(|code| i32::from(*code)).sum::<i32>();
                    assert_eq!((group.sum, group.offset), (sum, -128 * sum));
                    assert_eq!(group.value, group.scale * sum as f32);
                }
                let all = (groups.to_vec(), floats);
                assert_eq!(*first.get_or_insert_with(|| all.clone()), all, "{}", isa.name());
            }
        }
    }

    #[test]
    fn codes_are_rounded_to_even() {
        // The largest value of each group is 127, so that codes equal values.
        let small = (-254..=254).map(|i| i as f32 / 2.0).collect::<Vec<_>>();
        let x: Vec<f32> = small.chunks(INPUT_GROUP - 1).flat_map(|part| [&[127.0], part].concat()).collect();
        for isa in Isa::available() {
            let mut input = Input::default();
            input.set(&mut Cpu::with_isa(1, isa), Encoding::Int8, &x, x.len());
            let codes = input.codes().values.iter().flat_map(|group| group.codes);
            for (code, x) in codes.zip(&x) {
                assert_eq!(f32::from(code), x.round_ties_even(), "{}", isa.name());
            }
        }
    }

    #[test]
    fn zeros_infinities_and_nan_survive_encoding() {
        assert_eq!((nearest_bf16(1e-39), nearest_bf16(-1e-39)), (0, 0x8000));
        assert_eq!(nearest_bf16(f32::INFINITY), 0x7f80);
        assert!(half::bf16::from_bits(nearest_bf16(f32::from_bits(0x7f80_0001))).is_nan());
        let mut input = Input::default();
        input.set(
            &mut Cpu::new(1),
            Encoding::Int8,
            &[0.0, 0.0, 1.0, f32::NAN, 1e-44, 0.0, f32::NEG_INFINITY, 1.0],
            2,
        );
        let Rows { values: groups, stride } = input.codes();
        let scale = |row: usize| groups[row * stride].scale;
        assert!(scale(0) == 0.0 && scale(1).is_nan() && scale(2) >= 0.0);
        // Zero codes times an infinite scale give NaN, too.
        assert!(scale(3) == f32::INFINITY && groups[3 * stride].codes == [0; INPUT_GROUP]);
    }
}
