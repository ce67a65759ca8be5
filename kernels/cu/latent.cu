// latent.cu: latent attention (DeepSeek-AI 2024) between its products: norms of the latent and of the vector
// from which queries are projected, rotation, and writing keys to their slots.
#include "e4m3.cuh"
#include "latent_key.cuh"

// The cosine and sine table's row of a position; later positions use the last.
struct Angles {
  const float* values;  // [rows, rotated]: cosines, then sines
  u32 rows;

  __device__ __forceinline__ const float* at(u32 position, i32 rotated) const {
    return values + (size_t)(position < rows ? position : rows - 1) * rotated;
  }
};

// Rotates value `i` of x with value `i + half` (Su et al. 2021).
template <class T>
__device__ __forceinline__ void rotate_pair(T* to, const T* x, const float* angles, i32 half, i32 i) {
  float a = to_f32(x[i]), b = to_f32(x[half + i]), c = angles[i], s = angles[half + i];
  to[i] = from_f32<T>(a * c - b * s);
  to[half + i] = from_f32<T>(b * c + a * s);
}

// 1 / rms(x), by the whole block.
template <class T> __device__ __forceinline__ float rms_scale(const T* x, i32 width, float eps) {
  float squares = 0.f;
  for (int i = threadIdx.x * 8; i < width; i += blockDim.x * 8) {
    Pack<T, 8> v = *(const Pack<T, 8>*)(x + i);
#pragma unroll
    for (int j = 0; j < 8; j++) squares += to_f32(v.v[j]) * to_f32(v.v[j]);
  }
  return rsqrtf(block_sum(squares) / (float)width + eps);
}

// to = x / rms(x) * weight, by the whole block. `to` may be null.
template <class T>
__device__ __forceinline__ void rms_norm(T* to, const T* x, const float* weight, i32 width, float eps) {
  float scale = rms_scale(x, width, eps);
  if (!to) return;
  for (int i = threadIdx.x * 8; i < width; i += blockDim.x * 8) {
    Pack<T, 8> v = *(const Pack<T, 8>*)(x + i), y;
#pragma unroll
    for (int j = 0; j < 8; j++) y.v[j] = from_f32<T>(to_f32(v.v[j]) * scale * weight[i + j]);
    *(Pack<T, 8>*)(to + i) = y;
  }
}

// Normalises the row's vector, if the model has one, by the whole block.
template <class T>
__device__ __forceinline__ void write_vector(T* vector, const T* row, const float* vector_norm, i32 rank,
                                             i32 rotated, i32 query_rank, float eps) {
  if (query_rank > 0) {
    rms_norm(vector + (size_t)blockIdx.x * query_rank, row + rank + rotated, vector_norm, query_rank, eps);
  }
}

// latent_kv_write_{T}: normalises each row's latent, rotates the rest of its key, and writes both to the
// cache; also normalises the vector from which queries are projected.
//   vector        [rows, query_rank]    T: the normalised vector, if query_rank > 0
//   projected     [rows, stride]        T: latent | rotated part | vector or queries; unchanged
//   keys          [blocks, 1 << block_shift, rank + rotated]  T, one layer
//   norm          [rank]                f32
//   vector_norm   [query_rank]          f32
//   angles        [angle_rows, rotated] f32: cosines of a position, then sines
//   positions     [rows]                u32
//   slots         [rows]                u32: block * block_size + offset. Slots that are not below slot_count
//                 (NO_SLOT) are skipped
// Grid (rows), block 128. Widths are multiples of 8. About 4 bytes a value. References: cpu::norm::rms_norm
// and cpu::rope::rotate over f32.
template <class T>
__device__ void latent_kv_write(T* vector, const T* projected, T* keys, const float* norm, const float* vector_norm,
                                Angles angles, const u32* positions, const u32* slots, i32 stride, i32 rank,
                                i32 rotated, i32 query_rank, u32 slot_count, float eps) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  u32 slot = slots[blockIdx.x];
  const T* row = projected + (size_t)blockIdx.x * stride;
  // The whole block takes part in the norm, even if nothing is written.
  T* key = slot < slot_count ? keys + (size_t)slot * (rank + rotated) : nullptr;
  rms_norm(key, row, norm, rank, eps);
  if (key) {
    const float* of_row = angles.at(positions[blockIdx.x], rotated);
    i32 half = rotated / 2;
    for (int i = threadIdx.x; i < half; i += blockDim.x) rotate_pair(key + rank, row + rank, of_row, half, i);
  }
  write_vector(vector, row, vector_norm, rank, rotated, query_rank, eps);
}

// The same to a latent in 8 bits, [width] e4m3 and then four scales, by 128 threads: each has 8 of up to 512
// values, and 16 threads share a scale. Scales behind the last value are 1, because codes of 0 are multiplied
// by them.
template <class T>
__device__ __forceinline__ void write_narrow(u8* key, const T* x, const float* weight, i32 width, float scale) {
  i32 first = threadIdx.x * 8;
  float y[8] = {}, largest = 0.f, sum = 0.f;
  if (first < width) {
    Pack<T, 8> v = *(const Pack<T, 8>*)(x + first);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      y[j] = to_f32(v.v[j]) * scale * weight[first + j];
      largest = fmaxf(largest, fabsf(y[j]));
      sum += y[j];
    }
    if (sum != sum) largest = -NEG_INF;  // fmaxf ignores NaN
  }
