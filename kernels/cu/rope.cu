// rope.cu: everything between the QKV product and attention in one pass over the rows: an optional RMS norm
// of each query and key head (Qwen3), rotary embedding (Su et al. 2021, halves rotated), and writing keys and
// values to their slots.
#include "device.cuh"

// Parameters that all heads of a row share.
struct RopeHead {
  const float* angles;  // cosines of the position, then sines
  float eps;
  int half;   // values of half a head
  int lanes;  // threads that share a head: 8, 16 or 32
};

// Sum over the `lanes` threads that share a head.
__device__ __forceinline__ float head_sum(float v, int lanes) {
  for (int o = lanes / 2; o; o >>= 1) v += __shfl_xor_sync(FULL_WARP, v, o);
  return v;
}

// 1 / rms of a head. Called by whole warps; lanes without a head (`x` null) add nothing.
template <class T> __device__ __forceinline__ float head_scale(const T* x, const RopeHead& head, int lane) {
  float squares = 0.f;
  for (int i = lane * 4; x && i < 2 * head.half; i += head.lanes * 4) {
    Pack<T, 4> p = *(const Pack<T, 4>*)(x + i);
#pragma unroll
    for (int j = 0; j < 4; j++) squares += to_f32(p.v[j]) * to_f32(p.v[j]);
  }
  return rsqrtf(head_sum(squares, head.lanes) / (float)(2 * head.half) + head.eps);
}

// to = rotate(x * scale * weight) * times; `weight` is null if heads are not normalised. `to` may be `x`.
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
      float a = to_f32(first.v[j]), b = to_f32(second.v[j]);
      if (weight) {
        a = a * scale * weight[i + j];
        b = b * scale * weight[half + i + j];
      }
      y.v[j] = from_f32<U>((a * c[j] - b * s[j]) * times);
      z.v[j] = from_f32<U>((b * c[j] + a * s[j]) * times);
    }
    *(Pack<U, 4>*)(to + i) = y;
    *(Pack<U, 4>*)(to + half + i) = z;
  }
}

// rope_kv_write: rotates queries in place, and writes rotated keys, and values, to the cache.
//   qkv        [rows, (heads + 2 * kv_heads) * head_dim]  T: query heads | key heads | value heads
//   keys       [blocks, kv_heads, block_size, head_dim]   K, one layer; values likewise
//   q_norm     [head_dim] f32, or null for no normalisation; k_norm likewise
//   angles     [angle_rows, head_dim]  f32: cosines of a position, then sines; later positions use the last
//   positions  [rows]  u32
//   slots      [rows]  u32: block * block_size + offset. Slots that are not below slot_count (NO_SLOT) are
//              skipped
//   *_times    factors of keys and values before they are stored (1 / scale for e4m3, which saturates)
// Grid (rows), block a multiple of 32; head_dim is a multiple of 8, block_size is 1 << block_shift. Keys and
// values in the activations are left unchanged. Bytes per row: 2 * 2 * heads * head_dim for queries, (2 +
// sizeof(K)) * 2 * kv_heads * head_dim for keys and values, and the angles from L2: 0.2 GB per layer at 8,192
// rows of Llama-3.1-8B, 48 us at 4.3 TB/s (predicted, not yet run on a GPU). Reference: cpu::norm::rms_norm
// and cpu::rope::rotate over f32.
template <class T, class K>
__device__ void rope_kv_write(T* qkv, K* keys, K* values, const float* q_norm, const float* k_norm,
                              const float* angles, const u32* positions, const u32* slots, i32 heads,
                              i32 kv_heads, i32 head_dim, i32 block_shift, u32 slot_count, u32 angle_rows,
                              i32 lanes, float eps, float key_times, float value_times) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  u32 position = positions[blockIdx.x], slot = slots[blockIdx.x];
  position = position < angle_rows ? position : angle_rows - 1;
  RopeHead head{angles + (size_t)position * head_dim, eps, head_dim / 2, lanes};
  T* row = qkv + (size_t)blockIdx.x * (heads + 2 * kv_heads) * head_dim;
  size_t block = slot >> block_shift, offset = slot & ((1u << block_shift) - 1);
  int lane = threadIdx.x % lanes, all = slot < slot_count ? heads + 2 * kv_heads : heads;
  int step = blockDim.x / lanes, first = threadIdx.x / lanes;
  // Whole warps stay together, because normalising needs all lanes; lanes past the last head only take part
  // in sums.
  for (int start = 0; start < all; start += step) {
    int h = start + first;
    bool is_query = h < heads, is_key = !is_query && h < heads + kv_heads;
    const T* x = row + (size_t)h * head_dim;
    float scale = 1.f;
    if (q_norm || k_norm) scale = head_scale<T>((is_query || is_key) && h < all ? x : nullptr, head, lane);
    if (h >= all) continue;
    if (is_query) {
      rotate_head<T, T>((T*)x, x, q_norm, scale, 1.f, head, lane);
      continue;
    }
    size_t kv_head = is_key ? h - heads : h - heads - kv_heads;
    size_t at = (((block * kv_heads + kv_head) << block_shift) + offset) * head_dim;
    if (is_key) {
      rotate_head<T, K>(keys + at, x, k_norm, scale, key_times, head, lane);
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

#define ROPE_KV_WRITE(name, T, K)                                                                           \
  extern "C" __global__ void __launch_bounds__(512)                                                         \
      name(T* qkv, K* keys, K* values, const float* q_norm, const float* k_norm, const float* angles,       \
           const u32* positions, const u32* slots, i32 heads, i32 kv_heads, i32 head_dim, i32 block_shift,  \
           u32 slot_count, u32 angle_rows, i32 lanes, float eps, float key_times, float value_times) {      \
    rope_kv_write<T, K>(qkv, keys, values, q_norm, k_norm, angles, positions, slots, heads, kv_heads,       \
                        head_dim, block_shift, slot_count, angle_rows, lanes, eps, key_times, value_times); \
  }                                                                                                         \
  EXPORT(name)

ROPE_KV_WRITE(rope_kv_write_bf16_bf16, bf16, bf16)
ROPE_KV_WRITE(rope_kv_write_bf16_e4m3, bf16, e4m3)
ROPE_KV_WRITE(rope_kv_write_f16_f16, f16, f16)
ROPE_KV_WRITE(rope_kv_write_f16_e4m3, f16, e4m3)
