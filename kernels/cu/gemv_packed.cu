// gemv_packed.cu: out = x w^T for few rows (1 to 16) and weights in codes, limited by reading w once.
//
//   out     [rows, n]          T, or f32 if is_wide
//   x       [rows, k]          T, k a multiple of 8
//   w       see packed.cuh; GATED: gate over up, [2 n, k], n a multiple of 8; out = function(gate) * up
//   bias    [n], GATED [2 n]   T or null
//   function                   activation of the gate: see gate.cuh
//   leaf                       k in a leaf, a multiple of 32; LEAVES only, else 0
// Grid (ceil(n / 16)) (GATED: n / 8); block 256: each warp computes 16 outputs for one of the 8 slices of k,
// so a block ends with one sum through shared memory. LEAVES: with fewer leaves than warps, a block has
// 8 / leaves tiles. Sums as in packed.cuh, for any number of rows. Reference: cpu::packed.
//
// Bytes in flight: a lane has the codes of a block of 128 k of two octets in use, 32 to 64 bytes, the next
// block's on their way, and their parameters. Not yet run on a GPU.
//
// Weights do not depend on the previous kernel, so the first block is loaded before this grid waits for it.
#include "packed.cuh"

template <class T, int BITS, Mode M, int NT> __device__ void gemv(PACKED_PARAMETERS(T)) {
  constexpr int ROWS = 8 * NT;
  __shared__ float partial[SLICES][16][ROWS + 1];
  __shared__ u32 shared_table[PARTS * 8];
  PACKED_MATRIX
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int slices = M == LEAVES ? w.leaves : SLICES, groups = SLICES / slices;
  int slice = warp % slices, tile = blockIdx.x * groups + warp / slices;
  int length = M == LEAVES ? leaf : slice_length(k);
  int begin = min(slice * length, k), end = min(begin + length, k);
  int blocks = (end - begin + BLOCK_K - 1) / BLOCK_K;
  int first = M == LEAVES ? slice * w.leaf_blocks : begin / BLOCK_K;

  const u8* from[2];
  int octet[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    octet[half] = octet_of<M>(w, tile, half, n);
    from[half] = codes + ((size_t)octet[half] * w.blocks() + first) * octet_bytes(BITS);
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
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  __syncthreads();  // the table is there
  float sum[1][NT][4] = {};
  auto multiply = [&](int b, int block) {
    auto values = [&](int j, int i) {
      int row = j * 8 + g, at = begin + block * BLOCK_K + i * 16 + t * 4;
      return row < rows && at < end ? *(const uint2*)(x + (size_t)row * k + at) : uint2{0, 0};
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
  auto total = [&](int group, int output, int r) {
    if (M == LEAVES) {
      float v[SLICES];
#pragma unroll
      for (int s = 0; s < SLICES; s++) v[s] = s < slices ? partial[group * slices + s][output][r] : 0.f;
      return tree(v, slices);
    }
    float all = 0.f;
#pragma unroll
    for (int s = 0; s < SLICES; s++) all += partial[s][output][r];
    return all;
  };
  constexpr int EACH = M == GATED ? 8 : 16;
  int written = EACH * groups;
#pragma unroll 1
  for (int i = threadIdx.x; i < written * ROWS; i += blockDim.x) {
    int r = i / written, of_block = i % written, column = blockIdx.x * written + of_block;
    int group = of_block / EACH, output = of_block % EACH;
    if (r >= rows || column >= n) continue;
    float value = total(group, output, r);
    if (bias || M != LEAVES) value += bias ? to_f32(bias[column]) : 0.f;
    if (M == GATED) {
      float up = total(group, output + 8, r) + (bias ? to_f32(bias[n + column]) : 0.f);
      value = gated(function, value, up);
    }
    write_result<T>(out, is_wide, (size_t)r * n + column, value);
  }
}

#define GEMV(name, T, BITS, MODE, NT, BLOCKS)                                                                \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS) name(PACKED_PARAMETERS(T)) {                     \
    gemv<T, BITS, MODE, NT>(out, is_wide, x, codes, scales, units, minima, minimum_units, zeros, table, zero, \
                            meaning, scale_kind, span, parts, octets, bias, rows, n, k, function, leaf);     \
  }                                                                                                          \
  EXPORT(name)
#define GEMV_ROWS(name, T, BITS, MODE)          \
  GEMV(name##_rows8, T, BITS, MODE, 1, 2)       \
  GEMV(name##_rows16, T, BITS, MODE, 2, 1)
#define GEMV_MODES(name, T, BITS)               \
  GEMV_ROWS(name##_plain, T, BITS, PLAIN)       \
  GEMV_ROWS(name##_gated, T, BITS, GATED)       \
  GEMV_ROWS(name##_leaves, T, BITS, LEAVES)
#define GEMV_ALL(t, T)                          \
  GEMV_MODES(gemv_packed4_##t, T, 4)            \
  GEMV_MODES(gemv_packed6_##t, T, 6)            \
  GEMV_MODES(gemv_packed8_##t, T, 8)
GEMV_ALL(bf16, bf16)
GEMV_ALL(f16, f16)
