//! Typed launchers, one file per operation. They check shapes and types on the host, then queue one launch.

use super::tensor_map::MapElement;

pub mod activation;
pub mod attention;
pub mod attention_sm90;
pub mod block_copy;
pub mod e4m3;
pub mod embed;
pub mod experts;
pub mod gemm;
pub mod gemv;
pub mod heads;
pub mod inputs;
pub mod kv;
pub mod latent;
pub mod linear;
pub mod low_rank;
pub mod norm;
pub mod packed;
pub mod product;
pub mod quantize;
pub mod random;
pub mod ranks;
pub mod reduce;
pub mod rope;
pub mod sample;
pub mod score;
pub mod softcap;

/// Element types of activations.
pub trait Activation: MapElement + quantize::Quantized + random::Randomised {
    /// Suffix of the type's kernel names.
    const SUFFIX: &'static str;
    /// Rounds to nearest.
    fn from_f32(value: f32) -> Self;
    /// Widens without rounding.
    fn to_f32(self) -> f32;
    /// Its bits.
    fn to_bits(self) -> u16;
    /// The number with these bits.
    fn from_bits(bits: u16) -> Self;
}

macro_rules! impl_activation {
    ($t:ty, $suffix:literal) => {
        impl Activation for $t {
            const SUFFIX: &'static str = $suffix;
            fn from_f32(value: f32) -> Self {
                Self::from_f32(value)
            }
            fn to_f32(self) -> f32 {
                Self::to_f32(self)
            }
            fn to_bits(self) -> u16 {
                Self::to_bits(self)
            }
            fn from_bits(bits: u16) -> Self {
                Self::from_bits(bits)
            }
        }
    };
}
impl_activation!(half::bf16, "bf16");
impl_activation!(half::f16, "f16");

/// The kernel called `$name` for an [`Activation`].
macro_rules! kernel_for {
    ($kernels:expr, $t:ty, $name:literal) => {
        $kernels.get(match <$t as $crate::cuda::ops::Activation>::SUFFIX {
            "bf16" => concat!($name, "_bf16"),
            _ => concat!($name, "_f16"),
        })
    };
}
pub(crate) use kernel_for;
