// attention_sm90.cuh: the parts of attention_sm90.cu. Span: the tiles that a sequence's rows see. Buffers:
// shared memory and its barriers. produce: the copying warp. consume: a multiplying warpgroup.
#pragma once
#include "device.cuh"
#include "ptx_sm90.cuh"

// Internal, because other attention files use the same names.
namespace {

constexpr i32 TILE_ROWS = 128;  // query rows of a tile, 64 per warpgroup
constexpr i32 TILE_KV = 128;    // positions of a KV tile
constexpr i32 SLAB = 64;        // values in the 128 bytes that a swizzle permutes
constexpr i32 WARPGROUPS = 2;   // multiplying
constexpr float LOG2_E = 1.44269504088896341f;

// Rows of one sequence, packed: row r is token r / group with head r % group of the KV head.
struct Span {
  i32 context, rows, group, window;

  __device__ __forceinline__ i32 packed() const { return rows * group; }
  __device__ __forceinline__ i32 tiles() const { return (packed() + TILE_ROWS - 1) / TILE_ROWS; }
  __device__ __forceinline__ i32 position(i32 row) const {
    return context - rows + (row < packed() ? row : packed() - 1) / group;
  }
  // The KV tiles that rows of the tile see.
  __device__ __forceinline__ i32 kv_begin(i32 tile) const {
    i32 first = position(tile * TILE_ROWS) + 1 - window;
    return window && first > 0 ? first / TILE_KV : 0;
  }
  __device__ __forceinline__ i32 kv_end(i32 tile) const {
    return position(tile * TILE_ROWS + TILE_ROWS - 1) / TILE_KV + 1;
  }
};

// The kernel's parameters.
template <class T> struct Task {
  T* out;
  const T* q;
  const ptx::TensorMap *keys, *values;
  const float* sinks;
  const u32 *row_starts, *context_lens, *block_tables;
  const uint2* items;
  const u32* count;
  i32 q_stride, table_stride, kv_heads, group, block_size, cache_rows, window;
  float scale, softcap, value_scale;
};

// One tile of query rows and one KV head.
struct Work {
  Span span;
  i32 sequence, tile, head, first_row;  // first_row: the sequence's first row in the step
};

// This block's work number `round`; false if none is left. Every other round goes backwards, so that the
// block with the most expensive tile of one round gets the cheapest of the next.
template <class T> __device__ __forceinline__ bool find_work(const Task<T>& task, i32 round, Work& work) {
  i32 block = round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  i32 index = round * gridDim.x + block, heads = task.kv_heads;
  if (index >= (i32)*task.count * heads) return false;
  uint2 item = task.items[index / heads];
  u32 start = task.row_starts[item.x];
  i32 rows = task.row_starts[item.x + 1] - start, context = task.context_lens[item.x];
  work.span = Span{context, rows, task.group, task.window};
  work.sequence = item.x;
  work.tile = item.y;
  work.head = index % heads;
  work.first_row = start;
  return true;
}

#ifdef HAS_SM90

// A ring of stages: the next stage and the parity of its phase.
template <int STAGES> struct Ring {
  u32 stage = 0, parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Shared memory: [2][Q of a warpgroup], [STAGES][K tile], [STAGES][V tile], barriers. A matrix consists of HD
// / 64 slabs of [rows][64 values] with a 128-byte swizzle.
template <int HD> struct Buffers {
  static constexpr u32 STAGES = HD == 64 ? 4 : 2;
  static constexpr u32 SLABS = HD / SLAB;
  static constexpr u32 Q_BYTES = 64 * HD * 2, KV_BYTES = TILE_KV * HD * 2;
  static constexpr u32 BARRIERS = WARPGROUPS * Q_BYTES + 2 * STAGES * KV_BYTES;
  static constexpr u32 BYTES = BARRIERS + (4 * STAGES + 1) * 8;

  u8* base;

  __device__ __forceinline__ explicit Buffers(u8* shared) : base(shared) {}
  __device__ __forceinline__ u8* q(u32 warpgroup) const { return base + warpgroup * Q_BYTES; }
  __device__ __forceinline__ u8* keys(u32 stage) const { return q(WARPGROUPS) + stage * KV_BYTES; }
  __device__ __forceinline__ u8* values(u32 stage) const { return keys(STAGES + stage); }
  __device__ __forceinline__ u64* barrier(u32 i) const { return (u64*)(base + BARRIERS) + i; }
  __device__ __forceinline__ u64* full_keys(u32 stage) const { return barrier(stage); }
  __device__ __forceinline__ u64* full_values(u32 stage) const { return barrier(STAGES + stage); }
  __device__ __forceinline__ u64* empty_keys(u32 stage) const { return barrier(2 * STAGES + stage); }
  __device__ __forceinline__ u64* empty_values(u32 stage) const { return barrier(3 * STAGES + stage); }
  __device__ __forceinline__ u64* tail() const { return barrier(4 * STAGES); }

  __device__ __forceinline__ void init_barriers() const {
    for (u32 i = 0; i < 2 * STAGES; i++) ptx::mbarrier_init(barrier(i), 1);
    // One lane per warp reports that the warp has read the stage.
    for (u32 i = 2 * STAGES; i < 4 * STAGES; i++) ptx::mbarrier_init(barrier(i), WARPGROUPS * 4);
    ptx::mbarrier_init(tail(), 1);
    ptx::mbarrier_init_fence();
  }
};

}  // namespace

#include "attention_sm90_consume.cuh"
#include "attention_sm90_produce.cuh"

#else
}  // namespace
#endif
