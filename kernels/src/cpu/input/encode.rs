//! Writes encoded rows, from several tasks.

use std::ops::Range;

use super::super::disjoint::DisjointMut;
use super::super::simd::{Kernel, LANES, Simd, nearest_bf16};
use super::encoding::{CodeGroup, Encoding, INPUT_GROUP, ZERO};

/// The encoded rows, for several tasks to write.
pub(super) struct EncodedRows<'a> {
    pub(super) encoding: Encoding,
    pub(super) has_halves: bool,
    pub(super) width: usize,
    /// Stride between rows, in values of the encoding's buffer.
    pub(super) stride: usize,
    pub(super) values: DisjointMut<'a, f32>,
    pub(super) halves: DisjointMut<'a, u16>,
    pub(super) codes: DisjointMut<'a, CodeGroup>,
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
pub(in crate::cpu) struct Columns<'a> {
    /// Unencoded rows `[rows, width]`, if columns have another order.
    pub(super) whole: Option<DisjointMut<'a, f32>>,
    pub(super) encoded: EncodedRows<'a>,
}

impl Columns<'_> {
    /// Puts sixteen columns of a row, from `at` on.
    ///
    /// # Safety
    /// Only one task puts a column.
    #[inline(always)]
    pub(in crate::cpu) unsafe fn put_vector<S: Simd>(
        &self,
        s: S,
        row: usize,
        at: usize,
        values: [f32; LANES],
    ) {
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
    pub(in crate::cpu) unsafe fn put<S: Simd>(&self, s: S, row: usize, at: usize, values: &[f32]) {
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
    pub(in crate::cpu) unsafe fn end(&self, rows: Range<usize>, columns_end: usize) {
        if columns_end == self.encoded.width && self.whole.is_none() {
            // SAFETY: guaranteed by the caller.
            rows.for_each(|row| unsafe { self.encoded.pad(row) });
        }
    }
}

/// Encodes a row that no other task accesses.
pub(super) struct EncodeRow<'a> {
    pub(super) to: &'a EncodedRows<'a>,
    pub(super) row: usize,
    pub(super) values: &'a [f32],
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
