//! A matrix of codes in a checkpoint, read row by row while it is packed.

use std::ops::Range;
use std::sync::Arc;

use safetensors::tensor::Dtype;
use skein_kernels::cpu::packed::{Format, GivenRow, GivenRows, NotFinite, Order, PackError};
use skein_sys::mapped::Bytes;

use super::module::Module;
use super::raw::Raw;
use crate::LoadError;
use crate::tensors::Place;

/// Column counts that share a scale in packed formats, as in [`Format::INT4_SPANS`].
const SPANS: [usize; 3] = [32, 64, 128];
/// Columns that share a scale in [`Format::TABLE_SPAN16`].
const SHORT_SPAN: usize = 16;

/// Interpretation of the codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// `scale * (code - zero)` with codes of up to 4 bits.
    Int4,
    /// `scale * (code - zero)` with 8-bit codes.
    Int8,
    /// FP8 numbers (E4M3).
    Fp8,
    /// Indices into the matrix's table.
    Table,
}

/// Storage of the codes.
pub(super) enum Codes {
    /// 32-bit words `[inputs * bits / 32, outputs]`, filled along the inputs from the low bits.
    DownInputs { words: Bytes, bits: usize },
    /// AWQ's words `[inputs, outputs / 8]`.
    Awq { words: Bytes },
    /// Words `[outputs, words]`, filled along the inputs.
    AlongInputs { words: Bytes, bits: usize, each: usize },
    /// Bytes `[outputs, inputs]`, each xored with `flip`.
    Bytes { bytes: Bytes, flip: u8 },
    /// Half bytes `[outputs, inputs]`.
    Halves { bytes: Bytes, is_low_first: bool },
}

/// Storage of the zero points.
pub(super) enum Zeros {
    /// One value for all.
    All(u8),
    /// Words `[groups, outputs * bits / 32]`, filled along the outputs. GPTQ's version 1 stores them less
    /// one.
    AlongOutputs { words: Bytes, bits: usize, is_less_one: bool },
    /// AWQ's words `[groups, outputs / 8]`.
    Awq { words: Bytes },
    /// Words `[outputs * bits / 32, groups]`, filled along the outputs.
    DownOutputs { words: Bytes, bits: usize },
    /// Signed bytes `[outputs, groups]`, from -128.
    Bytes(Bytes),
}

/// Storage of scales: output `n` and group `g` use value `n / rows_each * row + g * group`.
pub(super) struct Grid {
    pub values: Bytes,
    pub dtype: Dtype,
    pub rows_each: usize,
    pub row: usize,
    pub group: usize,
}

impl Grid {
    /// Scales `[outputs, groups]`, or for blocks of `rows_each` outputs.
    pub fn by_output(raw: &Raw, rows_each: usize) -> Self {
        let row = raw.shape.get(1).copied().unwrap_or(1);
        Self { values: raw.bytes.clone(), dtype: raw.dtype, rows_each, row, group: 1 }
    }

    /// Scales in the order `[groups, outputs]`.
    pub fn by_group(raw: &Raw) -> Self {
        let group = raw.shape.get(1).copied().unwrap_or(1);
        Self { values: raw.bytes.clone(), dtype: raw.dtype, rows_each: 1, row: 1, group }
    }

    /// One scale for the whole matrix.
    pub fn single(raw: &Raw) -> Self {
        Self { values: raw.bytes.clone(), dtype: raw.dtype, rows_each: 1, row: 0, group: 0 }
    }

    fn at(&self, row: usize, group: usize) -> f32 {
        float(&self.values, self.dtype, row / self.rows_each * self.row + group * self.group)
    }
}

/// Form of the scales.
pub(super) enum Scales {
    Grid(Grid),
    /// Values of a grid divided by a number for the whole matrix.
    Divided(Grid, f32),
    /// Values of a grid multiplied by a number for the whole matrix.
    Multiplied(Grid, f32),
    /// `nested_table[code] * nested_scale + offset` per group, in bitsandbytes's flat order.
    Nested {
        codes: Bytes,
        table: Vec<f32>,
        scales: Vec<f32>,
        codes_each: usize,
        offset: f32,
        row_groups: usize,
    },
}

