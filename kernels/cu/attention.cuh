// attention.cuh: shared by the attention kernels: planned work, the layout of the workspace, and how parts of
// a row's softmax are merged. Included by attention_plan.cu, attention_merge.cu and attention_tile.cuh.
#pragma once
#include "device.cuh"

constexpr float LOG2_E = 1.4426950408889634f;

// Query rows of a tile are packed: row `token * group + head` for the `group` query heads of one KV head, so
// that keys and values are read once for the group. Small tiles have 16 rows (decode), large ones 64 (prefill
// chunks).
constexpr u32 SMALL_ROWS = 16, LARGE_ROWS = 64;

// One tile of query rows and one part of its context; the same for every KV head.
struct alignas(16) Item {
  u32 sequence;
  u32 tile;      // first packed row / rows of a tile
  u32 part;      // number of this part | number of the tile's parts << 16
  u32 slot;      // slot of part 0 and KV head 0 if there are several parts; see slot_of
};

// The first words of the workspace.
struct Header {
  u32 items[2];   // planned items of small and of large tiles
  u32 groups[2];  // tiles with several parts, which are merged
  u32 next[2];    // items handed out after each block's first; 0 between launches
  u32 length[2];  // positions of a part
};

// Index of a part's results: slot * rows of a tile + row.
__device__ __forceinline__ u32 slot_of(const Item& item, u32 kv_head, u32 part) {
  return item.slot + kv_head * (item.part >> 16) + part;
}

// The sequences of a step; see ops/kv.rs.
struct Sequences {
  const u32* row_starts;
  const u32* context_lens;
};

// The positions that a row sees up to its own: the last `size` or, with `chunked`, those from the last
// multiple of `size` on; all if `size` is 0.
struct Window {
  u32 size, chunked;

  __device__ __forceinline__ u32 first_seen(u32 position) const {
    if (size == 0) return 0;
    if (chunked) return position / size * size;
    return position + 1 > size ? position + 1 - size : 0;
  }
};

// Rows and context length of one sequence.
struct Span {
  u32 first_row, rows, context, group;

  __device__ __forceinline__ Span(const Sequences& sequences, u32 sequence, u32 group) : group(group) {
    first_row = sequences.row_starts[sequence];
    rows = sequences.row_starts[sequence + 1] - first_row;
    context = sequences.context_lens[sequence];
  }
  __device__ __forceinline__ u32 packed() const { return rows * group; }
  // Position of a packed row. Rows past the last one continue its positions.
  __device__ __forceinline__ u32 position(u32 row) const { return context - rows + row / group; }
  // First position that a packed row sees.
  __device__ __forceinline__ u32 first_seen(u32 row, const Window& window) const {
    return window.first_seen(position(row));
  }
};

// Part of a row's softmax: the highest score, in units of ln 2 (-inf if no position is visible), and the sum
// of the weights.
struct Partial {
  float top, sum;
};

// Factors that rescale two parts to their common maximum; `a` becomes the merged part. Uses intrinsics that
// the compiler cannot contract, so that kernels that merge in registers and those that merge from memory give
// the same bits. Merging an empty part changes no bit.
struct Fold {
  float keep, add;

  __device__ __forceinline__ Fold(Partial& a, const Partial& b) {
    float top = fmaxf(a.top, b.top), base = top == NEG_INF ? 0.f : top;
    keep = ptx::exp2_approx(__fsub_rn(a.top, base));
    add = ptx::exp2_approx(__fsub_rn(b.top, base));
    a = Partial{top, __fmaf_rn(a.sum, keep, __fmul_rn(b.sum, add))};
  }
  __device__ __forceinline__ float operator()(float a, float b) const {
    return __fmaf_rn(a, keep, __fmul_rn(b, add));
  }
};

// Factor of a row's weighted sums at the end. `sink` is a logit that takes part in the softmax but has no
// value, or null.
__device__ __forceinline__ float last_factor(Partial row, const float* sink, float value_scale) {
  float factor = 1.f;
  if (sink) {
    float logit = __fmul_rn(*sink, LOG2_E), top = fmaxf(row.top, logit);
    factor = ptx::exp2_approx(__fsub_rn(row.top, top));
    row.sum = __fmaf_rn(row.sum, factor, ptx::exp2_approx(__fsub_rn(logit, top)));
  }
  return row.sum == 0.f ? 0.f : __fdiv_rn(__fmul_rn(factor, value_scale), row.sum);
}
