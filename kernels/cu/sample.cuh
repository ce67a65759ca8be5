// sample.cuh: shared by the sampler's kernels: parameters, adjusted logits, weights, and the race.
//
// A draw must give the same token as cpu::sample::draw for the same logits, so everything that decides is
// exact or correctly rounded. Adjusted logits and weights equal the CPU's bit for bit, sums of weights are
// fixed-point integers, and the race's times are compared as on the CPU. No result depends on the order of
// atomics.
#pragma once
#include "math.cuh"

constexpr u32 NONE = 0xffffffffu;
constexpr int SAMPLE_THREADS = 256;
constexpr int VALUES = 16;  // logits of a thread, in groups of four consecutive tokens
// Logits per block; fixed, so that sums do not depend on the batch.
constexpr u32 CHUNK = SAMPLE_THREADS * VALUES;
constexpr u32 BINS = 2048;                             // of a histogram
constexpr u32 LISTED = 2048;                           // tokens at a cut that are sorted in shared memory
constexpr u32 MAX_TOP = 20;                            // best tokens whose log-probabilities are reported
static_assert(LISTED * sizeof(u64) >= CHUNK * sizeof(u32) && LISTED <= BINS,
              "sample_cut uses one memory for both");
constexpr int WARPS = SAMPLE_THREADS / 32;

// Must match the host's SampleParams (ops/sample.rs), which documents the fields.
struct SampleParams {
  u32 row;
  float temperature, top_p;
  u32 top_k;
  float min_p, repetition_penalty, presence_penalty, frequency_penalty;
  u32 seed_low, seed_high, sample_index, position;
  u32 bias_start, bias_len, forbidden_start, forbidden_len, history_start, history_len, prompt_len;
  u32 carried, mask, logprobs;
};

// Result of one part of a row: the best adjusted and the best raw logit, or the race's leader.
struct SamplePart {
  u64 best, raw;
  float least;  // the lowest finite adjusted logit
  u32 flags;
};
constexpr u32 HAS_FINITE = 1, HAS_BAD = 2;

// State of a sample between launches.
struct SampleState {
  u64 mass_before;     // of the bins before the first listed one
  double goal;         // mass that top-p keeps, if the list alone does not determine it
  float highest;       // adjusted logit
  float bins_per_unit;  // of distance from the highest logit
  u32 best;            // its token
  u32 phase;           // one of the below
  u32 first_listed, last_listed;  // bins whose tokens are sorted; those before them are all kept
  u32 keep;            // tokens that top-k keeps of the listed ones
  u32 positive;        // tokens with a weight
  u32 listed;          // how many are in the list
  u32 done[3];         // finished parts of each launch; wraps to zero
};
constexpr u32 DECIDED = 0, RACE = 1, CUT = 2, CUT_SLOWLY = 3;
static_assert(sizeof(SampleParams) == 88 && sizeof(SamplePart) == 24 && sizeof(SampleState) == 64,
              "as on the host");

// The kernels' parameter, by value.
struct SampleArgs {
  const float* logits;  // [rows, stride]
  const SampleParams* samples;
  const u32* count;
  const u32* bias_tokens;
  const float* bias_values;
  const u32* forbidden;
  const u32* history;
  const u32* masks;  // [masks, mask_words]
  const u32* previous;
  u32* tokens;
  u32* status;
  SampleState* states;
  SamplePart* parts;  // [capacity, gridDim.x]
  u32* counts;        // [capacity, BINS]
  u64* masses;        // [capacity, BINS]
  u64* lists;         // [capacity, LISTED]
  u32 vocab, stride, capacity, mask_words, history_len, previous_len;
};

// ---- order ----------------------------------------------------------------------------------
// Maps a float to a number with the order of IEEE 754's totalOrder (f32::total_cmp).
__device__ __forceinline__ u32 ordered(float x) {
  u32 bits = __float_as_uint(x);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
__device__ __forceinline__ float from_ordered(u32 key) {
  return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu));
}
// Greater is better: by logit, then by lower token.
__device__ __forceinline__ u64 rank_key(float logit, u32 token) {
  return (u64)ordered(logit) << 32 | (u32)~token;
}
__device__ __forceinline__ u32 token_of(u64 key) { return ~(u32)key; }
__device__ __forceinline__ float logit_of(u64 key) { return from_ordered((u32)(key >> 32)); }
// As rank_key, for argmax: zeros of both signs are equal, and NaN counts as -inf.
__device__ __forceinline__ u64 best_key(float logit, u32 token) {
  return rank_key(logit == logit ? __fadd_rn(logit, 0.f) : NEG_INF, token);
}