impl Scales {
    fn at(&self, row: usize, group: usize) -> f32 {
        match self {
            Self::Grid(grid) => grid.at(row, group),
            Self::Divided(grid, by) => grid.at(row, group) / by,
            Self::Multiplied(grid, by) => grid.at(row, group) * by,
            Self::Nested { codes, table, scales, codes_each, offset, row_groups } => {
                let at = row * row_groups + group;
                table[usize::from(codes[at])] * scales[at / codes_each] + offset
            }
        }
    }
}

/// Value `index` of `bytes`, widened to f32.
pub(crate) fn float(bytes: &[u8], dtype: Dtype, index: usize) -> f32 {
    match dtype {
        Dtype::F16 => half::f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32(),
        Dtype::F8_E4M3 => e4m3(bytes[index]),
        // A power of two (E8M0). The smallest is subnormal, and the code for NaN gives infinity.
        Dtype::U8 | Dtype::F8_E8M0 => f32::from_bits(match bytes[index] {
            0 => 1 << 22,
            exponent => u32::from(exponent) << 23,
        }),
        Dtype::BF16 => half::bf16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32(),
        _ => f32::from_le_bytes(std::array::from_fn(|i| bytes[4 * index + i])),
    }
}

/// Value of an FP8 number (E4M3).
fn e4m3(code: u8) -> f32 {
    // Half precision has the same order of fields, and exponents that are 8 larger.
    let bits = u16::from(code & 0x80) << 8 | u16::from(code & 0x7f) << 7;
    let is_nan = code & 0x7f == 0x7f;
    if is_nan { f32::NAN } else { half::f16::from_bits(bits).to_f32() * 256.0 }
}

/// 32-bit word `index` of `bytes`.
fn word(bytes: &[u8], index: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[4 * index + i]))
}

/// Code `number` of a row of words, packed from the low bits without gaps.
fn field(number: usize, bits: usize, word: impl Fn(usize) -> u32) -> u8 {
    let (at, shift) = (number * bits / 32, number * bits % 32);
    let low = word(at) >> shift;
    let high = if shift + bits > 32 { word(at + 1) << (32 - shift) } else { 0 };
    ((low | high) & ((1 << bits) - 1)) as u8
}

/// Code `number` of a row of words that were written less one. If codes divide words, GPTQModel subtracts
/// from whole words, so a code of 0 borrows from the next one; adding to whole words undoes that. In three
/// bits, codes cross words, and it subtracts from each code alone.
fn one_more(number: usize, bits: usize, word: impl Fn(usize) -> u32) -> u8 {
    let most = u8::MAX >> (8 - bits);
    if 32 % bits != 0 {
        return field(number, bits, word).wrapping_add(1) & most;
    }
    let ones = u32::MAX / u32::from(most); // 1 in each code
    field(number, bits, |at| word(at).wrapping_add(ones))
}

/// Position of each column's code in an AWQ word, in codes.
const AWQ_PLACES: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A matrix of codes `[outputs, inputs]`, independent of its byte order.
pub(super) struct StoredCodes {
    pub rows: usize,
    pub cols: usize,
    pub meaning: Meaning,
    pub codes: Codes,
    pub scales: Scales,
    pub zeros: Zeros,
    /// Inputs per group, in the order of `order`.
    pub group: usize,
    /// Inputs sorted by group, if the checkpoint has a different order.
    pub order: Option<Order>,
    /// Value of each code, for codes that are table indices.
    pub table: [f32; 16],
}

