// attention_task.cuh: an item of the plan as a block of threads sees it, and how a block folds the parts of a
// context. Included by attention_kernel.cuh and attention_latent.cuh.
#pragma once
#include "attention_tile.cuh"

// The parameters of a launch.
template <class T, class K> struct Task {
  T* out;
  const T* q;
  const K* keys;
  const K* values;
  const float* sinks;
  Sequences sequences;
  const u32* block_tables;
  Header* header;
  const Item* items;
  float* sums;         // [slots, rows of a tile, values of a head]
  Partial* partials;   // [slots, rows of a tile]
  float* folded;       // [blocks, rows at once, values]: sums of earlier parts, in batch-invariant mode
  u32 q_stride, table_stride, kv_heads, group, block_shift;
  Window window;
  u32 fixed;           // positions after which parts are folded, or 0
  float scale, softcap, value_scale;
};

// Rows of an item and one KV head.
struct Work {
  Span span;
  u32 sequence, kv_head, first_packed;
  u32 begin, end;  // positions; `begin` is a multiple of the positions of a tile
  u32 seen_from;   // first position that any row sees
  u32 parts;
  size_t slot;  // of the results if there are several parts
};

// `rows` packed rows of `item` from `first_packed` on, of which at least the first exists. Tiles of keys have
// TILE positions.
template <u32 TILE, class T, class K>
__device__ __forceinline__ Work work_of(const Task<T, K>& task, const Item& item, const Span& span, u32 large,
                                        u32 kv_head, u32 first_packed, u32 rows) {
  u32 parts = item.part >> 16, part = item.part & 0xffff;
  u32 last_packed = min(first_packed + rows, span.packed()) - 1;
  u32 seen_from = span.first_seen(first_packed, task.window), end = span.position(last_packed) + 1;
  u32 begin = seen_from / TILE * TILE;
  if (parts > 1) {
    u32 length = task.header->length[large], align = task.fixed ? task.fixed : 64;
    u32 first = span.first_seen(0, task.window) / align * align + part * length;
    begin = max(begin, first);
    end = min(end, first + length);
  }
  return Work{span,  item.sequence, kv_head, first_packed, begin, end, seen_from,
              parts, slot_of(item, kv_head, part)};
}

// The block table entry for this lane: entry `lane` of those that the TILE positions from `first` on touch.
template <u32 TILE, class T, class K>
__device__ __forceinline__ u32 block_of(const Task<T, K>& task, const Work& work, u32 first, u32 lane) {
  u32 index = (first >> task.block_shift) + lane;
  bool touched = index << task.block_shift < work.end && lane << task.block_shift < TILE;
  return touched ? task.block_tables[(size_t)work.sequence * task.table_stride + index] : 0;
}

// Sums a row's weights over the four lanes that share it; converts its highest score to units of ln 2.
__device__ __forceinline__ Partial close(const Softmax& rows, int r, float unit) {
  float sum = rows.sum[r];
  sum = __fadd_rn(sum, __shfl_xor_sync(FULL_WARP, sum, 1));
  sum = __fadd_rn(sum, __shfl_xor_sync(FULL_WARP, sum, 2));
  return Partial{rows.top[r] == NEG_INF ? NEG_INF : __fmul_rn(rows.top[r], unit), sum};
}

// Merges the part that has ended into the earlier ones, which are in memory in each thread's own order: its
// values start at `mine`, THREADS apart.
template <u32 THREADS, int COLUMNS>
__device__ __forceinline__ void fold(float* mine, float (&o)[COLUMNS][4], Softmax& rows, Partial (&all)[2],
                                     bool is_first, bool is_last, float unit) {
  constexpr int EACH = COLUMNS * 2;  // values of a row
#pragma unroll
  for (int r = 0; r < 2; r++) {
    Partial part = close(rows, r, unit);
    if (is_first) {
      all[r] = part;
    } else {
      Fold fold(all[r], part);
#pragma unroll
      for (int i = 0; i < EACH; i++) {
        float& x = o[i / 2][2 * r + i % 2];
        x = fold(mine[(r * EACH + i) * THREADS], x);
      }
    }
  }
  rows.reset();
  if (is_last) return;
#pragma unroll
  for (int r = 0; r < 2; r++) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      float& x = o[i / 2][2 * r + i % 2];
      mine[(r * EACH + i) * THREADS] = x;
      x = 0.f;
    }
  }
}
