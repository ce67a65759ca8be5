// gemv.cu: out = x w^T for few rows (1 to 16), limited by reading w once.
//
//   out     [rows, n]          T, or f32 for logits
//   x       [rows, k]          T, k a multiple of 8 (16 with e4m3 weights)
//   w       [n, k]             T or e4m3; GATED: [2 n, k], gate over up, and out = function(gate) * up
//   scales                     f32, of e4m3 weights: see linear.cuh
//   bias    [n], GATED [2 n]   T or null
//   function                   activation of the gate: see gate.cuh
//   leaf                       k in a leaf, LEAVES only
// Grid (ceil(n / tile)), tile = 16 TILES (GATED: 8 TILES) outputs; block 256: each warp computes all outputs
// of the tile for one of the 8 slices of k, so a block ends with one sum through shared memory, and no second
// launch is needed. LEAVES: with fewer leaves than warps, a block has 8 / leaves tiles. Sums as in
// linear.cuh, for any number of rows. Reference: cpu::matmul.
//
// Why tensor cores even for one row: 16 x 16 weights are 512 bytes and one instruction for up to 8 rows.
// Multiply-adds would take 8 instructions for every 16 bytes, after 8 to widen them, and again for each row.
// An SM of an H200 gets 18 bytes a clock at 4.3 TB/s: one instruction every 28 clocks, and it needs about 2.
//
// Bytes in flight: a lane has one stage (64 bytes a tile) in use and one in flight. 4.3 TB/s * 0.6 us = 2.6
// MB, 20 KB per SM of 132. Blocks per SM: 4 for up to 8 rows (64 registers; e4m3: 2), 2 for 16 rows (e4m3:
// 1), with 64 KB in flight (e4m3: 32 KB). All blocks of a grid for n = 4096 (256 blocks of 16) or 6144 (384)
// run at once; larger grids run in waves that overlap. Bytes read: w once, and x from L2 rows / 16 times (for
// more than 8 rows: rows / 32).
//
// Predicted at 90% of 4.3 TB/s with bf16 weights (e4m3: half), not yet run on a GPU:
//   8B: qkv 6144x4096 13 us, o 4096x4096 8.7, gate_up 28672x4096 61, down 4096x14336 30, logits 128256x4096
//       271: 3.9 ms a token for 32 layers
//   1B: 3072x2048 3.3 us, 2048x2048 2.2, 16384x2048 17, 2048x8192 8.7, logits 136: 0.64 ms for 16 layers
// Small matrices are a single wave of blocks, whose start and end (about 2 us) weigh more; the early loads
// hide that.
//
// e4m3 costs 40 integer instructions per 16 weights, because no instruction converts it to bf16. That is half
// of what an SM can issue at full bandwidth, so 16 warps per SM are still enough.
//
// Weights do not depend on the previous kernel, so before this grid waits for it, it loads the first two
// stages to registers and the next four to L2.
#include "linear.cuh"

constexpr int STAGES_AHEAD = 4;

// One warp's part: outputs of TILES tiles, rows of 8 * NT, one slice of k. The pointers are this lane's and
// advance.
template <class T, class W, Mode M, int NT, int TILES> struct Part {
  using Of = Weight<T, W>;
  static constexpr int STAGE = 2 * Of::STEP;

  const W* row[TILES][2];
  const T* x[NT];
  int left;  // k from here to the end of the slice
  Words weights[2][2][TILES][2];
  float sum[TILES][NT][4];

  // Loads weights `ahead` stages from here into buffer b.
  __device__ __forceinline__ void load(int ahead, int b) {
#pragma unroll
    for (int step = 0; step < 2; step++) {
      int k = ahead * STAGE + step * Of::STEP;
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          weights[b][step][tile][half] = Words{};
          if (k < left) weights[b][step][tile][half] = words(ptx::load_stream16(row[tile][half] + k));
        }
      }
    }
  }

  // 8 values of x, k from here; missing rows are zero.
  __device__ __forceinline__ Words load_x(int nt, int k) const {
    Words got{};
    if (x[nt] && k < left) got = words(*(const uint4*)(x[nt] + k));
    return got;
  }

  // Multiplies the stage in buffer b, which is `ahead` stages from here; its first k is in block `at` of 128.
  __device__ __forceinline__ void multiply(int ahead, int b, int at, const Scales& scales,
                                           const int (*rows)[2]) {
    float block[TILES][NT][4] = {};
    float (*d)[NT][4] = Of::SCALED ? block : sum;
#pragma unroll
    for (int step = 0; step < 2; step++) {
      Words xs[NT][Of::X_CHUNKS];
#pragma unroll
      for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int i = 0; i < Of::X_CHUNKS; i++)
          xs[nt][i] = load_x(nt, ahead * STAGE + step * Of::STEP + i * 8);
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
        for (int i = 0; i < Of::MMAS; i++) {
          u32 a[4];
          fragment(T{}, W{}, weights[b][step][tile][0], weights[b][step][tile][1], i, a);
#pragma unroll
          for (int nt = 0; nt < NT; nt++) ptx::mma_m16n8k16(T{}, d[tile][nt], a, &xs[nt][i / 2].v[i % 2 * 2]);
        }
      }
    }
    if (Of::SCALED) add_scaled(block, at, scales, rows);
  }

  __device__ __forceinline__ void advance(int stages) {
    left -= stages * STAGE;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      row[tile][0] += stages * STAGE;
      row[tile][1] += stages * STAGE;
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
      if (x[nt]) x[nt] += stages * STAGE;
  }

  // Adds the sums of 128 k, scaled, to the slice's.
  __device__ __forceinline__ void add_scaled(const float (*block)[NT][4], int at, const Scales& scales,
                                             const int (*rows)[2]) {
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      float low = scales.at(rows[tile][0], at), high = scales.at(rows[tile][1], at);
#pragma unroll
      for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          sum[tile][nt][i] = __fmaf_rn(i < 2 ? low : high, block[tile][nt][i], sum[tile][nt][i]);
    }
  }
};