impl StoredCodes {
    fn code(&self, row: usize, col: usize) -> u8 {
        match &self.codes {
            Codes::DownInputs { words, bits } => field(col, *bits, |at| word(words, at * self.rows + row)),
            Codes::AlongInputs { words, bits, each } => field(col, *bits, |at| word(words, row * each + at)),
            Codes::Awq { words } => awq(words, col, row, self.rows),
            Codes::Bytes { bytes, flip } => bytes[row * self.cols + col] ^ flip,
            Codes::Halves { bytes, is_low_first } => {
                let at = row * self.cols + col;
                bytes[at / 2] >> (if at.is_multiple_of(2) == *is_low_first { 0 } else { 4 }) & 15
            }
        }
    }

    fn zero(&self, row: usize, group: usize) -> u8 {
        match &self.zeros {
            Zeros::All(zero) => *zero,
            Zeros::AlongOutputs { words, bits, is_less_one } => {
                let each = self.rows * bits / 32;
                let stored = |at| word(words, group * each + at);
                if *is_less_one { one_more(row, *bits, stored) } else { field(row, *bits, stored) }
            }
            Zeros::Awq { words } => awq(words, group, row, self.rows),
            Zeros::DownOutputs { words, bits } => {
                let groups = self.cols.div_ceil(self.group);
                field(row, *bits, |at| word(words, at * groups + group))
            }
            Zeros::Bytes(bytes) => bytes[row * self.cols.div_ceil(self.group) + group] ^ 0x80,
        }
    }

    /// Whether every zero point is 128.
    fn is_symmetric(&self) -> bool {
        matches!(self.zeros, Zeros::All(128))
    }
}

/// Code of output `row` in line `line` of AWQ's words.
fn awq(words: &[u8], line: usize, row: usize, rows: usize) -> u8 {
    (word(words, line * (rows / 8) + row / 8) >> (4 * AWQ_PLACES[row % 8]) & 15) as u8
}

/// A matrix of codes `[outputs, inputs]`, or part of one.
#[derive(Clone)]
pub struct CodedMatrix {
    name: Arc<str>,
    stored: Arc<StoredCodes>,
    /// Output of the stored matrix from which `place` counts.
    first: usize,
    /// Which outputs of the stored matrix these are.
    place: Place,
    /// Outputs of `place` before the first of these.
    skipped: usize,
    rows: usize,
    cols: Range<usize>,
}

impl CodedMatrix {
    pub(super) fn whole(stored: StoredCodes, name: &str) -> Self {
        let (rows, cols) = (stored.rows, 0..stored.cols);
        let place = Place::Rows;
        Self { name: name.into(), stored: Arc::new(stored), first: 0, place, skipped: 0, rows, cols }
    }

    /// `rows` outputs of a whole matrix, from `first` on as `place` says.
    ///
    /// # Panics
    /// If the matrix has no such outputs, or is a part.
    pub fn outputs(&self, first: usize, place: Place, rows: usize) -> Self {
        assert!(self.rows == self.stored.rows, "a whole matrix");
        assert!(rows > 0 && first + place.row(rows - 1) < self.rows, "outputs of the matrix");
        Self { first, place, rows, ..self.clone() }
    }

    /// Output of the stored matrix that is output `row` of this one.
    fn stored_row(&self, row: usize) -> usize {
        self.first + self.place.row(self.skipped + row)
    }

    /// The stored matrix, of which this may be a part.
    pub(super) fn stored(&self) -> &StoredCodes {
        &self.stored
    }

    /// Scales of output `row` at the inputs `starts` before the number for the whole matrix is applied.
    /// `None` if there is no such number.
    pub(super) fn relative_scales(&self, row: usize, starts: &[usize]) -> Option<Vec<f32>> {
        let (Scales::Divided(grid, _) | Scales::Multiplied(grid, _)) = &self.stored.scales else {
            return None;
        };
        let (row, group) = (self.stored_row(row), self.stored.group);
        let scale = |start: &usize| grid.at(row, (self.cols.start + start) / group);
        Some(starts.iter().map(scale).collect())
    }

    /// Name in the checkpoint.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of inputs.
    pub fn cols(&self) -> usize {
        self.cols.len()
    }

