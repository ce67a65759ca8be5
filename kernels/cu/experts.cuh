// experts.cuh: shared by the kernels of mixtures of experts (Shazeer et al. 2017).
//
// A pair is a row and one of its chosen experts: pair p belongs to row p / per_token. Sorted by expert, the
// rows of an expert are adjacent; they are processed in tiles, none of which has rows of two experts. Grids
// have as many blocks as there can be tiles, because the choice is only known on the device.
#pragma once
#include "linear.cuh"

// Expert of the pairs of padding rows, which no expert computes.
constexpr u32 NO_EXPERT = 0xffffffffu;
constexpr u32 NO_SLOT = 0xffffffffu;

// Entry 0 of the list of tiles has the number of tiles in `expert`; tiles follow.
struct alignas(16) ExpertTile {
  u32 expert;
  u32 first;  // position of its first pair in the sorted order
  u32 rows;
  u32 unused;
};

// Activation of an expert. SILU and GELU as in gate.cuh; CLAMPED is that of GPT-OSS (src/gate.rs).
constexpr u32 CLAMPED = 2;

struct ExpertGate {
  u32 function;
  float alpha, limit;  // of CLAMPED
};

// The result of a gate and its up. Comparisons keep NaN, unlike fminf and fmaxf.
__device__ __forceinline__ float expert_gated(const ExpertGate& by, float gate, float up) {
  if (by.function != CLAMPED) return gated(by.function, gate, up);
  gate = gate > by.limit ? by.limit : gate;
  up = up > by.limit ? by.limit : up < -by.limit ? -by.limit : up;
  return gate / (1.f + expf(-by.alpha * gate)) * (up + 1.f);
}

// A product of every expert's rows with its matrix: w is [experts, n, k] (GATED: [experts, 2 n, k]).
//   GATED  x is [rows, k]: pair p reads row p / per_row; out is [pairs, n] in sorted order
//   PLAIN  x is [pairs, k] in sorted order; out is [pairs, n] in the order of pairs
template <class T, class W> struct ExpertProduct {
  T* out;
  const T* x;
  const W* w;
  const float* scales;  // [experts, n] or [experts, 2 n], of e4m3 weights
  const T* bias;        // the same shape, or null
  const ExpertTile* tiles;
  const u32* sorted;
  i32 per_row, n, k;
  ExpertGate gate;

  // Moves the pointers to the matrix of `expert`.
  template <Mode M> __device__ __forceinline__ void select(u32 expert) {
    size_t outputs = (size_t)expert * (M == GATED ? 2 * n : n);
    w += outputs * k;
    scales += outputs;
    if (bias) bias += outputs;
  }
  template <Mode M> __device__ __forceinline__ const T* x_row(u32 position) const {
    return x + (size_t)(M == GATED ? sorted[position] / per_row : position) * k;
  }
  template <Mode M> __device__ __forceinline__ T* out_row(u32 position) const {
    return out + (size_t)(M == GATED ? position : sorted[position]) * n;
  }
  // The rounded result for an output; PLAIN ignores `high`. Adds 0 without a bias, as gemv.cu does.
  template <Mode M> __device__ __forceinline__ T result(int column, float low, float high) const {
    float value = low + (bias ? to_f32(bias[column]) : 0.f);
    if (M == GATED) value = expert_gated(gate, value, high + (bias ? to_f32(bias[n + column]) : 0.f));
    return from_f32<T>(value);
  }
};

#define EXPERT_PRODUCT_PARAMETERS(T, W)                                                                     \
  T *out, const T *x, const W *w, const float *scales, const T *bias, const ExpertTile *tiles,              \
      const u32 *sorted, i32 per_row, i32 n, i32 k, u32 function, float alpha, float limit
#define EXPERT_PRODUCT(T, W)                                                                                \
  ExpertProduct<T, W> {                                                                                     \
    out, x, w, scales, bias, tiles, sorted, per_row, n, k, ExpertGate { function, alpha, limit }            \
  }
