//! Blocks of quantised weights as stored in GGUF files: a few parameters, then the codes of 32 or 256
//! consecutive inputs of an output.
//!
//! A value is `scale * (code - zero)`, or `scale * code - minimum` in types with a minimum. Each group of 16
//! or 32 inputs has its own scale and minimum. Types with 32 inputs store them in half precision; K types
//! store one half-precision value per 256 inputs, and small integer factors of it per group. Only
//! [`BlockType::decode`] knows the bit layout, which follows `ggml-common.h`.

mod decode;
#[cfg(test)]
mod tests;

use half::f16;

/// Most inputs per block.
pub const MAX_VALUES: usize = 256;
/// Most groups per block.
pub const MAX_GROUPS: usize = 16;

/// Block type, as named by GGUF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // named as in ggml
pub enum BlockType {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Mxfp4,
}

/// Properties common to all blocks of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Name in GGUF.
    pub name: &'static str,
    /// Inputs per block.
    pub values: usize,
    /// Bytes per block.
    pub bytes: usize,
    /// Number of inputs that share a scale.
    pub group: usize,
    /// Code of zero, in types without a minimum.
    pub zero: u8,
    /// Whether groups have minima.
    pub has_minimum: bool,
    /// Whether groups have integer factors of the block's scale.
    pub has_factors: bool,
}

const fn form(name: &'static str, bytes: usize, zero: u8, has_minimum: bool) -> Form {
    Form { name, values: 32, bytes, group: 32, zero, has_minimum, has_factors: false }
}

const fn k(name: &'static str, bytes: usize, group: usize, zero: u8, has_minimum: bool) -> Form {
    Form { name, values: 256, bytes, group, zero, has_minimum, has_factors: true }
}

impl BlockType {
    /// All block types.
    pub const ALL: [Self; 12] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Mxfp4,
    ];

    /// Properties of this type's blocks.
    pub const fn form(self) -> Form {
        match self {
            Self::Q4_0 => form("Q4_0", 18, 8, false),
            Self::Q4_1 => form("Q4_1", 20, 0, true),
            Self::Q5_0 => form("Q5_0", 22, 16, false),
            Self::Q5_1 => form("Q5_1", 24, 0, true),
            Self::Q8_0 => form("Q8_0", 34, 128, false),
            Self::Q2K => k("Q2_K", 84, 16, 0, true),
            Self::Q3K => k("Q3_K", 110, 16, 4, false),
            Self::Q4K => k("Q4_K", 144, 32, 0, true),
            Self::Q5K => k("Q5_K", 176, 32, 0, true),
            Self::Q6K => k("Q6_K", 210, 16, 32, false),
            Self::Iq4Nl => form("IQ4_NL", 18, 128, false),
            Self::Mxfp4 => form("MXFP4", 17, 128, false),
        }
    }

    /// Name in GGUF.
    pub const fn name(self) -> &'static str {
        self.form().name
    }

    /// Bytes of `values` inputs of an output; `None` if that is not a whole number of blocks.
    pub fn row_bytes(self, values: usize) -> Option<usize> {
        let Form { values: each, bytes, .. } = self.form();
        values.is_multiple_of(each).then(|| values / each * bytes)
    }

    /// Widens a row of blocks, rounding as `ggml` does.
    ///
    /// # Panics
    /// If `to` has a different number of values.
    pub fn widen(self, row: &[u8], to: &mut [f32]) {
        let form = self.form();
        assert_eq!(row.len() / form.bytes * form.values, to.len(), "a row of whole blocks");
        let mut block = Block::default();
        for (bytes, to) in row.chunks_exact(form.bytes).zip(to.chunks_exact_mut(form.values)) {
            self.decode(bytes, &mut block);
            for (i, (to, code)) in to.iter_mut().zip(&block.codes).enumerate() {
                *to = block.value(&form, i / form.group, *code);
            }
        }
    }
}

/// Contents of a decoded block.
#[derive(Debug, Clone)]
pub struct Block {
    /// One code per input.
    pub codes: [u8; MAX_VALUES],
    /// Scale of the block; exact in half precision, except in MXFP4.
    pub scale: f32,
    /// Minimum of the block. Types with 32 inputs add it; K types multiply it by the group's factor and
    /// subtract it.
    pub minimum: f32,
    /// Factors of the scale, by group.
    pub factors: [i8; MAX_GROUPS],
    /// Factors of the minimum, by group.
    pub minimum_factors: [i8; MAX_GROUPS],
}

impl Default for Block {
    fn default() -> Self {
        Self {
            codes: [0; MAX_VALUES],
            scale: 0.0,
            minimum: 0.0,
            factors: [1; MAX_GROUPS],
            minimum_factors: [1; MAX_GROUPS],
        }
    }
}

impl Block {
    /// Value of a code in a group.
    pub fn value(&self, form: &Form, group: usize, code: u8) -> f32 {
        let (scale, minimum) = if form.has_factors {
            (
                self.scale * f32::from(self.factors[group]),
                -(self.minimum * f32::from(self.minimum_factors[group])),
            )
        } else {
            (self.scale, self.minimum)
        };
        value(form, scale, minimum, code)
    }
}

/// Value of a code in a group with this scale; types with a minimum add it.
pub(super) fn value(form: &Form, scale: f32, minimum: f32, code: u8) -> f32 {
    if form.has_minimum {
        scale * f32::from(code) + minimum
    } else {
        scale * f32::from(i16::from(code) - i16::from(form.zero))
    }
}

/// Little-endian half-precision number at the start of `bytes`.
fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}
