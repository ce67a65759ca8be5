//! Rows of activations in the encoding that a product reads. Whatever computes a row also encodes it, while
//! the row is still in the cache.

use std::ops::Range;

use super::aligned::{Aligned, LINE_BYTES};
use super::disjoint::DisjointMut;
use super::packed::{Order, ZERO};
use super::rows::Rows;
use super::simd::{Isa, Kernel, LANES, Simd, nearest_bf16};
use super::{Cpu, for_each_row_of};

/// Columns that share a scale of weights in grouped formats.
pub const GROUP: usize = 32;
/// Columns that share a scale of inputs that are codes.
pub const INPUT_GROUP: usize = 16;
/// Parts of a group that have scales of inputs.
pub(super) const PARTS: usize = GROUP / INPUT_GROUP;

/// Some columns of a row as codes, with all that products need to know of them, in half a cache line.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C, align(32))]
pub(super) struct CodeGroup {
    pub(super) codes: [i8; INPUT_GROUP],
    pub(super) scale: f32,
    /// Sum of the codes.
    pub(super) sum: i32,
    /// `-ZERO * sum`, for weights with that zero point.
    pub(super) offset: i32,
    /// `scale * sum`: sum of the values.
    pub(super) value: f32,
}

/// How activations are encoded for a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encoding {
    /// `f32`, not rounded.
    #[default]
    F32,
    /// Rounded to bfloat16, ties to even; subnormals become zero.
    Bf16,
    /// Codes `x / scale` from -127 to 127, ties to even, with one `f32` scale `max|x| / 127` per row and
    /// [`INPUT_GROUP`] columns. A scale for a whole row would be ruled by a few outliers, which every trained
    /// model has.
    Int8,
}

impl Encoding {
    /// Whether values are codes.
    fn is_codes(self) -> bool {
        self == Self::Int8
    }
}

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
pub(super) struct ColumnTasks {
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) tasks: usize,
    /// Values of memory that each task has for itself.
    pub(super) scratch_len: usize,
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
    pub(super) fn fill_columns(
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
    /// [order](super::packed::Packed::with_order); `None` keeps the order.
    pub fn set_order(&mut self, order: Option<Order>) {
        self.order = order;
    }

    /// Order set by [`Input::set_order`].
    pub(super) fn order(&self) -> Option<&Order> {
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
    pub(super) fn has_halves(&self) -> bool {
        self.has_halves
    }

    /// `f32` rows. For [`Encoding::F32`], and for bfloat16 stored as `f32`.
    ///
    /// # Panics
    /// If the rows are stored differently.
    pub(super) fn values(&self) -> Rows<'_> {
        assert!(!self.encoding.is_codes() && !self.has_halves, "rows are f32");
        let stride = padded::<f32>(self.width);
        Rows { values: &self.values[..self.rows * stride], stride }
    }

    /// Rows of bfloat16 bits.
    ///
    /// # Panics
    /// If the rows are stored differently.
    pub(super) fn halves(&self) -> Rows<'_, u16> {
        assert!(self.has_halves, "rows are bfloat16");
        let stride = padded::<u16>(self.width);
        Rows { values: &self.halves[..self.rows * stride], stride }
    }

    /// Rows of codes.
    ///
    /// # Panics
    /// If the rows are no codes.
    pub(super) fn codes(&self) -> Rows<'_, CodeGroup> {
        assert!(self.encoding.is_codes(), "rows are codes");
        let stride = padded::<CodeGroup>(self.width.div_ceil(INPUT_GROUP));
        Rows { values: &self.codes[..self.rows * stride], stride }
    }
}

/// The encoded rows, for several tasks to write.
struct EncodedRows<'a> {
    encoding: Encoding,
    has_halves: bool,
    width: usize,
    /// Stride between rows, in values of the encoding's buffer.
    stride: usize,
    values: DisjointMut<'a, f32>,
    halves: DisjointMut<'a, u16>,
    codes: DisjointMut<'a, CodeGroup>,
}

