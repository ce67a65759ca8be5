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
// Grid (ceil(rows / BM) * ceil(n / outputs)), outputs = BN (GATED: BN / 2). Block: 32 WARPS. Dynamic shared
// memory: max(STAGES * (BN * 64 * sizeof(W) + BM * 128), BM * (outputs * sizeof(out) + 16)) bytes. Sums as in
// linear.cuh: the bits are those of gemv.cu, for any tile. Reference: cpu::matmul.
//
// A stage is 64 k: rows of 128 bytes (e4m3 weights: 64), copied by cp.async STAGES - 1 ahead. A lane reads 16
// bytes of row lane / 4 (linear.cuh says which), so a quarter of a warp reads half of two neighbouring rows.
// With the chunks of odd rows swapped (swizzle), that touches all 32 banks once. ldmatrix would read as many
// bytes in as many instructions, but in another order of k than gemv.cu.
//
// Blocks advance through rows first, GROUP row tiles at a time, so that blocks that run together share
// weights, and x stays in L2. The sums of a slice and the total are both in registers: 128 of them in the 128
// x 128 tile, one block per SM. LEAVES has a sum for each level of the tree besides the leaf's: 128 in the
// 128 x 64 tile. Tensor work is 128 * 128 * 64 per stage against 32 KB from L2: 64 flops a byte. Not yet run
// on a GPU; mma.sync reaches about 60% of wgmma's rate on Hopper.
#include "linear.cuh"

constexpr int STAGE_K = 64;
constexpr int GROUP = 16;

// Position of chunk c (16 bytes) in a row of 128 bytes. A quarter-warp reads chunks i..i + 3 (T), or every
// other chunk (e4m3's x), of an even row and the next.
template <bool EVERY_OTHER> __device__ __forceinline__ int swizzle(int row, int c) {
  return c ^ (EVERY_OTHER ? row & 1 : (row & 1) << 2);
}

template <class T, class W, class Out, Mode M, int BN, int BM, int WN, int WM, int STAGES> struct Tile {
  using Of = Weight<T, W>;
  static constexpr int WARPS = (BN / WN) * (BM / WM);
  static constexpr int THREADS = WARPS * 32;
  static constexpr int TN = WN / 16, TM = WM / 8;
  static constexpr int W_CHUNKS = STAGE_K / Of::CHUNK, X_CHUNKS = STAGE_K / 8;
  static constexpr int W_BYTES = BN * STAGE_K * sizeof(W), X_BYTES = BM * STAGE_K * sizeof(T);
  static constexpr int OUTPUTS = M == GATED ? BN / 2 : BN;

  // Shared memory address of chunk c of row r.
  static __device__ __forceinline__ u8* w_at(u8* stage, int r, int c) {
    if (!Of::SCALED) c = swizzle<false>(r, c);
    return stage + (r * W_CHUNKS + c) * 16;
  }
  static __device__ __forceinline__ u8* x_at(u8* stage, int r, int c) {
    return stage + W_BYTES + (r * X_CHUNKS + swizzle<Of::SCALED>(r, c)) * 16;
  }

  // What this thread copies: chunk w_chunk of rows w_row + i * W_ROWS, and the same of x. The pointers are to
  // those chunks.
  static constexpr int W_ROWS = THREADS / W_CHUNKS, X_ROWS = THREADS / X_CHUNKS;
  const W* w[BN / W_ROWS];
  const T* x[BM / X_ROWS];
  int k, x_stride;

  __device__ __forceinline__ void find_w(const W* from, int first_tile, int n) {
#pragma unroll
    for (int i = 0; i < BN / W_ROWS; i++) {
      int r = threadIdx.x / W_CHUNKS + i * W_ROWS;
      size_t row = weight_row<M>(first_tile + r / 16, r % 16, n);
      w[i] = from + row * k + threadIdx.x % W_CHUNKS * Of::CHUNK;
    }
  }

  // Rows past the end repeat the last one: they are computed but not written.
  __device__ __forceinline__ void find_x(const T* from, int first_row, int rows) {
#pragma unroll
    for (int i = 0; i < BM / X_ROWS; i++) {
      int r = min(first_row + (int)threadIdx.x / X_CHUNKS + i * X_ROWS, rows - 1);
      x[i] = from + (size_t)r * x_stride + threadIdx.x % X_CHUNKS * 8;
    }
  }

  // Loads inputs from k = `at`; zeros past `end`.
  __device__ __forceinline__ void load_w(u8* stage, int at, int end) const {
    bool there = at + (int)threadIdx.x % W_CHUNKS * Of::CHUNK < end;
#pragma unroll
    for (int i = 0; i < BN / W_ROWS; i++)
      ptx::cp_async16(w_at(stage, threadIdx.x / W_CHUNKS + i * W_ROWS, threadIdx.x % W_CHUNKS),
                      w[i] + (there ? at : 0), there);
  }

  __device__ __forceinline__ void load_x(u8* stage, int at, int end) const {
    bool there = at + (int)threadIdx.x % X_CHUNKS * 8 < end;
#pragma unroll
    for (int i = 0; i < BM / X_ROWS; i++)
      ptx::cp_async16(x_at(stage, threadIdx.x / X_CHUNKS + i * X_ROWS, threadIdx.x % X_CHUNKS),
                      x[i] + (there ? at : 0), there);
  }

  // d += the warp's part of one stage; its weights start at row wn and its rows of x at wm.
  static __device__ __forceinline__ void multiply(u8* stage, int wn, int wm, float (*d)[TM][4]) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int step = 0; step < STAGE_K / Of::STEP; step++) {
      Words xs[TM][Of::X_CHUNKS];
#pragma unroll
      for (int j = 0; j < TM; j++)
#pragma unroll
        for (int i = 0; i < Of::X_CHUNKS; i++) {
          int c = step * 4 + t * Of::X_CHUNKS + i;
          xs[j][i] = words(*(const uint4*)x_at(stage, wm + j * 8 + g, c));
        }
#pragma unroll
      for (int tile = 0; tile < TN; tile++) {
        int r = wn + tile * 16 + g, c = step * 4 + t;
        Words low = words(*(const uint4*)w_at(stage, r, c));
        Words high = words(*(const uint4*)w_at(stage, r + 8, c));
#pragma unroll
        for (int i = 0; i < Of::MMAS; i++) {
          u32 a[4];
          fragment(T{}, W{}, low, high, i, a);
#pragma unroll
          for (int j = 0; j < TM; j++) ptx::mma_m16n8k16(T{}, d[tile][j], a, &xs[j][i / 2].v[i % 2 * 2]);
        }
      }
    }
  }
};

