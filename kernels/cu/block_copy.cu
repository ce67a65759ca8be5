// block_copy.cu: copies whole KV blocks, for copy-on-write and for swapping to page-locked host memory and
// back.
#include "device.cuh"

// block_copy: for each pair and plane, block `from` of one cache becomes block `to` of another (or the same).
//   from, to      planes of blocks: plane p starts p * plane_bytes after the first; blocks have block_bytes
//   pairs         [capacity, 2]  u32: from, to. Pairs with a block outside the cache are ignored
//   count         [1]  u32: number of pairs, in device memory, so that a graph can be replayed with none
// Grid (planes, parts), any block; block_bytes and all addresses are multiples of 16. Pairs run in any order,
// so no `to` may be another pair's `from` or `to`. Either side may be host memory mapped into the device's
// address space. 2 * planes * block_bytes per pair. Reference: a byte copy.
extern "C" __global__ void __launch_bounds__(256)
    block_copy(u8* to, const u8* from, u64 to_plane_bytes, u64 from_plane_bytes, u64 block_bytes,
               u32 to_blocks, u32 from_blocks, const u32* pairs, const u32* count, i32 capacity) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  u32 some = min(*count, (u32)capacity);
  for (u32 i = blockIdx.y; i < some; i += gridDim.y) {
    u32 source = pairs[2 * i], target = pairs[2 * i + 1];
    if (source >= from_blocks || target >= to_blocks) continue;
    const uint4* read = (const uint4*)(from + blockIdx.x * from_plane_bytes + source * block_bytes);
    uint4* write = (uint4*)(to + blockIdx.x * to_plane_bytes + target * block_bytes);
    for (u64 j = threadIdx.x; j < block_bytes / 16; j += blockDim.x) write[j] = read[j];
  }
}
EXPORT(block_copy)