impl EncodedRows<'_> {
    /// Encodes columns `at..` of a row: whole groups, from the start of one, but at the row's end.
    ///
    /// # Safety
    /// No other task accesses these columns at the same time.
    #[inline(always)]
    unsafe fn put<S: Simd>(&self, s: S, row: usize, at: usize, values: &[f32]) {
        assert!(at + values.len() <= self.width, "columns of a row");
        if self.encoding == Encoding::Int8 {
            assert!(at.is_multiple_of(INPUT_GROUP), "columns start at a group");
            let from = row * self.stride + at / INPUT_GROUP;
            // SAFETY: guaranteed by the caller.
            return encode_groups(values, unsafe {
                self.codes.part(from, values.len().div_ceil(INPUT_GROUP))
            });
        }
        let from = row * self.stride + at;
        // SAFETY: guaranteed by the caller.
        unsafe {
            if self.has_halves {
                return to_bf16(s, values, self.halves.part(from, values.len()));
            }
            let to = self.values.part(from, values.len());
            if self.encoding == Encoding::F32 {
                to.copy_from_slice(values);
            } else {
                for (to, value) in to.iter_mut().zip(values) {
                    *to = f32::from_bits(u32::from(nearest_bf16(*value)) << 16);
                }
            }
        }
    }

    /// Writes the zeros after a row's last column, or after its group.
    ///
    /// # Safety
    /// No other task accesses the padding at the same time.
    #[inline(never)]
    unsafe fn pad(&self, row: usize) {
        let end = if self.encoding == Encoding::Int8 { self.width.div_ceil(INPUT_GROUP) } else { self.width };
        let (from, count) = (row * self.stride + end, self.stride - end);
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.encoding {
                Encoding::Int8 => self.codes.part(from, count).fill(CodeGroup::default()),
                Encoding::Bf16 if self.has_halves => self.halves.part(from, count).fill(0),
                Encoding::F32 | Encoding::Bf16 => self.values.part(from, count).fill(0.0),
            }
        }
    }
}

/// Rows to which each task adds its own columns.
pub(super) struct Columns<'a> {
    /// Unencoded rows `[rows, width]`, if columns have another order.
    whole: Option<DisjointMut<'a, f32>>,
    encoded: EncodedRows<'a>,
}

impl Columns<'_> {
    /// Puts sixteen columns of a row, from `at` on.
    ///
    /// # Safety
    /// Only one task puts a column.
    #[inline(always)]
    pub(super) unsafe fn put_vector<S: Simd>(&self, s: S, row: usize, at: usize, values: [f32; LANES]) {
        let EncodedRows { encoding, has_halves, width, stride, .. } = self.encoded;
        if encoding == Encoding::Int8 {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.put(s, row, at, &values) };
        }
        assert!(at + LANES <= width, "columns of a row");
        // SAFETY: guaranteed by the caller; the pointers' ranges are checked.
        unsafe {
            let vector = s.load(values.as_ptr());
            match encoding {
                Encoding::Bf16 if has_halves => {
                    s.store_bf16(vector, self.encoded.halves.pointer(row * stride + at, LANES));
                }
                Encoding::Bf16 => {
                    let rounded = s.store_bf16(vector, [0; LANES].as_mut_ptr());
                    s.store(rounded, self.encoded.values.pointer(row * stride + at, LANES));
                }
                Encoding::F32 | Encoding::Int8 => {
                    s.store(vector, self.encoded.values.pointer(row * stride + at, LANES));
                }
            }
        }
    }

    /// Puts columns `at..` of a row.
    ///
    /// # Safety
    /// Only one task puts a column.
    #[inline(always)]
    pub(super) unsafe fn put<S: Simd>(&self, s: S, row: usize, at: usize, values: &[f32]) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match &self.whole {
                Some(whole) => {
                    whole.part(row * self.encoded.width + at, values.len()).copy_from_slice(values);
                }
                None => self.encoded.put(s, row, at, values),
            }
        }
    }

    /// Pads `rows` with zeros if `columns_end` is the end of the row.
    ///
    /// # Safety
    /// Only the task that puts the last column calls this.
    #[inline(always)]
    pub(super) unsafe fn end(&self, rows: Range<usize>, columns_end: usize) {
        if columns_end == self.encoded.width && self.whole.is_none() {
            // SAFETY: guaranteed by the caller.
            rows.for_each(|row| unsafe { self.encoded.pad(row) });
        }
    }
}