#pragma unroll
  for (int o = NARROW_GROUP / 16; o; o >>= 1) largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, o));
  float own = scale_of(largest), times = times_of(own);
  int group = first / NARROW_GROUP;
  if (first % NARROW_GROUP == 0 && group < NARROW_SCALES_BYTES / 4) *(float*)(key + width + group * 4) = own;
  if (first >= width) return;
  Pack<e4m3, 8> codes;
#pragma unroll
  for (int j = 0; j < 8; j++) codes.v[j] = from_f32<e4m3>(__fmul_rn(y[j], times));
  *(Pack<e4m3, 8>*)(key + first) = codes;
}

// latent_kv_write_{T}_e4m3: latent_kv_write into keys of 8 bits, [blocks, 1 << block_shift] of
// narrow_key_bytes each (latent_key.cuh). `rank` is a multiple of 16 up to 512. About 3.5 bytes a value.
// References: as there, and ops::e4m3.
template <class T>
__device__ void latent_kv_write_narrow(T* vector, const T* projected, u8* keys, const float* norm,
                                       const float* vector_norm, Angles angles, const u32* positions,
                                       const u32* slots, i32 stride, i32 rank, i32 rotated, i32 query_rank,
                                       u32 slot_count, float eps) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  u32 slot = slots[blockIdx.x];
  const T* row = projected + (size_t)blockIdx.x * stride;
  float scale = rms_scale(row, rank, eps);
  if (slot < slot_count) {
    u8* key = keys + (size_t)slot * narrow_key_bytes(rank, rotated);
    write_narrow(key, row, norm, rank, scale);
    T* rest = (T*)(key + rank + NARROW_SCALES_BYTES);
    const float* of_row = angles.at(positions[blockIdx.x], rotated);
    i32 half = rotated / 2;
    for (int i = threadIdx.x; i < half; i += blockDim.x) rotate_pair(rest, row + rank, of_row, half, i);
  }
  write_vector(vector, row, vector_norm, rank, rotated, query_rank, eps);
}

// latent_rotate_{T}: rotates the last part of each query head and writes it behind the head's query of the
// latent.
//   out      [rows, heads, rank + rotated]  T: the last `rotated` values of each head are written
//   queries  rows of `stride` values        T: heads of query_dim values, the last `rotated` of which are
//            rotated; unchanged
//   angles, positions   as in latent_kv_write
// Grid (rows), block 256. Reference: cpu::rope::rotate over f32.
template <class T>
__device__ void latent_rotate(T* out, const T* queries, Angles angles, const u32* positions, i32 stride, i32 heads,
                              i32 query_dim, i32 rank, i32 rotated) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const float* of_row = angles.at(positions[blockIdx.x], rotated);
  const T* row = queries + (size_t)blockIdx.x * stride;
  T* to = out + (size_t)blockIdx.x * heads * (rank + rotated);
  int half = rotated / 2;
  for (int i = threadIdx.x; i < heads * half; i += blockDim.x) {
    int head = i / half;
    const T* from = row + head * query_dim + query_dim - rotated;
    rotate_pair(to + head * (rank + rotated) + rank, from, of_row, half, i % half);
  }
}

#define LATENT(T)                                                                                           \
  extern "C" __global__ void __launch_bounds__(128) latent_kv_write_##T(                                    \
      T* vector, const T* projected, T* keys, const float* norm, const float* vector_norm,                  \
      const float* angles, const u32* positions, const u32* slots, i32 stride, i32 rank, i32 rotated,       \
      i32 query_rank, u32 slot_count, u32 angle_rows, float eps) {                                          \
    latent_kv_write<T>(vector, projected, keys, norm, vector_norm, Angles{angles, angle_rows}, positions,   \
                       slots, stride, rank, rotated, query_rank, slot_count, eps);                          \
  }                                                                                                         \
  EXPORT(latent_kv_write_##T)                                                                               \
  extern "C" __global__ void __launch_bounds__(128) latent_kv_write_##T##_e4m3(                             \
      T* vector, const T* projected, u8* keys, const float* norm, const float* vector_norm,                 \
      const float* angles, const u32* positions, const u32* slots, i32 stride, i32 rank, i32 rotated,       \
      i32 query_rank, u32 slot_count, u32 angle_rows, float eps) {                                          \
    latent_kv_write_narrow<T>(vector, projected, keys, norm, vector_norm, Angles{angles, angle_rows},       \
                              positions, slots, stride, rank, rotated, query_rank, slot_count, eps);        \
  }                                                                                                         \
  EXPORT(latent_kv_write_##T##_e4m3)                                                                        \
  extern "C" __global__ void __launch_bounds__(256) latent_rotate_##T(                                      \
      T* out, const T* queries, const float* angles, const u32* positions, i32 stride, i32 heads,           \
      i32 query_dim, i32 rank, i32 rotated, u32 angle_rows) {                                               \
    latent_rotate<T>(out, queries, Angles{angles, angle_rows}, positions, stride, heads, query_dim, rank,   \
                     rotated);                                                                              \
  }                                                                                                         \
  EXPORT(latent_rotate_##T)

LATENT(bf16)
LATENT(f16)
