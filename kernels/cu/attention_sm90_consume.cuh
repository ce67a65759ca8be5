// attention_sm90_consume.cuh: a warpgroup that multiplies 64 packed query rows by the tiles of the rings.
// Part of attention_sm90.cuh.
#pragma once

namespace {

// Named barriers: 1 and 2 synchronise the threads of a warpgroup; with 3 and 4 the warpgroups take turns at
// the tensor cores.
__device__ __forceinline__ void meet_warpgroup(u32 warpgroup) { ptx::named_barrier_sync(1 + warpgroup, 128); }
__device__ __forceinline__ void await_turn(u32 warpgroup) { ptx::named_barrier_sync(3 + warpgroup, 256); }
__device__ __forceinline__ void pass_turn(u32 warpgroup) { ptx::named_barrier_arrive(4 - warpgroup, 256); }

// Loads the warpgroup's 64 rows of Q into shared memory, swizzled; rows past the sequence's are zeros.
template <class T, int HD>
__device__ __forceinline__ void load_q(const Task<T>& task, const Work& work, u8* to, i32 first_packed) {
  constexpr i32 CHUNKS = HD / 8, ROWS_AT_ONCE = 128 / CHUNKS;
  i32 thread = threadIdx.x % 128, chunk = thread % CHUNKS, row0 = thread / CHUNKS;
  uint4 x[64 / ROWS_AT_ONCE];
#pragma unroll
  for (i32 i = 0; i < 64 / ROWS_AT_ONCE; i++) {
    i32 packed = first_packed + row0 + i * ROWS_AT_ONCE;
    i32 token = packed / task.group, head = work.head * task.group + packed % task.group;
    const T* from = task.q + (size_t)(work.first_row + token) * task.q_stride + head * HD + chunk * 8;
    x[i] = packed < work.span.packed() ? *(const uint4*)from : uint4{0, 0, 0, 0};
  }
#pragma unroll
  for (i32 i = 0; i < 64 / ROWS_AT_ONCE; i++) {
    i32 row = row0 + i * ROWS_AT_ONCE;
    ptx::store_for_async(to + chunk / 8 * (64 * 128) + row * 128 + ((chunk % 8 ^ row % 8) << 4), x[i]);
  }
}

// Softmax state of a thread's two rows, r and r + 8: the highest score, and the sum over the thread's own
// columns.
struct Rows {
  float top[2], sum[2];
  i32 position[2];
};

// Sets scores of positions that a row does not see to -inf.
__device__ __forceinline__ void mask(float (&s)[64], const Rows& rows, i32 first, i32 window) {
#pragma unroll
  for (int i = 0; i < 64; i++) {
    i32 at = first + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2, mine = rows.position[i / 2 % 2];
    bool seen = at <= mine && (window == 0 || at > mine - window);
    s[i] = seen ? s[i] : NEG_INF;
  }
}

// softcap * tanh(scale * s / softcap), with `inner` = 2 log2(e) scale / softcap.
__device__ __forceinline__ void cap(float (&s)[64], float softcap, float inner) {
#pragma unroll
  for (int i = 0; i < 64; i++) {
    s[i] = softcap - __fdividef(2.f * softcap, ptx::exp2_approx(s[i] * inner) + 1.f);
  }
}

// Online softmax (Milakov & Gimelshein 2018): turns scores into 2^(unit * (s - top)). Returns in `shrink` the
// factors for earlier sums.
__device__ __forceinline__ void soften(float (&s)[64], Rows& rows, float unit, float (&shrink)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float top = rows.top[r];
#pragma unroll
    for (int i = 0; i < 16; i++) top = fmaxf(top, fmaxf(s[i * 4 + r * 2], s[i * 4 + r * 2 + 1]));
    top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));
    top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
    float base = top == NEG_INF ? 0.f : __fmul_rn(top, unit);  // nothing visible yet: weights 0, not NaN
    // Subtract rounded bases, not the exact product: if the top is unchanged, this must be exactly 1.
    shrink[r] = ptx::exp2_approx(__fadd_rn(__fmul_rn(rows.top[r], unit), -base));
    rows.top[r] = top;
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 16; i++) {
      float &a = s[i * 4 + r * 2], &b = s[i * 4 + r * 2 + 1];
      a = ptx::exp2_approx(__fmaf_rn(a, unit, -base));
      b = ptx::exp2_approx(__fmaf_rn(b, unit, -base));
      sum += a + b;
    }
    rows.sum[r] = __fmaf_rn(rows.sum[r], shrink[r], sum);
  }
}

