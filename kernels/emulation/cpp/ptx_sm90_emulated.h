// ptx_sm90_emulated.h: the functions of ptx_sm90.cuh on the CPU. Asynchronous operations run as late as
// possible (or with EMU_SEED at a random time between the earliest and the latest), and values that may not
// be read before then are NaN. Semantics and layouts as in the PTX ISA; sections as in ptx_sm90.cuh.
#pragma once
#include <deque>
#include <utility>
#include <vector>

#include "tensor_map.h"

namespace emu {

inline bool coin() { return rt().random && random_bits() >> 13 & 1; }
// A warp may fall behind anywhere: with EMU_SEED, others run first, sometimes for long.
inline void stall() {
  if (!rt().random) return;
  u64 bits = random_bits() >> 20;
  for (u64 passes = bits % 16 == 0 ? 150 : bits / 16 % 4; passes > 0; passes--) {
    rt().current->state = READY;
    yield();
  }
}
inline u32 shared_offset(const void* p) {
  uintptr_t at = (uintptr_t)p - (uintptr_t)rt().shared;
  if (at >= rt().shared_bytes) die("an address that should be in dynamic shared memory is not");
  return (u32)at;
}

// ---- mbarrier --------------------------------------------------------------------------------
struct Mbarrier {  // its eight bytes
  i32 bytes;       // announced and not yet arrived; negative if bytes arrived before they were announced
  u16 count;
  u16 pending : 10, phase : 1, magic : 5;
};
static_assert(sizeof(Mbarrier) == 8, "the size of the real one");
constexpr unsigned MBARRIER_MAGIC = 0x15;

struct TensorCopy {
  u64* barrier;
  unsigned char* to;
  TensorMap map;
  i32 x, y;
};

struct Matmul {  // one wgmma of one warp
  unsigned group, columns, chain, warp;
  bool a_in_registers, accumulate, mn_major_b, read_early;
  float (*to_float)(u16);
  u64 a_at, b_at;
  u32 a[32][4];
  const u32* a_live[32];
  std::vector<float> a_values, b_values;  // [16][16] and [16][columns], once read
};
struct Chain {  // sums that matmuls in flight share
  float* d[32];
  unsigned columns, unfinished;
  std::vector<float> sums;  // [16][columns]
};
struct WarpMatmuls {
  std::deque<Matmul> flying;
  std::vector<Chain> chains;
  unsigned committed = 0, done = 0;
  bool fenced = false;
};

struct Sm90 {  // of the block that runs
  struct Named {
    unsigned arrived = 0, threads = 0, round = 0;
  } named[16];
  WarpMatmuls warps[32];
  // Stores that no fence.proxy.async has followed: the 16-byte chunks that each thread stored, and how many
  // threads stored each chunk.
  std::vector<u32> unfenced[1024];
  std::vector<u16> unfenced_stores;
};
inline Sm90& sm90() {
  static Sm90 state;
  static uint64_t block = 0;
  if (block != rt().blocks_run) state = Sm90{};
  block = rt().blocks_run;
  return state;
}

inline Mbarrier& mbarrier(u64* p) {
  shared_offset(p);
  Mbarrier& barrier = *(Mbarrier*)p;
  if (barrier.magic != MBARRIER_MAGIC) die("an mbarrier was used before its init, or overwritten");
  return barrier;
}
inline void mbarrier_turn(u64* p) {
  Mbarrier& barrier = mbarrier(p);
  if (barrier.pending || barrier.bytes) return;
  barrier.pending = barrier.count;
  barrier.phase ^= 1;
}

// ---- swizzles: Swizzle<B, 4, 3> over addresses in shared memory --------------------------------
inline u32 swizzled(u32 address, u32 span_bytes) {
  u32 mask = span_bytes / 16 - (span_bytes ? 1 : 0);
  return address ^ ((address >> 7 & mask) << 4);
}

// ---- bulk tensor copies -----------------------------------------------------------------------
inline void deliver(const TensorCopy& copy) {
  const TensorMap& map = copy.map;
  static const u32 spans[] = {0, 32, 64, 128};
  u32 row_bytes = (u32)map.box[0] * map.element_bytes, start = shared_offset(copy.to);
  for (u32 row = 0; row < map.box[1]; row++) {
    i64 y = (i64)copy.y + row;
    for (u32 col = 0; col < map.box[0]; col++) {
      i64 x = (i64)copy.x + col;
      u32 at = swizzled(start + row * row_bytes + col * map.element_bytes, spans[map.swizzle]);
      if (at >= rt().shared_bytes) die("a tensor copy ends outside shared memory");
      bool inside = x >= 0 && y >= 0 && (u64)x < map.dims[0] && (u64)y < map.dims[1];
      memset(rt().shared + at, 0, map.element_bytes);
      if (!inside) continue;
      const char* from = (const char*)map.base + (u64)y * map.strides[0] + (u64)x * map.element_bytes;
      memcpy(rt().shared + at, from, map.element_bytes);
    }
  }
  mbarrier(copy.barrier).bytes -= (i32)(row_bytes * map.box[1]);
  mbarrier_turn(copy.barrier);
}
// ---- wgmma ------------------------------------------------------------------------------------
// Address of value (mn, k) of a 16-bit matrix; 9.7.15.5.1.2, "canonical layouts".
inline u32 matrix_address(u64 descriptor, bool mn_major, u32 mn, u32 k) {
  static const u32 spans[] = {0, 128, 64, 32};
  u32 start = (u32)(descriptor & 0x3fff) << 4, leading = (u32)(descriptor >> 16 & 0x3fff) << 4;
  u32 stride = (u32)(descriptor >> 32 & 0x3fff) << 4, span = spans[descriptor >> 62];
  if (descriptor >> 49 & 7) die("wgmma: base offsets are not emulated");
  u32 offset;
  if (span && mn_major) {
    u32 per_span = span / 2;
    offset = mn % per_span * 2 + mn / per_span * leading + k % 8 * span + k / 8 * stride;
  } else if (span) {
    offset = mn % 8 * span + mn / 8 * stride + k * 2;
  } else if (mn_major) {
    offset = mn % 8 * 2 + mn / 8 * stride + k % 8 * 16 + k / 8 * leading;
  } else {
    offset = mn % 8 * 16 + mn / 8 * stride + k % 8 * 2 + k / 8 * leading;
  }
  return swizzled(start + offset, span);
}
inline u16 matrix_value(u64 descriptor, bool mn_major, u32 mn, u32 k) {
  u32 at = matrix_address(descriptor, mn_major, mn, k);
  if (at + 2 > rt().shared_bytes) die("wgmma reads outside shared memory");
  auto& stores = sm90().unfenced_stores;
  if (!stores.empty() && stores[at / 16]) die("wgmma reads a store that no fence.proxy.async has followed");
  u16 bits;
  memcpy(&bits, rt().shared + at, 2);
  return bits;
}
inline void read_operands(Matmul& m) {
  m.a_values.resize(256);
  m.b_values.resize(16 * m.columns);
  for (u32 row = 0; row < 16; row++) {
    for (u32 k = 0; k < 16; k++) {
      u16 bits;
      if (m.a_in_registers) {  // as m16n8k16's A
        u32 word = m.a[row % 8 * 4 + k % 8 / 2][(row >= 8) + 2 * (k >= 8)];
        bits = (u16)(k & 1 ? word >> 16 : word);
      } else {
        bits = matrix_value(m.a_at, false, m.warp % 4 * 16 + row, k);
      }
      m.a_values[row * 16 + k] = m.to_float(bits);
    }
  }
  for (u32 k = 0; k < 16; k++) {
    for (u32 n = 0; n < m.columns; n++) {
      m.b_values[k * m.columns + n] = m.to_float(matrix_value(m.b_at, m.mn_major_b, n, k));
    }
  }
}
// The sums that lane `lane` holds, with their positions in [16][columns]; 9.7.15.5.1.1.
template <class Visit> inline void each_sum(unsigned lane, unsigned columns, Visit visit) {
  for (unsigned i = 0; i < columns / 2; i++) {
    unsigned row = lane / 4 + (i % 4 >= 2 ? 8 : 0), col = i / 4 * 8 + lane % 4 * 2 + i % 2;
    visit(i, row * columns + col);
  }
}
__attribute__((optimize("O3"))) inline void multiply(const Matmul& m, float* __restrict sums) {
  unsigned columns = m.columns;
  for (unsigned row = 0; row < 16; row++) {
    for (unsigned k = 0; k < 16; k++) {
      float a = m.a_values[row * 16 + k];
      const float* b = &m.b_values[k * columns];
      float* to = sums + row * columns;
      for (unsigned n = 0; n < columns; n++) to[n] += a * b[n];
    }
  }
}
inline void finish_matmul(WarpMatmuls& w) {
  Matmul& m = w.flying.front();
  for (unsigned lane = 0; lane < 32 && m.a_in_registers; lane++) {
    if (memcmp(m.a[lane], m.a_live[lane], 16)) die("wgmma: A's registers changed before the wait");
  }
  if (!m.read_early) read_operands(m);
  Chain& chain = w.chains[m.chain];
  if (!m.accumulate) std::fill(chain.sums.begin(), chain.sums.end(), 0.f);
  multiply(m, chain.sums.data());
  if (--chain.unfinished == 0) {
    for (unsigned lane = 0; lane < 32; lane++) {
      each_sum(lane, chain.columns, [&](unsigned i, unsigned at) { chain.d[lane][i] = chain.sums[at]; });
    }
  }
  w.flying.pop_front();
  if (w.flying.empty()) w.chains.clear();
}
inline WarpMatmuls& my_matmuls() { return sm90().warps[rt().current->index / 32]; }
inline unsigned find_chain(WarpMatmuls& w, float* const d[32], unsigned columns) {
  for (unsigned i = 0; i < w.chains.size(); i++) {
    if (w.chains[i].unfinished && w.chains[i].d[0] == d[0]) return i;
  }
  Chain chain;
  chain.columns = columns;
  chain.unfinished = 0;
  chain.sums.resize(16 * columns);
  for (unsigned lane = 0; lane < 32; lane++) {
    chain.d[lane] = d[lane];
    each_sum(lane, columns, [&](unsigned i, unsigned at) {
      chain.sums[at] = d[lane][i];
      d[lane][i] = NAN;  // not to be read before the wait
    });
  }
  w.chains.push_back(std::move(chain));
  return (unsigned)w.chains.size() - 1;
}
// Every lane of the warp calls it; lane 0 does the bookkeeping for all.
inline void start_matmul(Matmul m, float* d, const u32* a) {
  struct Mine {
    float* d;
    const u32* a;
    u32 values[4];
    u64 a_at, b_at;
  } mine{d, a, {}, m.a_at, m.b_at};
  if (a) memcpy(mine.values, a, 16);
  const Slot* all = exchange(~0u, &mine, sizeof mine);
  if (lane()) return;
  WarpMatmuls& w = my_matmuls();
  if (!w.fenced) die("wgmma without wgmma.fence after registers were touched");
  float* sums[32];
  for (unsigned i = 0; i < 32; i++) {
    Mine of = get<Mine>(all, i);
    if (of.a_at != m.a_at || of.b_at != m.b_at) die("wgmma: lanes have different descriptors");
    sums[i] = of.d;
    m.a_live[i] = of.a;
    memcpy(m.a[i], of.values, 16);
  }
  m.a_in_registers = a != nullptr;
  m.group = w.committed;
  m.warp = rt().current->index / 32;
  m.chain = find_chain(w, sums, m.columns);
  w.chains[m.chain].unfinished++;
  m.read_early = coin();
  if (m.read_early) read_operands(m);
  w.flying.push_back(std::move(m));
}

}  // namespace emu

