// attention_latent.cuh: paged attention whose only cached head is the latent (DeepSeek-AI 2024), over planned
// tiles of packed query rows; instantiated in attention_latent.cu.
#pragma once
#include "attention_task.cuh"
#include "latent_key.cuh"

// A key is the latent, at most RANK values, and a rotated part, at most ROTATED values; a value is the latent
// again. In shared memory both parts start at fixed places and end with zeros. Keys in 8 bits (K is e4m3) are
// copied there as they are and then widened to T, once for all warps and rows.
template <class T, class K, int RANK, int ROTATED, int ROWS> struct LatentAttention {
  static constexpr bool NARROW = !IsSame<T, K>::value;
  static constexpr u32 LARGE = ROWS > 16, ITEM_ROWS = LARGE ? LARGE_ROWS : SMALL_ROWS;
  static constexpr u32 WARPS = 4, THREADS = WARPS * 32, TILE = 16, STAGES = NARROW ? 1 : 2;
  static constexpr u32 VALUES = RANK + ROTATED, STEPS = VALUES / 16, CHUNKS = VALUES / 8;
  // Rows are padded so that the eight rows that ldmatrix reads together are in different banks.
  static constexpr u32 ROW_BYTES = VALUES * 2 + 16, STAGE_BYTES = TILE * ROW_BYTES;
  // A copied key in 8 bits: codes, scales, rotated part.
  static constexpr u32 COPY_BYTES = RANK + NARROW_SCALES_BYTES + ROTATED * 2, COPY_CHUNKS = COPY_BYTES / 16;
  static constexpr int FRAGMENTS = ROWS / 16, OWN = RANK / WARPS;  // rows / 16; values of a warp's outputs

  struct Widths {
    u32 rank, rotated;
    __device__ __forceinline__ u32 all() const { return rank + rotated; }
  };

  const Task<T, K>& task;
  u8* shared;
  Widths widths;
  u32 warp, lane;

  __device__ __forceinline__ LatentAttention(const Task<T, K>& task, u8* shared, Widths widths)
      : task(task), shared(shared), widths(widths) {
    warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
  }

  __device__ __forceinline__ u8* keys(u32 stage) const { return shared + ROWS * ROW_BYTES + stage * STAGE_BYTES; }
  // [warps, fragments of rows, halves of the tile, lanes]: each warp's part of the scores.
  __device__ __forceinline__ float4* scores() const { return (float4*)keys(STAGES); }
  // [positions, COPY_BYTES]: the next tile's keys in 8 bits.
  __device__ __forceinline__ u8* copies() const { return (u8*)(scores() + WARPS * FRAGMENTS * 2 * 32); }

  // First value in memory of chunk `chunk` in shared memory; `exists` is false where that has zeros.
  __device__ __forceinline__ u32 value_of(u32 chunk, bool& exists) const {
    bool is_latent = chunk < RANK / 8;
    u32 first = (is_latent ? chunk : chunk - RANK / 8) * 8;
    exists = first < (is_latent ? widths.rank : widths.rotated);
    return is_latent ? first : widths.rank + first;
  }

  // Starts copying the tile's queries; rows past the sequence's become zeros.
  __device__ __forceinline__ void load_q(const Work& work) const {
    for (u32 i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
      u32 row = i / CHUNKS, chunk = i % CHUNKS, packed = work.first_packed + row;
      bool exists, inside = packed < work.span.packed();
      u32 value = value_of(chunk, exists);
      if (!inside) packed = work.first_packed;
      size_t token = work.span.first_row + packed / task.group;
      const T* from = task.q + token * task.q_stride + packed % task.group * widths.all() + (exists ? value : 0);
      ptx::cp_async16(shared + row * ROW_BYTES + chunk * 16, from, inside && exists);
    }
  }

  // Starts copying the keys of positions first .. first + TILE. Positions that no row sees become zeros
  // whatever the memory contains, because a weight of 0 times NaN would be NaN.
  __device__ __forceinline__ void load_keys(const Work& work, u32 first, u32 stage, u32 block) const {
    u8* to = keys(stage);
    u32 offset = (1u << task.block_shift) - 1;
    static_assert(TILE * CHUNKS % 32 == 0, "all lanes of a warp take part in each shuffle");
#pragma unroll 3
    for (u32 i = threadIdx.x; i < TILE * CHUNKS; i += THREADS) {
      u32 row = i / CHUNKS, chunk = i % CHUNKS, position = first + row;
      u32 entry = (position >> task.block_shift) - (first >> task.block_shift);
      size_t slot = (size_t)__shfl_sync(FULL_WARP, block, entry) << task.block_shift;
      bool exists;
      u32 value = value_of(chunk, exists);
      const T* from = (const T*)task.keys + (slot + (position & offset)) * widths.all() + (exists ? value : 0);
      ptx::cp_async16(to + row * ROW_BYTES + chunk * 16, from, exists && position < work.end);
    }
    ptx::cp_async_commit();
  }

  // Byte in memory of chunk `chunk` of a copied key; `exists` is false where that has zeros.
  __device__ __forceinline__ u32 byte_of(u32 chunk, bool& exists) const {
    constexpr u32 CODES = RANK / 16, BEHIND = CODES + NARROW_SCALES_BYTES / 16;
    bool is_code = chunk < CODES, is_rotated = chunk >= BEHIND;
    u32 first = (is_code ? chunk : is_rotated ? chunk - BEHIND : 0) * 16;
    exists = is_code ? first < widths.rank : !is_rotated || first < widths.rotated * 2;
    return is_code ? first : widths.rank + (is_rotated ? NARROW_SCALES_BYTES : 0) + first;
  }

  // load_keys for keys in 8 bits.
  __device__ __forceinline__ void load_copies(const Work& work, u32 first, u32 block) const {
    u32 offset = (1u << task.block_shift) - 1, bytes = narrow_key_bytes(widths.rank, widths.rotated);
#pragma unroll 3
    for (u32 start = 0; start < TILE * COPY_CHUNKS; start += THREADS) {
      u32 i = start + threadIdx.x, row = i / COPY_CHUNKS, chunk = i % COPY_CHUNKS, position = first + row;
      u32 entry = (position >> task.block_shift) - (first >> task.block_shift);
      size_t slot = (size_t)__shfl_sync(FULL_WARP, block, entry) << task.block_shift;  // by all lanes
      if (i >= TILE * COPY_CHUNKS) break;
      bool exists;
      u32 byte = byte_of(chunk, exists);
      const u8* from = (const u8*)task.keys + (slot + (position & offset)) * bytes + (exists ? byte : 0);
      ptx::cp_async16(copies() + i * 16, from, exists && position < work.end);
    }
    ptx::cp_async_commit();
  }

  // Writes the copied keys as T. A value is rounded once, so keys have the bits of a cache in 16 bits that
  // holds the values of the codes.
  __device__ __forceinline__ void widen_keys() const {
    for (u32 i = threadIdx.x; i < TILE * (RANK / 16); i += THREADS) {
      u32 row = i / (RANK / 16), chunk = i % (RANK / 16);
      const u8* copy = copies() + row * COPY_BYTES;
      Pack<e4m3, 16> codes = *(const Pack<e4m3, 16>*)(copy + chunk * 16);
      float scale = *(const float*)(copy + RANK + chunk * 16 / NARROW_GROUP * 4);
      Pack<u32, 4>* to = (Pack<u32, 4>*)(keys(0) + row * ROW_BYTES + chunk * 32);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        Pack<u32, 4> pairs;
#pragma unroll
        for (int j = 0; j < 4; j++) {
          e4m3 a = codes.v[half * 8 + j * 2], b = codes.v[half * 8 + j * 2 + 1];
          pairs.v[j] = ptx::round_pair(T{}, __fmul_rn(to_f32(a), scale), __fmul_rn(to_f32(b), scale));
        }
        to[half] = pairs;
      }
    }
    for (u32 i = threadIdx.x; i < TILE * (ROTATED / 8); i += THREADS) {
      u32 row = i / (ROTATED / 8), chunk = i % (ROTATED / 8);
      const u8* from = copies() + row * COPY_BYTES + RANK + NARROW_SCALES_BYTES + chunk * 16;
      *(Pack<u32, 4>*)(keys(0) + row * ROW_BYTES + RANK * 2 + chunk * 16) = *(const Pack<u32, 4>*)from;
    }
  }

  // Starts copying a tile of keys, in either form.
  __device__ __forceinline__ void load(const Work& work, u32 first, u32 stage, u32 block) const {
    if (NARROW) {
      load_copies(work, first, block);
    } else {
      load_keys(work, first, stage, block);
    }
  }

  // Scores of all rows over every fourth 16 values of the keys, from the warp's own on, for the other warps.
  __device__ __forceinline__ void score(const u8* keys) const {
    float s[FRAGMENTS][2][4] = {};
#pragma unroll
    for (u32 i = 0; i < (STEPS + WARPS - 1) / WARPS; i++) {
      u32 step = i * WARPS + warp;
      if (STEPS % WARPS != 0 && step >= STEPS) break;
      u32 a[FRAGMENTS][4], b[4];
      ptx::ldmatrix_x4(b, keys + (lane / 16 * 8 + lane % 8) * ROW_BYTES + step * 32 + lane / 8 % 2 * 16);
#pragma unroll
      for (int m = 0; m < FRAGMENTS; m++) {
        ptx::ldmatrix_x4(a[m], shared + (m * 16 + lane % 16) * ROW_BYTES + step * 32 + lane / 16 * 16);
        ptx::mma_m16n8k16(T{}, s[m][0], a[m], b);
        ptx::mma_m16n8k16(T{}, s[m][1], a[m], b + 2);
      }
    }
#pragma unroll
    for (int i = 0; i < FRAGMENTS * 2; i++) {
      const float* x = s[i / 2][i % 2];
      scores()[(warp * FRAGMENTS * 2 + i) * 32 + lane] = float4{x[0], x[1], x[2], x[3]};
    }
  }

  // Adds the warps' parts of the scores, ascending.
  __device__ __forceinline__ void join_scores(float (&s)[FRAGMENTS][2][4]) const {
#pragma unroll
    for (int i = 0; i < FRAGMENTS * 2; i++) {
      float* x = s[i / 2][i % 2];
#pragma unroll
      for (u32 part = 0; part < WARPS; part++) {
        float4 y = scores()[(part * FRAGMENTS * 2 + i) * 32 + lane];
        x[0] = part ? __fadd_rn(x[0], y.x) : y.x;
        x[1] = part ? __fadd_rn(x[1], y.y) : y.y;
        x[2] = part ? __fadd_rn(x[2], y.z) : y.z;
        x[3] = part ? __fadd_rn(x[3], y.w) : y.w;
      }
    }
  }

  // o += P V for the warp's own values, where `s` has the weights.
  __device__ __forceinline__ void add_values(float (&o)[FRAGMENTS][OWN / 8][4], const float (&s)[FRAGMENTS][2][4],
                                             const u8* keys) const {
    u32 p[FRAGMENTS][4];
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        p[m][i] = ptx::round_pair(T{}, s[m][i / 2][i % 2 * 2], s[m][i / 2][i % 2 * 2 + 1]);
      }
    }
    const u8* own = keys + (lane % 16) * ROW_BYTES + warp * OWN * 2 + lane / 16 * 16;