/// Encodes a row that no other task accesses.
struct EncodeRow<'a> {
    to: &'a EncodedRows<'a>,
    row: usize,
    values: &'a [f32],
}

impl Kernel for EncodeRow<'_> {
    type Output = ();
    const USES_DOT: bool = true; // rounds to bfloat16 by an instruction

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { to, row, values } = self;
        // SAFETY: no other task accesses the row.
        unsafe {
            to.put(s, row, 0, values);
            to.pad(row);
        }
    }
}

/// Rounds `values` to bfloat16, as [`Simd::store_bf16`] does.
#[inline(always)]
fn to_bf16<S: Simd>(s: S, values: &[f32], halves: &mut [u16]) {
    let (vectors, rest) = values.as_chunks::<LANES>();
    let (to, rest_to) = halves.as_chunks_mut::<LANES>();
    for (vector, to) in vectors.iter().zip(to) {
        // SAFETY: sixteen values each.
        unsafe { s.store_bf16(s.load(vector.as_ptr()), to.as_mut_ptr()) };
    }
    for (value, to) in rest.iter().zip(rest_to) {
        *to = nearest_bf16(*value);
    }
}

/// Encodes values to groups of codes; the last group ends with zeros. If a value is NaN or infinite, so is
/// its group's scale, which makes the row's results NaN.
#[inline(always)]
fn encode_groups(values: &[f32], groups: &mut [CodeGroup]) {
    let (whole, rest) = values.as_chunks::<INPUT_GROUP>();
    for (group, values) in groups.iter_mut().zip(whole) {
        *group = encode_group(values);
    }
    if let (false, Some(group)) = (rest.is_empty(), groups.last_mut()) {
        let mut last = [0.0; INPUT_GROUP];
        last[..rest.len()].copy_from_slice(rest);
        *group = encode_group(&last);
    }
}

#[inline(always)]
fn encode_group(values: &[f32; INPUT_GROUP]) -> CodeGroup {
    let mut bits = 0u32; // non-negative floats sort like their bits, NaN highest
    for value in values {
        bits = bits.max(value.to_bits() & 0x7fff_ffff);
    }
    let highest = f32::from_bits(bits);
    let mut codes = [0; INPUT_GROUP];
    if highest > 0.0 && highest.is_finite() {
        encode(values, 127.0 / highest, &mut codes);
    }
    let mut sum = 0;
    for code in codes {
        sum += i32::from(code);
    }
    let scale = highest / 127.0;
    CodeGroup { codes, scale, sum, offset: -i32::from(ZERO) * sum, value: scale * sum as f32 }
}

/// `values * per_unit` as integers from -127 to 127, ties to even.
#[inline(always)]
fn encode(values: &[f32; INPUT_GROUP], per_unit: f32, codes: &mut [i8; INPUT_GROUP]) {
    // 1.5 * 2^23: adding it rounds a small value to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    for (code, value) in codes.iter_mut().zip(values) {
        let scaled = value * per_unit;
        // If the scale is so small that its inverse overflows, codes would be out of range.
        let scaled = if scaled < 127.0 { scaled } else { 127.0 };
        let scaled = if scaled > -127.0 { scaled } else { -127.0 };
        *code = (scaled + ROUND).to_bits() as i8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::Isa;

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