// Lane q of four passes in w[i], its two columns of column group i, and gets the eight columns of group q.
__device__ __forceinline__ void transpose_quad(u32 (&w)[4]) {
  bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
  u32 a = __shfl_xor_sync(FULL_WARP, odd ? w[0] : w[1], 1);
  u32 b = __shfl_xor_sync(FULL_WARP, odd ? w[2] : w[3], 1);
  w[0] = odd ? a : w[0];
  w[1] = odd ? w[1] : a;
  w[2] = odd ? b : w[2];
  w[3] = odd ? w[3] : b;
  a = __shfl_xor_sync(FULL_WARP, high ? w[0] : w[2], 2);
  b = __shfl_xor_sync(FULL_WARP, high ? w[1] : w[3], 2);
  w[0] = high ? a : w[0];
  w[1] = high ? b : w[1];
  w[2] = high ? w[2] : a;
  w[3] = high ? w[3] : b;
}

// Divides by the softmax's sums and writes the rows, 16 bytes per thread.
template <class T, int HD>
__device__ __forceinline__ void store_rows(const Task<T>& task, const Work& work, const float (&o)[HD / 2],
                                           const Rows& rows, i32 first_packed, float unit) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    i32 packed = first_packed + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + r * 8;
    bool mine = packed < work.span.packed();
    i32 token = packed / task.group, head = work.head * task.group + packed % task.group;
    float sum = rows.sum[r], factor = 1.f;
    sum += __shfl_xor_sync(FULL_WARP, sum, 1);
    sum += __shfl_xor_sync(FULL_WARP, sum, 2);
    if (task.sinks && mine) {
      float sink = task.sinks[head] * LOG2_E, top = fmaxf(rows.top[r] * unit, sink);
      factor = ptx::exp2_approx(__fmaf_rn(rows.top[r], unit, -top));
      sum = __fmaf_rn(sum, factor, ptx::exp2_approx(sink - top));
    }
    factor *= task.value_scale / sum;
    T* to = task.out + ((size_t)(work.first_row + token) * task.kv_heads * task.group + head) * HD;
#pragma unroll
    for (int j = 0; j < HD / 32; j++) {
      u32 w[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float* from = &o[(j * 4 + i) * 4 + r * 2];
        w[i] = ptx::round_pair(T{}, from[0] * factor, from[1] * factor);
      }
      transpose_quad(w);
      if (mine) *(uint4*)(to + (j * 4 + threadIdx.x % 4) * 8) = uint4{w[0], w[1], w[2], w[3]};
    }
  }
}

// Starts s = Q K^T.
template <class T, int HD>
__device__ __forceinline__ void start_scores(float (&s)[64], const u8* q, const u8* keys) {
  u64 a = ptx::matrix_descriptor(q, 16, 1024, ptx::SWIZZLE_128B);
  u64 b = ptx::matrix_descriptor(keys, 16, 1024, ptx::SWIZZLE_128B);
#pragma unroll
  for (u32 k = 0; k < HD / 16; k++) {
    u32 in_slab = k % 4 * 32, to_a = k / 4 * 64 * 128 + in_slab, to_b = k / 4 * TILE_KV * 128 + in_slab;
    ptx::wgmma_ss<0>(T{}, s, a + (to_a >> 4), b + (to_b >> 4), k);
  }
  ptx::wgmma_commit();
}

// Starts o += P V.
template <class T, int HD>
__device__ __forceinline__ void start_outputs(float (&o)[HD / 2], const u32 (&p)[32], const u8* values) {
  u64 b = ptx::matrix_descriptor(values, TILE_KV * 128, 1024, ptx::SWIZZLE_128B);
#pragma unroll
  for (u32 k = 0; k < TILE_KV / 16; k++) ptx::wgmma_rs<1>(T{}, o, p + k * 4, b + (k * 2048 >> 4), 1);
  ptx::wgmma_commit();
}