template <class T, class W, class Out, Mode M, int BN, int BM, int WN, int WM, int STAGES>
__device__ void gemm(Out* out, const T* x, const W* w, Scales scales, const T* bias,
                     int rows, int n, int k, int x_stride, int out_stride, u32 function, int leaf) {
  using Of = Tile<T, W, Out, M, BN, BM, WN, WM, STAGES>;
  constexpr int TN = Of::TN, TM = Of::TM, STAGE_BYTES = Of::W_BYTES + Of::X_BYTES;
  constexpr bool SCALED = Of::Of::SCALED;
  DYN_SHARED(u8, shared);
  int row_tiles = (rows + BM - 1) / BM, column_tiles = (n + Of::OUTPUTS - 1) / Of::OUTPUTS;
  int group = blockIdx.x / (GROUP * column_tiles), in_group = blockIdx.x % (GROUP * column_tiles);
  int group_rows = min(GROUP, row_tiles - group * GROUP);
  int row_tile = group * GROUP + in_group % group_rows, column_tile = in_group / group_rows;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int wn = warp % (BN / WN) * WN, wm = warp / (BN / WN) * WM;
  Of tile;
  tile.k = k;
  tile.x_stride = x_stride;
  tile.find_w(w, column_tile * (BN / 16), n);
  int leaves = M == LEAVES ? k / leaf : 1;
  int slice_stages = M == LEAVES ? (leaf + STAGE_K - 1) / STAGE_K : slice_length(k) / STAGE_K;
  int stages = M == LEAVES ? leaves * slice_stages : (k + STAGE_K - 1) / STAGE_K;
  // First k of stage s, and the end of its slice.
  auto at = [&](int s) { return M == LEAVES ? s / slice_stages * leaf + s % slice_stages * STAGE_K : s * STAGE_K; };
  auto end = [&](int s) { return M == LEAVES ? min((s / slice_stages + 1) * leaf, k) : k; };

#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) tile.load_w(shared + s * STAGE_BYTES, at(s), end(s));
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  tile.find_x(x, row_tile * BM, rows);
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    tile.load_x(shared + s * STAGE_BYTES, at(s), end(s));
    ptx::cp_async_commit();
  }

  float block[SCALED ? TN : 1][TM][4] = {}, slice[TN][TM][4] = {}, sum[M == LEAVES ? 1 : TN][TM][4] = {};
  float open[M == LEAVES ? LEVELS : 1][TN][TM][4];
  int in_slice = 0, slices = 0;