// ---- reductions over a block ----------------------------------------------------------------
__device__ __forceinline__ u64 block_max_u64(u64 v) {
  __shared__ u64 part[WARPS];
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    u64 other = __shfl_xor_sync(FULL_WARP, v, o);
    v = other > v ? other : v;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  for (int w = 0; w < WARPS; w++) v = part[w] > v ? part[w] : v;
  return v;
}

// True in the last block to finish of those that share `counter`; it sees what the others wrote before. Every
// thread must call it. The counter is zero again afterwards.
__device__ __forceinline__ bool is_last_part(u32* counter, u32 parts) {
  __shared__ u32 before;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) before = atomicInc(counter, parts - 1);
  __syncthreads();
  __threadfence();
  return before == parts - 1;
}

// ---- logits as a draw sees them ---------------------------------------------------------------
// Offset of a thread's value i in a chunk.
__device__ __forceinline__ u32 chunk_offset(int i) {
  return (i / 4 * SAMPLE_THREADS + threadIdx.x) * 4 + i % 4;
}

// Loads the thread's raw logits of a chunk; -inf past the vocabulary.
__device__ __forceinline__ void load_raw(float* v, const float* row, u32 start, u32 vocab) {
  if (((u64)row & 15) == 0 && start + CHUNK <= vocab) {
#pragma unroll
    for (int j = 0; j < VALUES; j += 4) {
      float4 x = *(const float4*)(row + start + chunk_offset(j));
      v[j] = x.x;
      v[j + 1] = x.y;
      v[j + 2] = x.z;
      v[j + 3] = x.w;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < VALUES; i++) {
    u32 token = start + chunk_offset(i);
    v[i] = token < vocab ? row[token] : NEG_INF;
  }
}

// Applies bias, then forbidden tokens. `words` is scratch for the chunk.
__device__ __forceinline__ void apply_lists(float* v, const SampleArgs& a, const SampleParams& p, u32 start,
                                            u32* words) {
  float* logits = (float*)words;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < VALUES; i++) logits[chunk_offset(i)] = v[i];
  __syncthreads();
  for (u32 i = threadIdx.x; i < p.bias_len; i += SAMPLE_THREADS) {
    u32 at = a.bias_tokens[p.bias_start + i] - start;
    if (at < CHUNK) logits[at] = __fadd_rn(logits[at], a.bias_values[p.bias_start + i]);
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < p.forbidden_len; i += SAMPLE_THREADS) {
    u32 at = a.forbidden[p.forbidden_start + i] - start;
    if (at < CHUNK) logits[at] = NEG_INF;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < VALUES; i++) v[i] = logits[chunk_offset(i)];
}

// Bit of a count that is set if a token occurred in the prompt. The other bits count occurrences in the
// output.
constexpr u32 SEEN = 0x80000000u;

__device__ __forceinline__ float penalised(float logit, u32 count, const SampleParams& p) {
  logit = logit > 0.f ? __fdiv_rn(logit, p.repetition_penalty) : __fmul_rn(logit, p.repetition_penalty);
  u32 outputs = count & ~SEEN;
  if (outputs) {
    logit = __fadd_rn(logit, -__fadd_rn(__fmul_rn(p.frequency_penalty, (float)outputs), p.presence_penalty));
  }
  constexpr float MAX_FLOAT = 3.40282346638528859812e38f;
  return logit != logit ? NEG_INF : logit < MAX_FLOAT ? logit : MAX_FLOAT;
}

// Applies repetition, presence and frequency penalties. Every block reads the whole history and counts the
// tokens of its own chunk.
__device__ __forceinline__ void penalise(float* v, const SampleArgs& a, const SampleParams& p, u32 start,
                                         u32* counts) {
  __syncthreads();
  for (u32 i = threadIdx.x; i < CHUNK; i += SAMPLE_THREADS) counts[i] = 0;
  __syncthreads();
  for (u32 i = threadIdx.x; i < p.history_len; i += SAMPLE_THREADS) {
    if (p.history_start + i >= a.history_len) break;
    u32 at = a.history[p.history_start + i] - start;
    if (at >= CHUNK) continue;
    if (i < p.prompt_len) atomicOr(&counts[at], SEEN);
    else atomicAdd(&counts[at], 1u);
  }
  if (threadIdx.x == 0 && p.carried < a.previous_len) {
    u32 at = a.previous[p.carried] - start;
    if (at < CHUNK) atomicAdd(&counts[at], 1u);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < VALUES; i++) {
    u32 count = counts[chunk_offset(i)];
    if (count) v[i] = penalised(v[i], count, p);
  }
}

