// embed.cu: embedding lookup, which starts the residual stream.
#include "device.cuh"

// embed: out[row] = scale * table[tokens[row]], widened.
//   out     [rows, hidden]   f32
//   table   [vocab, hidden]  T
//   tokens  [rows]           u32; tokens that are not below vocab read row 0: the host has checked requests,
//                            and padding rows of a graph must not fault
// Grid (rows), block a multiple of 32; hidden is a multiple of 4. Reads 2 and writes 4 bytes a value: 8,192
// rows of 4,096 values are 0.2 GB, 47 us at 4.3 TB/s (predicted, not yet run on a GPU). Reference:
// cpu::embed::embed, exact.
template <class T>
__device__ void embed(float* out, const T* table, const u32* tokens, i32 hidden, u32 vocab, float scale) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  u32 token = tokens[blockIdx.x];
  const T* from = table + (size_t)(token < vocab ? token : 0) * hidden;
  float* to = out + (size_t)blockIdx.x * hidden;
  for (int i = threadIdx.x * 4; i < hidden; i += blockDim.x * 4) {
    Pack<T, 4> x = *(const Pack<T, 4>*)(from + i);
    *(float4*)(to + i) = make_float4(to_f32(x.v[0]) * scale, to_f32(x.v[1]) * scale, to_f32(x.v[2]) * scale,
                                     to_f32(x.v[3]) * scale);
  }
}

extern "C" __global__ void __launch_bounds__(1024)
    embed_bf16(float* out, const bf16* table, const u32* tokens, i32 hidden, u32 vocab, float scale) {
  embed<bf16>(out, table, tokens, hidden, vocab, scale);
}
EXPORT(embed_bf16)

extern "C" __global__ void __launch_bounds__(1024)
    embed_f16(float* out, const f16* table, const u32* tokens, i32 hidden, u32 vocab, float scale) {
  embed<f16>(out, table, tokens, hidden, vocab, scale);
}
EXPORT(embed_f16)
