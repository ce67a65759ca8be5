// score.cu: log-probabilities of the raw distribution: of drawn tokens, and of prompt tokens.
#include "sample.cuh"

// Result of one part of a row.
struct ScorePart {
  u64 top[MAX_TOP];  // best keys, best first; zero past the last one
  float highest, sum;  // highest logit of the part, and sum of exp(logit - highest)
  u32 ahead;           // tokens that rank before the scored one
  u32 flags;
};

// Must match the host's Scored.
struct Scored {
  float logprob;
  u32 rank, status, top_len;
  u32 top_tokens[MAX_TOP];
  float top_logprobs[MAX_TOP];
};

// Parameters of one score. Must match the host's ScoreParams.
struct ScoreParams {
  u32 row, target, top;
};
static_assert(sizeof(ScorePart) == 176 && sizeof(Scored) == 176 && sizeof(ScoreParams) == 12,
              "as on the host");

// The kernels' parameter, by value. Has either `targets`, or both `samples` and `tokens`.
struct ScoreArgs {
  const float* logits;  // [rows, stride]
  const ScoreParams* targets;
  const SampleParams* samples;
  const u32* tokens;
  const u32* count;
  Scored* out;
  ScorePart* parts;  // [capacity, gridDim.x]
  u32* done;         // [capacity]
  u32 vocab, stride;
};

// The `count` greatest of COUNT keys per lane, in descending order. Each lane repeatedly offers its best
// remaining key.
template <int COUNT> __device__ __forceinline__ void warp_top(u64* keys, u32 count, u64* out) {
  u32 lane = threadIdx.x % 32;
  for (u32 i = 0; i < count; i++) {
    u64 own = 0;
#pragma unroll
    for (int j = 0; j < COUNT; j++) own = keys[j] > own ? keys[j] : own;
    u64 best = own;
#pragma unroll
    for (int o = 16; o; o >>= 1) {
      u64 other = __shfl_xor_sync(FULL_WARP, best, o);
      best = other > best ? other : best;
    }
    if (lane == 0) out[i] = best;
    // Keys are distinct except for zeros.
#pragma unroll
    for (int j = 0; j < COUNT; j++) keys[j] = keys[j] == best ? 0 : keys[j];
  }
}

// Merges the warps' best keys in the first warp.
__device__ __forceinline__ void merge_warps(const u64 (*found)[MAX_TOP], u32 top, u64* out) {
  __syncthreads();
  if (threadIdx.x >= 32) return;
  constexpr int COUNT = (WARPS * MAX_TOP + 31) / 32;
  u64 keys[COUNT];
#pragma unroll
  for (int j = 0; j < COUNT; j++) {
    u32 i = threadIdx.x + 32 * j;
    keys[j] = i < WARPS * top ? found[i / top][i % top] : 0;
  }
  warp_top<COUNT>(keys, top, out);
}

__device__ __forceinline__ double warp_sum_f64(double v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    v = __dadd_rn(v, __longlong_as_double(__shfl_xor_sync(FULL_WARP, __double_as_longlong(v), o)));
  }
  return v;
}

// Merges the parts of one row; the first warp writes the result.
__device__ __forceinline__ void merge_parts(const ScoreArgs& a, u32 entry, u32 token, float own, u32 top) {
  __shared__ u64 found[WARPS][MAX_TOP];
  __shared__ u64 best[MAX_TOP];
  const ScorePart* parts = a.parts + (size_t)entry * gridDim.x;
  u32 count = gridDim.x;
  if (top) {
    // Each warp merges the lists of every eighth part: at most 16 of them, 320 keys.
    constexpr int COUNT = 10;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u64 keys[COUNT];
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
      u32 i = lane + 32 * j, part = warp + WARPS * (i / top);
      keys[j] = part < count ? __ldcg(&parts[part].top[i % top]) : 0;
    }
    warp_top<COUNT>(keys, top, found[warp]);
    merge_warps(found, top, best);
  }
  if (threadIdx.x >= 32) return;
  __syncwarp();
  float highest = NEG_INF;
  for (u32 i = threadIdx.x; i < count; i += 32) highest = fmaxf(highest, __ldcg(&parts[i].highest));
  highest = warp_max(highest);
  double sum = 0.0;
  u32 ahead = 0, flags = 0;
  for (u32 i = threadIdx.x; i < count; i += 32) {
    float part = __ldcg(&parts[i].highest);
    if (part > NEG_INF) sum += (double)exact_exp(part - highest) * (double)__ldcg(&parts[i].sum);
    ahead += __ldcg(&parts[i].ahead);
    flags |= __ldcg(&parts[i].flags);
  }
  sum = warp_sum_f64(sum);
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    ahead += __shfl_xor_sync(FULL_WARP, ahead, o);
    flags |= __shfl_xor_sync(FULL_WARP, flags, o);
  }
  double log_sum = exact_log1p(sum - 1.0);  // the highest logit's own term is 1
  Scored& out = a.out[entry];
  u32 len = top < a.vocab ? top : a.vocab;
  if (threadIdx.x == 0) {
    out.logprob = (float)((double)own - (double)highest - log_sum);
    out.rank = ahead + 1;
    out.status = flags != HAS_FINITE;
    out.top_len = len;
  }
  for (u32 i = threadIdx.x; i < len; i += 32) {
    out.top_tokens[i] = token_of(best[i]);
    out.top_logprobs[i] = (float)((double)logit_of(best[i]) - (double)highest - log_sum);
  }
}

