// histogram.cuh: number and weight of the tokens in each of 2,048 bins, best bin first, and the bin that
// contains a cut.
#pragma once
#include "sample.cuh"

// In shared memory. A mass is a 64-bit sum in two words, because shared memory only adds 32 bits at once.
struct Histogram {
  u32 counts[BINS], lows[BINS], highs[BINS];
};

__device__ __forceinline__ void clear(Histogram& h) {
  __syncthreads();
  for (u32 i = threadIdx.x; i < BINS; i += SAMPLE_THREADS) h.counts[i] = h.lows[i] = h.highs[i] = 0;
  __syncthreads();
}

__device__ __forceinline__ void add(Histogram& h, u32 bin, u64 mass) {
  atomicAdd(&h.counts[bin], 1u);
  if (!mass) return;
  u32 low = (u32)mass, before = atomicAdd(&h.lows[bin], low);
  u32 high = (u32)(mass >> 32) + (before + low < before);
  if (high) atomicAdd(&h.highs[bin], high);
}

// Position of a cut: a bin, and the contents of the bins before it.
struct Place {
  u32 bin, count_before, count;
  u64 mass_before;
};

// Running sums from the best bin on. Each thread has the sums before its own eight bins.
struct Scan {
  static constexpr int OWN = BINS / SAMPLE_THREADS;
  const Histogram& h;
  u32 count_before, count;
  u64 mass_before, mass;

  __device__ __forceinline__ u64 mass_in(u32 bin) const { return (u64)h.highs[bin] << 32 | h.lows[bin]; }

  // All threads of the block must call it, after a barrier that ends the counting.
  __device__ __forceinline__ explicit Scan(const Histogram& h) : h(h), count_before(0), mass_before(0) {
    __shared__ u32 counts[WARPS];
    __shared__ u64 masses[WARPS];
    u32 own_count = 0;
    u64 own_mass = 0;
    for (int i = 0; i < OWN; i++) {
      own_count += h.counts[threadIdx.x * OWN + i];
      own_mass += mass_in(threadIdx.x * OWN + i);
    }
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    count = own_count;
    mass = own_mass;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      u32 other_count = __shfl_up_sync(FULL_WARP, count, o);
      u64 other_mass = __shfl_up_sync(FULL_WARP, mass, o);
      if (lane >= (u32)o) {
        count += other_count;
        mass += other_mass;
      }
    }
    __syncthreads();
    if (lane == 31) {
      counts[warp] = count;
      masses[warp] = mass;
    }
    __syncthreads();
    count_before = count - own_count;
    mass_before = mass - own_mass;
    count = 0;
    mass = 0;
    for (u32 w = 0; w < WARPS; w++) {
      if (w < warp) {
        count_before += counts[w];
        mass_before += masses[w];
      }
      count += counts[w];
      mass += masses[w];
    }
  }

  // The first bin with tokens at whose end `reached(count, mass)` holds; the last such bin if it never does.
  // There must be a token.
  template <class Reached> __device__ __forceinline__ Place find(Reached reached) const {
    __shared__ Place place;
    __syncthreads();
    u32 c = count_before;
    u64 m = mass_before;
    bool was_reached = c > 0 && reached(c, m);
    for (int i = 0; i < OWN; i++) {
      u32 bin = threadIdx.x * OWN + i, in_bin = h.counts[bin];
      u64 mass_in_bin = mass_in(bin);
      bool ends_all = c + in_bin == count;
      if (!was_reached && in_bin && (ends_all || reached(c + in_bin, m + mass_in_bin))) {
        place = Place{bin, c, in_bin, m};
        was_reached = true;
      }
      c += in_bin;
      m += mass_in_bin;
    }
    __syncthreads();
    return place;
  }
};
