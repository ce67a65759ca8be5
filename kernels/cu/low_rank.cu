// low_rank.cu: changes by low-rank adapters (LoRA, Hu et al. 2021) to products, y += scale * (x A) B, for the
// rows of a batch that have an adapter.
//
// Adapters are in slots of one size. A slot starts with a record for each product that adapters may change:
// u32 ranks of its up to 3 matrices, a word unused, f32 scales likewise. Then come, for each product,
//   a  [matrices, max_rank, k]  T: all matrices read the same input
//   b  [max_rank, n_stride]     T: a column for each output, of the matrix that has the output
// Components past a matrix's rank are not used. max_rank is a multiple of 16.
//
// The rows are listed in the step's message `packed`, from the word in packed[list] (0: no row has an
// adapter): the number of tiles, then 3 words a tile: slot, word of its first row index, number of rows (1 to
// 16). So a captured graph serves any adapters, and an adapter is read once for 16 rows.
//
// A row's sums have one order, whatever tile it is in:
// 1. Inner sums as in linear.cuh: 8 slices of k, each ascending by mma m16n8k16, then added ascending. They
//    stay f32. If ranks may divide k, its leaves take the place of the slices and are added as a tree.
// 2. The inner sums of several ranks, which have whole subtrees of the leaves, are added as a tree. So any
//    number of ranks gives the bits of one.
// 3. An output's sum starts at 0 and adds the components ascending; then y = fma(scale, sum, y), rounded
//    once.
// Reference: cpu::low_rank. Not yet run on a GPU.
#include "linear.cuh"

constexpr int TILE_ROWS = 16;
constexpr int MATRICES = 3;
constexpr int COMPONENTS = 64;  // of the inner sums that are in shared memory at a time

struct Record {
  u32 rank[4];
  float scale[4];
};

// Rows with the same adapter.
struct RowTile {
  const u8* slot;
  const u32* rows;
  int count;  // 0: the list has fewer tiles
};

__device__ __forceinline__ RowTile row_tile(const u32* packed, u32 list, const u8* slots, u64 slot_bytes) {
  u32 at = packed[list];
  if (at == 0 || blockIdx.x >= packed[at]) return RowTile{nullptr, nullptr, 0};
  const u32* tile = packed + at + 1 + blockIdx.x * 3;
  return RowTile{slots + tile[0] * slot_bytes, packed + tile[1], (int)tile[2]};
}

// low_rank_inner: inner = x A.
//   inner   [rows, matrices, max_rank]  f32
//   x       [rows, k]                   T, k a multiple of 8
//   a_at    bytes from the start of a slot to the product's a
//   leaves  of k, a power of two up to 8 of equal lengths, multiples of 8; 0: slices
// Grid (tiles, matrices * max_rank / 16); block 256: each warp computes 16 components for one of the 8 slices
// of k. Reads A once a tile, x from L2 for every 16 components: rank 16 of 4096 inputs are 128 KB a matrix.
template <class T>
__device__ void low_rank_inner(float* inner, const T* x, const u8* slots, u64 slot_bytes, const u32* packed,
                               u32 list, u32 product, u64 a_at, i32 k, i32 leaves, i32 max_rank) {
  __shared__ float partial[SLICES][16][TILE_ROWS + 1];
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  RowTile tile = row_tile(packed, list, slots, slot_bytes);
  int strips = max_rank / 16, matrix = blockIdx.y / strips, first = blockIdx.y % strips * 16;
  if (tile.count == 0 || first >= (int)((const Record*)tile.slot)[product].rank[matrix]) return;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int length = leaves ? k / leaves : slice_length(k);
  int begin = min(warp * length, k), end = min(begin + length, k);

  const T* a = (const T*)(tile.slot + a_at) + (size_t)(matrix * max_rank + first + g) * k;
  const T* row[2];
#pragma unroll
  for (int j = 0; j < 2; j++) {
    int r = j * 8 + g;
    row[j] = r < tile.count ? x + (size_t)tile.rows[r] * k : nullptr;
  }
  float sum[2][4] = {};
#pragma unroll 1
  for (int from = begin; from < end; from += 32) {
    Words low{}, high{}, values[2] = {};
    int at = from + t * 8;
    if (at < end) {
      low = words(*(const uint4*)(a + at));
      high = words(*(const uint4*)(a + (size_t)8 * k + at));
#pragma unroll
      for (int j = 0; j < 2; j++)
        if (row[j]) values[j] = words(*(const uint4*)(row[j] + at));
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      u32 operand[4];
      fragment(T{}, T{}, low, high, i, operand);
#pragma unroll
      for (int j = 0; j < 2; j++) ptx::mma_m16n8k16(T{}, sum[j], operand, &values[j].v[2 * i]);
    }
  }
#pragma unroll
  for (int j = 0; j < 2; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) partial[warp][g + e / 2 * 8][j * 8 + t * 2 + e % 2] = sum[j][e];
  __syncthreads();
  int component = threadIdx.x % 16, r = threadIdx.x / 16;
  if (r >= tile.count) return;
  float sums[SLICES], all = 0.f;
#pragma unroll
  for (int s = 0; s < SLICES; s++) all += sums[s] = partial[s][component][r];
  if (leaves) all = tree(sums, leaves);
  int matrices = gridDim.y / strips;
  inner[((size_t)tile.rows[r] * matrices + matrix) * max_rank + first + component] = all;
}

