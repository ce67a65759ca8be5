// experts_reorder.cu: sorts the columns of x for experts whose weights have their inputs in orders of their
// own.
//
//   out     [pairs, k]    16 bits a value, in sorted order
//   x       [rows, k]     16 bits a value: pair p reads row p / per_row; per_row 0: [pairs, k] in sorted
//                         order
//   orders  [experts, k]  u32, below k: column of x of each column of out
//   tiles, sorted         see experts.cuh
// Grid (most tiles, rows of a tile), block a multiple of 32. Reads and writes 2 bytes a value, and the orders
// from L2. Reference: exact. Not yet run on a GPU.
#include "experts.cuh"

extern "C" __global__ void __launch_bounds__(256)
    reorder_pairs(u16* out, const u16* x, const u32* orders, const ExpertTile* tiles, const u32* sorted,
                  i32 per_row, i32 k) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  if (blockIdx.x >= tiles[0].expert) return;
  ExpertTile tile = tiles[1 + blockIdx.x];
  if (blockIdx.y >= tile.rows) return;
  u32 at = tile.first + blockIdx.y;
  const u16* from = x + (size_t)(per_row ? sorted[at] / per_row : at) * k;
  const u32* order = orders + (size_t)tile.expert * k;
  u16* to = out + (size_t)at * k;
  for (int i = threadIdx.x; i < k; i += blockDim.x) to[i] = from[order[i]];
}
EXPORT(reorder_pairs)
