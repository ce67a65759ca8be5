// sample.cu: from logits to tokens, on the device. Three launches over (parts of the vocabulary, samples):
//   sample_scan   checks that the row is usable and finds the best adjusted logit; decides greedy samples
//   sample_weigh  samples without cuts run their race here; the others count tokens and weight by distance
//                 from the best
//   sample_cut    tokens above the cut's bin race; the last block sorts those in the bin and finds the cut
// Only the few tokens of one bin are sorted, and no adjusted copy of the logits is kept: each launch applies
// bias, forbidden tokens and penalties to its own 4,096 logits in shared memory.
// Grid (ceil(vocab / 4096), capacity for samples), 256 threads. The number of samples is in device memory, so
// that a graph can be replayed; further blocks end at once. Each launch reads 4 bytes a logit: 16 rows of
// 128,256 are 8 MB, 2 us per launch from L2, and about 12 us in all with launches and the last blocks' work
// (predicted, not yet run on a GPU). Reference: cpu::sample::draw, the same token.
#include "histogram.cuh"

// Writes the state that later launches read, and the token of samples that are decided already.
__device__ __forceinline__ void decide_scan(const SampleArgs& a, const SampleParams& p, u32 s, u64 best,
                                            u64 raw, float least, u32 flags) {
  SampleState& state = a.states[s];
  bool is_usable = flags == HAS_FINITE;
  float highest = logit_of(best);
  u32 token = highest == NEG_INF || !is_usable ? token_of(raw)
                                               : token_of(best);  // if all are forbidden, the best of all
  bool is_decided = !is_usable || highest == NEG_INF || p.temperature == 0.f;
  // Tokens more than 87.3 temperatures below the best have no weight.
  float range = fminf(highest - least, 87.3f * p.temperature);
  state.highest = highest;
  state.bins_per_unit = fminf(__fdividef((float)BINS, range), 1e30f);
  state.best = token;
  state.phase = is_decided ? DECIDED : is_cut(p, a.vocab) ? CUT : RACE;
  state.listed = 0;
  a.status[s] = !is_usable;
  a.tokens[s] = token < a.vocab ? token : 0;
}

extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS) sample_scan(SampleArgs a) {
  __shared__ u32 words[CHUNK];
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  u32 s = blockIdx.y, start = blockIdx.x * CHUNK;
  if (s >= *a.count) return;
  const SampleParams& p = a.samples[s];
  float v[VALUES];
  load_raw(v, a.logits + (size_t)p.row * a.stride, start, a.vocab);
  u64 raw = 0, best = 0;
  u32 flags = 0;
#pragma unroll
  for (int i = 0; i < VALUES; i++) {
    bool is_bad = !(v[i] < -NEG_INF);  // NaN and +inf
    flags |= is_bad ? HAS_BAD : v[i] > NEG_INF ? HAS_FINITE : 0;
    u64 key = best_key(v[i], start + chunk_offset(i));
    raw = key > raw ? key : raw;
  }
  adjust(v, a, p, start, words);
  float least = -NEG_INF;
#pragma unroll
  for (int i = 0; i < VALUES; i++) {
    u64 key = best_key(v[i], start + chunk_offset(i));
    best = key > best ? key : best;
    if (v[i] > NEG_INF) least = fminf(least, v[i]);
  }
  best = block_max_u64(best);
  raw = block_max_u64(raw);
  // The minimum of a block is the maximum of the flipped keys.
  least = from_ordered(~(u32)block_max_u64(~ordered(least)));
  u32 all = __syncthreads_or(flags & HAS_FINITE) ? HAS_FINITE : 0;
  all |= __syncthreads_or(flags & HAS_BAD) ? HAS_BAD : 0;
  if (threadIdx.x == 0) a.parts[(size_t)s * gridDim.x + blockIdx.x] = SamplePart{best, raw, least, all};
  if (is_cut(p, a.vocab) && p.temperature != 0.f) {
    for (u32 i = blockIdx.x * SAMPLE_THREADS + threadIdx.x; i < BINS; i += gridDim.x * SAMPLE_THREADS) {
      a.counts[(size_t)s * BINS + i] = 0;
      a.masses[(size_t)s * BINS + i] = 0;
    }
  }
  if (!is_last_part(&a.states[s].done[0], gridDim.x)) return;
  best = raw = 0;
  least = -NEG_INF;
  all = 0;
  for (u32 i = threadIdx.x; i < gridDim.x; i += SAMPLE_THREADS) {
    const SamplePart* part = &a.parts[(size_t)s * gridDim.x + i];
    u64 other = __ldcg(&part->best), other_raw = __ldcg(&part->raw);
    best = other > best ? other : best;
    raw = other_raw > raw ? other_raw : raw;
    least = fminf(least, __ldcg(&part->least));
    all |= __ldcg(&part->flags);
  }
  best = block_max_u64(best);
  raw = block_max_u64(raw);
  least = from_ordered(~(u32)block_max_u64(~ordered(least)));
  flags = __syncthreads_or(all & HAS_FINITE) ? HAS_FINITE : 0;
  flags |= __syncthreads_or(all & HAS_BAD) ? HAS_BAD : 0;
  if (threadIdx.x == 0) decide_scan(a, p, s, best, raw, least, flags);
}
EXPORT(sample_scan)

