// peer.cu: sums over the ranks of a group whose devices reach each other's memory, in one launch with what
// follows: each rank sends its f32 sums to inboxes in the memory of the others, waits for theirs, joins all
// in the tree of ranks.cuh, adds bias, rounds; then either writes the result, or adds it to the residual
// stream and normalises as norm.cu does. Same bits as an all-gather, join_sums and add_rms_norm.
//
// Small messages: the words are their own flags (Lamport). An inbox is EMPTY, a NaN that no arithmetic makes,
// until a word arrives. Three inboxes take turns: a launch fills one and clears the one before. A rank starts
// round k + 2 after it has cleared inbox k in round k + 1, and nobody sends round k + 3, which uses inbox k
// again, before having received all of round k + 2.
//
// Large messages: each row has an owner, which gets its sums, joins them and sends the rounded result to
// all. Each block waits only for the blocks with its number on other ranks: for their sums, then for their
// results; a flag for each block, rank and phase holds the round's number, stored with release and loaded
// with acquire. A rank that has all results knows that the others have read all sums, so one inbox is enough.
//
// The round's number is in device memory, so that replayed graphs work. Every wait ends: at the limit, or if
// the host sets `control`. The launch then ends with wrong results and `control` says which rank was missing.
// All blocks of a launch must be resident at once. Not yet run on a GPU.
#include "norm.cuh"
#include "ranks.cuh"

constexpr u32 EMPTY = 0xfff05ce1u, OTHER_NAN = 0x7fffffffu;
// A thread looks at the clock after so many polls, and at the host's memory after so many nanoseconds.
constexpr u32 POLLS_PER_CHECK = 32;
constexpr u64 CHECK_INTERVAL = 1000000;
// Words of `control`.
enum Control { ABORT, MISSING };

// Rounds of a rank, in its own memory, zero at the start. Written by the last block of a launch.
struct Rounds {
  u32 small, large;
  u32 arrived;    // blocks of this launch
  u32 filled[3];  // words of each rank in each small inbox
};

// A rank's view of its group; cuda/peer/mod.rs has the same struct. Offsets and lengths are in words.
struct Peers {
  u32* inbox[MAX_RANKS];  // of every rank, its own included
  Rounds* rounds;
  u32* control;  // page-locked memory of the host
  u64 limit;     // of a wait, nanoseconds
  i32 rank, ranks;
  u32 small_stride;             // small inbox t has rank r's words at (t * ranks + r) * small_stride
  u32 sums, sums_stride;        // sums of rank r for the rows of this rank
  u32 results;                  // results of all rows
  u32 flags, flags_stride;      // flags of rank r: sums, then results, of flags_stride blocks each
};

// What is summed.
template <class T> struct Sums {
  const float* own;  // [rows, n]
  const T* bias;     // [n] or null
  i32 rows, n;
};

// What follows. Without a residual stream, `out` is the rounded sum.
template <class T> struct Then {
  T* out;              // [rows, n]
  float* residual;     // [rows, n]
  const float* weight;  // [n], or null: out = residual
  float eps;
};

// A thread's waiting during a launch.
struct Wait {
  const Peers& peers;
  u64 deadline = 0, next = 0;
  u32 polls = 0;
  bool is_over = false;

  // Whether to go on waiting for rank `from`.
  __device__ __forceinline__ bool on(int from) {
    ptx::poll_pause();
    if (is_over) return false;
    if (++polls % POLLS_PER_CHECK) return true;
    u64 now = ptx::globaltimer();
    if (!deadline) deadline = now + peers.limit;
    if (now < next) return true;
    next = now + CHECK_INTERVAL;
    is_over = ptx::load_peer4(peers.control + ABORT) | ptx::load_peer4(peers.control + MISSING);
    if (!is_over && now < deadline) return true;
    if (!is_over) ptx::store_peer4(peers.control + MISSING, (u32)from + 1);
    is_over = true;
    return false;
  }
};

__device__ __forceinline__ bool has_come(uint4 x) {
  return x.x != EMPTY && x.y != EMPTY && x.z != EMPTY && x.w != EMPTY;
}
__device__ __forceinline__ u32 sendable(u32 x) { return x == EMPTY ? OTHER_NAN : x; }
__device__ __forceinline__ void put(float (&v)[4], uint4 x) {
  v[0] = __uint_as_float(x.x), v[1] = __uint_as_float(x.y);
  v[2] = __uint_as_float(x.z), v[3] = __uint_as_float(x.w);
}

