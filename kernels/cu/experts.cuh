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

// Rows of a tile, for the products of linear.cuh and packed.cuh with its expert's matrix. Matrices are
// stacked: [experts * n, k] (GATED: [experts * 2 n, k]).
//   GATED  x is [rows, k]: pair p reads row p / per_row; out is [pairs, n] in sorted order
//   PLAIN  x is [pairs, k] in sorted order; out is [pairs, n] in the order of pairs
constexpr int MAX_TILE_ROWS = 128;

template <class T, Mode M> struct ExpertRows {
  T* out;
  const T* x;
  const T* bias;  // [experts * n], GATED [experts * 2 n], or null; then that of the expert
  const u32* sorted;
  i32 per_row, n, k;  // per_row 0: x is in sorted order, too
  ExpertGate gate;
  ExpertTile tile;
  const u32* x_rows;  // in shared memory

  // Waits for the grid before, which makes the list of tiles, and finds the block's; false: there is none.
  __device__ __forceinline__ bool find(const ExpertTile* tiles) {
    __shared__ u32 of_tile[MAX_TILE_ROWS];
    ptx::grid_dependency_wait();
    ptx::grid_dependency_launch();
    if (blockIdx.x >= tiles[0].expert) return false;
    tile = tiles[1 + blockIdx.x];
    for (u32 r = threadIdx.x; r < tile.rows; r += blockDim.x) {
      u32 at = tile.first + r;
      of_tile[r] = M == GATED && per_row ? sorted[at] / per_row : at;
    }
    __syncthreads();
    x_rows = of_tile;
    if (bias) bias += first_row();
    return true;
  }
  // First row of the expert's matrix among the stacked ones.
  __device__ __forceinline__ size_t first_row() const { return (size_t)tile.expert * (M == GATED ? 2 * n : n); }

  __device__ __forceinline__ void wait() const {}
  __device__ __forceinline__ bool has(int r) const { return r < (int)tile.rows; }
  // Rows past the end repeat the last one: they are computed but not written.
  __device__ __forceinline__ const T* x_row(int r) const {
    return x + (size_t)x_rows[min(r, (int)tile.rows - 1)] * k;
  }
  __device__ __forceinline__ T* out_row(int r) const {
    u32 at = tile.first + r;
    return out + (size_t)(M == GATED ? at : sorted[at]) * n;
  }
  __device__ __forceinline__ void store(int r, int column, float value) const {
    out_row(r)[column] = from_f32<T>(value);
  }
  // Adds 0 without a bias, as dense products do.
  __device__ __forceinline__ float biased(float sum, int row) const {
    return sum + (bias ? to_f32(bias[row]) : 0.f);
  }
  __device__ __forceinline__ float activated(float of_gate, float up) const {
    return expert_gated(gate, of_gate, up);
  }
};

// Parameters of a kernel after its matrix, and the rows of its block.
#define EXPERT_PARAMETERS(T)                                                                                \
  T *out, const T *x, const T *bias, const ExpertTile *tiles, const u32 *sorted, i32 per_row, i32 n, i32 k, \
      u32 function, float alpha, float limit
#define EXPERT_ROWS(T, MODE)                                                                                \
  ExpertRows<T, MODE> by{out, x, bias, sorted, per_row, n, k, ExpertGate{function, alpha, limit}, {}, {}};  \
  if (!by.find(tiles)) return;