// Adjusts logits in the CPU's order: bias, forbidden tokens, penalties. `words` is CHUNK words of shared
// memory.
__device__ __forceinline__ void adjust(float* v, const SampleArgs& a, const SampleParams& p, u32 start,
                                       u32* words) {
  if (p.bias_len | p.forbidden_len) apply_lists(v, a, p, start, words);
  if (p.mask != NONE) {
    const u32* mask = a.masks + (size_t)p.mask * a.mask_words;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
      u32 token = start + chunk_offset(i);
      if (token < a.vocab && !(mask[token / 32] >> (token % 32) & 1)) v[i] = NEG_INF;
    }
  }
  if (p.history_len || p.carried != NONE) penalise(v, a, p, start, words);
}

__device__ __forceinline__ void load_adjusted(float* v, const SampleArgs& a, const SampleParams& p, u32 start,
                                              u32* words) {
  load_raw(v, a.logits + (size_t)p.row * a.stride, start, a.vocab);
  adjust(v, a, p, start, words);
}

// Whether top-k or top-p may cut any token.
__device__ __forceinline__ bool is_cut(const SampleParams& p, u32 vocab) {
  return (p.top_k && p.top_k < vocab) || p.top_p < 1.f;
}

// ---- weights --------------------------------------------------------------------------------
// Probability at the temperature, relative to the most probable token; zero below min-p.
struct Weigher {
  float highest, per_degree, min_p;
  __device__ __forceinline__ Weigher(const SampleParams& p, float highest)
      : highest(highest), per_degree(__fdiv_rn(1.f, p.temperature)), min_p(p.min_p) {}
  __device__ __forceinline__ float operator()(float logit) const {
    float below = __fadd_rn(logit, -highest);
    float weight = below == 0.f ? 1.f : exact_exp(__fmul_rn(below, per_degree));
    return min_p > 0.f && weight < min_p ? 0.f : weight;
  }
};

// A weight as an integer in units of 2^-44. Sums of up to 2^19 tokens are exact in any order. The CPU adds
// the same integers (cpu/sample/cut.rs), so the cut is at the same token.
__device__ __forceinline__ u64 mass_of(float weight) { return __float2ull_rn(weight * 0x1p44f); }

// ---- the race -------------------------------------------------------------------------------
// Exponential race: every token gets an exponentially distributed time divided by its weight; the earliest
// wins.
struct Race {
  uint2 key;
  u32 position, sample_index;
  double time;
  u32 token;  // NONE if there is no leader

  __device__ __forceinline__ explicit Race(const SampleParams& p)
      : key(make_uint2(p.seed_low, p.seed_high)), position(p.position), sample_index(p.sample_index),
        time((double)-NEG_INF), token(NONE) {}

  // Random words of tokens 4 * four ... 4 * four + 3.
  __device__ __forceinline__ uint4 words(u32 four) const {
    return philox(make_uint4(four, position, sample_index, 0), key);
  }

  __device__ __forceinline__ void lead(double other_time, u32 other) {
    if (other_time < time || (other_time == time && other < token)) {
      time = other_time;
      token = other;
    }
  }

  __device__ __forceinline__ void challenge(u32 candidate, u32 word, float weight) {
    if (!(weight > 0.f)) return;
    double uniform = __dmul_rn(__dadd_rn((double)word, 0.5), 0x1p-32);
    // -ln(1 - u) >= u, by more than rounding: a token that cannot win with time u cannot win at all.
    if (uniform > __dmul_rn(time, (double)weight)) return;
    lead(__ddiv_rn(-exact_log1p(-uniform), (double)weight), candidate);
  }

  // Enters four tokens that share a counter; `weights` may be zero.
  __device__ __forceinline__ void challenge_four(u32 first, const float* weights) {
    if (!(weights[0] > 0.f || weights[1] > 0.f || weights[2] > 0.f || weights[3] > 0.f)) return;
    uint4 w = words(first / 4);
    challenge(first, w.x, weights[0]);
    challenge(first + 1, w.y, weights[1]);
    challenge(first + 2, w.z, weights[2]);
    challenge(first + 3, w.w, weights[3]);
  }

  __device__ __forceinline__ void challenge_one(u32 candidate, float weight) {
    uint4 w = words(candidate / 4);
    u32 i = candidate % 4;
    challenge(candidate, i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w, weight);
  }

  // The leader among all threads of the block, returned in every thread.
  __device__ __forceinline__ void finish() {
    __shared__ double times[WARPS];
    __shared__ u32 tokens[WARPS];
#pragma unroll
    for (int o = 16; o; o >>= 1) {
      double other_time = __longlong_as_double(__shfl_xor_sync(FULL_WARP, __double_as_longlong(time), o));
      u32 other = __shfl_xor_sync(FULL_WARP, token, o);
      lead(other_time, other);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
      times[threadIdx.x / 32] = time;
      tokens[threadIdx.x / 32] = token;
    }
    __syncthreads();
    for (int w = 0; w < WARPS; w++) lead(times[w], tokens[w]);
  }
};