#pragma unroll 1
  for (int s = 0; s < stages; s++) {
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();  // stage s is here, for all; and all have read stage s - 1, whose place is next
    int ahead = s + STAGES - 1;
    u8* to = shared + ahead % STAGES * STAGE_BYTES;
    tile.load_w(to, at(ahead), end(ahead));
    tile.load_x(to, at(ahead), end(ahead));
    ptx::cp_async_commit();
    Of::multiply(shared + s % STAGES * STAGE_BYTES, wn, wm, SCALED ? block : slice);
    int of_slice = M == LEAVES ? in_slice : s;
    if (SCALED && (of_slice % 2 || s + 1 == stages || (M == LEAVES && in_slice + 1 == slice_stages))) {
#pragma unroll
      for (int i = 0; i < TN; i++) {
        int first = column_tile * (BN / 16) + wn / 16 + i;
        float low = scales.at(weight_row<M>(first, g, n), of_slice / 2);
        float high = scales.at(weight_row<M>(first, g + 8, n), of_slice / 2);
#pragma unroll
        for (int j = 0; j < TM; j++)
#pragma unroll
          for (int e = 0; e < 4; e++) {
            slice[i][j][e] = __fmaf_rn(e < 2 ? low : high, block[i][j][e], slice[i][j][e]);
            block[i][j][e] = 0.f;
          }
      }
    }
    if (++in_slice == slice_stages) {
      in_slice = 0;
      if (M != LEAVES) {
        join<TN, TM>(sum, slice);
        continue;
      }
      close_leaf<TN, TM>(open, slice, slices++);
      if (slices == leaves) break;
      scales.values += scales.leaf_stride;
#pragma unroll
      for (int i = 0; i < TN * TM * 4; i++) slice[i / 4 / TM][i / 4 % TM][i % 4] = 0.f;
    }
  }
  if (M != LEAVES) join<TN, TM>(sum, slice);  // the last slice may be short; an empty one adds 0
  float (*result)[TM][4] = M == LEAVES ? slice : sum;

  // Write through shared memory, so that whole lines are written.
  constexpr int STRIDE = Of::OUTPUTS + 16 / sizeof(Out);
  Out* staged = (Out*)shared;
  ptx::cp_async_wait<0>();
  __syncthreads();
  auto add_bias = [&](float to, int row) {
    if (M == LEAVES && !bias) return to;  // ranks' sums have theirs when they are joined
    return to + (bias ? to_f32(bias[row]) : 0.f);
  };
#pragma unroll
  for (int i = 0; i < TN; i++) {
    int first = column_tile * (BN / 16) + wn / 16 + i, local = (wn / 16 + i) * (M == GATED ? 8 : 16) + g;
    int low = weight_row<M>(first, g, n), high = weight_row<M>(first, g + 8, n);
#pragma unroll
    for (int j = 0; j < TM; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float a = add_bias(result[i][j][e], low), b = add_bias(result[i][j][e + 2], high);
        Out* to = staged + (wm + j * 8 + t * 2 + e) * STRIDE + local;
        to[0] = from_f32<Out>(M == GATED ? gated(function, a, b) : a);
        if (M != GATED) to[8] = from_f32<Out>(b);
      }
  }
  __syncthreads();
  constexpr int VALUES = 16 / sizeof(Out), PACKS = Of::OUTPUTS / VALUES;
#pragma unroll 1
  for (int i = threadIdx.x; i < BM * PACKS; i += Of::THREADS) {
    int r = i / PACKS, c = i % PACKS * VALUES;
    int row = row_tile * BM + r, column = column_tile * Of::OUTPUTS + c;
    if (row >= rows || column >= n) continue;
    const Out* from = staged + r * STRIDE + c;
    Out* to = out + (size_t)row * out_stride + column;
    if (n % VALUES == 0) {
      *(uint4*)to = *(const uint4*)from;
    } else {
#pragma unroll 1
      for (int e = 0; e < min(VALUES, n - column); e++) to[e] = from[e];
    }
  }
}

#define GEMM(name, T, W, OUT, MODE, BN, BM, WN, WM, STAGES)                                                 \
  extern "C" __global__ void __launch_bounds__((BN / WN) * (BM / WM) * 32)                                  \
      name(OUT* out, const T* x, const W* w, const float* scales, i32 row_shift,         \
           i32 row_stride, i32 k_stride, i32 leaf_stride, const T* bias, i32 rows, i32 n, i32 k,            \
           u32 function, i32 leaf) {                                                                        \
    Scales by{scales, row_shift, row_stride, k_stride, leaf_stride};                                        \
    gemm<T, W, OUT, MODE, BN, BM, WN, WM, STAGES>(out, x, w, by, bias, rows, n, k, k, n, function, leaf);   \
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
    const T* bias = nullptr;                                                                                \
    gemm<T, T, T, PLAIN, BN, BM, WN, WM, STAGES>(out + head * out_head, x + head * x_head,                  \
                                                 w + head * n * k, Scales{}, bias, rows, n, k, x_stride,    \
                                                 out_stride, 0, 0);                                         \
  }                                                                                                         \
  EXPORT(name)
#define GEMM_HEADS_TILES(name, T)                 \
  GEMM_HEADS(name##_small, T, 32, 32, 16, 16, 8)  \
  GEMM_HEADS(name##_medium, T, 64, 64, 32, 32, 4) \
  GEMM_HEADS(name##_large, T, 128, 128, 64, 32, 3)
GEMM_HEADS_TILES(gemm_heads_bf16, bf16)
GEMM_HEADS_TILES(gemm_heads_f16, f16)
