// gemm_packed.cuh: out = x w^T for a tile of rows and weights in codes, which are dequantised in registers;
// gemm_packed.cu and experts_gemm_packed.cu. Sums as in packed.cuh: the bits are those of gemv_packed.cuh,
// for any tile.
//
// BM = 32 WM rows of x, 16 TN WN rows of the weight, block 32 WN WM. Dynamic shared memory: max(STAGES * (2
// TN WN octets' blocks + BM * 256), BM * (outputs + 4) * 4) bytes, with outputs = 16 TN WN (GATED: half).
//
// A stage is a block of 128 k: octets' blocks as they are in memory, and rows of x of 256 bytes, copied by
// cp.async STAGES - 1 ahead. A lane reads its own 16 bytes of codes, and 8 bytes of x: half a warp reads 32
// bytes of four rows, and with pairs of chunks swapped by row (swizzle) those are in different banks. A warp
// has all 4 tiles of 8 rows of x, so codes are dequantised once for 32 rows.
#pragma once
#include "packed.cuh"

constexpr int TM = 4;  // tiles of 8 rows of x per warp

// Position of chunk c (16 bytes) of x's row r.
__device__ __forceinline__ int swizzle(int r, int c) { return c ^ (r & 3) << 1; }

// The products of the block's rows with tile `column_tile` of the matrix.
template <class T, int BITS, Mode M, int TN, int WN, int WM, int STAGES, class Rows>
__device__ __forceinline__ void gemm(const Rows& by, const Matrix& w, int column_tile) {
  constexpr int BM = 8 * TM * WM, OCTETS = 2 * TN * WN, THREADS = 32 * WN * WM;
  constexpr int OUTPUTS = 8 * OCTETS / (M == GATED ? 2 : 1);
  constexpr int W_BYTES = OCTETS * octet_bytes(BITS), STAGE_BYTES = W_BYTES + BM * BLOCK_K * 2;
  constexpr int X_CHUNKS = BLOCK_K / 8;
  DYN_SHARED(u8, shared);
  __shared__ u32 shared_table[PARTS * 8];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, n = by.n, k = by.k;
  int wn = warp % WN * TN, wm = warp / WN * 8 * TM;  // this warp's first tile and row
  int stages = w.blocks(), slice_blocks = M == LEAVES ? w.leaf_blocks : slice_length(k) / BLOCK_K;
  // First k of stage s, and the end of its leaf.
  auto begin = [&](int s) { return s / w.leaf_blocks * w.leaf + s % w.leaf_blocks * BLOCK_K; };
  auto end = [&](int s) { return min((s / w.leaf_blocks + 1) * w.leaf, k); };

  auto load_w = [&](int s) {
    u8* to = shared + s % STAGES * STAGE_BYTES;
    constexpr int CHUNKS = octet_bytes(BITS) / 16;
#pragma unroll 4
    for (int i = threadIdx.x; i < OCTETS * CHUNKS; i += THREADS) {
      int o = i / CHUNKS, octet = octet_of<M>(w, column_tile * (OCTETS / 2) + o / 2, o % 2, n);
      const u8* from = w.codes + ((size_t)octet * stages + min(s, stages - 1)) * octet_bytes(BITS);
      ptx::cp_async16(to + i * 16, from + i % CHUNKS * 16, s < stages);
    }
  };
  // Zeros past the leaf's end.
  auto load_x = [&](int s) {
    u8* to = shared + s % STAGES * STAGE_BYTES + W_BYTES;
#pragma unroll 4
    for (int i = threadIdx.x; i < BM * X_CHUNKS; i += THREADS) {
      int r = i / X_CHUNKS, c = i % X_CHUNKS, at = begin(s) + c * 8;
      bool there = s < stages && at < end(s);
      ptx::cp_async16(to + (r * X_CHUNKS + swizzle(r, c)) * 16, by.x_row(r) + (there ? at : 0), there);
    }
  };
  copy_table(shared_table, w);
#pragma unroll 1
  for (int s = 0; s < STAGES - 1; s++) load_w(s);
  by.wait();
#pragma unroll 1
  for (int s = 0; s < STAGES - 1; s++) {
    load_x(s);
    ptx::cp_async_commit();
  }

  float slice[TN][TM][4] = {}, sum[M == LEAVES ? 1 : TN][TM][4] = {};
  float open[M == LEAVES ? LEVELS : 1][TN][TM][4];
  int in_slice = 0, slices = 0;
#pragma unroll 1
  for (int s = 0; s < stages; s++) {
    Spans of[TN][2];
#pragma unroll
    for (int tile = 0; tile < TN; tile++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int octet = octet_of<M>(w, column_tile * (OCTETS / 2) + wn + tile, half, n);
        of[tile][half] = spans_at(w, octet, s, lane);
      }
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();  // stage s is here, for all; and all have read stage s - 1, whose place is next
    load_w(s + STAGES - 1);
    load_x(s + STAGES - 1);
    ptx::cp_async_commit();
    const u8* stage = shared + s % STAGES * STAGE_BYTES;
    Codes<BITS> held[TN][2];
#pragma unroll
    for (int tile = 0; tile < TN; tile++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        held[tile][half].template read<false>(stage + ((wn + tile) * 2 + half) * octet_bytes(BITS), lane);
    auto values = [&](int j, int i) {
      int r = wm + j * 8 + g;
      return *(const uint2*)(stage + W_BYTES + (r * X_CHUNKS + swizzle(r, i * 2 + t / 2)) * 16 + t % 2 * 8);
    };
    multiply_block<T, BITS, TN, TM>(w, shared_table, held, of, lane, values, slice);
    if (++in_slice < slice_blocks) continue;
    in_slice = 0;
    if (M != LEAVES) {
      join<TN, TM>(sum, slice);
      continue;
    }
    close_leaf<TN, TM>(open, slice, slices++);
    if (slices == w.leaves) break;
#pragma unroll
    for (int i = 0; i < TN * TM * 4; i++) slice[i / 4 / TM][i / 4 % TM][i % 4] = 0.f;
  }
  if (M != LEAVES) join<TN, TM>(sum, slice);  // the last slice may be short; an empty one adds 0
  float (*result)[TM][4] = M == LEAVES ? slice : sum;

  // Write through shared memory, so that whole lines are written.
  constexpr int STRIDE = OUTPUTS + 4;
  float* staged = (float*)shared;
  ptx::cp_async_wait<0>();
  __syncthreads();
  stage_results<M, STRIDE, TN, TM>(by, result, column_tile * (OCTETS / 2) + wn, wn, wm, staged);
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < BM * OUTPUTS; i += THREADS) {
    int r = i / OUTPUTS, column = column_tile * OUTPUTS + i % OUTPUTS;
    if (by.has(r) && column < n) by.store(r, column, staged[r * STRIDE + i % OUTPUTS]);
  }
}
