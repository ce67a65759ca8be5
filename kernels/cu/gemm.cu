// gemm.cu: out = x w^T for many rows, by mma m16n8k16 from shared memory. Used without cuBLASLt, in
// batch-invariant mode, and for e4m3 weights.
//
//   out     [rows, n]          T, or f32 for logits
//   x       [rows, k]          T, k a multiple of 8 (16 with e4m3 weights)
//   w       [n, k]             T or e4m3; GATED: [2 n, k], gate over up, and out = function(gate) * up
//   scales                     f32, of e4m3 weights: see linear.cuh
//   bias    [n], GATED [2 n]   T or null
//   function                   activation of the gate: see gate.cuh
//   leaf                       k in a leaf, LEAVES only
// Grid (ceil(rows / BM) * ceil(n / outputs)), outputs = BN (GATED: BN / 2). Block: 32 WARPS. Shared memory
// and sums: gemm.cuh. Reference: cpu::matmul.
//
// Blocks advance through rows first, GROUP row tiles at a time, so that blocks that run together share
// weights, and x stays in L2. Tensor work is 128 * 128 * 64 per stage against 32 KB from L2: 64 flops a byte.
// Not yet run on a GPU; mma.sync reaches about 60% of wgmma's rate on Hopper.
#include "gemm.cuh"

constexpr int GROUP = 16;

#define GEMM(name, T, W, OUT, MODE, BN, BM, WN, WM, STAGES)                                                 \
  extern "C" __global__ void __launch_bounds__((BN / WN) * (BM / WM) * 32)                                  \
      name(OUT* out, const T* x, const W* w, const float* scales, i32 row_shift,         \
           i32 row_stride, i32 k_stride, i32 leaf_stride, const T* bias, i32 rows, i32 n, i32 k,            \
           u32 function, i32 leaf) {                                                                        \
    constexpr int OUTPUTS = MODE == GATED ? BN / 2 : BN;                                                    \
    int row_tiles = (rows + BM - 1) / BM, column_tiles = (n + OUTPUTS - 1) / OUTPUTS;                       \
    int group = blockIdx.x / (GROUP * column_tiles), in_group = blockIdx.x % (GROUP * column_tiles);        \
    int group_rows = min(GROUP, row_tiles - group * GROUP);                                                 \
    int row_tile = group * GROUP + in_group % group_rows;                                                   \
    DenseRows<T, OUT, MODE> by{out, x, bias, row_tile * BM, rows, n, k, function};                          \
    Scales of{scales, row_shift, row_stride, k_stride, leaf_stride};                                        \
    gemm<T, W, OUT, MODE, BN, BM, WN, WM, STAGES>(by, w, of, in_group / group_rows, leaf);                  \
  }                                                                                                         \
  EXPORT(name)
#define GEMM_TILES(name, T, W, OUT, MODE, LARGE_M)             \
  GEMM(name##_small, T, W, OUT, MODE, 32, 32, 16, 16, 8)       \
  GEMM(name##_medium, T, W, OUT, MODE, 64, 64, 32, 32, 4)      \
  GEMM(name##_large, T, W, OUT, MODE, 128, LARGE_M, 128 * LARGE_M / 256, 32, 3)
#define GEMM_ALL(t, T)                                                 \
  GEMM_TILES(gemm_##t##_same_plain, T, T, T, PLAIN, 128)               \
  GEMM_TILES(gemm_##t##_same_f32, T, T, float, PLAIN, 128)             \
  GEMM_TILES(gemm_##t##_same_gated, T, T, T, GATED, 128)               \
  GEMM_TILES(gemm_##t##_same_leaves, T, T, T, LEAVES, 64)              \
  GEMM_TILES(gemm_##t##_same_leaves_f32, T, T, float, LEAVES, 64)      \
  GEMM_TILES(gemm_##t##_e4m3_plain, T, e4m3, T, PLAIN, 64)             \
  GEMM_TILES(gemm_##t##_e4m3_f32, T, e4m3, float, PLAIN, 64)           \
  GEMM_TILES(gemm_##t##_e4m3_gated, T, e4m3, T, GATED, 64)             \
  GEMM_TILES(gemm_##t##_e4m3_leaves, T, e4m3, T, LEAVES, 64)           \
  GEMM_TILES(gemm_##t##_e4m3_leaves_f32, T, e4m3, float, LEAVES, 64)
GEMM_ALL(bf16, bf16)
GEMM_ALL(f16, f16)
