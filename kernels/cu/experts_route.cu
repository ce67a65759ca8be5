// experts_route.cu: choice of each row's experts, and the rows of each expert.
#include "experts.cuh"
#include "math.cuh"

constexpr int MAX_EXPERTS = 512;
constexpr int OWN = MAX_EXPERTS / 32;  // experts per lane
constexpr int ROUTE_WARPS = 4;
constexpr float MIN_POSITIVE = 1.17549435e-38f;

// Position of x in the order of IEEE 754's totalOrder.
__device__ __forceinline__ u32 total_order(float x) {
  u32 bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
// The highest rank is the highest key; of equal keys, that with the lowest index. Never 0.
__device__ __forceinline__ u64 rank_of(float key, u32 index) { return (u64)total_order(key) << 32 | ~index; }
__device__ __forceinline__ u32 index_of(u64 rank) { return ~(u32)rank; }

__device__ __forceinline__ u64 warp_best(u64 rank) {
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    u64 other = __shfl_xor_sync(FULL_WARP, rank, o);
    rank = other > rank ? other : rank;
  }
  return rank;
}

__device__ __forceinline__ float sigmoid(float x) { return __fdiv_rn(1.f, __fadd_rn(1.f, exact_exp(-x))); }

__device__ __forceinline__ float sum_in_order(const float* values, int count) {
  float sum = 0.f;
  for (int i = 0; i < count; i++) sum = __fadd_rn(sum, values[i]);
  return sum;
}

// The `kept` groups of `keys` whose `by_best` highest keys have the highest sums, as bits.
__device__ __forceinline__ u32 best_groups(const float* keys, int size, u32 groups, u32 kept, int by_best) {
  u32 group = threadIdx.x % 32, used = 0;
  u64 own = 0;
  if (group < groups) {
    const float* of_group = keys + group * size;
    float sum = -0.f;
    u64 last = ~0ull;
    for (int i = 0; i < min(by_best, size); i++) {
      u64 best = 0;
      for (int at = 0; at < size; at++) {
        u64 rank = rank_of(of_group[at], at);
        if (rank < last && rank > best) best = rank;
      }
      sum = __fadd_rn(sum, of_group[index_of(best)]);
      last = best;
    }
    own = rank_of(sum, group);
  }
  for (u32 i = 0; i < kept; i++) {
    u64 best = warp_best(own);
    used |= 1u << index_of(best);
    if (own == best) own = 0;
  }
  return used;
}

// route: the experts of each row and their weights, as cpu::experts::Choices::route computes them, to the
// bit. Of equal keys, the lower expert's counts as the higher.
//   chosen      [rows, per_token]  u32, best first; NO_EXPERT in padding rows
//   weights     [rows, per_token]  f32
//   logits      [rows, stride]     f32, of which the first `experts` of a row count
//   correction  [experts]          f32, added to the scores for the choice only, or null
//   slots       [rows]             u32, NO_SLOT in padding rows, or null without padding
//   groups      equal groups, of which the `kept` best take part, or 0; at most 32
// Grid (ceil(rows / 4)), block 128: a warp for each row. At most 512 experts, 32 of them per row. Sums over
// experts run in order, as on the CPU: at most 512 dependent additions, 1.2 us at 1.7 GHz (predicted, not yet
// run on a GPU).
extern "C" __global__ void __launch_bounds__(ROUTE_WARPS * 32)
    route(u32* chosen, float* weights, const float* logits, const float* correction, const u32* slots,
          i32 rows, i32 stride, i32 experts, i32 per_token, u32 is_sigmoid, u32 renormalises, float scale,
          u32 groups, u32 kept, i32 by_best) {
  __shared__ float of_warps[ROUTE_WARPS][MAX_EXPERTS];
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * ROUTE_WARPS + warp;
  if (row >= rows) return;
  chosen += (size_t)row * per_token;
  weights += (size_t)row * per_token;
  if (slots && slots[row] == NO_SLOT) {
    if (lane < per_token) {
      chosen[lane] = NO_EXPERT;
      weights[lane] = 0.f;
    }
    return;
  }
  logits += (size_t)row * stride;
  float* values = of_warps[warp];
  float own[OWN], key[OWN], highest = NEG_INF;
#pragma unroll
  for (int j = 0; j < OWN; j++) {
    int i = lane + 32 * j;
    key[j] = own[j] = i < experts ? logits[i] : NEG_INF;
    highest = fmaxf(highest, own[j]);
  }
  highest = warp_max(highest);
  auto store = [&](const float (&from)[OWN]) {
    __syncwarp();
#pragma unroll
    for (int j = 0; j < OWN; j++) values[lane + 32 * j] = from[j];
    __syncwarp();
  };

  // Without correction and groups, logits have the order of the scores, without ties from rounding.
  if (correction || groups) {
#pragma unroll
    for (int j = 0; j < OWN; j++)
      key[j] = is_sigmoid ? sigmoid(own[j]) : exact_exp(__fadd_rn(own[j], -highest));
    if (!is_sigmoid) {
      store(key);
      float sum = sum_in_order(values, experts);
#pragma unroll
      for (int j = 0; j < OWN; j++) key[j] = __fdiv_rn(key[j], sum);
    }
#pragma unroll
    for (int j = 0; j < OWN; j++)
      if (correction && lane + 32 * j < experts) key[j] = __fadd_rn(key[j], correction[lane + 32 * j]);
  }
  if (groups) {
    store(key);
    int size = experts / (int)groups;
    u32 used = best_groups(values, size, groups, kept, by_best);
#pragma unroll
    for (int j = 0; j < OWN; j++) {
      int i = lane + 32 * j;
      if (i < experts && !(used >> (i / size) & 1)) key[j] = NEG_INF;
    }
  }
  u64 ranks[OWN];
#pragma unroll
  for (int j = 0; j < OWN; j++) ranks[j] = lane + 32 * j < experts ? rank_of(key[j], lane + 32 * j) : 0;
  u32 expert = 0;
  for (int slot = 0; slot < per_token; slot++) {
    u64 best = 0;
#pragma unroll
    for (int j = 0; j < OWN; j++) best = ranks[j] > best ? ranks[j] : best;
    best = warp_best(best);
    if (lane == slot) expert = index_of(best);
#pragma unroll
    for (int j = 0; j < OWN; j++) ranks[j] = ranks[j] == best ? 0 : ranks[j];
  }

  float logit = logits[expert], sum = 1.f;
  float weight = is_sigmoid ? sigmoid(logit) : exact_exp(__fadd_rn(logit, -highest));
  if (renormalises) {
    sum = 0.f;
    for (int slot = 0; slot < per_token; slot++)
      sum = __fadd_rn(sum, __shfl_sync(FULL_WARP, weight, slot));
    sum = __fadd_rn(sum, MIN_POSITIVE);  // all sigmoids may be zero
  } else if (!is_sigmoid) {
#pragma unroll
    for (int j = 0; j < OWN; j++) own[j] = exact_exp(__fadd_rn(own[j], -highest));
    store(own);
    sum = sum_in_order(values, experts);
  }
  if (lane < per_token) {
    chosen[lane] = expert;
    weights[lane] = __fmul_rn(__fdiv_rn(weight, sum), scale);
  }
}
EXPORT(route)

