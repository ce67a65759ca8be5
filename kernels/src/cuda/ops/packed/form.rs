//! Forms of packed matrices, and where their parts are in device memory. The layout is that of
//! `cu/packed.cuh`.

use std::ops::Range;

/// Inputs per block.
pub const BLOCK: usize = 128;
/// Rows per octet.
pub const OCTET: usize = 8;
/// Most numbers that the value of a code in a table is the sum of.
pub const MAX_PARTS: usize = 3;
/// Words of a part of a table.
pub(super) const TABLE_WORDS: usize = 8;
/// Alignment of the parts, in bytes.
const ALIGNMENT: usize = 256;

/// How codes become numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Meaning {
    /// `code - zero`.
    Integers,
    /// The number with this index in a table of sixteen.
    Table,
    /// FP8 (E4M3 without infinities).
    E4m3,
}

/// How scales and minima are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScaleKind {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// Powers of two, in 8 bits.
    Power,
    /// 8-bit integers, which are factors of a half-precision number for each row and [`BLOCK`] of inputs.
    Factor,
    /// FP8 numbers (E4M3), which are divided by a single-precision number for each row, or multiplied by its
    /// magnitude if it is negative.
    E4m3,
}

impl ScaleKind {
    /// Bytes of a scale.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Power | Self::Factor | Self::E4m3 => 1,
        }
    }
}

/// The inputs that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Span {
    /// This many consecutive inputs of a leaf: 16, 32, 64 or 128.
    Inputs(usize),
    /// All inputs of a leaf; all of a row without leaves.
    Leaf,
}

impl Span {
    /// Lengths of [`Span::Inputs`], longest first.
    pub const LENGTHS: [usize; 4] = [128, 64, 32, 16];

    /// The kernels' argument.
    pub(super) fn code(self) -> usize {
        match self {
            Self::Inputs(inputs) => (inputs / 16).ilog2() as usize,
            Self::Leaf => 4,
        }
    }
}

/// How a matrix is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Form {
    /// Bits per code: 4, 6 or 8. Tables have 4, FP8 has 8.
    pub bits: usize,
    /// How codes become numbers.
    pub meaning: Meaning,
    /// Storage of scales and minima.
    pub scales: ScaleKind,
    /// The inputs that share a scale.
    pub span: Span,
    /// The code of zero, if all have the same; `None`: one per row and span.
    pub zero: Option<u8>,
    /// Whether a weight is `scale * number + minimum`, with a minimum per row and span.
    pub has_minima: bool,
    /// Numbers of the activations' type that the value of a code in a table is the sum of; else 1.
    pub parts: usize,
    /// Orders of the columns: equally many rows have each, in which column `i` belongs to input `order[i]`.
    /// 0: columns are in the inputs' order.
    pub orders: usize,
}

impl Form {
    /// A form without minima, in the inputs' order.
    pub fn new(bits: usize, meaning: Meaning, scales: ScaleKind, span: Span) -> Self {
        Self { bits, meaning, scales, span, zero: Some(0), has_minima: false, parts: 1, orders: 0 }
    }

    /// The form in which both this and `other` can be stored without loss; `None` if there is none.
    pub fn join(self, other: Self) -> Option<Self> {
        if self.meaning != other.meaning || self.orders != other.orders {
            return None;
        }
        let is_same = self.scales == other.scales;
        let span = match (self.span, other.span) {
            (Span::Inputs(a), Span::Inputs(b)) => Span::Inputs(a.min(b)),
            (Span::Inputs(inputs), Span::Leaf) | (Span::Leaf, Span::Inputs(inputs)) => Span::Inputs(inputs),
            (Span::Leaf, Span::Leaf) => Span::Leaf,
        };
        Some(Self {
            bits: self.bits.max(other.bits),
            scales: if is_same { self.scales } else { ScaleKind::F32 },
            span,
            zero: self.zero.filter(|_| self.zero == other.zero),
            has_minima: self.has_minima || other.has_minima,
            parts: self.parts.max(other.parts),
            ..self
        })
    }

    /// Bytes of the codes of an octet's block.
    pub fn octet_bytes(&self) -> usize {
        OCTET * BLOCK * self.bits / 8
    }
}

/// Form and shape of a packed matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// How it is stored.
    pub form: Form,
    /// Number of outputs.
    pub n: usize,
    /// Number of inputs.
    pub k: usize,
    /// Inputs per [leaf](crate::leaves); 0 without leaves.
    pub leaf: usize,
}

/// Byte ranges of the parts of a matrix. Absent ones are empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// `[octets][blocks]` codes.
    pub codes: Range<usize>,
    /// `[octets][spans][8]`
    pub scales: Range<usize>,
    /// f16 `[octets][blocks][8]`, or f32 `[octets][8]` for [`ScaleKind::E4m3`].
    pub units: Range<usize>,
    /// `[octets][spans][8]`
    pub minima: Range<usize>,
    /// f16 `[octets][blocks][8]`
    pub minimum_units: Range<usize>,
    /// u8 `[octets][spans][8]`
    pub zeros: Range<usize>,
    /// u32 `[parts][8]`
    pub table: Range<usize>,
    /// u32 `[orders, k]`
    pub order: Range<usize>,
}

impl Shape {
    /// Columns of the weight that a leaf sums.
    pub fn leaf_inputs(&self) -> usize {
        if self.leaf == 0 { self.k } else { self.leaf }
    }

    /// Leaves of a row.
    pub fn leaves(&self) -> usize {
        self.k.checked_div(self.leaf).unwrap_or(1)
    }

    /// Blocks of codes in a leaf; its last one may be padded.
    pub fn leaf_blocks(&self) -> usize {
        self.leaf_inputs().div_ceil(BLOCK)
    }