// score: the log-probability and rank of a token, and the best tokens, in one pass over the raw logits.
// Blocks process parts of 4,096 logits, and the last one to finish merges them.
// Grid (ceil(vocab / 4096), capacity for entries), 256 threads. 4 bytes a logit. Reference:
// cpu::sample::score, with equal rank and best tokens and |difference| <= 1e-4 in log-probabilities.
__device__ __forceinline__ void score(const ScoreArgs& a, u32 entry, u32 row, u32 token, u32 top) {
  __shared__ u64 found[WARPS][MAX_TOP];
  u32 start = blockIdx.x * CHUNK;
  const float* logits = a.logits + (size_t)row * a.stride;
  token = token < a.vocab ? token : 0;
  top = top < MAX_TOP ? top : MAX_TOP;
  float own = logits[token], v[VALUES];
  load_raw(v, logits, start, a.vocab);
  float highest = NEG_INF;
  u32 ahead = 0, flags = 0;
#pragma unroll
  for (int i = 0; i < VALUES; i++) {
    u32 other = start + chunk_offset(i);
    highest = fmaxf(highest, v[i]);
    ahead += other < a.vocab && (other < token ? v[i] >= own : other > token && v[i] > own);
    flags |= !(v[i] < -NEG_INF) ? HAS_BAD : v[i] > NEG_INF ? HAS_FINITE : 0;
  }
  highest = from_ordered((u32)block_max_u64(ordered(highest)));
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < VALUES; i++) sum += highest > NEG_INF ? exact_exp(v[i] - highest) : 0.f;
  sum = block_sum(sum);
  ahead = (u32)block_sum((float)ahead);  // at most 4,096: exact
  u32 all = __syncthreads_or(flags & HAS_FINITE) ? HAS_FINITE : 0;
  all |= __syncthreads_or(flags & HAS_BAD) ? HAS_BAD : 0;
  ScorePart* part = &a.parts[(size_t)entry * gridDim.x + blockIdx.x];
  if (threadIdx.x == 0) {
    part->highest = highest;
    part->sum = sum;
    part->ahead = ahead;
    part->flags = all;
  }
  if (top) {
    u64 keys[VALUES];
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
      u32 other = start + chunk_offset(i);
      keys[i] = other < a.vocab ? rank_key(v[i], other) : 0;
    }
    warp_top<VALUES>(keys, top, found[threadIdx.x / 32]);
    merge_warps(found, top, part->top);
  }
  if (is_last_part(&a.done[entry], gridDim.x)) merge_parts(a, entry, token, own, top);
}

// Scores prompt tokens.
extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS, 4) score_targets(ScoreArgs a) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  if (blockIdx.y >= *a.count) return;
  ScoreParams p = a.targets[blockIdx.y];
  score(a, blockIdx.y, p.row, p.target, p.top);
}
EXPORT(score_targets)

// Scores the drawn tokens of samples that request it.
extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS, 4) score_samples(ScoreArgs a) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  if (blockIdx.y >= *a.count) return;
  const SampleParams& p = a.samples[blockIdx.y];
  if (p.logprobs == NONE) return;
  score(a, blockIdx.y, p.row, a.tokens[blockIdx.y], p.logprobs);
}
EXPORT(score_samples)
