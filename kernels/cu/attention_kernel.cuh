// attention_kernel.cuh: paged attention over planned tiles of packed query rows; instantiated in
// attention_bf16.cu and attention_f16.cu.
#pragma once
#include "attention_task.cuh"

template <class T, class K, int HD, int WARPS> struct Attention {
  using Size = Tile<T, K, HD>;
  static constexpr u32 ROWS = WARPS * 16, THREADS = WARPS * 32, LARGE = WARPS > 1;
  static constexpr u32 TILE = Size::POSITIONS, COLUMNS = TILE / 8, CHUNKS = HD * sizeof(K) / 16;

  const Task<T, K>& task;
  u8* shared;
  u32 warp, lane;

  __device__ __forceinline__ Attention(const Task<T, K>& task, u8* shared) : task(task), shared(shared) {
    warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
  }

  __device__ __forceinline__ static void sync() {
    if (WARPS == 1) __syncwarp();
    else __syncthreads();
  }
  __device__ __forceinline__ u8* q_rows() const { return shared + warp * 16 * Size::Q_ROW; }
  __device__ __forceinline__ u8* keys(u32 stage) const {
    return shared + ROWS * Size::Q_ROW + stage * 2 * Size::KV_BYTES;
  }
  __device__ __forceinline__ u8* values(u32 stage) const { return keys(stage) + Size::KV_BYTES; }

  __device__ __forceinline__ Work work_of(u32 index) const {
    Item item = task.items[index / task.kv_heads];
    Span span(task.sequences, item.sequence, task.group);
    return ::work_of<TILE>(task, item, span, LARGE, index % task.kv_heads, item.tile * ROWS, ROWS);
  }

  // Copies the tile's queries to shared memory, sixteen dims at a time; rows past the sequence's are zeros.
  // `widen` explains the order of narrow values.
  __device__ __forceinline__ void load_q(const Work& work) const {
    for (u32 i = threadIdx.x; i < ROWS * HD / 16; i += THREADS) {
      u32 row = i / (HD / 16), dims = i % (HD / 16) * 16, packed = work.first_packed + row;
      uint4 x = {0, 0, 0, 0}, y = {0, 0, 0, 0};
      if (packed < work.span.packed()) {
        u32 token = packed / task.group, head = work.kv_head * task.group + packed % task.group;
        const T* from = task.q + (size_t)(work.span.first_row + token) * task.q_stride + head * HD + dims;
        x = *(const uint4*)from;
        y = *(const uint4*)(from + 8);
      }
      if (Size::NARROW) {
        constexpr u32 LOW = 0xffffu;
        uint4 even = {(x.x & LOW) | x.y << 16, (x.z & LOW) | x.w << 16, (y.x & LOW) | y.y << 16,
                      (y.z & LOW) | y.w << 16};
        y = uint4{x.x >> 16 | (x.y & ~LOW), x.z >> 16 | (x.w & ~LOW), y.x >> 16 | (y.y & ~LOW),
                  y.z >> 16 | (y.w & ~LOW)};
        x = even;
      }
      u8* to = shared + row * Size::Q_ROW + dims * 2;
      *(uint4*)to = x;
      *(uint4*)(to + 16) = y;
    }
  }

  __device__ __forceinline__ u32 block_of(const Work& work, u32 first) const {
    return ::block_of<TILE>(task, work, first, lane);
  }

  // Starts copying the keys and values of positions first .. first + TILE. Positions that no row sees become
  // zeros whatever the memory contains, because a weight of 0 times NaN would be NaN.
  __device__ __forceinline__ void load_kv(const Work& work, u32 first, u32 stage, u32 block) const {
    u8 *to_keys = keys(stage), *to_values = values(stage);
    u32 offset = (1u << task.block_shift) - 1;
    static_assert(TILE * CHUNKS % THREADS == 0, "all lanes take part in each shuffle");
#pragma unroll 4
    for (u32 i = threadIdx.x; i < TILE * CHUNKS; i += THREADS) {
      u32 row = i / CHUNKS, chunk = i % CHUNKS, position = first + row;
      u32 entry = (position >> task.block_shift) - (first >> task.block_shift);
      size_t at = (size_t)__shfl_sync(FULL_WARP, block, entry) * task.kv_heads + work.kv_head;
      at = ((at << task.block_shift) + (position & offset)) * HD + chunk * (16 / sizeof(K));
      bool inside = position < work.end && position >= work.seen_from;
      ptx::cp_async16(to_keys + row * Size::KV_ROW + chunk * 16, task.keys + at, inside);
      ptx::cp_async16(to_values + row * Size::KV_ROW + chunk * 16, task.values + at, inside);
    }
    ptx::cp_async_commit();
  }

  // The values of columns 2 * d and 2 * d + 1 in ascending order of dims: `first`, `first + 1`, `second`,
  // `second + 1`. Narrow values come out of the mma as 4t, 4t + 2 and 4t + 1, 4t + 3.
  __device__ __forceinline__ static void in_order(float (&x)[4], const float (&o)[HD / 8][4], int d, int r) {
    x[0] = o[2 * d][2 * r];
    x[1] = Size::NARROW ? o[2 * d + 1][2 * r] : o[2 * d][2 * r + 1];
    x[2] = Size::NARROW ? o[2 * d][2 * r + 1] : o[2 * d + 1][2 * r];
    x[3] = o[2 * d + 1][2 * r + 1];
  }
  __device__ __forceinline__ u32 dim_of(int d, int pair) const {
    return Size::NARROW ? d * 16 + lane % 4 * 4 + pair * 2 : d * 16 + pair * 8 + lane % 4 * 2;
  }

  // Writes the rows to `out`, or to the workspace if there are several parts.
  __device__ __forceinline__ void store(const Work& work, const float (&o)[HD / 8][4], const Partial (&all)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      u32 row = warp * 16 + lane / 4 + r * 8, packed = work.first_packed + row;
      if (packed >= work.span.packed()) continue;
      if (work.parts > 1) {
        size_t at = work.slot * ROWS + row;
        if (lane % 4 == 0) task.partials[at] = all[r];
#pragma unroll
        for (int d = 0; d < HD / 16; d++) {
          float x[4];
          in_order(x, o, d, r);
          *(float2*)(task.sums + at * HD + dim_of(d, 0)) = float2{x[0], x[1]};
          *(float2*)(task.sums + at * HD + dim_of(d, 1)) = float2{x[2], x[3]};
        }
        continue;
      }
      u32 head = work.kv_head * task.group + packed % task.group;
      float factor = last_factor(all[r], task.sinks ? task.sinks + head : nullptr, task.value_scale);
      size_t token = work.span.first_row + packed / task.group;
      T* to = task.out + (token * task.kv_heads * task.group + head) * HD;
#pragma unroll
      for (int d = 0; d < HD / 16; d++) {
        float x[4];
        in_order(x, o, d, r);
        *(u32*)(to + dim_of(d, 0)) = ptx::round_pair(T{}, __fmul_rn(x[0], factor), __fmul_rn(x[1], factor));
        *(u32*)(to + dim_of(d, 1)) = ptx::round_pair(T{}, __fmul_rn(x[2], factor), __fmul_rn(x[3], factor));
      }
    }
  }

  __device__ __forceinline__ void run(const Work& work) const {
    float unit = task.softcap == 0.f ? __fmul_rn(task.scale, LOG2_E) : LOG2_E;
    float inner = task.softcap == 0.f ? 0.f : __fdiv_rn(__fmul_rn(2.f * LOG2_E, task.scale), task.softcap);
    u32 block = block_of(work, work.begin);
    load_kv(work, work.begin, 0, block);
    block = block_of(work, work.begin + TILE);
    load_q(work);
    sync();
    u32 q[HD / 16][4];
    if (Size::Q_IN_REGISTERS) {
#pragma unroll
      for (int k = 0; k < HD / 16; k++) {
        ptx::ldmatrix_x4(q[k], q_rows() + (lane % 16) * Size::Q_ROW + k * 32 + lane / 16 * 16);
      }
    }
    u32 first_row = work.first_packed + warp * 16 + lane / 4;
    u32 position[2] = {work.span.position(first_row), work.span.position(first_row + 8)};
    // No mask is needed for tiles that all rows of the warp see: from the last row's first visible position
    // to the first row's own position.
    u32 seen_by_all = work.span.position(work.first_packed + warp * 16) + 1;
    u32 seen_from = work.span.first_seen(work.first_packed + warp * 16 + 15, task.window);
    float o[HD / 8][4];
#pragma unroll
    for (int d = 0; d < HD / 8; d++) o[d][0] = o[d][1] = o[d][2] = o[d][3] = 0.f;
    Softmax rows;
    rows.reset();
    Partial all[2];
    bool is_first = true;
    u32 stage = 0;
    for (u32 at = work.begin; at < work.end; at += TILE, stage ^= 1) {
      bool is_last = at + TILE >= work.end;
      if (!is_last) {
        load_kv(work, at + TILE, stage ^ 1, block);
        block = block_of(work, at + 2 * TILE);
        ptx::cp_async_wait<1>();
      } else {
        ptx::cp_async_wait<0>();
      }
      sync();
      float s[COLUMNS][4];
      scores<T, K, HD>(s, q, q_rows(), keys(stage));
      if (task.softcap != 0.f) cap(s, task.softcap, inner);
      if (at + TILE > seen_by_all || at < seen_from) mask(s, at, position, task.window);
      soften(s, o, rows, unit);
      outputs<T, K, HD>(o, s, values(stage));
      if (is_last || (task.fixed && (at + TILE) % task.fixed == 0)) {
        if (is_first && is_last) {
          all[0] = close(rows, 0, unit);
          all[1] = close(rows, 1, unit);
        } else {
          float* mine = task.folded + (size_t)blockIdx.x * ROWS * HD + threadIdx.x;
          fold<THREADS>(mine, o, rows, all, is_first, is_last, unit);
        }
        is_first = false;
      }
      sync();
    }
    if (is_first) {  // no row of the tile sees this part
      all[0] = all[1] = Partial{NEG_INF, 0.f};
      ptx::cp_async_wait<0>();  // pending copies must not overwrite those of the next item
    }
    store(work, o, all);
  }

  // A block starts with the item of its own number. The others are handed out one by one, so that blocks with
  // short items take more.
  __device__ __forceinline__ void run_all() const {
    u32& handed_out = *(u32*)(shared + HD * 2);  // the first query row's padding
    u32 count = task.header->items[LARGE] * task.kv_heads;
    for (u32 index = blockIdx.x; index < count;) {
      run(work_of(index));
      if (threadIdx.x == 0) handed_out = gridDim.x + atomicAdd(&task.header->next[LARGE], 1u);
      sync();
      index = handed_out;
      sync();
    }
  }
};

