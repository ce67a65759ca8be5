// attention_merge.cu: merges the parts of tiles whose context was divided.
#include "attention.cuh"

struct Merge {
  const Header* header;
  const Item* groups[2];
  const float* sums[2];
  const Partial* partials[2];
  const float* sinks;
  Sequences sequences;
  u32 kv_heads, group, head_dim;
  float value_scale;
};

// One row of a tile, by one warp, 256 values at a time; parts in ascending order.
template <class T>
__device__ __forceinline__ void merge_row(T* out, const Merge& merge, u32 large, const Item& item, u32 kv_head,
                                          u32 row) {
  u32 rows = large ? LARGE_ROWS : SMALL_ROWS, parts = item.part >> 16;
  u32 lane = threadIdx.x % 32, dim = merge.head_dim;
  Span span(merge.sequences, item.sequence, merge.group);
  u32 packed = item.tile * rows + row;
  if (packed >= span.packed()) return;
  size_t first = (size_t)slot_of(item, kv_head, 0) * rows + row;
  const Partial* partials = merge.partials[large] + first;
  const float* sums = merge.sums[large] + first * dim;
  u32 head = kv_head * merge.group + packed % merge.group;
  T* to = out + ((size_t)(span.first_row + packed / merge.group) * merge.kv_heads * merge.group + head) * dim;
  for (u32 first = lane; first < dim; first += 256) {
    Partial all = partials[0];
    float o[8];
#pragma unroll
    for (u32 i = 0; i < 8; i++) o[i] = i * 32 + first < dim ? sums[i * 32 + first] : 0.f;
#pragma unroll 4
    for (u32 part = 1; part < parts; part++) {
      const float* from = sums + (size_t)part * rows * dim;
      float x[8];
#pragma unroll
      for (u32 i = 0; i < 8; i++) x[i] = i * 32 + first < dim ? from[i * 32 + first] : 0.f;
      Fold fold(all, partials[(size_t)part * rows]);
#pragma unroll
      for (u32 i = 0; i < 8; i++) o[i] = fold(o[i], x[i]);
    }
    float factor = last_factor(all, merge.sinks ? merge.sinks + head : nullptr, merge.value_scale);
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
      if (i * 32 + first < dim) to[i * 32 + first] = from_f32<T>(__fmul_rn(o[i], factor));
    }
  }
}

// attention_merge_{T}: writes the rows of tiles that were computed in parts, and prepares the header for the
// next layer.
//   out       [rows, heads * head_dim]  T; head_dim: values of a head, with latents the rank
//   sums      [slots, rows of a tile, head_dim]  f32, small and large tiles: weighted sums of values
//   partials  [slots, rows of a tile]  Partial
// Grid: fixed, one warp per row, block 256. Reads 4 * (head_dim + 2) bytes per row, head and part, mostly
// from L2; ends at once if there is nothing to merge. Reference: check/attention.rs, and bits equal to
// merging in registers (attention_kernel.cuh).
template <class T> __device__ __forceinline__ void attention_merge(T* out, Header* header, const Merge& merge) {
  ptx::grid_dependency_wait();
  u32 warps = gridDim.x * blockDim.x / 32, warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
#pragma unroll
  for (u32 large = 0; large < 2; large++) {
    u32 rows = large ? LARGE_ROWS : SMALL_ROWS, count = header->groups[large] * merge.kv_heads * rows;
    for (u32 unit = warp; unit < count; unit += warps) {
      u32 of = unit / rows;
      merge_row<T>(out, merge, large, merge.groups[large][of / merge.kv_heads], of % merge.kv_heads, unit % rows);
    }
  }
  if (blockIdx.x == 0 && threadIdx.x < 2) header->next[threadIdx.x] = 0;
  ptx::grid_dependency_launch();
}

#define ATTENTION_MERGE(T)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256) attention_merge_##T(                                      \
      T* out, Header* header, const Item* groups_small, const Item* groups_large, const float* sums_small,    \
      const float* sums_large, const Partial* partials_small, const Partial* partials_large, const float* sinks,\
      const u32* row_starts, const u32* context_lens, u32 kv_heads, u32 group, u32 head_dim, float value_scale) {\
    attention_merge<T>(out, header,                                                                           \
                       Merge{header, {groups_small, groups_large}, {sums_small, sums_large},                  \
                             {partials_small, partials_large}, sinks, {row_starts, context_lens}, kv_heads, group,\
                             head_dim, value_scale});                                                         \
  }                                                                                                           \
  EXPORT(attention_merge_##T)

ATTENTION_MERGE(bf16)
ATTENTION_MERGE(f16)
