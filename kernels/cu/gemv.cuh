// gemv.cuh: out = x w^T for few rows, limited by reading w once; gemv.cu and experts_gemv.cu. Sums as in
// linear.cuh, for any number of rows.
//
// Block 256: each warp computes all outputs of a tile for one of the 8 slices of k, so a block ends with one
// sum through shared memory, and no second launch is needed.
//
// Why tensor cores even for one row: 16 x 16 weights are 512 bytes and one instruction for up to 8 rows.
// Multiply-adds would take 8 instructions for every 16 bytes, after 8 to widen them, and again for each row.
// An SM of an H200 gets 18 bytes a clock at 4.3 TB/s: one instruction every 28 clocks, and it needs about 2.
//
// Bytes in flight: a lane has one stage (64 bytes a tile) in use and one in flight.
//
// e4m3 costs 40 integer instructions per 16 weights, because no instruction converts it to bf16. That is half
// of what an SM can issue at full bandwidth, so 16 warps per SM are still enough.
//
// Before the rows are waited for, the first two stages are loaded to registers and the next four to L2.
#pragma once
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

// The products of the block's up to 8 * NT rows with tiles of the matrix, of 16 * TILES rows each, from tile
// `block` * TILES on. `leaf` is 0 without LEAVES, where warps without a leaf compute other tiles.
template <class T, class W, Mode M, int NT, int TILES, class Rows>
__device__ __forceinline__ void gemv(const Rows& by, const W* w, Scales scales, int block, int leaf) {
  constexpr int OUTPUTS = 16 * TILES, ROWS = 8 * NT;
  __shared__ float partial[SLICES][OUTPUTS][ROWS + 1];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, n = by.n, k = by.k;
  int slices = M == LEAVES ? k / leaf : SLICES, groups = SLICES / slices;
  int slice = warp % slices, first_tile = (block * groups + warp / slices) * TILES;
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

  by.wait();
#pragma unroll
  for (int nt = 0; nt < NT; nt++) part.x[nt] = by.has(nt * 8 + g) ? by.x_row(nt * 8 + g) + chunk : nullptr;
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
  write_sums<M>(by, partial, slices, block);
}