// Writes a row whose rounded sums are `delta(i)`, four at a time.
template <class T, bool NORM, class Delta>
__device__ __forceinline__ void finish_row(const Then<T>& then, i32 row, i32 n, Delta delta) {
  size_t at = (size_t)row * n;
  float squares = 0.f;
  for (int i = threadIdx.x * 4; i < n; i += blockDim.x * 4) {
    Pack<T, 4> d = delta(i);
    if (!NORM) {
      *(Pack<T, 4>*)(then.out + at + i) = d;
      continue;
    }
    float4 x = *(const float4*)(then.residual + at + i);
    x.x += to_f32(d.v[0]);
    x.y += to_f32(d.v[1]);
    x.z += to_f32(d.v[2]);
    x.w += to_f32(d.v[3]);
    *(float4*)(then.residual + at + i) = x;
    squares += sum_of_squares(x);
  }
  if (!NORM) return;
  float scale = then.weight ? rsqrtf(block_sum(squares) / (float)n + then.eps) : 1.f;
  for (int i = threadIdx.x * 4; i < n; i += blockDim.x * 4) {
    float4 x = *(const float4*)(then.residual + at + i);
    float4 w = then.weight ? *(const float4*)(then.weight + i) : float4{1.f, 1.f, 1.f, 1.f};
    write4(then.out + at + i, x.x * scale * w.x, x.y * scale * w.y, x.z * scale * w.z, x.w * scale * w.w);
  }
}

// Ends the launch's part of this block; the last one advances the round.
__device__ __forceinline__ bool is_last_block(Rounds* rounds) {
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(&rounds->arrived, 1u) != gridDim.x - 1) return false;
  rounds->arrived = 0;
  return true;
}

// reduce_small: small messages, up to small_stride words.
// Grid: up to as many blocks as rows and as are resident at once, block as for add_rms_norm; n is a multiple
// of 4. Sends 4 bytes a value to each rank and reads 4 from each. References: leaves::join, then as norm.cu.
template <class T, bool NORM>
__device__ __forceinline__ void reduce_small(const Then<T>& then, const Sums<T>& sums, const Peers& peers) {
  ptx::grid_dependency_wait();
  u32 round = peers.rounds->small, turn = round % 3, before = (round + 2) % 3;
  u32 filled = peers.rounds->filled[before], words = (u32)(sums.rows * sums.n);
  u32 own_slot = (turn * peers.ranks + peers.rank) * peers.small_stride;
  for (int row = blockIdx.x; row < sums.rows; row += gridDim.x) {
    for (int i = threadIdx.x * 4; i < sums.n; i += blockDim.x * 4) {
      u32 at = (u32)(row * sums.n + i);
      uint4 x = *(const uint4*)(sums.own + at);
      x = uint4{sendable(x.x), sendable(x.y), sendable(x.z), sendable(x.w)};
#pragma unroll
      for (int r = 0; r < MAX_RANKS; r++)
        if (r < peers.ranks && r != peers.rank) ptx::store_peer16(peers.inbox[r] + own_slot + at, x);
    }
  }
  u32* inbox = nullptr;
#pragma unroll
  for (int r = 0; r < MAX_RANKS; r++)
    if (r == peers.rank) inbox = peers.inbox[r];
  for (int r = 0; r < peers.ranks; r++) {
    u32* used = inbox + (before * peers.ranks + r) * peers.small_stride;
    for (u32 i = (blockIdx.x * blockDim.x + threadIdx.x) * 4; i < filled; i += gridDim.x * blockDim.x * 4)
      *(uint4*)(used + i) = uint4{EMPTY, EMPTY, EMPTY, EMPTY};
  }
  ptx::grid_dependency_launch();
  const u32* slots = inbox + turn * peers.ranks * peers.small_stride;
  Wait wait{peers};
  for (int row = blockIdx.x; row < sums.rows; row += gridDim.x) {
    finish_row<T, NORM>(then, row, sums.n, [&](int i) {
      u32 at = (u32)(row * sums.n + i);
      float v[MAX_RANKS][4] = {};
      int missing;
      do {
        missing = -1;
#pragma unroll
        for (int r = 0; r < MAX_RANKS; r++) {
          if (r >= peers.ranks) continue;
          uint4 x = r == peers.rank ? *(const uint4*)(sums.own + at)
                                    : ptx::load_peer16(slots + r * peers.small_stride + at);
          if (r != peers.rank && !has_come(x)) missing = r;
          put(v[r], x);
        }
      } while (missing >= 0 && wait.on(missing));
      return join_ranks(v, peers.ranks, sums.bias ? sums.bias + i : nullptr);
    });
  }
  if (is_last_block(peers.rounds)) {
    peers.rounds->filled[turn] = words;
    peers.rounds->small = round + 1;
  }
}

// Stores the round's number to this block's flag of `phase` on all other ranks, after all that the block has
// stored.
__device__ __forceinline__ void raise_flags(const Peers& peers, int phase, u32 number) {
  u32 flag = peers.flags + (peers.rank * 2 + phase) * peers.flags_stride + blockIdx.x;
  __syncthreads();
#pragma unroll
  for (int r = 0; r < MAX_RANKS; r++)
    if (threadIdx.x == (u32)r && r < peers.ranks && r != peers.rank)
      ptx::store_release(peers.inbox[r] + flag, number);
}

