// check_math.cu: the functions of math.cuh for given inputs, so that a check can compare them bit by bit with
// the CPU's.
#include "math.cuh"

// check_math: exps[i] = exact_exp(x[i]); logs[i] = bits of exact_log1p of -(words[i] + 0.5) / 2^32.
//   x, exps  [len] f32; words [len] u32; logs [len] u64
// Grid (parts), any block. Reference: cpu::math::exp, libm::log1p.
extern "C" __global__ void __launch_bounds__(256)
    check_math(float* exps, u64* logs, const float* x, const u32* words, i32 len) {
  ptx::grid_dependency_wait();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= len) return;
  exps[i] = exact_exp(x[i]);
  logs[i] = (u64)__double_as_longlong(exact_log1p(-__dmul_rn(__dadd_rn((double)words[i], 0.5), 0x1p-32)));
}
EXPORT(check_math)
