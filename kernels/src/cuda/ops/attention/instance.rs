//! The kernels of each shape, and what their blocks take.

use super::super::Activation;
use super::super::kv::KvElement;
use super::super::latent::{NARROW_SCALES_BYTES, NARROW_UNIT};
use super::shape::AttentionShape;
use crate::cuda::CudaError;

/// Most values of the latent and of the rest of a key, of each kernel for latents.
const LATENTS: [(usize, usize); 2] = [(64, 16), (512, 64)];
/// Widths of both are multiples of this.
const LATENT_UNIT: usize = 8;

/// The kernels for small and large tiles.
pub(super) struct Instance {
    pub(super) names: [&'static str; 2],
    pub(super) sizes: [Size; 2],
    /// Values of a head's output that a block has space for.
    pub(super) held_values: usize,
}

/// What a block takes.
#[derive(Clone, Copy)]
pub(super) struct Size {
    /// Packed query rows at once.
    pub(super) rows: u32,
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
    /// Blocks per multiprocessor that registers allow.
    pub(super) blocks: u32,
}

impl Instance {
    /// The kernels for `shape`.
    pub(super) fn of<T: Activation, K: KvElement>(shape: &AttentionShape) -> Result<Self, CudaError> {
        match shape.latent {
            None => Self::of_heads::<T, K>(shape.head_dim),
            Some(rank) => Self::of_latents::<T, K>(rank, shape.head_dim - rank),
        }
    }

    fn of_heads<T: Activation, K: KvElement>(head_dim: usize) -> Result<Self, CudaError> {
        let names = names::<T, K>(head_dim).ok_or_else(|| {
            CudaError::invalid(format!(
                "attention has no kernel for heads of {head_dim} values of {} over a KV cache of {}; \
                 supported are 64, 96 and 128, and without e4m3 also 16, 32 and 256 (--kv-cache-dtype auto)",
                <T as Activation>::SUFFIX,
                <K as KvElement>::SUFFIX
            ))
        })?;
        let size = |warps: u32, blocks| Size {
            rows: 16 * warps,
            threads: 32 * warps,
            shared_bytes: shared_bytes::<K>(head_dim, warps as usize),
            blocks,
        };
        let sizes = [size(1, 8), size(4, if head_dim <= 64 { 3 } else { 2 })];
        Ok(Self { names, sizes, held_values: head_dim })
    }

    fn of_latents<T: Activation, K: KvElement>(rank: usize, rotated: usize) -> Result<Self, CudaError> {
        let (activations, cache) = (<T as Activation>::SUFFIX, <K as KvElement>::SUFFIX);
        let is_narrow = activations != cache;
        let fits = |(ranks, rest): &&(usize, usize)| rank <= *ranks && rotated <= *rest;
        let is_whole = rank.is_multiple_of(LATENT_UNIT) && rotated.is_multiple_of(LATENT_UNIT);
        if is_narrow && !rank.is_multiple_of(NARROW_UNIT) {
            return Err(CudaError::invalid(format!(
                "latent attention over a KV cache of {cache} has kernels for latents of a multiple of {NARROW_UNIT} \
                 values, and kv_lora_rank is {rank}; use --kv-cache-dtype auto"
            )));
        }
        let Some(&(held_values, rest)) = LATENTS.iter().find(fits).filter(|_| is_whole) else {
            let (ranks, rest) = LATENTS[LATENTS.len() - 1];
            return Err(CudaError::invalid(format!(
                "latent attention has no kernel for a latent of {rank} values and {rotated} rotated ones; supported \
                 are multiples of {LATENT_UNIT} up to {ranks} and {rest}"
            )));
        };
        let names = match (activations, held_values) {
            ("bf16", 64) if is_narrow => {
                ["attention_latent_bf16_e4m3_64_small", "attention_latent_bf16_e4m3_64_large"]
            }
            ("bf16", _) if is_narrow => {
                ["attention_latent_bf16_e4m3_512_small", "attention_latent_bf16_e4m3_512_large"]
            }
            (_, 64) if is_narrow => {
                ["attention_latent_f16_e4m3_64_small", "attention_latent_f16_e4m3_64_large"]
            }
            (_, _) if is_narrow => {
                ["attention_latent_f16_e4m3_512_small", "attention_latent_f16_e4m3_512_large"]
            }
            ("bf16", 64) => ["attention_latent_bf16_64_small", "attention_latent_bf16_64_large"],
            ("bf16", _) => ["attention_latent_bf16_512_small", "attention_latent_bf16_512_large"],
            (_, 64) => ["attention_latent_f16_64_small", "attention_latent_f16_64_large"],
            (_, _) => ["attention_latent_f16_512_small", "attention_latent_f16_512_large"],
        };
        // Queries, two tiles of 16 positions, or one and the next one's codes, and the scores of four warps;
        // `cu/attention_latent.cuh`.
        let row_bytes = ((held_values + rest) * 2 + 16) as u32;
        let copy_bytes = if is_narrow { held_values + NARROW_SCALES_BYTES + rest * 2 } else { 0 };
        let keys_bytes = 16 * (if is_narrow { row_bytes + copy_bytes as u32 } else { 2 * row_bytes });
        let size = |rows: u32, blocks| Size {
            rows,
            threads: 128,
            shared_bytes: rows * row_bytes + keys_bytes + 4 * rows * 16 * 4,
            blocks,
        };
        Ok(Self { names, sizes: [size(16, 3), size(32, 2)], held_values })
    }
}

/// Shared memory for the queries and two stages of keys and values; `Tile` in `cu/attention_tile.cuh`.
fn shared_bytes<K>(head_dim: usize, warps: usize) -> u32 {
    let positions = if head_dim <= 128 { 64 } else { 32 };
    let (q_row, kv_row) = (head_dim * 2 + 16, head_dim * size_of::<K>() + 16);
    (warps * 16 * q_row + 4 * positions * kv_row) as u32
}

/// Names of the kernels for small and large tiles.
fn names<T: Activation, K: KvElement>(head_dim: usize) -> Option<[&'static str; 2]> {
    macro_rules! table {
        ($($t:literal $k:literal: $($dim:literal)*;)*) => {
            match (<T as Activation>::SUFFIX, <K as KvElement>::SUFFIX, head_dim) {
                $($(($t, $k, $dim) => Some([
                    concat!("attention_", $t, "_", $k, "_", $dim, "_small"),
                    concat!("attention_", $t, "_", $k, "_", $dim, "_large"),
                ]),)*)*
                _ => None,
            }
        };
    }
    table! {
        "bf16" "bf16": 16 32 64 96 128 256;
        "f16" "f16": 16 32 64 96 128 256;
        "bf16" "e4m3": 64 96 128;
        "f16" "e4m3": 64 96 128;
    }
}