    /// Inputs sorted by group, if the checkpoint has a different order.
    pub fn order(&self) -> Option<&Order> {
        self.stored.order.as_ref()
    }

    /// Size of its codes, in bytes.
    pub fn len_bytes(&self) -> usize {
        let bits = if matches!(self.stored.meaning, Meaning::Int4 | Meaning::Table) { 4 } else { 8 };
        self.rows() * self.cols() * bits / 8
    }

    /// The part with these rows and columns.
    ///
    /// # Errors
    /// If the columns are sorted by group and would be split.
    ///
    /// # Panics
    /// If the matrix has no such rows and columns.
    pub fn part(&self, rows: Range<usize>, cols: Range<usize>) -> Result<Self, LoadError> {
        assert!(rows.end <= self.rows() && cols.end <= self.cols(), "a part of the matrix");
        if self.order().is_some() && cols != (0..self.cols()) {
            return Err(LoadError::CodedTensor {
                tensor: self.name.to_string(),
                reason:
                    "its inputs are in activation order (g_idx), so ranks cannot split them; serve it with \
                         --tensor-parallel-size 1"
                        .into(),
            });
        }
        let cols = self.cols.start + cols.start..self.cols.start + cols.end;
        Ok(Self { skipped: self.skipped + rows.start, rows: rows.len(), cols, ..self.clone() })
    }

    /// Number of leaves of its product's sums, given the configured `leaves`. It is one if the inputs are
    /// sorted, because leaves are consecutive inputs.
    pub fn leaves(&self, leaves: usize) -> usize {
        if self.order().is_some() { 1 } else { leaves }
    }

    /// Packed format that preserves all codes and scales.
    ///
    /// # Errors
    /// If groups are not multiples of 32 columns.
    pub fn format(&self, leaves: usize) -> Result<Format, LoadError> {
        let StoredCodes { meaning, group, cols, .. } = *self.stored;
        let (leaf, is_single) = (self.cols() / self.leaves(leaves), group >= cols);
        if meaning == Meaning::Int8 && is_single && self.stored.is_symmetric() {
            return Ok(Format::INT8);
        }
        let is_cut = self.leaves(leaves) > 1 || self.cols() < cols;
        let fits = |span: &usize| {
            is_single || (group.is_multiple_of(*span) && (!is_cut || leaf.is_multiple_of(*span)))
        };
        if meaning == Meaning::Table && group % SPANS[0] == SHORT_SPAN && !is_single {
            return Ok(Format::TABLE_SPAN16);
        }
        let span = (0..SPANS.len()).rev().find(|span| fits(&SPANS[*span]));
        let span = span.ok_or_else(|| LoadError::CodedTensor {
            tensor: self.name.to_string(),
            reason: format!(
                "it has groups of {group} inputs; the CPU has groups of a multiple of {} and of all inputs",
                SPANS[0]
            ),
        })?;
        Ok(match meaning {
            Meaning::Int4 => Format::INT4_SPANS[span],
            Meaning::Int8 => Format::INT8_SPANS[span],
            Meaning::Fp8 => Format::FP8_SPANS[span],
            Meaning::Table => Format::TABLE_SPANS[span],
        })
    }

    /// Rows for packing; row `i` is row `from(i)` of the matrix.
    pub fn in_order<F: Fn(usize) -> usize + Sync>(&self, from: F) -> CodedRows<'_, F> {
        CodedRows { matrix: self, from }
    }
}

/// Rows of a [`CodedMatrix`] in a given order.
pub struct CodedRows<'a, F> {
    matrix: &'a CodedMatrix,
    from: F,
}