#pragma unroll
    for (int d = 0; d < OWN / 16; d++) {
      u32 b[4];
      ptx::ldmatrix_x4_trans(b, own + d * 32);
#pragma unroll
      for (int m = 0; m < FRAGMENTS; m++) {
        ptx::mma_m16n8k16(T{}, o[m][2 * d], p[m], b);
        ptx::mma_m16n8k16(T{}, o[m][2 * d + 1], p[m], b + 2);
      }
    }
  }

  // Writes 16 rows to `out`, or to the workspace if there are several parts. `row`: the thread's first row
  // among those at once.
  __device__ __forceinline__ void store(const Work& work, u32 row, const float (&o)[OWN / 8][4],
                                        const Partial (&all)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      u32 packed = work.first_packed + row + r * 8, first = warp * OWN + lane % 4 * 2;
      if (packed >= work.span.packed()) continue;
      if (work.parts > 1) {
        size_t at = work.slot * ITEM_ROWS + packed % ITEM_ROWS;
        if (warp == 0 && lane % 4 == 0) task.partials[at] = all[r];
        float* to = task.sums + at * widths.rank;
#pragma unroll
        for (int d = 0; d < OWN / 8; d++) {
          u32 value = first + d * 8;
          if (value < widths.rank) *(float2*)(to + value) = float2{o[d][2 * r], o[d][2 * r + 1]};
        }
        continue;
      }
      float factor = last_factor(all[r], nullptr, 1.f);
      size_t token = work.span.first_row + packed / task.group;
      T* to = task.out + (token * task.group + packed % task.group) * widths.rank;
#pragma unroll
      for (int d = 0; d < OWN / 8; d++) {
        u32 value = first + d * 8;
        u32 pair = ptx::round_pair(T{}, __fmul_rn(o[d][2 * r], factor), __fmul_rn(o[d][2 * r + 1], factor));
        if (value < widths.rank) *(u32*)(to + value) = pair;
      }
    }
  }

  __device__ __forceinline__ void run(const Work& work) const {
    float unit = __fmul_rn(task.scale, LOG2_E);
    load_q(work);
    load(work, work.begin, 0, block_of<TILE>(task, work, work.begin, lane));
    u32 block = block_of<TILE>(task, work, work.begin + TILE, lane);
    float o[FRAGMENTS][OWN / 8][4];
    Softmax rows[FRAGMENTS];
    Partial all[FRAGMENTS][2];
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++) {
      rows[m].reset();
#pragma unroll
      for (int d = 0; d < OWN / 8; d++) o[m][d][0] = o[m][d][1] = o[m][d][2] = o[m][d][3] = 0.f;
    }
    u32 seen_by_all = work.span.position(work.first_packed) + 1;
    bool is_first = true;
    u32 stage = 0;
    for (u32 at = work.begin; at < work.end; at += TILE, stage ^= STAGES - 1) {
      bool is_last = at + TILE >= work.end;
      ptx::cp_async_wait<0>();
      __syncthreads();  // the tile is here, for all; and all have read the one before, whose place is next
      if (NARROW) {
        widen_keys();
        __syncthreads();  // the tile is wide, for all; and its copy has been read
      }
      if (!is_last) {
        load(work, at + TILE, stage ^ 1, block);
        block = block_of<TILE>(task, work, at + 2 * TILE, lane);
      }
      score(keys(stage));
      __syncthreads();  // all parts of the scores are here
      float s[FRAGMENTS][2][4];
      join_scores(s);
#pragma unroll
      for (int m = 0; m < FRAGMENTS; m++) {
        u32 row = work.first_packed + m * 16 + lane / 4;
        u32 position[2] = {work.span.position(row), work.span.position(row + 8)};
        if (at + TILE > seen_by_all) mask(s[m], at, position, Window{0, 0});
        soften(s[m], o[m], rows[m], unit);
      }
      add_values(o, s, keys(stage));
      if (is_last || (task.fixed && (at + TILE) % task.fixed == 0)) {
        constexpr u32 EACH = OWN / 2;  // values of a thread in 16 rows
        float* mine = task.folded + (size_t)blockIdx.x * ROWS * RANK + threadIdx.x;
#pragma unroll
        for (int m = 0; m < FRAGMENTS; m++) {
          if (is_first && is_last) {
            all[m][0] = close(rows[m], 0, unit);
            all[m][1] = close(rows[m], 1, unit);
          } else {
            fold<THREADS>(mine + m * EACH * THREADS, o[m], rows[m], all[m], is_first, is_last, unit);
          }
        }
        is_first = false;
      }
    }
    if (is_first) {  // no row sees this part
#pragma unroll
      for (int m = 0; m < FRAGMENTS; m++) all[m][0] = all[m][1] = Partial{NEG_INF, 0.f};
      ptx::cp_async_wait<0>();  // pending copies must not overwrite those of the next item
    }
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++) store(work, m * 16 + lane / 4, o[m], all[m]);
  }

  // A block starts with the rows of its own number. The others are handed out one by one.
  __device__ __forceinline__ void run_all() const {
    constexpr u32 TIMES = ITEM_ROWS / ROWS;  // of an item
    u32& handed_out = *(u32*)(shared + VALUES * 2);  // the first query row's padding
    u32 count = task.header->items[LARGE] * TIMES;
    for (u32 index = blockIdx.x; index < count;) {
      Item item = task.items[index / TIMES];
      Span span(task.sequences, item.sequence, task.group);
      u32 first_packed = item.tile * ITEM_ROWS + index % TIMES * ROWS;
      if (first_packed < span.packed()) run(work_of<TILE>(task, item, span, LARGE, 0, first_packed, ROWS));
      if (threadIdx.x == 0) handed_out = gridDim.x + atomicAdd(&task.header->next[LARGE], 1u);
      __syncthreads();
      index = handed_out;
      __syncthreads();
    }
  }
};