// attention_{T}_{K}_{head_dim}_{small, large}: softmax(q k^T * scale) v for the planned tiles of 16 (small)
// or 64 packed rows.
//   out           [rows, heads * HD]  T
//   q             [rows, q_stride]    T: a row starts with its query heads; 16-byte aligned
//   keys, values  [blocks, kv_heads, 1 << block_shift, HD]  K = T or e4m3; blocks of 8 to 256 tokens
//   sinks         [heads]  f32 or null: a logit that takes part in the softmax but has no value
//   sequences, block_tables, table_stride: see ops/kv.rs. header, items: from attention_plan
//   sums, partials, folded   workspace; see attention_merge.cu and Task
//   window, chunked   a row sees its own position and the window - 1 before it or, chunked, those from the
//                 last multiple of the window on; 0: all before it
//   scale         of scores, which are softcap * tanh(scale * q k / softcap), or scale * q k if softcap is 0
// Grid: as many blocks as fit the device, in every step; 32 threads (small) or 128 (large).
//
// Each row is computed in one order: tiles of 64 positions (32 for HD 256), starting at a multiple of that,
// each by one warp. Tiles that a row does not see change nothing. So a row's bits only depend on its position
// and on where its context was divided. With `fixed` those places are fixed, too, and a row has the same bits
// in decode, as part of a chunk, and in every batch. Small tiles have one warp per block, so that decode has
// this order as well: a warp needs no other warp, and three to six blocks per multiprocessor hide each
// other's latency.
//
// Bytes, decode: 2 * sizeof(K) * context * kv_heads * HD per sequence (4 * ... for bf16), read once. HD 128,
// bf16: 74 KB of shared memory per block, 3 blocks, 96 KB in flight per multiprocessor, where 4.3 TB/s * 1 us
// / 132 requires 33. A tile of 32 KB takes 128 mma and some 1200 instructions of one warp, about 3000 cycles:
// 33 bytes per cycle and multiprocessor, of which memory supplies 19. Target: 85% of the bandwidth.
// Large tiles: 4 * 64 * 64 * HD FLOPs per tile of positions; 87 KB, 2 blocks, 8 warps per multiprocessor.
// Target: 55% of mma.sync's peak. Not yet run on a GPU. Reference: check/attention.rs, in f64: |diff| <= 4e-3
// + 1.6e-2 * |ref| (bf16).
#define ATTENTION(T, K, HD, WARPS, NAME)                                                                        \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) NAME(                                             \
      T* out, const T* q, const K* keys, const K* values, const float* sinks, const u32* row_starts,            \
      const u32* context_lens, const u32* block_tables, Header* header, const Item* items, float* sums,         \
      Partial* partials, float* folded, u32 q_stride, u32 table_stride, u32 kv_heads, u32 group, u32 block_shift,\
      u32 window, u32 chunked, u32 fixed, float scale, float softcap, float value_scale) {                      \
    DYN_SHARED(u8, shared);                                                                                     \
    ptx::grid_dependency_wait();                                                                                \
    ptx::grid_dependency_launch();                                                                              \
    Task<T, K> task{out, q, keys, values, sinks, {row_starts, context_lens}, block_tables, header, items, sums, \
                    partials, folded, q_stride, table_stride, kv_heads, group, block_shift, {window, chunked},  \
                    fixed, scale, softcap, value_scale};                                                        \
    Attention<T, K, HD, WARPS>(task, shared).run_all();                                                         \
  }                                                                                                             \
  EXPORT(NAME)
#define ATTENTION_BOTH(T, K, HD)                                                                                \
  ATTENTION(T, K, HD, 1, attention_##T##_##K##_##HD##_small)                                                    \
  ATTENTION(T, K, HD, 4, attention_##T##_##K##_##HD##_large)
