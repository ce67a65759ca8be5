// attention_sm90.cu: prefill attention for Hopper over the paged KV cache. FlashAttention-3 (Shah et al.
// 2024) with packed query heads: one warpgroup copies, two multiply.
#include "attention_sm90.cuh"

// attention_sm90_plan: lists the tiles of 128 query rows, most expensive first.
//   items         [max_items]  uint2, out: sequence, tile
//   count         [1]          u32, out
//   row_starts    [capacity + 1], context_lens [capacity]  u32: see ops/kv.rs
// Skips sequences with fewer than min_rows rows. A query row is (token, head of the group). One block of 256
// threads: a counting sort by quarter octaves of the cost. The order within a bucket is arbitrary, and no
// result depends on it.
extern "C" __global__ void __launch_bounds__(256)
    attention_sm90_plan(uint2* items, u32* count, const u32* row_starts, const u32* context_lens,
                        i32 capacity, i32 group, i32 window, u32 min_rows, i32 max_items) {
  constexpr u32 BUCKETS = 128;
  __shared__ u32 places[BUCKETS];
  ptx::grid_dependency_wait();
  if (threadIdx.x < BUCKETS) places[threadIdx.x] = 0;
  __syncthreads();
  for (int pass = 0; pass < 2; pass++) {
    for (int s = threadIdx.x / 32; s < capacity; s += blockDim.x / 32) {
      u32 rows = row_starts[s + 1] - row_starts[s];
      if (rows < min_rows || rows == 0) continue;
      Span span{(i32)context_lens[s], (i32)rows, group, window};
      for (int tile = threadIdx.x % 32; tile < span.tiles(); tile += 32) {
        u32 cost = span.kv_end(tile) - span.kv_begin(tile), octave = 31 - __clz(cost);
        u32 bucket = octave * 4 + (cost << 2 >> octave & 3);
        u32 place = atomicAdd(&places[bucket], 1u);
        if (pass && place < (u32)max_items) items[place] = uint2{(u32)s, (u32)tile};
      }
    }
    __syncthreads();
    if (pass == 0 && threadIdx.x == 0) {
      u32 before = 0;
      for (u32 i = BUCKETS; i-- > 0;) {
        u32 in_bucket = places[i];
        places[i] = before;
        before += in_bucket;
      }
      *count = before;
    }
    __syncthreads();
  }
}
EXPORT(attention_sm90_plan)

// attention_sm90_{T}_{head_dim}: softmax(q k^T * scale) v for the rows of the planned tiles; leaves other
// rows unchanged.
//   out           [rows, heads * HD]  T
//   q             [rows, q_stride]    T: a row starts with its query heads; 16-byte aligned
//   keys, values  tensor maps over [blocks * kv_heads * block_size, HD] T, 128-byte swizzle, boxes of
//                 min(block_size, 128) rows x 64 values
//   sinks         [heads]  f32 or null: a logit that takes part in the softmax but has no value
//   row_starts .. table_stride        see ops/kv.rs; count, items: from attention_sm90_plan
//   scale, softcap: scores are softcap * tanh(scale * q k / softcap), or scale * q k if softcap is 0
//   window        a row sees its own position and the window - 1 before it; 0: all before it
//   value_scale   factor of the result
// Grid: one block per multiprocessor in every step; block b takes the planned tiles b, 2 * blocks - 1 - b and
// so on. 384 threads, Buffers<HD>::BYTES of dynamic shared memory.
//
// Why packed heads: the rows of a tile are (token, head) for the heads of one KV head, so K and V are copied
// once for the group, and even a short chunk fills tiles. Separate heads with multicast would need clusters
// and, for groups of 4 to 8, read the same bytes from L2.
// All rows have one order of computation: KV tiles of 128 positions, counted from position 0, ascending. A
// masked tile changes no bit, so a row's bits do not depend on its chunk or the rest of its batch.
//
// Work per tile of 128 rows and 128 positions: 4 * 128 * 128 * HD FLOPs, 8.4 M for HD 128: 1.4 us at 790
// TFLOP/s / 132. Its 16384 exponentials take 0.6 us of the special function units, hidden behind the other
// warpgroup's product (named barriers make the two take turns). Copies: 64 KiB in that time, 6 TB/s over all
// multiprocessors, about what L2 delivers.
// Prediction: 70% of 790 TFLOP/s for long prompts (FA3 reports 650 to 740 non-causal and 550 to 620 causal on
// an H100), 60% causal at 2k. Pages of 16 tokens cost 32 small copies per tile, the most likely reason for
// less. Not yet run on a GPU. Reference: a naive f64 implementation, check/attention_sm90.rs.
template <class T, int HD> static __device__ __forceinline__ void attention_sm90(const Task<T>& task) {
#ifdef HAS_SM90
  DYN_SHARED(u8, shared);
  Buffers<HD> buffers(shared);
  if (threadIdx.x == 0) {
    ptx::tensor_map_prefetch(task.keys);
    ptx::tensor_map_prefetch(task.values);
    buffers.init_barriers();
  }
  __syncthreads();
  ptx::grid_dependency_wait();
  if (threadIdx.x < 128) {
    ptx::give_registers<40>();
    if (threadIdx.x < 32) produce<T, HD>(task, buffers);
  } else {
    ptx::take_registers<232>();
    consume<T, HD>(task, buffers);
  }
#endif
}

#define ATTENTION(T, HD)                                                                                    \
  extern "C" __global__ void __launch_bounds__(384, 1) attention_sm90_##T##_##HD(                           \
      T* out, const T* q, const __grid_constant__ ptx::TensorMap keys,                                      \
      const __grid_constant__ ptx::TensorMap values, const float* sinks, const u32* row_starts,             \
      const u32* context_lens, const u32* block_tables, const uint2* items, const u32* count, i32 q_stride, \
      i32 table_stride, i32 kv_heads, i32 group, i32 block_size, i32 cache_rows, i32 window, float scale,   \
      float softcap, float value_scale) {                                                                   \
    attention_sm90<T, HD>(Task<T>{out, q, &keys, &values, sinks, row_starts, context_lens, block_tables,    \
                                  items, count, q_stride, table_stride, kv_heads, group, block_size,        \
                                  cache_rows, window, scale, softcap, value_scale});                        \
  }                                                                                                         \
  EXPORT(attention_sm90_##T##_##HD)

ATTENTION(bf16, 64)
ATTENTION(f16, 64)
ATTENTION(bf16, 128)
ATTENTION(f16, 128)
