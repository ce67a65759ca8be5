// quantize.cu: quantises values to FP8 e4m3 with one scale per tensor, row, row group of 128 or 128 x 128
// block.
#include "e4m3.cuh"

__device__ __forceinline__ float block_max(float v) {
  __shared__ float part[33];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  v = warp_max(v);
  __syncthreads();  // an earlier call's result has been read
  if (lane == 0) part[warp] = v;
  __syncthreads();
  if (warp == 0) {
    v = warp_max(lane < warps ? part[lane] : 0.f);
    if (lane == 0) part[32] = v;
  }
  __syncthreads();
  return part[32];
}

// The largest magnitude; infinite if there is a NaN, which fmaxf would ignore.
template <class T> __device__ __forceinline__ float largest_of(const Pack<T, 4>& p) {
  // Adding in this order: finite values whose sum overflows do not give NaN.
  float sum = to_f32(p.v[0]) + to_f32(p.v[1]) + to_f32(p.v[2]) + to_f32(p.v[3]);
  float a = fmaxf(fabsf(to_f32(p.v[0])), fabsf(to_f32(p.v[1])));
  a = fmaxf(a, fmaxf(fabsf(to_f32(p.v[2])), fabsf(to_f32(p.v[3]))));
  return sum == sum ? a : -NEG_INF;
}

template <class T> __device__ __forceinline__ Pack<e4m3, 4> quantized(const Pack<T, 4>& p, float times) {
  Pack<e4m3, 4> y;
#pragma unroll
  for (int j = 0; j < 4; j++) y.v[j] = from_f32<e4m3>(__fmul_rn(to_f32(p.v[j]), times));
  return y;
}

// largest_magnitude: bits[0] = max(bits[0], bits of the largest |x|). Non-negative floats sort like their
// bits.
//   x  [len]  T, a multiple of 4; bits [1] u32, zeroed before the launch
// Any grid, block a multiple of 32. sizeof(T) bytes a value.
template <class T> __device__ void largest_magnitude(u32* bits, const T* x, u64 len) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  float largest = 0.f;
  for (u64 i = (blockIdx.x * (u64)blockDim.x + threadIdx.x) * 4; i < len;
       i += (u64)gridDim.x * blockDim.x * 4) {
    largest = fmaxf(largest, largest_of(*(const Pack<T, 4>*)(x + i)));
  }
  largest = block_max(largest);
  if (threadIdx.x == 0) atomicMax(bits, __float_as_uint(largest));
}

// quantize_tensor: one scale for all values. Second pass: `bits` is the result of largest_magnitude.
//   out [len] e4m3, scale [1] f32, x [len] T
// Any grid and block. sizeof(T) + 1 bytes a value.
template <class T>
__device__ void quantize_tensor(e4m3* out, float* scale, const u32* bits, const T* x, u64 len) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  float own = scale_of(__uint_as_float(*bits)), times = times_of(own);
  if (blockIdx.x == 0 && threadIdx.x == 0) *scale = own;
  for (u64 i = (blockIdx.x * (u64)blockDim.x + threadIdx.x) * 4; i < len;
       i += (u64)gridDim.x * blockDim.x * 4) {
    *(Pack<e4m3, 4>*)(out + i) = quantized(*(const Pack<T, 4>*)(x + i), times);
  }
}

// quantize_rows: one scale per row: output channels of weights, tokens of activations.
//   out [rows, cols] e4m3, scales [rows] f32, x [rows, cols] T; cols is a multiple of 4
// Grid (rows), block a multiple of 32. The second pass reads the row from L1 or L2: sizeof(T) + 1 bytes of
// HBM a value.
template <class T> __device__ void quantize_rows(e4m3* out, float* scales, const T* x, i32 cols) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  size_t row = (size_t)blockIdx.x * cols;
  float largest = 0.f;
  for (int i = threadIdx.x * 4; i < cols; i += blockDim.x * 4) {
    largest = fmaxf(largest, largest_of(*(const Pack<T, 4>*)(x + row + i)));
  }
  float scale = scale_of(block_max(largest)), times = times_of(scale);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
  for (int i = threadIdx.x * 4; i < cols; i += blockDim.x * 4) {
    *(Pack<e4m3, 4>*)(out + row + i) = quantized(*(const Pack<T, 4>*)(x + row + i), times);
  }
}

// quantize_blocks: one scale per block_rows x 128 values: 128 rows for weights, 1 for activations.
//   out [rows, cols] e4m3, scales [ceil(rows / block_rows), ceil(cols / 128)] f32, x [rows, cols] T; cols is
//   a multiple of 4
// Grid (ceil(cols / 128), ceil(rows / block_rows)), 256 threads: a warp processes 128 values of a row.
template <class T>
__device__ void quantize_blocks(e4m3* out, float* scales, const T* x, i32 rows, i32 cols, i32 block_rows) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  int first = blockIdx.y * block_rows, end = min(first + block_rows, rows);
  int col = blockIdx.x * 128 + threadIdx.x % 32 * 4, step = blockDim.x / 32;
  float largest = 0.f;
  for (int row = first + threadIdx.x / 32; row < end && col < cols; row += step) {
    largest = fmaxf(largest, largest_of(*(const Pack<T, 4>*)(x + (size_t)row * cols + col)));
  }
  float scale = scale_of(block_max(largest)), times = times_of(scale);
  if (threadIdx.x == 0) scales[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = scale;
  for (int row = first + threadIdx.x / 32; row < end && col < cols; row += step) {
    size_t at = (size_t)row * cols + col;
    *(Pack<e4m3, 4>*)(out + at) = quantized(*(const Pack<T, 4>*)(x + at), times);
  }
}

#define QUANTIZE(suffix, T)                                                                                \
  extern "C" __global__ void __launch_bounds__(1024)                                                       \
      largest_magnitude_##suffix(u32* bits, const T* x, u64 len) {                                         \
    largest_magnitude<T>(bits, x, len);                                                                    \
  }                                                                                                        \
  EXPORT(largest_magnitude_##suffix)                                                                       \
  extern "C" __global__ void __launch_bounds__(1024)                                                       \
      quantize_tensor_##suffix(e4m3* out, float* scale, const u32* bits, const T* x, u64 len) {            \
    quantize_tensor<T>(out, scale, bits, x, len);                                                          \
  }                                                                                                        \
  EXPORT(quantize_tensor_##suffix)                                                                         \
  extern "C" __global__ void __launch_bounds__(1024)                                                       \
      quantize_rows_##suffix(e4m3* out, float* scales, const T* x, i32 cols) {                             \
    quantize_rows<T>(out, scales, x, cols);                                                                \
  }                                                                                                        \
  EXPORT(quantize_rows_##suffix)                                                                           \
  extern "C" __global__ void __launch_bounds__(256)                                                        \
      quantize_blocks_##suffix(e4m3* out, float* scales, const T* x, i32 rows, i32 cols, i32 block_rows) { \
    quantize_blocks<T>(out, scales, x, rows, cols, block_rows);                                            \
  }                                                                                                        \
  EXPORT(quantize_blocks_##suffix)

QUANTIZE(bf16, bf16)
QUANTIZE(f16, f16)
QUANTIZE(f32, float)
