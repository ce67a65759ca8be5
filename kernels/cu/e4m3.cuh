// e4m3.cuh: scales of values that are quantised to FP8 e4m3. A value is the stored value times its scale. A
// scale is the largest magnitude / 448, 1 if all values are zero, or infinite if any is NaN or infinite, so
// that no product hides that.
#pragma once
#include "device.cuh"

constexpr float E4M3_MAX = 448.f;

// Correctly rounded operations, so that a host computes the same bits. The smallest scale is 2^-126, whose
// reciprocal is finite.
__device__ __forceinline__ float scale_of(float largest) {
  return largest > 0.f ? fmaxf(__fdiv_rn(largest, E4M3_MAX), 0x1p-126f) : 1.f;
}
__device__ __forceinline__ float times_of(float scale) { return __fdiv_rn(1.f, scale); }
