// gemm_packed.cu: out = x w^T for many rows and weights in codes, which are dequantised in registers.
//
//   out     [rows, n]          T, or f32 if is_wide
//   x       [rows, k]          T, k a multiple of 8
//   w       see packed.cuh; GATED: gate over up, [2 n, k], n a multiple of 8; out = function(gate) * up
//   bias    [n], GATED [2 n]   T or null
//   function                   activation of the gate: see gate.cuh
//   leaf                       k in a leaf, a multiple of 32; LEAVES only, else 0
// Grid (ceil(rows / BM) * ceil(n / outputs)), rows first, GROUP row tiles at a time, as in gemm.cu. Shared
// memory and sums: gemm_packed.cuh. Reference: cpu::packed. Not yet run on a GPU.
#include "gemm_packed.cuh"

constexpr int GROUP = 16;

#define GEMM(name, T, BITS, MODE, TN, WN, WM, STAGES)                                                         \
  extern "C" __global__ void __launch_bounds__(32 * WN * WM) name(PACKED_PARAMETERS(T)) {                     \
    constexpr int BM = 8 * TM * WM, OUTPUTS = 16 * TN * WN / (MODE == GATED ? 2 : 1);                         \
    PACKED_MATRIX(octets, k, leaf, 0)                                                                         \
    int row_tiles = (rows + BM - 1) / BM, column_tiles = (n + OUTPUTS - 1) / OUTPUTS;                         \
    int group = blockIdx.x / (GROUP * column_tiles), in_group = blockIdx.x % (GROUP * column_tiles);          \
    int group_rows = min(GROUP, row_tiles - group * GROUP);                                                   \
    int row_tile = group * GROUP + in_group % group_rows;                                                     \
    PackedRows<T, MODE> by{{out, x, bias, row_tile * BM, rows, n, k, function}, is_wide};                     \
    gemm<T, BITS, MODE, TN, WN, WM, STAGES>(by, w, in_group / group_rows);                                    \
  }                                                                                                           \
  EXPORT(name)
#define GEMM_TILES(name, T, BITS, MODE, TN, WN, WM) \
  GEMM(name##_small, T, BITS, MODE, 1, 4, 1, 3)     \
  GEMM(name##_large, T, BITS, MODE, TN, WN, WM, 3)
// The sums of a tree of leaves leave no registers for two tiles of weights.
#define GEMM_MODES(name, T, BITS)                   \
  GEMM_TILES(name##_plain, T, BITS, PLAIN, 2, 4, 2) \
  GEMM_TILES(name##_gated, T, BITS, GATED, 2, 4, 2) \
  GEMM_TILES(name##_leaves, T, BITS, LEAVES, 1, 8, 1)
#define GEMM_ALL(t, T)               \
  GEMM_MODES(gemm_packed4_##t, T, 4) \
  GEMM_MODES(gemm_packed6_##t, T, 6) \
  GEMM_MODES(gemm_packed8_##t, T, 8)
GEMM_ALL(bf16, bf16)
GEMM_ALL(f16, f16)