// sort_pairs: pairs by expert, in their order within an expert, and the tiles of each expert's pairs. Those
// of other ranks' experts are left out.
//   sorted   [pairs]  u32: pairs; unchanged past the last one that has an expert
//   tiles    [1 + most tiles of tile_rows]: see experts.cuh; experts count from own_first
//   chosen   [pairs]  u32: expert of each pair, or NO_EXPERT
//   experts           of this rank: own_first..own_first + experts
// Grid (experts), block a multiple of 32 up to 1024: every block counts the pairs of all experts, and places
// those of its own. Nothing depends on the order of blocks or threads. Each block reads `chosen` three times
// from L1 or L2: 65,536 pairs and 128 experts are 100 MB, 20 us at 5.5 TB/s (predicted, not yet run on a
// GPU). Reference: check/experts.
extern "C" __global__ void __launch_bounds__(1024)
    sort_pairs(u32* sorted, ExpertTile* tiles, const u32* chosen, i32 pairs, u32 own_first, i32 experts,
               i32 tile_rows) {
  constexpr int AHEAD = 4;  // loads in flight per thread
  __shared__ u32 counts[MAX_EXPERTS], of_warps[32], first, first_tile;
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  u32 expert = blockIdx.x;
  for (int i = threadIdx.x; i < experts; i += blockDim.x) counts[i] = 0;
  __syncthreads();
  for (int start = threadIdx.x; start < pairs; start += AHEAD * blockDim.x) {
    u32 of[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      int i = start + j * blockDim.x;
      of[j] = i < pairs ? chosen[i] - own_first : NO_EXPERT;
    }
#pragma unroll
    for (int j = 0; j < AHEAD; j++)
      if (of[j] < (u32)experts) atomicAdd(&counts[of[j]], 1u);
  }
  __syncthreads();
  if (warp == 0) {
    u32 before = 0, tiles_before = 0;
    for (int i = lane; i < (int)expert; i += 32) {
      before += counts[i];
      tiles_before += (counts[i] + tile_rows - 1) / tile_rows;
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) {
      before += __shfl_xor_sync(FULL_WARP, before, o);
      tiles_before += __shfl_xor_sync(FULL_WARP, tiles_before, o);
    }
    if (lane == 0) {
      first = before;
      first_tile = tiles_before;
    }
  }
  __syncthreads();
  u32 count = counts[expert], own_tiles = (count + tile_rows - 1) / tile_rows;
  for (u32 i = threadIdx.x; i < own_tiles; i += blockDim.x) {
    u32 done = i * tile_rows;
    tiles[1 + first_tile + i] = ExpertTile{expert, first + done, min(count - done, (u32)tile_rows), 0};
  }
  if ((int)expert == experts - 1 && threadIdx.x == 0) tiles[0] = ExpertTile{first_tile + own_tiles, 0, 0, 0};
  if (count == 0) return;

  // Each warp has consecutive pairs.
  int each = (pairs + warps * 32 - 1) / (warps * 32) * 32, begin = warp * each, end = min(begin + each, pairs);
  u32 mine = 0;
#pragma unroll 4
  for (int i = begin + lane; i < end; i += 32) mine += chosen[i] - own_first == expert;
#pragma unroll
  for (int o = 16; o; o >>= 1) mine += __shfl_xor_sync(FULL_WARP, mine, o);
  if (lane == 0) of_warps[warp] = mine;
  __syncthreads();
  u32 at = first;
  for (int i = 0; i < warp; i++) at += of_warps[i];
  for (int start = begin; start < end; start += AHEAD * 32) {
    bool is_own[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      int i = start + j * 32 + lane;
      is_own[j] = i < end && chosen[i] - own_first == expert;
    }
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      u32 own = __ballot_sync(FULL_WARP, is_own[j]);
      if (is_own[j]) sorted[at + __popc(own & ((1u << lane) - 1))] = start + j * 32 + lane;
      at += __popc(own);
    }
  }
}
EXPORT(sort_pairs)
