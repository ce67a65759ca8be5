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

// Tiles of a block. OUTPUTS and BM: outputs and rows of a tile.
struct Place {
  int row_tile, column_tile;
};
template <int OUTPUTS, int BM> __device__ __forceinline__ Place place(int rows, int n) {
  int row_tiles = (rows + BM - 1) / BM, column_tiles = (n + OUTPUTS - 1) / OUTPUTS;
  int group = blockIdx.x / (GROUP * column_tiles), in_group = blockIdx.x % (GROUP * column_tiles);
  int group_rows = min(GROUP, row_tiles - group * GROUP);
  return Place{group * GROUP + in_group % group_rows, in_group / group_rows};
}

#define GEMM(name, T, W, OUT, MODE, BN, BM, WN, WM, STAGES)                                                 \
  extern "C" __global__ void __launch_bounds__((BN / WN) * (BM / WM) * 32)                                  \
      name(OUT* out, const T* x, const W* w, const float* scales, i32 row_shift,                            \
           i32 row_stride, i32 k_stride, i32 leaf_stride, const T* bias, i32 rows, i32 n, i32 k,            \
           u32 function, i32 leaf) {                                                                        \
    Place at = place<MODE == GATED ? BN / 2 : BN, BM>(rows, n);                                             \
    DenseRows<T, OUT, MODE> by{out, x, bias, at.row_tile * BM, rows, n, k, function};                       \
    Scales of{scales, row_shift, row_stride, k_stride, leaf_stride};                                        \
    gemm<T, W, OUT, MODE, BN, BM, WN, WM, STAGES>(by, w, of, at.column_tile, leaf);                         \
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

// Rows of a head, which are apart.
template <class T> struct HeadRows : DenseRows<T, T, PLAIN> {
  int x_stride, out_stride;

  __device__ __forceinline__ const T* x_row(int r) const {
    return this->x + (size_t)min(this->first + r, this->rows - 1) * x_stride;
  }
  __device__ __forceinline__ T* out_row(int r) const { return this->out + (size_t)(this->first + r) * out_stride; }
};

// gemm_heads_{T}: a product of its own for each head, out[r, h] = x[r, h] w[h]^T, for latent attention.
//   out  row r and head h start at r * out_stride + h * out_head; n values of type T each
//   x    likewise, k values each; strides are multiples of 8
//   w    [heads, n, k]
// Grid (as above, heads). Where n is a multiple of 8, so are the strides of out. Everything else as above.
#define GEMM_HEADS(name, T, BN, BM, WN, WM, STAGES)                                                         \
  extern "C" __global__ void __launch_bounds__((BN / WN) * (BM / WM) * 32)                                  \
      name(T* out, const T* x, const T* w, i32 rows, i32 n, i32 k, i32 out_stride, i32 out_head,            \
           i32 x_stride, i32 x_head) {                                                                      \
    size_t head = blockIdx.y;                                                                               \
    Place at = place<BN, BM>(rows, n);                                                                      \
    DenseRows<T, T, PLAIN> of_head{out + head * out_head, x + head * x_head, nullptr, at.row_tile * BM,     \
                                   rows, n, k, 0};                                                          \
    HeadRows<T> by{of_head, x_stride, out_stride};                                                          \
    gemm<T, T, T, PLAIN, BN, BM, WN, WM, STAGES>(by, w + head * n * k, Scales{}, at.column_tile, 0);        \
  }                                                                                                         \
  EXPORT(name)
#define GEMM_HEADS_TILES(name, T)                 \
  GEMM_HEADS(name##_small, T, 32, 32, 16, 16, 8)  \
  GEMM_HEADS(name##_medium, T, 64, 64, 32, 32, 4) \
  GEMM_HEADS(name##_large, T, 128, 128, 64, 32, 3)
GEMM_HEADS_TILES(gemm_heads_bf16, bf16)
GEMM_HEADS_TILES(gemm_heads_f16, f16)
