// rope.cu: everything between the QKV product and attention in one pass over the rows: an optional RMS norm
// of each query and key head (Qwen3), rotary embedding (Su et al. 2021, halves rotated), and writing keys and
// values to their slots. A norm over all heads of a row (OLMo 2) needs a pass before, whose sums the ranks
// exchange.
#include "device.cuh"

// Parameters that all heads of a row share.
struct RopeHead {
  const float* angles;  // cosines of the position, then sines
  int half;   // values of half a head
  int lanes;  // threads that share a head: 8, 16 or 32
};

// Sum over the `lanes` threads that share a head.
__device__ __forceinline__ float head_sum(float v, int lanes) {
  for (int o = lanes / 2; o; o >>= 1) v += __shfl_xor_sync(FULL_WARP, v, o);
  return v;
}

// Sum of a head's squares. Called by whole warps; lanes without a head (`x` null) add nothing.
template <class T>
__device__ __forceinline__ float head_squares(const T* x, int head_dim, int lanes, int lane) {
  float squares = 0.f;
  for (int i = lane * 4; x && i < head_dim; i += lanes * 4) {
    Pack<T, 4> p = *(const Pack<T, 4>*)(x + i);
#pragma unroll
    for (int j = 0; j < 4; j++) squares += to_f32(p.v[j]) * to_f32(p.v[j]);
  }
  return head_sum(squares, lanes);
}

// Sums of squares of every head of a row, from all ranks, for norms over whole rows.
struct RowSquares {
  const float* sums;  // [ranks, rows, heads + kv_heads], or null
  i32 ranks, sharers;  // consecutive ranks that have the same KV heads

  // 1 / rms of the row's `heads` heads from `first` on, of those of every `apart`th rank: the same in any
  // division among ranks. Called by whole warps.
  __device__ __forceinline__ float scale(int first, int heads, int of_rank, int apart, int head_dim,
                                         float eps) const {
    float squares = 0.f;
    int all = heads * (ranks / apart);
    for (int h = threadIdx.x % 32; h < all; h += 32) {
      size_t row = (size_t)(h / heads * apart) * gridDim.x + blockIdx.x;
      squares += sums[row * of_rank + first + h % heads];
    }
    return rsqrtf(warp_sum(squares) / ((float)all * (float)head_dim) + eps);
  }
};

// Which heads are normalised before they are rotated, and by which weights.
struct HeadNorm {
  const float *q, *k;  // [head_dim]; all heads' weights if there are sums of rows; or null
  i32 is_normalised;   // without weights if they are null
  RowSquares rows;
};

// to = rotate(x * scale * weight) * times; `weight` may be null, and scale is 1 if heads are not normalised.
// `to` may be `x`.
template <class T, class U>
__device__ __forceinline__ void rotate_head(U* to, const T* x, const float* weight, float scale, float times,
                                            const RopeHead& head, int lane) {
  int half = head.half;
  for (int i = lane * 4; i < half; i += head.lanes * 4) {
    Pack<T, 4> first = *(const Pack<T, 4>*)(x + i), second = *(const Pack<T, 4>*)(x + half + i);
    float4 cosine = *(const float4*)(head.angles + i), sine = *(const float4*)(head.angles + half + i);
    const float* c = &cosine.x;
    const float* s = &sine.x;
    Pack<U, 4> y, z;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float a = to_f32(first.v[j]) * scale, b = to_f32(second.v[j]) * scale;
      if (weight) {
        a = a * weight[i + j];
        b = b * weight[half + i + j];
      }
      y.v[j] = from_f32<U>((a * c[j] - b * s[j]) * times);
      z.v[j] = from_f32<U>((b * c[j] + a * s[j]) * times);
    }
    *(Pack<U, 4>*)(to + i) = y;
    *(Pack<U, 4>*)(to + half + i) = z;
  }
}

