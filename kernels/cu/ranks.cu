// ranks.cu: kernels before and after an exchange between ranks. NCCL only moves bytes; sums and selections
// are computed here, in rank order, so that all ranks have the same bits as a single rank. `all` is the
// output of an all-gather: the parts of all ranks in rank order. Not yet run on a GPU.
#include "ranks.cuh"

// embed_part: this rank's rows of the embedding table, zero for tokens of other ranks.
//   out     [rows, hidden]  T
//   table   [count, hidden] T: the rows of tokens first..first + count
//   tokens  [rows]          u32; tokens that are not below vocab read row 0, as in embed.cu
// Grid (rows), block a multiple of 32; hidden is a multiple of 8. Reference: the rows of the table.
template <class T>
__device__ void embed_part(T* out, const T* table, const u32* tokens, i32 hidden, u32 vocab, u32 first, u32 count) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  u32 token = tokens[blockIdx.x];
  u32 row = (token < vocab ? token : 0) - first;
  const uint4* from = (const uint4*)(table + (size_t)(row < count ? row : 0) * hidden);
  uint4* to = (uint4*)(out + (size_t)blockIdx.x * hidden);
  for (int i = threadIdx.x; i < hidden / 8; i += blockDim.x) to[i] = row < count ? from[i] : uint4{};
}

// embed_chosen: the residual stream, from the rows of all ranks.
//   out     [rows, hidden]         f32: scale times the row of the rank that holds the token
//   all     [ranks, rows, hidden]  T
//   tokens  [rows]                 u32; rank r has tokens r * each..(r + 1) * each
// Grid (rows), block a multiple of 32; hidden is a multiple of 8. Reference: cpu::embed::embed, exact.
template <class T>
__device__ void embed_chosen(float* out, const T* all, const u32* tokens, i32 rows, i32 hidden, u32 vocab, u32 each,
                             float scale) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  u32 token = tokens[blockIdx.x];
  u32 owner = (token < vocab ? token : 0) / each;
  const T* from = all + ((size_t)owner * rows + blockIdx.x) * hidden;
  float* to = out + (size_t)blockIdx.x * hidden;
  for (int i = threadIdx.x * 4; i < hidden; i += blockDim.x * 4) {
    Pack<T, 4> x = *(const Pack<T, 4>*)(from + i);
    *(float4*)(to + i) = make_float4(to_f32(x.v[0]) * scale, to_f32(x.v[1]) * scale, to_f32(x.v[2]) * scale,
                                     to_f32(x.v[3]) * scale);
  }
}

// join_sums: a product whose inputs are split over ranks, from the ranks' sums: a balanced tree, then the
// bias, then one rounding, as gemv.cu and gemm.cu do with all leaves (linear.cuh).
//   out    [rows, n]         T
//   sums   [ranks, rows, n]  f32, ranks a power of two up to 8
//   bias   [n]               T or null
// Any grid and block; n is a multiple of 4. Reads 4 bytes per value and rank, writes 2 per value. Reference:
// leaves::join, exact.
template <class T> __device__ void join_sums(T* out, const float* sums, const T* bias, i32 ranks, i32 count, i32 n) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  for (int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4; i < count; i += gridDim.x * blockDim.x * 4) {
    float v[MAX_RANKS][4];
#pragma unroll
    for (int r = 0; r < MAX_RANKS; r++) {
      float4 x = r < ranks ? *(const float4*)(sums + (size_t)r * count + i) : float4{};
      v[r][0] = x.x, v[r][1] = x.y, v[r][2] = x.z, v[r][3] = x.w;
    }
    *(Pack<T, 4>*)(out + i) = join_ranks(v, ranks, bias ? bias + i % n : nullptr);
  }
}

// join_logits: logits of the whole vocabulary, from those of all ranks.
//   out  [rows, vocab]  f32
//   all  f32: rank r's part begins at r * rows * each and is [rows, its columns], the columns r * each.. of
//        the vocabulary, at most `each` of them
// Grid (blocks, rows), any block. Reference: the columns side by side, exact.
extern "C" __global__ void __launch_bounds__(256)
    join_logits(float* out, const float* all, i32 rows, i32 vocab, i32 each) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  int row = blockIdx.y;
  for (int column = blockIdx.x * blockDim.x + threadIdx.x; column < vocab; column += gridDim.x * blockDim.x) {
    int rank = column / each, width = min(each, vocab - rank * each);
    const float* from = all + (size_t)rank * rows * each + (size_t)row * width;
    out[(size_t)row * vocab + column] = from[column - rank * each];
  }
}
EXPORT(join_logits)

#define OF_TYPE(t, T)                                                                                       \
  extern "C" __global__ void __launch_bounds__(1024)                                                        \
      embed_part_##t(T* out, const T* table, const u32* tokens, i32 hidden, u32 vocab, u32 first, u32 count) { \
    embed_part<T>(out, table, tokens, hidden, vocab, first, count);                                         \
  }                                                                                                         \
  EXPORT(embed_part_##t)                                                                                    \
  extern "C" __global__ void __launch_bounds__(1024)                                                        \
      embed_chosen_##t(float* out, const T* all, const u32* tokens, i32 rows, i32 hidden, u32 vocab, u32 each, \
                       float scale) {                                                                       \
    embed_chosen<T>(out, all, tokens, rows, hidden, vocab, each, scale);                                    \
  }                                                                                                         \
  EXPORT(embed_chosen_##t)                                                                                  \
  extern "C" __global__ void __launch_bounds__(256)                                                         \
      join_sums_##t(T* out, const float* sums, const T* bias, i32 ranks, i32 count, i32 n) {                \
    join_sums<T>(out, sums, bias, ranks, count, n);                                                         \
  }                                                                                                         \
  EXPORT(join_sums_##t)
OF_TYPE(bf16, bf16)
OF_TYPE(f16, f16)
