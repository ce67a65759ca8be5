// latent_key.cuh: how the cache holds the key of a token in latent attention: the latent, then the rotated
// part.
//   16 bits   [rank + rotated]  T
//   8 bits    [rank] e4m3 | [4] f32: scales of each 128 values | [rotated] T
// Rotated parts keep 16 bits: they tell positions apart, and are a ninth of DeepSeek's keys. With 512 and 64
// values a token takes 656 bytes instead of 1152, as in FlashMLA.
#pragma once
#include "device.cuh"

constexpr i32 NARROW_GROUP = 128;       // values of a latent that share a scale
constexpr i32 NARROW_SCALES_BYTES = 16;  // four scales, also of shorter latents

// Bytes of a token's key in 8 bits; `rank` is a multiple of 16 up to 512, `rotated` of 8.
__device__ __forceinline__ u32 narrow_key_bytes(u32 rank, u32 rotated) {
  return rank + NARROW_SCALES_BYTES + rotated * 2;
}