// Factor of a row's queries: 1 + scale * ln(1 + n), where n is (position + 1) / every, rounded down
// (Nakanishi 2025); 1 if `every` is 0.
__device__ __forceinline__ float temperature(u32 position, u32 every, float scale) {
  return every ? 1.f + scale * logf(1.f + (float)((position + 1) / every)) : 1.f;
}

// rope_kv_write: rotates queries in place, and writes rotated keys, and values, to the cache.
//   qkv        [rows, (heads + 2 * kv_heads) * head_dim]  T: query heads | key heads | value heads
//   keys       [blocks, kv_heads, block_size, head_dim]   K, one layer; values likewise
//   norm       see HeadNorm: no norm, one per head with or without weights, or one over all heads
//   angles     [angle_rows, head_dim]  f32: cosines of a position, then sines; later positions use the last
//   positions  [rows]  u32
//   slots      [rows]  u32: block * block_size + offset. Slots that are not below slot_count (NO_SLOT) are
//              skipped
//   every, temper  factor of the queries by their position: see temperature
//   *_times    factors of keys and values before they are stored (1 / scale for e4m3, which saturates)
// Grid (rows), block a multiple of 32; head_dim is a multiple of 8, block_size is 1 << block_shift. Keys and
// values in the activations are left unchanged. Bytes per row: 2 * 2 * heads * head_dim for queries, (2 +
// sizeof(K)) * 2 * kv_heads * head_dim for keys and values, and the angles from L2: 0.2 GB per layer at 8,192
// rows of Llama-3.1-8B, 48 us at 4.3 TB/s (predicted, not yet run on a GPU). Reference: cpu::norm::rms_norm,
// cpu::rope::rotate and scale_by_position over f32.
template <class T, class K>
__device__ void rope_kv_write(T* qkv, K* keys, K* values, const HeadNorm& norm, const float* angles,
                              const u32* positions, const u32* slots, i32 heads, i32 kv_heads, i32 head_dim,
                              i32 block_shift, u32 slot_count, u32 angle_rows, i32 lanes, float eps, u32 every,
                              float temper, float key_times, float value_times) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  u32 position = positions[blockIdx.x], slot = slots[blockIdx.x];
  float query_times = temperature(position, every, temper);
  position = position < angle_rows ? position : angle_rows - 1;
  RopeHead head{angles + (size_t)position * head_dim, head_dim / 2, lanes};
  T* row = qkv + (size_t)blockIdx.x * (heads + 2 * kv_heads) * head_dim;
  size_t block = slot >> block_shift, offset = slot & ((1u << block_shift) - 1);
  int lane = threadIdx.x % lanes, all = slot < slot_count ? heads + 2 * kv_heads : heads;
  int step = blockDim.x / lanes, first = threadIdx.x / lanes;
  bool by_row = norm.rows.sums, by_head = norm.is_normalised && !by_row;
  float q_scale = 1.f, k_scale = 1.f;
  if (by_row) {
    q_scale = norm.rows.scale(0, heads, heads + kv_heads, 1, head_dim, eps);
    k_scale = norm.rows.scale(heads, kv_heads, heads + kv_heads, norm.rows.sharers, head_dim, eps);
  }
  // Whole warps stay together, because normalising needs all lanes; lanes past the last head only take part
  // in sums.
  for (int start = 0; start < all; start += step) {
    int h = start + first;
    bool is_query = h < heads, is_key = !is_query && h < heads + kv_heads;
    const T* x = row + (size_t)h * head_dim;
    float scale = is_query ? q_scale : k_scale;
    if (by_head) {
      const T* normalised = (is_query || is_key) && h < all ? x : nullptr;
      scale = rsqrtf(head_squares<T>(normalised, head_dim, lanes, lane) / (float)head_dim + eps);
    }
    if (h >= all) continue;
    if (is_query) {
      const float* weight = norm.q && by_row ? norm.q + (size_t)h * head_dim : norm.q;
      rotate_head<T, T>((T*)x, x, weight, scale, query_times, head, lane);
      continue;
    }
    size_t kv_head = is_key ? h - heads : h - heads - kv_heads;
    size_t at = (((block * kv_heads + kv_head) << block_shift) + offset) * head_dim;
    if (is_key) {
      const float* weight = norm.k && by_row ? norm.k + kv_head * head_dim : norm.k;
      rotate_head<T, K>(keys + at, x, weight, scale, key_times, head, lane);
      continue;
    }
    for (int i = lane * 4; i < head_dim; i += lanes * 4) {
      Pack<T, 4> p = *(const Pack<T, 4>*)(x + i);
      Pack<K, 4> y;
#pragma unroll
      for (int j = 0; j < 4; j++) y.v[j] = from_f32<K>(to_f32(p.v[j]) * value_times);
      *(Pack<K, 4>*)(values + at + i) = y;
    }
  }
}