template <class T, class W, class Out, Mode M, int NT, int TILES>
__device__ void gemv(Out* out, const T* x, const W* w, Scales scales, const T* bias,
                     int rows, int n, int k, u32 function, int leaf) {
  constexpr int OUTPUTS = 16 * TILES, ROWS = 8 * NT;
  __shared__ float partial[SLICES][OUTPUTS][ROWS + 1];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int slices = M == LEAVES ? k / leaf : SLICES, groups = SLICES / slices;
  int slice = warp % slices, first_tile = (blockIdx.x * groups + warp / slices) * TILES;
  int length = M == LEAVES ? leaf : slice_length(k);
  if (M == LEAVES) scales.values += slice * scales.leaf_stride;

  Part<T, W, M, NT, TILES> part;
  using P = decltype(part);
  int begin = min(slice * length, k), end = min(begin + length, k), chunk = begin + t * P::Of::CHUNK;
  int stages = (end - begin + P::STAGE - 1) / P::STAGE;
  int weight_rows[TILES][2];
  part.left = end - chunk;
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      weight_rows[tile][half] = weight_row<M>(first_tile + tile, g + 8 * half, n);
      part.row[tile][half] = w + (size_t)weight_rows[tile][half] * k + chunk;
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
      for (int i = 0; i < 4; i++) part.sum[tile][nt][i] = 0.f;
  }
  part.load(0, 0);
  part.load(1, 1);
#pragma unroll
  for (int i = 0; i < STAGES_AHEAD / 2 * TILES; i++) {
    int tile = i % TILES, at = begin + (2 + i / TILES * 2 + lane / 16) * P::STAGE;
    const W* row = w + (size_t)weight_row<M>(first_tile + tile, lane % 16, n) * k;
    if (at < end) ptx::prefetch_l2(row + at);
  }

  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
#pragma unroll
  for (int nt = 0; nt < NT; nt++) {
    int r = nt * 8 + g;
    part.x[nt] = r < rows ? x + (size_t)r * k + chunk : nullptr;
  }
#pragma unroll 1
  for (int s = 0, at = M == LEAVES ? 0 : begin / 128; s < stages; s += 2, at += 2) {
    part.multiply(0, 0, at, scales, weight_rows);
    part.load(2, 0);
    if (s + 1 < stages) part.multiply(1, 1, at + 1, scales, weight_rows);
    part.load(3, 1);
    part.advance(2);
  }

#pragma unroll
  for (int tile = 0; tile < TILES; tile++)
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        partial[warp][tile * 16 + g + i / 2 * 8][nt * 8 + t * 2 + i % 2] = part.sum[tile][nt][i];
  __syncthreads();
  auto total = [&](int group, int output, int r) {
    if (M == LEAVES) {
      float v[SLICES];
#pragma unroll
      for (int s = 0; s < SLICES; s++) v[s] = s < slices ? partial[group * slices + s][output][r] : 0.f;
      return tree(v, slices);
    }
    float sum = 0.f;
#pragma unroll
    for (int s = 0; s < SLICES; s++) sum += partial[s][output][r];
    return sum;
  };
  constexpr int EACH = M == GATED ? OUTPUTS / 2 : OUTPUTS;
  int written = EACH * groups;
#pragma unroll 1
  for (int i = threadIdx.x; i < written * ROWS; i += blockDim.x) {
    int r = i / written, of_block = i % written, column = blockIdx.x * written + of_block;
    int group = of_block / EACH, output = of_block % EACH;
    if (r >= rows || column >= n) continue;
    float value;
    if (M == GATED) {
      int gate = output / 8 * 16 + output % 8;
      float b0 = bias ? to_f32(bias[column]) : 0.f, b1 = bias ? to_f32(bias[n + column]) : 0.f;
      value = gated(function, total(group, gate, r) + b0, total(group, gate + 8, r) + b1);
    } else {
      value = total(group, output, r);
      if (bias || M != LEAVES) value += bias ? to_f32(bias[column]) : 0.f;
    }
    out[(size_t)r * n + column] = from_f32<Out>(value);
  }
}

#define GEMV(name, T, W, OUT, MODE, NT, TILES, BLOCKS)                                                      \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                 \
      name(OUT* out, const T* x, const W* w, const float* scales, i32 row_shift,         \
           i32 row_stride, i32 k_stride, i32 leaf_stride, const T* bias, i32 rows, i32 n, i32 k,            \
           u32 function, i32 leaf) {                                                                        \
    Scales by{scales, row_shift, row_stride, k_stride, leaf_stride};                                        \
    gemv<T, W, OUT, MODE, NT, TILES>(out, x, w, by, bias, rows, n, k, function, leaf);                      \
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
