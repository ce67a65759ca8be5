// attention_sm90_produce.cuh: the warp that copies K and V tiles into the rings. Part of attention_sm90.cuh.
#pragma once

namespace {

// Queues the copies of one tile's pages by all lanes, one box each. Pages that no row sees, before the window
// or past the context, are read from outside the tensor, as zeros.
template <class T, int HD>
__device__ __forceinline__ void copy_tile(const Task<T>& task, const Work& work, const ptx::TensorMap* map,
                                          i32 tile, u8* to, u64* barrier) {
  i32 box = task.block_size < TILE_KV ? task.block_size : TILE_KV, boxes = TILE_KV / box;
  i32 first_seen = work.span.window ? work.span.position(work.tile * TILE_ROWS) + 1 - work.span.window : 0;
  const u32* table = task.block_tables + (size_t)work.sequence * task.table_stride;
  i32 lane = threadIdx.x % 32;
  if (lane == 0) ptx::mbarrier_arrive_expect(barrier, Buffers<HD>::KV_BYTES);
  __syncwarp();
  for (i32 i = lane; i < boxes * (HD / SLAB); i += 32) {
    i32 in_tile = i % boxes * box, slab = i / boxes, position = tile * TILE_KV + in_tile;
    bool seen = position < work.span.context && position + box > first_seen;
    i32 row = task.cache_rows;
    if (seen) {
      i32 block = table[position / task.block_size];
      row = (block * task.kv_heads + work.head) * task.block_size + position % task.block_size;
    }
    ptx::tensor_load_2d(to + (slab * TILE_KV + in_tile) * 128, map, slab * SLAB, row, barrier);
  }
}

// Zeros the rows of a V tile from `valid` on: slots that were never written may contain NaN, and 0 * NaN is
// not 0. Keys need no zeroing, because their scores are replaced.
template <int HD> __device__ __forceinline__ void zero_rows(u8* values, i32 valid) {
  for (i32 i = threadIdx.x % 32; i < (TILE_KV - valid) * (HD / 8); i += 32) {
    i32 row = valid + i / (HD / 8), chunk = i % (HD / 8);
    ptx::store_for_async(values + (chunk / 8 * TILE_KV + row) * 128 + chunk % 8 * 16, uint4{0, 0, 0, 0});
  }
  ptx::fence_proxy_async();
  __syncwarp();
}

// Copies a V tile. If the context ends inside a page, the rest of the tile is zeroed before the consumers get
// it.
template <class T, int HD>
__device__ __forceinline__ void copy_values(const Task<T>& task, const Work& work, const Buffers<HD>& buffers,
                                            i32 tile, u32 stage, u32& tail_parity) {
  i32 valid = work.span.context - tile * TILE_KV;
  u64* full = buffers.full_values(stage);
  if (valid >= TILE_KV || valid % task.block_size == 0) {
    copy_tile<T, HD>(task, work, task.values, tile, buffers.values(stage), full);
    return;
  }
  copy_tile<T, HD>(task, work, task.values, tile, buffers.values(stage), buffers.tail());
  ptx::mbarrier_wait(buffers.tail(), tail_parity);
  tail_parity ^= 1;
  zero_rows<HD>(buffers.values(stage), valid);
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(full);
}

// Copies in the order in which the consumers need the tiles: the next tile's keys before this tile's values.
template <class T, int HD>
__device__ __forceinline__ void produce(const Task<T>& task, const Buffers<HD>& buffers) {
  Ring<Buffers<HD>::STAGES> keys, values;
  u32 tail_parity = 0;
  Work work;
  for (i32 round = 0; find_work(task, round, work); round++) {
    i32 begin = work.span.kv_begin(work.tile), end = work.span.kv_end(work.tile);
    for (i32 tile = begin; tile <= end; tile++) {
      if (tile < end) {
        ptx::mbarrier_wait(buffers.empty_keys(keys.stage), keys.parity ^ 1);
        u64* full = buffers.full_keys(keys.stage);
        copy_tile<T, HD>(task, work, task.keys, tile, buffers.keys(keys.stage), full);
        keys.next();
      }
      if (tile > begin) {
        ptx::mbarrier_wait(buffers.empty_values(values.stage), values.parity ^ 1);
        copy_values<T, HD>(task, work, buffers, tile - 1, values.stage, tail_parity);
        values.next();
      }
    }
  }
}

}  // namespace