// head_squares: sums of squares of query and key heads, for norms over whole rows.
//   out  [rows, heads + kv_heads]                         f32
//   qkv  [rows, (heads + 2 * kv_heads) * head_dim]        T, as in rope_kv_write
// Grid (rows), block a multiple of 32 and of `lanes`. 2 bytes a value read. Reference: the same sums in f64.
template <class T>
__device__ void write_head_squares(float* out, const T* qkv, i32 heads, i32 kv_heads, i32 head_dim, i32 lanes) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const T* row = qkv + (size_t)blockIdx.x * (heads + 2 * kv_heads) * head_dim;
  int lane = threadIdx.x % lanes, all = heads + kv_heads, step = blockDim.x / lanes;
  for (int start = 0; start < all; start += step) {
    int h = start + threadIdx.x / lanes;
    float squares = head_squares<T>(h < all ? row + (size_t)h * head_dim : nullptr, head_dim, lanes, lane);
    if (h < all && lane == 0) out[(size_t)blockIdx.x * all + h] = squares;
  }
}

#define HEAD_SQUARES(T)                                                                                     \
  extern "C" __global__ void __launch_bounds__(512)                                                         \
      head_squares_##T(float* out, const T* qkv, i32 heads, i32 kv_heads, i32 head_dim, i32 lanes) {        \
    write_head_squares<T>(out, qkv, heads, kv_heads, head_dim, lanes);                                      \
  }                                                                                                         \
  EXPORT(head_squares_##T)

HEAD_SQUARES(bf16)
HEAD_SQUARES(f16)

#define ROPE_KV_WRITE(name, T, K)                                                                           \
  extern "C" __global__ void __launch_bounds__(512)                                                         \
      name(T* qkv, K* keys, K* values, const float* q_norm, const float* k_norm, i32 is_normalised,         \
           const float* row_squares, i32 ranks, i32 sharers, const float* angles, const u32* positions,     \
           const u32* slots, i32 heads, i32 kv_heads, i32 head_dim, i32 block_shift, u32 slot_count,        \
           u32 angle_rows, i32 lanes, float eps, u32 every, float temper, float key_times,                  \
           float value_times) {                                                                             \
    HeadNorm norm{q_norm, k_norm, is_normalised, {row_squares, ranks, sharers}};                            \
    rope_kv_write<T, K>(qkv, keys, values, norm, angles, positions, slots, heads, kv_heads, head_dim,       \
                        block_shift, slot_count, angle_rows, lanes, eps, every, temper, key_times,          \
                        value_times);                                                                       \
  }                                                                                                         \
  EXPORT(name)

ROPE_KV_WRITE(rope_kv_write_bf16_bf16, bf16, bf16)
ROPE_KV_WRITE(rope_kv_write_bf16_e4m3, bf16, e4m3)
ROPE_KV_WRITE(rope_kv_write_f16_f16, f16, f16)
ROPE_KV_WRITE(rope_kv_write_f16_e4m3, f16, e4m3)