template <class T, int HD>
__device__ __forceinline__ void consume(const Task<T>& task, const Buffers<HD>& buffers) {
  u32 warpgroup = threadIdx.x / 128 - 1;
  bool speaks = threadIdx.x % 32 == 0;  // reports for its warp
  float unit = task.softcap == 0.f ? task.scale * LOG2_E : LOG2_E;
  float inner = task.softcap == 0.f ? 0.f : 2.f * LOG2_E * task.scale / task.softcap;
  Ring<Buffers<HD>::STAGES> keys, values;
  if (warpgroup == 1) pass_turn(warpgroup);
  Work work;
  for (i32 round = 0; find_work(task, round, work); round++) {
    i32 first_packed = work.tile * TILE_ROWS + (i32)warpgroup * 64;
    i32 lowest = work.span.position(first_packed), highest = work.span.position(first_packed + 63);
    i32 row = first_packed + (i32)threadIdx.x % 128 / 32 * 16 + (i32)threadIdx.x % 32 / 4;
    i32 window = task.window;
    Rows rows{{NEG_INF, NEG_INF}, {0.f, 0.f}, {work.span.position(row), work.span.position(row + 8)}};
    float o[HD / 2], s[64], shrink[2];
    u32 p[32];
#pragma unroll
    for (int i = 0; i < HD / 2; i++) o[i] = 0.f;
    meet_warpgroup(warpgroup);  // all threads have read the previous Q
    load_q<T, HD>(task, work, buffers.q(warpgroup), first_packed);
    ptx::fence_proxy_async();  // the first turn is a barrier besides

    auto weigh = [&](i32 tile) {  // scores to weights
      i32 first = tile * TILE_KV;
      if (task.softcap != 0.f) cap(s, task.softcap, inner);
      if (first + TILE_KV - 1 > lowest || (window && first <= highest - window)) mask(s, rows, first, window);
      soften(s, rows, unit, shrink);
    };
    auto pack = [&] {
#pragma unroll
      for (int i = 0; i < 32; i++) p[i] = ptx::round_pair(T{}, s[2 * i], s[2 * i + 1]);
    };

    i32 tile = work.span.kv_begin(work.tile), end = work.span.kv_end(work.tile);
    ptx::mbarrier_wait(buffers.full_keys(keys.stage), keys.parity);
    await_turn(warpgroup);
    ptx::wgmma_fence();
    start_scores<T, HD>(s, buffers.q(warpgroup), buffers.keys(keys.stage));
    pass_turn(warpgroup);
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(s);
    if (speaks) ptx::mbarrier_arrive(buffers.empty_keys(keys.stage));
    keys.next();
    weigh(tile);
    pack();
    // While this tile's outputs are being computed, the next tile's scores are in flight and its weights are
    // made.
    for (tile++; tile < end; tile++) {
      ptx::mbarrier_wait(buffers.full_keys(keys.stage), keys.parity);
      await_turn(warpgroup);
      ptx::wgmma_fence();
      start_scores<T, HD>(s, buffers.q(warpgroup), buffers.keys(keys.stage));
      ptx::mbarrier_wait(buffers.full_values(values.stage), values.parity);
      ptx::wgmma_fence();
      start_outputs<T, HD>(o, p, buffers.values(values.stage));
      pass_turn(warpgroup);
      ptx::wgmma_wait<1>();
      ptx::wgmma_pin(s);
      if (speaks) ptx::mbarrier_arrive(buffers.empty_keys(keys.stage));
      keys.next();
      weigh(tile);
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(o);
      if (speaks) ptx::mbarrier_arrive(buffers.empty_values(values.stage));
      values.next();
      pack();
#pragma unroll
      for (int i = 0; i < HD / 2; i++) o[i] *= shrink[i / 2 % 2];
    }
    ptx::mbarrier_wait(buffers.full_values(values.stage), values.parity);
    ptx::wgmma_fence();
    start_outputs<T, HD>(o, p, buffers.values(values.stage));
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(o);
    if (speaks) ptx::mbarrier_arrive(buffers.empty_values(values.stage));
    values.next();
    store_rows<T, HD>(task, work, o, rows, first_packed, unit);
  }
  if (warpgroup == 0) await_turn(warpgroup);  // takes the last turn, which is not used
}

}  // namespace