#define INNER(t, T)                                                                                          \
  extern "C" __global__ void __launch_bounds__(256) low_rank_inner_##t(                                      \
      float* inner, const T* x, const u8* slots, u64 slot_bytes, const u32* packed, u32 list, u32 product,   \
      u64 a_at, i32 k, i32 leaves, i32 max_rank) {                                                           \
    low_rank_inner<T>(inner, x, slots, slot_bytes, packed, list, product, a_at, k, leaves, max_rank);        \
  }                                                                                                          \
  EXPORT(low_rank_inner_##t)
INNER(bf16, bf16)
INNER(f16, f16)

// low_rank_add: out += scale * (inner B), for rows `first_row` to `first_row + row_count` of the batch.
//   out       [row_count, n]  T or f32; its first row is the batch's row `first_row`
//   inner     [ranks, rows, matrices, max_rank]  f32; ranks: 1, 2, 4 or 8 that share k
//   apart     values between two ranks' inner sums
//   b_at      bytes from the start of a slot to the product's b
//   n_stride  columns of b, a multiple of 8
//   second    first output of the second matrix, `third` of the third: even, so that a pair of outputs is of
//             one matrix; n if there is none
// Grid (tiles, ceil(n / 512)); block 256: a thread adds to two outputs of all rows of a tile. Reads B once a
// tile, and reads and writes the rows' outputs.
template <class T, class Out>
__device__ void low_rank_add(Out* out, const float* inner, const u8* slots, u64 slot_bytes, const u32* packed,
                             u32 list, u32 product, u64 b_at, i32 n, i32 n_stride, i32 second, i32 third,
                             i32 matrices, i32 max_rank, i32 ranks, u64 apart, i32 first_row, i32 row_count) {
  __shared__ float held[TILE_ROWS][MATRICES][COMPONENTS];
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  RowTile tile = row_tile(packed, list, slots, slot_bytes);
  if (tile.count == 0) return;
  const Record& record = ((const Record*)tile.slot)[product];
  int most = (int)max(record.rank[0], max(record.rank[1], record.rank[2]));
  int output = (blockIdx.y * blockDim.x + threadIdx.x) * 2;
  int matrix = output >= third ? 2 : output >= second ? 1 : 0;
  int rank = output < n ? (int)record.rank[matrix] : 0;
  const T* b = (const T*)(tile.slot + b_at) + output;
  float sum[TILE_ROWS][2] = {};
#pragma unroll 1
  for (int start = 0; start < most; start += COMPONENTS) {
    __syncthreads();  // the components before have been read
    for (int i = threadIdx.x; i < TILE_ROWS * MATRICES * COMPONENTS; i += blockDim.x) {
      int c = i % COMPONENTS, m = i / COMPONENTS % MATRICES, r = i / COMPONENTS / MATRICES;
      bool used = r < tile.count && start + c < (int)record.rank[m];
      const float* own = inner + ((size_t)tile.rows[used ? r : 0] * matrices + m) * max_rank + start + c;
      float of_rank[SLICES];
#pragma unroll
      for (int k = 0; k < SLICES; k++) of_rank[k] = used && k < ranks ? own[k * apart] : 0.f;
      held[r][m][c] = tree(of_rank, ranks);
    }
    __syncthreads();
    int count = min(rank - start, COMPONENTS);
#pragma unroll 1
    for (int c = 0; c < count; c++) {
      Pack<T, 2> weights = *(const Pack<T, 2>*)(b + (size_t)(start + c) * n_stride);
      float low = to_f32(weights.v[0]), high = to_f32(weights.v[1]);
#pragma unroll
      for (int r = 0; r < TILE_ROWS; r++) {
        float x = held[r][matrix][c];
        sum[r][0] = __fmaf_rn(x, low, sum[r][0]);
        sum[r][1] = __fmaf_rn(x, high, sum[r][1]);
      }
    }
  }
  if (rank == 0) return;
  float scale = record.scale[matrix];
#pragma unroll
  for (int r = 0; r < TILE_ROWS; r++) {
    int row = r < tile.count ? (int)tile.rows[r] - first_row : -1;
    if (row < 0 || row >= row_count) continue;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (output + i >= n) continue;
      Out* to = out + (size_t)row * n + output + i;
      *to = from_f32<Out>(__fmaf_rn(scale, sum[r][i], to_f32(*to)));
    }
  }
}

