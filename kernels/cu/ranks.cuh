// ranks.cuh: the sum over ranks, the same after any exchange.
#pragma once
#include "device.cuh"

constexpr int MAX_RANKS = 8;

// Joins four sums of each rank as a balanced tree, adds the bias if there is one, and rounds once. `ranks` is
// a power of two up to 8; v is overwritten.
template <class T>
__device__ __forceinline__ Pack<T, 4> join_ranks(float (&v)[MAX_RANKS][4], i32 ranks, const T* bias) {
#pragma unroll
  for (int apart = 1; apart < MAX_RANKS; apart *= 2)
#pragma unroll
    for (int r = 0; r < MAX_RANKS; r += 2 * apart)
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (apart < ranks) v[r][e] += v[r + apart][e];
  Pack<T, 4> rounded;
#pragma unroll
  for (int e = 0; e < 4; e++) {
    if (bias) v[0][e] += to_f32(bias[e]);
    rounded.v[e] = from_f32<T>(v[0][e]);
  }
  return rounded;
}