    /// Blocks of a row.
    pub fn blocks(&self) -> usize {
        self.leaves() * self.leaf_blocks()
    }

    /// Scales of a row.
    pub fn spans(&self) -> usize {
        match self.form.span {
            Span::Inputs(inputs) => self.blocks() * (BLOCK / inputs),
            Span::Leaf => self.leaves(),
        }
    }

    /// Octets; the last one may be padded.
    pub fn octets(&self) -> usize {
        self.n.div_ceil(OCTET)
    }

    /// First input of each of a row's scales; `None` for those of padding.
    pub fn span_starts(&self) -> Vec<Option<usize>> {
        let Span::Inputs(inputs) = self.form.span else {
            return (0..self.leaves()).map(|leaf| Some(leaf * self.leaf_inputs())).collect();
        };
        let each = self.leaf_blocks() * (BLOCK / inputs);
        let start = |i: usize| {
            let in_leaf = i % each * inputs;
            (in_leaf < self.leaf_inputs()).then_some(i / each * self.leaf_inputs() + in_leaf)
        };
        (0..self.spans()).map(start).collect()
    }

    /// First input of each block.
    pub fn block_starts(&self) -> Vec<usize> {
        let start = |i: usize| i / self.leaf_blocks() * self.leaf_inputs() + i % self.leaf_blocks() * BLOCK;
        (0..self.blocks()).map(start).collect()
    }

    /// Where the parts are.
    pub fn places(&self) -> Places {
        let Form { scales, zero, has_minima, meaning, parts, orders, .. } = self.form;
        let mut end = 0usize;
        let mut take = |is_there: bool, bytes: usize| {
            let start = end.next_multiple_of(ALIGNMENT);
            if !is_there {
                return start..start;
            }
            end = start + bytes;
            start..end
        };
        let (octets, rows) = (self.octets(), self.octets() * OCTET);
        let of_scales = rows * self.spans() * scales.bytes();
        let of_units = match scales {
            ScaleKind::Factor => rows * self.blocks() * 2,
            ScaleKind::E4m3 => rows * 4,
            ScaleKind::F32 | ScaleKind::F16 | ScaleKind::Power => 0,
        };
        let has_units = of_units > 0;
        Places {
            codes: take(true, octets * self.blocks() * self.form.octet_bytes()),
            scales: take(true, of_scales),
            units: take(has_units, of_units),
            minima: take(has_minima, of_scales),
            minimum_units: take(has_minima && has_units, of_units),
            zeros: take(meaning == Meaning::Integers && zero.is_none(), rows * self.spans()),
            table: take(meaning == Meaning::Table, parts * TABLE_WORDS * 4),
            order: take(orders > 0, orders * self.k * 4),
        }
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> usize {
        let places = self.places();
        places.order.end.max(places.table.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_joined_form_holds_both() {
        let k4 =
            Form { has_minima: true, ..Form::new(4, Meaning::Integers, ScaleKind::Factor, Span::Inputs(32)) };
        let k6 =
            Form { zero: Some(32), ..Form::new(6, Meaning::Integers, ScaleKind::Factor, Span::Inputs(16)) };
        let both = k4.join(k6).unwrap();
        assert_eq!((both.bits, both.span, both.zero, both.has_minima), (6, Span::Inputs(16), None, true));
        assert_eq!((both.scales, k6.join(k4)), (ScaleKind::Factor, Some(both)));
        let whole = Form::new(8, Meaning::Integers, ScaleKind::F32, Span::Leaf);
        let joined = k4.join(whole).unwrap();
        assert_eq!(
            (joined.bits, joined.scales, joined.span),
            (8, ScaleKind::F32, Span::Inputs(32)),
            "larger groups repeat their scales"
        );
        assert_eq!(k4.join(Form::new(4, Meaning::Table, ScaleKind::Factor, Span::Inputs(32))), None);
        assert_eq!(k4.join(Form { orders: 1, ..k4 }), None);
    }

    #[test]
    fn spans_of_padding_have_no_start() {
        let form = Form::new(4, Meaning::Integers, ScaleKind::F32, Span::Inputs(32));
        let shape = Shape { form, n: 9, k: 320, leaf: 160 };
        assert_eq!((shape.blocks(), shape.octets(), shape.spans()), (4, 2, 16));
        let starts = [0, 32, 64, 96, 128].map(Some).into_iter().chain([None; 3]);
        let second = [160, 192, 224, 256, 288].map(Some).into_iter().chain([None; 3]);
        assert_eq!(shape.span_starts(), starts.chain(second).collect::<Vec<_>>());
        assert_eq!(shape.block_starts(), [0, 128, 160, 288]);
        let whole = Shape { form: Form { span: Span::Leaf, ..form }, ..shape };
        assert_eq!(whole.span_starts(), [Some(0), Some(160)]);
    }

    #[test]
    fn parts_do_not_overlap() {
        let form = Form {
            zero: None,
            has_minima: true,
            orders: 2,
            ..Form::new(6, Meaning::Integers, ScaleKind::Factor, Span::Inputs(16))
        };
        let shape = Shape { form, n: 20, k: 384, leaf: 0 };
        let Places { codes, scales, units, minima, minimum_units, zeros, table, order } = shape.places();
        assert!(table.is_empty());
        let all = [codes, scales, units, minima, minimum_units, zeros, order];
        assert!(all.windows(2).all(|pair| !pair[0].is_empty() && pair[0].end <= pair[1].start), "{all:?}");
        assert_eq!(
            all.map(|part| part.len()),
            [3 * 3 * 768, 24 * 24, 24 * 3 * 2, 24 * 24, 144, 576, 2 * 384 * 4]
        );
        assert_eq!(shape.bytes(), shape.places().order.end);
    }
}