// ---- the race's end -------------------------------------------------------------------------
// Merges the leaders of all parts, in every thread of the last block.
__device__ __forceinline__ void merge_leaders(Race& race, const SamplePart* parts, u32 count) {
  race.time = (double)-NEG_INF;
  race.token = NONE;
  for (u32 i = threadIdx.x; i < count; i += SAMPLE_THREADS) {
    race.lead(__longlong_as_double((i64)__ldcg(&parts[i].best)), (u32)__ldcg(&parts[i].raw));
  }
  race.finish();
}

__device__ __forceinline__ SamplePart leader_of(const Race& race) {
  return SamplePart{(u64)__double_as_longlong(race.time), race.token, 0.f, 0};
}

// The winner, or the best token if none has a weight (a min-p above 1).
__device__ __forceinline__ void announce(const SampleArgs& a, u32 s, const Race& race) {
  if (threadIdx.x == 0) a.tokens[s] = race.token != NONE ? race.token : a.states[s].best;
}

// ---- histogram ------------------------------------------------------------------------------
// The bin of a logit by its distance from the highest; a higher logit is never in a later bin.
__device__ __forceinline__ u32 bin_of(float logit, const SampleState& state) {
  float distance = __fmul_rn(__fadd_rn(state.highest, -logit), state.bins_per_unit);
  return (u32)fminf(distance, (float)(BINS - 1));
}

// Counts the thread's tokens in shared memory, then adds the counts to the sample's histogram.
__device__ __forceinline__ void count_tokens(const SampleArgs& a, const float* v, const float* weights, u32 s,
                                             bool has_top_p, const SampleState& state, Histogram& h) {
  clear(h);
#pragma unroll
  for (int i = 0; i < VALUES; i++) {
    if (weights[i] > 0.f) add(h, bin_of(v[i], state), has_top_p ? mass_of(weights[i]) : 0);
  }
  __syncthreads();
  for (u32 bin = threadIdx.x; bin < BINS; bin += SAMPLE_THREADS) {
    if (!h.counts[bin]) continue;
    atomicAdd(&a.counts[(size_t)s * BINS + bin], h.counts[bin]);
    atomicAdd(&a.masses[(size_t)s * BINS + bin], (u64)h.highs[bin] << 32 | h.lows[bin]);
  }
}

// Chooses the bins to sort, and how many tokens and how much mass to keep. A negative goal means top_p times
// the mass of the tokens that top-k keeps of the list.
__device__ __forceinline__ void place_cut(const SampleArgs& a, const SampleParams& p, u32 s, Histogram& h) {
  SampleState& state = a.states[s];
  __syncthreads();
  for (u32 bin = threadIdx.x; bin < BINS; bin += SAMPLE_THREADS) {
    u64 mass = __ldcg(&a.masses[(size_t)s * BINS + bin]);
    h.counts[bin] = __ldcg(&a.counts[(size_t)s * BINS + bin]);
    h.lows[bin] = (u32)mass;
    h.highs[bin] = (u32)(mass >> 32);
  }
  __syncthreads();
  Scan scan(h);
  u32 keep = p.top_k && p.top_k < scan.count ? p.top_k : scan.count;
  bool cuts_count = keep < scan.count, cuts_mass = p.top_p < 1.f;
  if (scan.count == 0 || !(cuts_count || cuts_mass)) {
    // No token is cut, or there is none: no bin is listed, and every token with a weight races.
    if (threadIdx.x == 0) state.first_listed = state.last_listed = BINS;
    return;
  }
  double goal = cuts_count ? -1.0 : __dmul_rn((double)scan.mass, (double)p.top_p);
  Place place = cuts_count ? scan.find([=](u32 count, u64) { return count >= keep; })
                           : scan.find([=](u32, u64 mass) { return (double)mass >= goal; });
  bool lists_all = cuts_count && cuts_mass;  // the goal is only known when the k-th token is
  u32 listed = place.count + (lists_all ? place.count_before : 0);
  if (threadIdx.x != 0) return;
  state.first_listed = lists_all ? 0 : place.bin;
  state.last_listed = place.bin;
  state.mass_before = lists_all ? 0 : place.mass_before;
  state.keep = lists_all ? keep : keep - place.count_before;
  state.goal = goal;
  state.positive = scan.count;
  state.phase = listed <= LISTED ? CUT : CUT_SLOWLY;
}

extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS) sample_weigh(SampleArgs a) {
  __shared__ u32 words[CHUNK];
  __shared__ Histogram h;
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  u32 s = blockIdx.y, start = blockIdx.x * CHUNK;
  if (s >= *a.count) return;
  const SampleState& state = a.states[s];
  u32 phase = state.phase;
  if (phase == DECIDED) return;
  const SampleParams& p = a.samples[s];
  float v[VALUES], weights[VALUES];
  load_adjusted(v, a, p, start, words);
  Weigher weigher(p, state.highest);
#pragma unroll
  for (int i = 0; i < VALUES; i++) weights[i] = weigher(v[i]);
  if (phase == CUT) {
    count_tokens(a, v, weights, s, p.top_p < 1.f, state, h);
    if (is_last_part(&a.states[s].done[1], gridDim.x)) place_cut(a, p, s, h);
    return;
  }
  Race race(p);
#pragma unroll
  for (int j = 0; j < VALUES; j += 4) race.challenge_four(start + chunk_offset(j), weights + j);
  race.finish();
  if (threadIdx.x == 0) a.parts[(size_t)s * gridDim.x + blockIdx.x] = leader_of(race);
  if (!is_last_part(&a.states[s].done[1], gridDim.x)) return;
  merge_leaders(race, a.parts + (size_t)s * gridDim.x, gridDim.x);
  announce(a, s, race);
}
EXPORT(sample_weigh)

// ---- the cut --------------------------------------------------------------------------------
// The thread's adjusted logits in shared memory, where indices need not be constants: the loops over them are
// long and not worth unrolling. A thread only reads what it wrote.
__device__ __forceinline__ void load_to_shared(const SampleArgs& a, const SampleParams& p, u32 start,
                                               u32* words) {
  float v[VALUES];
  load_adjusted(v, a, p, start, words);
#pragma unroll
  for (int i = 0; i < VALUES; i++) words[chunk_offset(i)] = __float_as_uint(v[i]);
}
__device__ __forceinline__ float shared_logit(const u32* words, int i) {
  return __uint_as_float(words[chunk_offset(i)]);
}

// Sorts keys in shared memory in descending order: a bitonic network over the next power of two.
__device__ __forceinline__ void sort_descending(u64* keys, u32 count) {
  u32 size = 2;
  while (size < count) size *= 2;
  for (u32 i = count + threadIdx.x; i < size; i += SAMPLE_THREADS) keys[i] = 0;
  for (u32 run = 2; run <= size; run *= 2) {
    for (u32 step = run / 2; step; step /= 2) {
      __syncthreads();
      for (u32 i = threadIdx.x; i < size / 2; i += SAMPLE_THREADS) {
        u32 low = i / step * 2 * step + i % step, high = low + step;
        u64 x = keys[low], y = keys[high];
        bool is_descending = (low & run) == 0;
        if (is_descending ? x < y : x > y) {
          keys[low] = y;
          keys[high] = x;
        }
      }
    }
  }
  __syncthreads();
}

// Number of the sorted `keys` to keep.
__device__ __forceinline__ u32 cut_list(const SampleParams& p, const SampleState& state,
                                        const Weigher& weigher, const u64* keys, u32 count, Histogram& h) {
  u32 keep = state.keep < count ? state.keep : count;
  if (!(p.top_p < 1.f) || keep == 0) return keep;
  clear(h);
  for (u32 i = threadIdx.x; i < keep; i += SAMPLE_THREADS) {
    u64 mass = mass_of(weigher(logit_of(keys[i])));
    h.counts[i] = 1;
    h.lows[i] = (u32)mass;
    h.highs[i] = (u32)(mass >> 32);
  }
  __syncthreads();
  Scan scan(h);
  double goal = state.goal < 0.0 ? __dmul_rn((double)scan.mass, (double)p.top_p) : state.goal;
  u64 before = state.mass_before;
  return scan.find([=](u32, u64 mass) { return (double)(before + mass) >= goal; }).bin + 1;
}