impl<F: Fn(usize) -> usize + Sync> GivenRows for CodedRows<'_, F> {
    fn row(&self, row: usize, to: GivenRow<'_>) -> Result<(), PackError> {
        let CodedMatrix { stored, cols, .. } = self.matrix;
        let from = self.matrix.stored_row((self.from)(row));
        for (i, code) in to.codes.iter_mut().enumerate() {
            let col = stored.order.as_ref().map_or(cols.start + i, |order| order[i] as usize);
            *code = stored.code(from, col);
        }
        // Both codes of NaN.
        let is_nan = |code: &u8| stored.meaning == Meaning::Fp8 && code & 0x7f == 0x7f;
        if let Some(col) = to.codes.iter().position(is_nan) {
            return Err(NotFinite { row, col, value: f32::NAN }.into());
        }
        for (i, start) in to.starts.iter().enumerate() {
            let group = (cols.start + start) / stored.group;
            to.scales[i] = stored.scales.at(from, group);
            if !to.scales[i].is_finite() {
                return Err(NotFinite { row, col: *start, value: to.scales[i] }.into());
            }
            to.zeros.iter_mut().skip(i).take(1).for_each(|to| *to = stored.zero(from, group));
        }
        Ok(())
    }

    fn table(&self) -> [f32; 16] {
        self.matrix.stored.table
    }
}

/// Inputs sorted by the group that `g_idx` assigns; `None` if already sorted.
///
/// # Errors
/// If a group does not exist or does not have `group` inputs.
pub(super) fn order(module: &Module<'_>, raw: &Raw, group: usize) -> Result<Option<Order>, LoadError> {
    let groups = module.cols.div_ceil(group);
    let of: Vec<u32> = (0..module.cols).map(|col| word(&raw.bytes, col)).collect();
    if of.iter().all(|group| *group == u32::MAX) {
        return Ok(None); // the initial value in compressed-tensors
    }
    if let Some(col) = of.iter().position(|at| *at as usize >= groups) {
        let reason = format!("input {col} is of group {}, and there are {groups}", of[col] as i32);
        return Err(module.bad(&raw.name, reason));
    }
    let mut order: Vec<u32> = (0..module.cols as u32).collect();
    order.sort_by_key(|col| of[*col as usize]); // stable, as the format requires
    for (i, inputs) in order.chunks(group).enumerate() {
        if let Some(col) = inputs.iter().find(|col| of[**col as usize] as usize != i) {
            let reason = format!(
                "input {col} is of group {}, but sorted it falls into group {i}: groups must have {group} inputs each",
                of[*col as usize]
            );
            return Err(module.bad(&raw.name, reason));
        }
    }
    let is_sorted = order.iter().enumerate().all(|(i, col)| i == *col as usize);
    Ok((!is_sorted).then(|| order.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_point_of_0_stored_less_one_borrows_from_its_neighbour() {
        let check = |bits: usize, words: &[u32], expected: &[u8]| {
            let zeros: Vec<u8> = (0..expected.len()).map(|row| one_more(row, bits, |at| words[at])).collect();
            assert_eq!(zeros, expected, "{bits} bits, {words:x?}");
        };
        // GPTQModel 7.7.0: the words of these zero points after its `convert_gptq_v2_to_v1_format_module`.
        check(4, &[0x7655_331f], &[0, 3, 4, 4, 6, 6, 7, 8]);
        check(4, &[0x7777_7777], &[8; 8]);
        check(4, &[0xeeee_eeee], &[15; 8]);
        check(4, &[0xeeee_eeef], &[0; 8]);
        check(8, &[0x7f7f_7eff], &[0, 128, 128, 128]);
        check(2, &[0xaaaa_aaa7], &[0, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
        check(3, &[0xffff_ffff, 0, 0], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4]);
    }

    #[test]
    fn powers_of_two_have_torchs_values() {
        // torch.tensor(bytes, dtype=torch.uint8).view(torch.float8_e8m0fnu).float(); 255 is NaN there.
        let values = [0u8, 1, 126, 127, 128, 254].map(|code| float(&[code], Dtype::F8_E8M0, 0));
        assert_eq!(values, [5.877_472e-39, 1.175_494_4e-38, 0.5, 1.0, 2.0, 1.701_411_8e38]);
        assert!(!float(&[255], Dtype::F8_E8M0, 0).is_finite());
    }
}
