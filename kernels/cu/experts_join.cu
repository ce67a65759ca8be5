// experts_join.cu: the weighted sum of the outputs of a row's experts; weighted inputs.
#include "experts.cuh"

// join_experts: the weighted outputs of a row's experts, in the order of its choice, and of the shared
// network.
//   out      [rows, hidden]             T; 0 in padding rows
//   outputs  [ranks, rows, per_token, hidden]  T: each pair's is that of its expert's rank
//   ranks    [experts]                  u32: rank of each expert, or null: one rank
//   weights  [rows, per_token]          f32, or null: all 1
//   chosen   [rows, per_token]          u32, NO_EXPERT in padding rows
//   shared   [rows, hidden]             T: output of the shared network, or null
//   logits   [rows, stride]             f32: the sigmoid of a row's first one is the shared network's weight;
//                                       null: it is 1
// Grid (rows), any block; hidden is a multiple of 8: 16 bytes per thread and access. Sums in f32. Reads 2
// bytes for each pair and value. Reference: check/experts. Not yet run on a GPU.
template <class T>
__device__ void join_experts(T* out, const T* outputs, const u32* ranks, const float* weights,
                             const u32* chosen, const T* shared, const float* logits, i32 per_token, i32 hidden,
                             i32 stride) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  size_t row = blockIdx.x, first_pair = row * per_token;
  int slots = chosen[first_pair] == NO_EXPERT ? 0 : per_token;
  float of_shared = logits ? 1.f / (1.f + expf(-logits[row * stride])) : 1.f;
  for (int i = threadIdx.x * 8; i < hidden; i += blockDim.x * 8) {
    float sum[8] = {};
#pragma unroll 4
    for (int slot = 0; slot < slots; slot++) {
      size_t pair = first_pair + slot;
      if (ranks) pair += (size_t)ranks[chosen[pair]] * gridDim.x * per_token;
      Pack<T, 8> y = *(const Pack<T, 8>*)(outputs + pair * hidden + i);
      float weight = weights ? weights[first_pair + slot] : 1.f;
#pragma unroll
      for (int j = 0; j < 8; j++) sum[j] = __fmaf_rn(weight, to_f32(y.v[j]), sum[j]);
    }
    if (shared && slots) {
      Pack<T, 8> y = *(const Pack<T, 8>*)(shared + row * hidden + i);
#pragma unroll
      for (int j = 0; j < 8; j++) sum[j] = __fmaf_rn(of_shared, to_f32(y.v[j]), sum[j]);
    }
    Pack<T, 8> result;
#pragma unroll
    for (int j = 0; j < 8; j++) result.v[j] = from_f32<T>(sum[j]);
    *(Pack<T, 8>*)(out + row * hidden + i) = result;
  }
}

// weigh_inputs: out = weight * x for each pair, for experts whose inputs are weighted.
//   out      [rows, per_token, hidden]  T
//   x        [rows, hidden]             T
//   weights  [rows, per_token]          f32
// Grid (rows * per_token), any block; hidden is a multiple of 8. 4 bytes a value. Reference:
// check/experts. Not yet run on a GPU.
template <class T>
__device__ void weigh_inputs(T* out, const T* x, const float* weights, i32 per_token, i32 hidden) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  size_t pair = blockIdx.x;
  float weight = weights[pair];
  for (int i = threadIdx.x * 8; i < hidden; i += blockDim.x * 8) {
    Pack<T, 8> v = *(const Pack<T, 8>*)(x + pair / per_token * hidden + i);
#pragma unroll
    for (int j = 0; j < 8; j++) v.v[j] = from_f32<T>(weight * to_f32(v.v[j]));
    *(Pack<T, 8>*)(out + pair * hidden + i) = v;
  }
}

#define JOIN(T)                                                                                             \
  extern "C" __global__ void __launch_bounds__(256)                                                         \
      join_experts_##T(T* out, const T* outputs, const u32* ranks, const float* weights, const u32* chosen,  \
                       const T* shared, const float* logits, i32 per_token, i32 hidden, i32 stride) {       \
    join_experts<T>(out, outputs, ranks, weights, chosen, shared, logits, per_token, hidden, stride);       \
  }                                                                                                         \
  EXPORT(join_experts_##T)                                                                                  \
  extern "C" __global__ void __launch_bounds__(256)                                                         \
      weigh_inputs_##T(T* out, const T* x, const float* weights, i32 per_token, i32 hidden) {               \
    weigh_inputs<T>(out, x, weights, per_token, hidden);                                                    \
  }                                                                                                         \
  EXPORT(weigh_inputs_##T)
JOIN(bf16)
JOIN(f16)