// Waits until all other ranks have raised this block's flag of `phase`.
__device__ __forceinline__ void wait_for_flags(const u32* inbox, int phase, u32 number, Wait& wait) {
  int from = threadIdx.x;
  const u32* flag = inbox + wait.peers.flags + (from * 2 + phase) * wait.peers.flags_stride + blockIdx.x;
  if (from < wait.peers.ranks && from != wait.peers.rank)
    while (ptx::load_acquire(flag) != number && wait.on(from)) {
    }
  __syncthreads();
}

// reduce_large: large messages, whose rows have owners: row r belongs to rank r % ranks.
// Grid and block as for reduce_small, at most flags_stride blocks. Sends 4 bytes a value to the owner and 2
// from it to each rank.
template <class T, bool NORM>
__device__ __forceinline__ void reduce_large(const Then<T>& then, const Sums<T>& sums, const Peers& peers) {
  ptx::grid_dependency_wait();
  u32 number = peers.rounds->large + 1;
  i32 n = sums.n, ranks = peers.ranks, words = n / 2;
  u32* inbox = nullptr;
  for (int row = blockIdx.x; row < sums.rows; row += gridDim.x) {
    int owner = row % ranks;
    u32* to = nullptr;
#pragma unroll
    for (int r = 0; r < MAX_RANKS; r++)
      if (r == owner) to = peers.inbox[r] + peers.sums + peers.rank * peers.sums_stride + row / ranks * n;
    if (owner == peers.rank) continue;
    for (int i = threadIdx.x * 4; i < n; i += blockDim.x * 4)
      ptx::store_peer16(to + i, *(const uint4*)(sums.own + (size_t)row * n + i));
  }
  raise_flags(peers, 0, number);
  ptx::grid_dependency_launch();
#pragma unroll
  for (int r = 0; r < MAX_RANKS; r++)
    if (r == peers.rank) inbox = peers.inbox[r];
  Wait wait{peers};
  wait_for_flags(inbox, 0, number, wait);
  for (int row = blockIdx.x; row < sums.rows; row += gridDim.x) {
    if (row % ranks != peers.rank) continue;
    for (int i = threadIdx.x * 4; i < n; i += blockDim.x * 4) {
      float v[MAX_RANKS][4] = {};
#pragma unroll
      for (int r = 0; r < MAX_RANKS; r++) {
        if (r >= ranks) continue;
        const u32* from = inbox + peers.sums + r * peers.sums_stride + row / ranks * n + i;
        put(v[r], r == peers.rank ? *(const uint4*)(sums.own + (size_t)row * n + i) : ptx::load_peer16(from));
      }
      Pack<T, 4> joined = join_ranks(v, ranks, sums.bias ? sums.bias + i : nullptr);
      uint2 x = __builtin_bit_cast(uint2, joined);
      u32 at = peers.results + (u32)row * words + i / 2;
#pragma unroll
      for (int r = 0; r < MAX_RANKS; r++) {
        if (r == peers.rank) *(uint2*)(inbox + at) = x;
        else if (r < ranks) ptx::store_peer8(peers.inbox[r] + at, x);
      }
    }
  }
  raise_flags(peers, 1, number);
  wait_for_flags(inbox, 1, number, wait);
  for (int row = blockIdx.x; row < sums.rows; row += gridDim.x) {
    finish_row<T, NORM>(then, row, n, [&](int i) {
      return __builtin_bit_cast(Pack<T, 4>, ptx::load_peer8(inbox + peers.results + (u32)row * words + i / 2));
    });
  }
  if (is_last_block(peers.rounds)) peers.rounds->large = number;
}

#define REDUCE(kind, T)                                                                                     \
  extern "C" __global__ void __launch_bounds__(1024)                                                        \
      reduce_##kind##_##T(T* out, const float* own, const T* bias, i32 rows, i32 n,                         \
                         const __grid_constant__ Peers peers) {                                             \
    reduce_##kind<T, false>(Then<T>{out, nullptr, nullptr, 0.f}, Sums<T>{own, bias, rows, n}, peers);       \
  }                                                                                                         \
  EXPORT(reduce_##kind##_##T)                                                                               \
  extern "C" __global__ void __launch_bounds__(1024)                                                        \
      reduce_##kind##_norm_##T(T* out, float* residual, const float* weight, float eps, const float* own,   \
                               const T* bias, i32 rows, i32 n, const __grid_constant__ Peers peers) {       \
    reduce_##kind<T, true>(Then<T>{out, residual, weight, eps}, Sums<T>{own, bias, rows, n}, peers);        \
  }                                                                                                         \
  EXPORT(reduce_##kind##_norm_##T)

REDUCE(small, bf16)
REDUCE(small, f16)
REDUCE(large, bf16)
REDUCE(large, f16)
