//! Element types of models with random weights.

use half::{bf16, f16};

/// Element type of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// 16 bits with float32's exponent.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl Dtype {
    /// Bytes of a value.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// Names used by safetensors and by torch.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Bf16 => ("BF16", "bfloat16"),
            Self::F16 => ("F16", "float16"),
            Self::F32 => ("F32", "float32"),
        }
    }

    /// Appends `value` in this type, little-endian.
    pub(super) fn push(self, value: f32, into: &mut Vec<u8>) {
        match self {
            Self::Bf16 => into.extend(bf16::from_f32(value).to_le_bytes()),
            Self::F16 => into.extend(f16::from_f32(value).to_le_bytes()),
            Self::F32 => into.extend(value.to_le_bytes()),
        }
    }
}
