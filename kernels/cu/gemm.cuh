// gemm.cuh: out = x w^T for a tile of rows, by mma m16n8k16 from shared memory; gemm.cu and experts_gemm.cu.
// Sums as in linear.cuh: the bits are those of gemv.cuh, for any tile.
//
// Tiles of BM rows of x and BN rows of the weight; a warp has WM and WN of them. Dynamic shared memory:
// max(STAGES * (BN * 64 * sizeof(W) + BM * 128), BM * (outputs * sizeof(out) + 16)) bytes, with outputs = BN
// (GATED: BN / 2).
//
// A stage is 64 k: rows of 128 bytes (e4m3 weights: 64), copied by cp.async STAGES - 1 ahead. A lane reads 16
// bytes of row lane / 4 (linear.cuh says which), so a quarter of a warp reads half of two neighbouring rows.
// With the chunks of odd rows swapped (swizzle), that touches all 32 banks once. ldmatrix would read as many
// bytes in as many instructions, but in another order of k than gemv.cuh.
//
// The sums of a slice and the total are both in registers: 128 of them in the 128 x 128 tile, one block per
// SM. LEAVES has a sum for each level of the tree besides the leaf's: 128 in the 128 x 64 tile.
#pragma once
#include "linear.cuh"

constexpr int STAGE_K = 64;

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

  __device__ __forceinline__ void find_w(const W* from, int first_tile, int n, int k) {
#pragma unroll
    for (int i = 0; i < BN / W_ROWS; i++) {
      int r = threadIdx.x / W_CHUNKS + i * W_ROWS;
      size_t row = weight_row<M>(first_tile + r / 16, r % 16, n);
      w[i] = from + row * k + threadIdx.x % W_CHUNKS * Of::CHUNK;
    }
  }

  template <class Rows> __device__ __forceinline__ void find_x(const Rows& by) {
#pragma unroll
    for (int i = 0; i < BM / X_ROWS; i++)
      x[i] = by.x_row(threadIdx.x / X_CHUNKS + i * X_ROWS) + threadIdx.x % X_CHUNKS * 8;
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

// The products of the block's rows with tile `column_tile` of the matrix. `leaf` is 0 without LEAVES.
template <class T, class W, class Out, Mode M, int BN, int BM, int WN, int WM, int STAGES, class Rows>
__device__ __forceinline__ void gemm(const Rows& by, const W* w, Scales scales, int column_tile, int leaf) {
  using Of = Tile<T, W, Out, M, BN, BM, WN, WM, STAGES>;
  constexpr int TN = Of::TN, TM = Of::TM, STAGE_BYTES = Of::W_BYTES + Of::X_BYTES;
  constexpr bool SCALED = Of::Of::SCALED;
  DYN_SHARED(u8, shared);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, n = by.n, k = by.k;
  int wn = warp % (BN / WN) * WN, wm = warp / (BN / WN) * WM;
  Of tile;
  tile.find_w(w, column_tile * (BN / 16), n, k);
  int leaves = M == LEAVES ? k / leaf : 1;
  int slice_stages = M == LEAVES ? (leaf + STAGE_K - 1) / STAGE_K : slice_length(k) / STAGE_K;
  int stages = M == LEAVES ? leaves * slice_stages : (k + STAGE_K - 1) / STAGE_K;
  // First k of stage s, and the end of its slice.
  auto at = [&](int s) { return M == LEAVES ? s / slice_stages * leaf + s % slice_stages * STAGE_K : s * STAGE_K; };
  auto end = [&](int s) { return M == LEAVES ? min((s / slice_stages + 1) * leaf, k) : k; };

#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) tile.load_w(shared + s * STAGE_BYTES, at(s), end(s));
  by.wait();
  tile.find_x(by);
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
  stage_results<M, STRIDE, TN, TM>(by, result, column_tile * (BN / 16) + wn / 16, wn / 16, wm, staged);
  __syncthreads();
  constexpr int VALUES = 16 / sizeof(Out), PACKS = Of::OUTPUTS / VALUES;
#pragma unroll 1
  for (int i = threadIdx.x; i < BM * PACKS; i += Of::THREADS) {
    int r = i / PACKS, c = i % PACKS * VALUES, column = column_tile * Of::OUTPUTS + c;
    if (!by.has(r) || column >= n) continue;
    const Out* from = staged + r * STRIDE + c;
    Out* to = by.out_row(r) + column;
    if (n % VALUES == 0) {
      *(uint4*)to = *(const uint4*)from;
    } else {
#pragma unroll 1
      for (int e = 0; e < min(VALUES, n - column); e++) to[e] = from[e];
    }
  }
}