// attention_latent_{T}_{RANK}_{small, large}: softmax(q k^T * scale) v for the planned tiles of 16 (small) or
// 64 packed rows, where all heads share one key a position, and the value is the start of the key.
//   out     [rows, group * rank]  T
//   q       [rows, q_stride]      T: a row starts with its `group` query heads, rank + rotated values each;
//           16-byte aligned, like the key in `keys`
//   keys    [blocks, 1 << block_shift, rank + rotated]  T; blocks of 8 to 256 tokens
//           or, in attention_latent_{T}_e4m3_*, e4m3 codes with their scales and T: latent_key.cuh
//   rank, rotated   multiples of 8, with e4m3 rank of 16, up to RANK and ROTATED
//   row_starts to items: as in attention_kernel.cuh
//   sums, partials, folded   workspace, with `rank` values a head
// Grid: as many blocks as fit the device, in every step; 128 threads. Dynamic shared memory: queries, two
// tiles of 16 positions, and the warps' parts of the scores; with e4m3 one tile, and the next one's codes.
//
// With 512 values of 576, a warp cannot hold the outputs of 16 rows. So four warps share the rows: each
// computes the scores over a quarter of the key's values, reads the sum of all quarters, has the same
// softmax, and adds a quarter of the value's values. Large tiles are computed 32 rows at once, because 64 and
// two stages of keys need 125 KB of shared memory: with 32 they fit the 99 KB of sm_89 and sm_120, and two
// blocks fit a multiprocessor of sm_80, sm_90 and sm_100.
//
// Each row is computed in one order: tiles of 16 positions from a multiple of 16 on; the quarters of a score
// ascending. As in attention_kernel.cuh its bits depend on its position and on where its context was divided,
// with `fixed` only on its position; and small and large tiles agree.
//
// Bytes, decode: 2 * context * (rank + rotated) a sequence, read once for 16 heads, and from L2 for each
// further 32. FLOPs: 2 * (2 * rank + rotated) a row and position. A tile of 32 rows reads or writes 111 KB of
// shared memory for 1.1 MFLOP: at 128 bytes a cycle, 1280 of the 2048 FLOPs that a multiprocessor of sm_80
// has a cycle. With e4m3 a sequence is 656 bytes a position, and widening takes about 80 instructions for 16
// codes, five to a thread and tile, and 24 KB of shared memory. Not yet run on a GPU.
// Reference: check/attention, in f64: |diff| <= 4e-3 + 1.6e-2 * |ref| (bf16).
#define ATTENTION_LATENT(T, K, RANK, ROTATED, ROWS, NAME)                                                        \
  extern "C" __global__ void __launch_bounds__(128, ROWS == 16 ? 3 : 2) NAME(                                    \
      T* out, const T* q, const K* keys, const u32* row_starts, const u32* context_lens, const u32* block_tables,\
      Header* header, const Item* items, float* sums, Partial* partials, float* folded, u32 q_stride,            \
      u32 table_stride, u32 group, u32 block_shift, u32 fixed, u32 rank, u32 rotated, float scale) {             \
    DYN_SHARED(u8, shared);                                                                                      \
    ptx::grid_dependency_wait();                                                                                 \
    ptx::grid_dependency_launch();                                                                               \
    Task<T, K> task{out, q, keys, keys, nullptr, {row_starts, context_lens}, block_tables, header, items, sums,  \
                    partials, folded, q_stride, table_stride, 1, group, block_shift, {0, 0}, fixed, scale, 0.f,  \
                    1.f};                                                                                        \
    LatentAttention<T, K, RANK, ROTATED, ROWS>(task, shared, {rank, rotated}).run_all();                         \
  }                                                                                                              \
  EXPORT(NAME)
#define ATTENTION_LATENT_BOTH(T, RANK, ROTATED)                                        \
  ATTENTION_LATENT(T, T, RANK, ROTATED, 16, attention_latent_##T##_##RANK##_small)     \
  ATTENTION_LATENT(T, T, RANK, ROTATED, 32, attention_latent_##T##_##RANK##_large)
#define ATTENTION_LATENT_NARROW(T, RANK, ROTATED)                                            \
  ATTENTION_LATENT(T, e4m3, RANK, ROTATED, 16, attention_latent_##T##_e4m3_##RANK##_small)   \
  ATTENTION_LATENT(T, e4m3, RANK, ROTATED, 32, attention_latent_##T##_e4m3_##RANK##_large)
