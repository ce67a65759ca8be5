// gemv.cu: out = x w^T for few rows (1 to 16), limited by reading w once.
//
//   out     [rows, n]          T, or f32 for logits
//   x       [rows, k]          T, k a multiple of 8 (16 with e4m3 weights)
//   w       [n, k]             T or e4m3; GATED: [2 n, k], gate over up, and out = function(gate) * up
//   scales                     f32, of e4m3 weights: see linear.cuh
//   bias    [n], GATED [2 n]   T or null
//   function                   activation of the gate: see gate.cuh
//   leaf                       k in a leaf, LEAVES only
// Grid (ceil(n / tile)), tile = 16 TILES (GATED: 8 TILES) outputs; block 256. LEAVES: with fewer leaves than
// warps, a block has 8 / leaves tiles. Sums and the division among warps: gemv.cuh. Reference: cpu::matmul.
//
// Bytes in flight: 4.3 TB/s * 0.6 us = 2.6 MB, 20 KB per SM of 132. Blocks per SM: 4 for up to 8 rows (64
// registers; e4m3: 2), 2 for 16 rows (e4m3: 1), with 64 KB in flight (e4m3: 32 KB). All blocks of a grid for
// n = 4096 (256 blocks of 16) or 6144 (384) run at once; larger grids run in waves that overlap. Bytes read:
// w once, and x from L2 rows / 16 times (for more than 8 rows: rows / 32).
//
// Predicted at 90% of 4.3 TB/s with bf16 weights (e4m3: half), not yet run on a GPU:
//   8B: qkv 6144x4096 13 us, o 4096x4096 8.7, gate_up 28672x4096 61, down 4096x14336 30, logits 128256x4096
//       271: 3.9 ms a token for 32 layers
//   1B: 3072x2048 3.3 us, 2048x2048 2.2, 16384x2048 17, 2048x8192 8.7, logits 136: 0.64 ms for 16 layers
// Small matrices are a single wave of blocks, whose start and end (about 2 us) weigh more; the early loads
// hide that, because weights do not depend on the previous kernel.
#include "gemv.cuh"

#define GEMV(name, T, W, OUT, MODE, NT, TILES, BLOCKS)                                                      \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                 \
      name(OUT* out, const T* x, const W* w, const float* scales, i32 row_shift,         \
           i32 row_stride, i32 k_stride, i32 leaf_stride, const T* bias, i32 rows, i32 n, i32 k,            \
           u32 function, i32 leaf) {                                                                        \
    DenseRows<T, OUT, MODE> by{out, x, bias, 0, rows, n, k, function};                                      \
    Scales of{scales, row_shift, row_stride, k_stride, leaf_stride};                                        \
    gemv<T, W, MODE, NT, TILES>(by, w, of, blockIdx.x, leaf);                                               \
  }                                                                                                         \
  EXPORT(name)
#define GEMV_ROWS(name, T, W, OUT, MODE, BLOCKS8, BLOCKS16) \
  GEMV(name##_rows8, T, W, OUT, MODE, 1, 1, BLOCKS8)        \
  GEMV(name##_rows16, T, W, OUT, MODE, 2, 2, BLOCKS16)
#define GEMV_ALL(t, T)                                                 \
  GEMV_ROWS(gemv_##t##_same_plain, T, T, T, PLAIN, 3, 2)               \
  GEMV_ROWS(gemv_##t##_same_f32, T, T, float, PLAIN, 3, 2)             \
  GEMV_ROWS(gemv_##t##_same_gated, T, T, T, GATED, 3, 2)               \
  GEMV_ROWS(gemv_##t##_same_leaves, T, T, T, LEAVES, 3, 2)             \
  GEMV_ROWS(gemv_##t##_same_leaves_f32, T, T, float, LEAVES, 3, 2)     \
  GEMV_ROWS(gemv_##t##_e4m3_plain, T, e4m3, T, PLAIN, 2, 1)            \
  GEMV_ROWS(gemv_##t##_e4m3_f32, T, e4m3, float, PLAIN, 2, 1)          \
  GEMV_ROWS(gemv_##t##_e4m3_gated, T, e4m3, T, GATED, 2, 1)            \
  GEMV_ROWS(gemv_##t##_e4m3_leaves, T, e4m3, T, LEAVES, 2, 1)          \
  GEMV_ROWS(gemv_##t##_e4m3_leaves_f32, T, e4m3, float, LEAVES, 2, 1)
GEMV_ALL(bf16, bf16)
GEMV_ALL(f16, f16)