namespace ptx {

inline void mbarrier_init(u64* barrier, u32 count) {
  emu::shared_offset(barrier);
  if ((uintptr_t)barrier & 7) emu::die("mbarrier: not 8-byte aligned");
  if (!count || count > 1023) emu::die("mbarrier: counts from 1 to 1023 are emulated");
  emu::Mbarrier fresh{};
  fresh.count = (u16)count;
  fresh.pending = (u16)count;
  fresh.magic = emu::MBARRIER_MAGIC;
  memcpy(barrier, &fresh, 8);
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive_expect(u64* barrier, u32 bytes) {
  emu::Mbarrier& b = emu::mbarrier(barrier);
  if (!b.pending) emu::die("mbarrier: more arrivals in a phase than its count");
  b.bytes += (i32)bytes;
  b.pending--;
  emu::mbarrier_turn(barrier);
}
inline void mbarrier_arrive(u64* barrier) { mbarrier_arrive_expect(barrier, 0); }
inline void mbarrier_wait(u64* barrier, u32 parity) {
  emu::wait_until([=] { return emu::mbarrier(barrier).phase != parity; });
}

inline void tensor_map_prefetch(const TensorMap*) {}
inline void tensor_load_2d(void* to, const TensorMap* map, i32 x, i32 y, u64* barrier) {
  emu::TensorCopy copy{barrier, (unsigned char*)to, {}, x, y};
  memcpy(&copy.map, map, sizeof copy.map);
  if (copy.map.magic != emu::TENSOR_MAP_MAGIC) emu::die("not a tensor map");
  if (copy.map.rank != 2) emu::die("a 2-D copy with a map of another rank");
  u32 alignment = copy.map.swizzle ? 128u : 16u;
  if (emu::shared_offset(to) % alignment) emu::die("a tensor copy to a misaligned address");
  emu::mbarrier(barrier);
  if (emu::coin()) {
    emu::deliver(copy);
  } else {
    emu::later([copy] { emu::deliver(copy); });
  }
}
inline void store_for_async(void* to, uint4 x) {
  if ((uintptr_t)to & 15) emu::die("a 16-byte store to a misaligned address");
  memcpy(to, &x, 16);
  auto& state = emu::sm90();
  u32 chunk = emu::shared_offset(to) / 16;
  if (state.unfenced_stores.empty()) state.unfenced_stores.resize(emu::rt().shared_bytes / 16 + 1);
  state.unfenced_stores[chunk]++;
  state.unfenced[emu::rt().current->index].push_back(chunk);
}
inline void fence_proxy_async() {
  auto& state = emu::sm90();
  auto& mine = state.unfenced[emu::rt().current->index];
  for (u32 chunk : mine) state.unfenced_stores[chunk]--;
  mine.clear();
}

inline void named_barrier_arrive(u32 id, u32 threads) {
  if (id == 0 || id > 15 || threads % 32) emu::die("named barriers are 1 to 15, for whole warps");
  auto& barrier = emu::sm90().named[id];
  if (barrier.arrived && barrier.threads != threads) emu::die("a named barrier with two thread counts");
  barrier.threads = threads;
  if (++barrier.arrived < threads) return;
  barrier.arrived = 0;
  barrier.round++;
}
inline void named_barrier_sync(u32 id, u32 threads) {
  auto& barrier = emu::sm90().named[id & 15];
  unsigned round = barrier.round;
  named_barrier_arrive(id, threads);
  emu::wait_until([&, round] { return barrier.round != round; });
}
template <int N> inline void give_registers() {
  static_assert(N >= 24 && N <= 256 && N % 8 == 0, "setmaxnreg takes multiples of 8 from 24 to 256");
}
template <int N> inline void take_registers() { give_registers<N>(); }

inline u64 matrix_descriptor(const void* p, u32 leading, u32 stride, Swizzle swizzle) {
  u32 at = emu::shared_offset(p);
  if ((at | leading | stride) % 16) emu::die("wgmma: addresses and offsets are multiples of 16 bytes");
  return (u64)(at >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | (u64)swizzle << 62;
}
inline void wgmma_fence() {
  emu::exchange(~0u, nullptr, 0);
  if (!emu::lane()) emu::my_matmuls().fenced = true;
}
inline void wgmma_commit() {
  emu::exchange(~0u, nullptr, 0);
  if (!emu::lane()) emu::my_matmuls().committed++;
}
template <int N> inline void wgmma_wait() {
  if (!emu::lane()) emu::stall();
  emu::exchange(~0u, nullptr, 0);
  if (!emu::lane()) {
    auto& w = emu::my_matmuls();
    while (!w.flying.empty() && w.flying.front().group + N < w.committed) emu::finish_matmul(w);
    w.fenced = false;
  }
  emu::exchange(~0u, nullptr, 0);
}
template <int N> inline void wgmma_pin(float (&)[N]) {}

inline float bf16_bits_to_f32(u16 x) { return __uint_as_float((u32)x << 16); }
inline float f16_bits_to_f32(u16 x) { return f16_to_f32(x); }
template <class T> inline auto bits_to_f32(T) -> float (*)(u16);
template <> inline auto bits_to_f32(bf16) -> float (*)(u16) { return bf16_bits_to_f32; }
template <> inline auto bits_to_f32(f16) -> float (*)(u16) { return f16_bits_to_f32; }

template <int MN_MAJOR_B, class T>
inline emu::Matmul matmul(T type, int columns, u64 b, u32 accumulate) {
  emu::Matmul m{};
  m.columns = columns;
  m.accumulate = accumulate;
  m.mn_major_b = MN_MAJOR_B;
  m.to_float = bits_to_f32(type);
  m.b_at = b;
  return m;
}
template <int MN_MAJOR_B, class T, int S>
inline void wgmma_ss(T type, float (&d)[S], u64 a, u64 b, u32 accumulate) {
  emu::Matmul m = matmul<MN_MAJOR_B>(type, 2 * S, b, accumulate);
  m.a_at = a;
  emu::start_matmul(std::move(m), d, nullptr);
}
template <int MN_MAJOR_B, class T, int S>
inline void wgmma_rs(T type, float (&d)[S], const u32* a, u64 b, u32 accumulate) {
  emu::start_matmul(matmul<MN_MAJOR_B>(type, 2 * S, b, accumulate), d, a);
}

}  // namespace ptx
