// gemv_packed.cuh: out = x w^T for few rows and weights in codes, limited by reading w once; gemv_packed.cu
// and experts_gemv_packed.cu. Sums as in packed.cuh, for any number of rows.
//
// Block 256: each warp computes 16 outputs for one of the 8 slices of k, so a block ends with one sum through
// shared memory. LEAVES: with fewer leaves than warps, a block has 8 / leaves tiles.
//
// Bytes in flight: a lane has the codes of a block of 128 k of two octets in use, 32 to 64 bytes, the next
// block's on their way, and their parameters. The first block is loaded before the rows are waited for.
#pragma once
#include "packed.cuh"

// The products of the block's up to 8 * NT rows with tile `block_tile` of the matrix, or with 8 / leaves
// tiles.
template <class T, int BITS, Mode M, int NT, class Rows>
__device__ __forceinline__ void gemv(const Rows& by, const Matrix& w, int block_tile) {
  constexpr int ROWS = 8 * NT;
  __shared__ float partial[SLICES][16][ROWS + 1];
  __shared__ u32 shared_table[PARTS * 8];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, n = by.n, k = by.k;
  int slices = M == LEAVES ? w.leaves : SLICES, groups = SLICES / slices;
  int slice = warp % slices, tile = block_tile * groups + warp / slices;
  int length = M == LEAVES ? w.leaf : slice_length(k);
  int begin = min(slice * length, k), end = min(begin + length, k);
  int blocks = (end - begin + BLOCK_K - 1) / BLOCK_K;
  int first = M == LEAVES ? slice * w.leaf_blocks : begin / BLOCK_K;

  const u8* from[2];
  int octet[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    octet[half] = octet_of<M>(w, tile, half, n);
    from[half] = w.codes + ((size_t)octet[half] * w.blocks() + first) * octet_bytes(BITS);
  }
  Codes<BITS> held[2][1][2];
  Spans of[2][1][2];
  auto load = [&](int b, int block) {
    if (block >= blocks) return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      held[b][0][half].template read<true>(from[half] + (size_t)block * octet_bytes(BITS), lane);
      of[b][0][half] = spans_at(w, octet[half], first + block, lane);
    }
  };
  copy_table(shared_table, w);
  load(0, 0);
  by.wait();
  const T* x[NT];
#pragma unroll
  for (int j = 0; j < NT; j++) x[j] = by.has(j * 8 + g) ? by.x_row(j * 8 + g) + begin + t * 4 : nullptr;
  __syncthreads();  // the table is there
  float sum[1][NT][4] = {};
  auto multiply = [&](int b, int block) {
    auto values = [&](int j, int i) {
      int at = block * BLOCK_K + i * 16;
      return x[j] && begin + at + t * 4 < end ? *(const uint2*)(x[j] + at) : uint2{0, 0};
    };
    multiply_block<T, BITS, 1, NT>(w, shared_table, held[b], of[b], lane, values, sum);
  };
#pragma unroll 1
  for (int block = 0; block < blocks; block += 2) {
    load(1, block + 1);
    multiply(0, block);
    load(0, block + 2);
    if (block + 1 < blocks) multiply(1, block + 1);
  }

#pragma unroll
  for (int j = 0; j < NT; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) partial[warp][g + e / 2 * 8][j * 8 + t * 2 + e % 2] = sum[0][j][e];
  __syncthreads();
  write_sums<M>(by, partial, slices, block_tile);
}