#define ADD(name, T, OUT)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256) name(                                                    \
      OUT* out, const float* inner, const u8* slots, u64 slot_bytes, const u32* packed, u32 list,            \
      u32 product, u64 b_at, i32 n, i32 n_stride, i32 second, i32 third, i32 matrices, i32 max_rank,         \
      i32 ranks, u64 apart, i32 first_row, i32 row_count) {                                                  \
    low_rank_add<T, OUT>(out, inner, slots, slot_bytes, packed, list, product, b_at, n, n_stride, second,    \
                         third, matrices, max_rank, ranks, apart, first_row, row_count);                     \
  }                                                                                                          \
  EXPORT(name)
ADD(low_rank_add_bf16, bf16, bf16)
ADD(low_rank_add_f16, f16, f16)
ADD(low_rank_add_f32_bf16, bf16, float)
ADD(low_rank_add_f32_f16, f16, float)

// glu_wide: out = function(gate) * up from sums in f32, with the bits of the gated products of gemv.cu and
// gemm.cu.
//   out       [rows, inner]      T
//   gate_up   [rows, 2 * inner]  f32: in each row the gate, then the up projection
//   function                     activation of the gate: see gate.cuh
// Grid (parts, rows), any block. 10 bytes a value.
template <class T> __device__ void glu_wide(T* out, const float* gate_up, i32 inner, u32 function) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const float* gates = gate_up + (size_t)blockIdx.y * 2 * inner;
  T* to = out + (size_t)blockIdx.y * inner;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < inner; i += gridDim.x * blockDim.x)
    to[i] = from_f32<T>(gated(function, gates[i], gates[inner + i]));
}

#define GLU_WIDE(t, T)                                                                                       \
  extern "C" __global__ void __launch_bounds__(256) glu_wide_##t(T* out, const float* gate_up, i32 inner,    \
                                                                 u32 function) {                             \
    glu_wide<T>(out, gate_up, inner, function);                                                              \
  }                                                                                                          \
  EXPORT(glu_wide_##t)
GLU_WIDE(bf16, bf16)
GLU_WIDE(f16, f16)