// The last of the kept keys, found digit by digit over the whole row, for cuts among more equal or nearly
// equal logits than can be sorted. `least` is a lower bound of the keys to consider.
__device__ __forceinline__ u64 descend(const SampleArgs& a, const SampleParams& p, const Weigher& weigher,
                                       u64 least, bool by_mass, u32* words, Histogram& h) {
  u64 prefix = 0, mass_before = 0;
  u32 count_before = 0, keep = p.top_k;
  double goal = 0.0;
  for (int level = 0; level < 6; level++) {
    int bits = level < 5 ? 11 : 9, shift = level < 5 ? 53 - 11 * level : 0;
    clear(h);
    for (u32 start = 0; start < a.vocab; start += CHUNK) {
      load_to_shared(a, p, start, words);
#pragma unroll 1
      for (int i = 0; i < VALUES; i++) {
        float logit = shared_logit(words, i), weight = weigher(logit);
        u64 key = rank_key(logit, start + chunk_offset(i));
        bool is_inside = level == 0 || key >> (shift + bits) == prefix;
        u32 last = (1u << bits) - 1, digit = (u32)(key >> shift) & last;
        if (weight > 0.f && key >= least && is_inside) add(h, last - digit, mass_of(weight));
      }
    }
    __syncthreads();
    Scan scan(h);
    if (level == 0) goal = __dmul_rn((double)scan.mass, (double)p.top_p);
    Place place = by_mass ? scan.find([=](u32, u64 mass) { return (double)(mass_before + mass) >= goal; })
                          : scan.find([=](u32 count, u64) { return count_before + count >= keep; });
    mass_before += place.mass_before;
    count_before += place.count_before;
    prefix = prefix << bits | (((1u << bits) - 1) - place.bin);
  }
  return prefix;
}

// One block cuts the whole row and runs its race.
__device__ __forceinline__ void cut_slowly(const SampleArgs& a, const SampleParams& p,
                                           const SampleState& state, u32* words, Histogram& h, Race& race) {
  Weigher weigher(p, state.highest);
  u64 least = 0;
#pragma unroll 1
  for (int by_mass = 0; by_mass < 2; by_mass++) {
    bool is_wanted = by_mass ? p.top_p < 1.f : p.top_k && p.top_k < state.positive;
    if (is_wanted) least = descend(a, p, weigher, least, by_mass, words, h);
  }
  for (u32 start = 0; start < a.vocab; start += CHUNK) {
    load_to_shared(a, p, start, words);
#pragma unroll 1
    for (int i = 0; i < VALUES; i++) {
      u32 token = start + chunk_offset(i);
      float logit = shared_logit(words, i), weight = weigher(logit);
      if (weight > 0.f && rank_key(logit, token) >= least) race.challenge_one(token, weight);
    }
  }
  race.finish();
}

// Enters tokens above the listed bins into the race and appends those in the listed bins to the list.
__device__ __forceinline__ void divide(const SampleArgs& a, const SampleParams& p, u32 s, u32 start,
                                       u32* words, Race& race) {
  SampleState& state = a.states[s];
  Weigher weigher(p, state.highest);
  load_to_shared(a, p, start, words);
#pragma unroll 1
  for (int i = 0; i < VALUES; i++) {
    u32 token = start + chunk_offset(i);
    float logit = shared_logit(words, i), weight = weigher(logit);
    if (!(weight > 0.f)) continue;
    u32 bin = bin_of(logit, state);
    if (bin < state.first_listed) {
      race.challenge_one(token, weight);
    } else if (bin <= state.last_listed) {
      u32 at = atomicAdd(&state.listed, 1u);
      if (at < LISTED) a.lists[(size_t)s * LISTED + at] = rank_key(logit, token);
    }
  }
  race.finish();
}

extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS, 2) sample_cut(SampleArgs a) {
  __shared__ u64 keys[LISTED];
  __shared__ Histogram h;
  u32* words = (u32*)keys;  // a chunk's logits; later the list is sorted in the same memory
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  u32 s = blockIdx.y;
  if (s >= *a.count) return;
  const SampleState& state = a.states[s];
  const SampleParams& p = a.samples[s];
  u32 phase = state.phase;
  if (phase != CUT && phase != CUT_SLOWLY) return;
  Race race(p);
  if (phase == CUT_SLOWLY) {
    if (blockIdx.x != 0) return;
    cut_slowly(a, p, state, words, h, race);
    announce(a, s, race);
    return;
  }
  divide(a, p, s, blockIdx.x * CHUNK, words, race);
  if (threadIdx.x == 0) a.parts[(size_t)s * gridDim.x + blockIdx.x] = leader_of(race);
  if (!is_last_part(&a.states[s].done[2], gridDim.x)) return;
  u32 count = min(__ldcg(&state.listed), LISTED);
  for (u32 i = threadIdx.x; i < count; i += SAMPLE_THREADS)
    keys[i] = __ldcg(&a.lists[(size_t)s * LISTED + i]);
  sort_descending(keys, count);
  Weigher weigher(p, state.highest);
  u32 keep = count ? cut_list(p, state, weigher, keys, count, h) : 0;
  Race last(p);
  merge_leaders(last, a.parts + (size_t)s * gridDim.x, gridDim.x);
  for (u32 i = threadIdx.x; i < keep; i += SAMPLE_THREADS)
    last.challenge_one(token_of(keys[i]), weigher(logit_of(keys[i])));
  last.finish();
  announce(a, s, last);
}
EXPORT(sample_cut)
