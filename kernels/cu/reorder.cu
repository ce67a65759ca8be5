// reorder.cu: sorts the columns of x, for products with weights whose inputs are sorted.
//
//   out     [rows, k]   16 bits a value
//   x       [rows, k]   16 bits a value
//   order   [k]         u32, below k: column of x of each column of out
// Grid (rows), block a multiple of 32. Reads and writes 2 bytes a value, and the order from L2. Reference:
// exact.
#include "device.cuh"

extern "C" __global__ void __launch_bounds__(1024)
    reorder_columns(u16* out, const u16* x, const u32* order, i32 k) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const u16* from = x + (size_t)blockIdx.x * k;
  u16* to = out + (size_t)blockIdx.x * k;
  for (int i = threadIdx.x; i < k; i += blockDim.x) to[i] = from[order[i]];
}
EXPORT(reorder_columns)
