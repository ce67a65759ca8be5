// emulation.h - run CUDA kernels on the CPU for logic tests (no GPU, no CUDA driver).
// Compile the unchanged .cu as C++17:  g++ -x c++ -std=c++17 -include cuda_cpu.h kernels.cu
// Needs only CUDA's headers (vector_types.h, cuda_bf16.h, ... from the pip wheels).
// Model: blocks run one after the other; each CUDA thread is a fiber; __syncthreads and warp
// collectives are rendezvous points. Fiber order is shuffled by EMU_SEED, so that a missing
// barrier shows up. Dynamic shared memory is poisoned (0xFF = NaN) before each block.
// Not modelled: inter-block concurrency (spin waits on other blocks), clusters, weak memory.
#pragma once
#define __device__
#define __host__
#define __global__
#define __constant__
#define __grid_constant__
#define __shared__ static            // one block at a time: static storage is this block's
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __align__(n) alignas(n)
#define __cluster_dims__(...)
#define __restrict__ __restrict
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {} };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
#ifndef __x86_64__
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define EMU_ASAN 1
#endif

namespace emu {
// ---- fibers ---------------------------------------------------------------------------------
#ifdef __x86_64__
extern "C" void emu_switch(void** save_sp, void* load_sp);
asm(R"(.text
.weak emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size emu_switch,.-emu_switch
)");
#endif
enum State : uint8_t { READY, WAIT_BLOCK, WAIT_WARP, DONE };
struct alignas(16) Slot { unsigned char b[64]; };
struct Group { uint32_t arrived = 0; unsigned gen = 0; Slot v[2][32]; };   // one per (warp, mask)
struct Warp { std::unordered_map<uint32_t, Group> groups; uint32_t exist = 0, live = 0; };
struct Copy { void* d; const void* s; unsigned n; bool zero; };
struct Fiber {
  void* sp = nullptr; char* stack = nullptr; State st = READY; uint3 tid{}; unsigned lin = 0;
  std::vector<Copy> pend; std::deque<std::vector<Copy>> groups;            // cp.async state
  void* fake = nullptr;
#ifndef __x86_64__
  ucontext_t uc;
#endif
};
struct Rt {
  dim3 grid, block; uint3 bid{}; std::vector<Fiber> f; std::vector<Warp> w; std::vector<unsigned> order;
  std::vector<char> stacks; std::vector<unsigned char> smem_raw; unsigned char* smem = nullptr; size_t smem_n = 0;
  unsigned at_bar = 0, live = 0, bar_id = 0; int bar_pred[2] = {0, 0}, bar_cnt[2] = {0, 0}, bar_and[2] = {1, 1};
  unsigned bar_gen = 0; Fiber* cur = nullptr; void* main_sp = nullptr; uint64_t rng = 0; const char* kname = "?";
  void (*entry)(void*) = nullptr; void* arg = nullptr; void* main_fake = nullptr; const void* main_bot = nullptr; size_t main_sz = 0;
#ifndef __x86_64__
  ucontext_t main_uc;
#endif
};
inline Rt& rt() { static Rt r; return r; }
#ifdef EMU_ASAN
constexpr size_t STACK = 256 << 10;
#else
constexpr size_t STACK = 64 << 10;
#endif
[[noreturn]] inline void die(const char* m) {
  Rt& r = rt(); fprintf(stderr, "emu: %s in kernel %s block (%u,%u,%u)\n", m, r.kname, r.bid.x, r.bid.y, r.bid.z); abort();
}
inline void yield() {
  Rt& r = rt(); Fiber* f = r.cur;
#ifdef EMU_ASAN
  __sanitizer_start_switch_fiber(f->st == DONE ? nullptr : &f->fake, r.main_bot, r.main_sz);
#endif
#ifdef __x86_64__
  emu_switch(&f->sp, r.main_sp);
#else
  swapcontext(&f->uc, &r.main_uc);
#endif
#ifdef EMU_ASAN
  __sanitizer_finish_switch_fiber(f->fake, nullptr, nullptr);
#endif
}
inline void release_if_done() {   // a thread that leaves the kernel no longer counts for barriers
  Rt& r = rt();
  if (r.live && r.at_bar == r.live) { r.at_bar = 0; r.bar_gen++; for (auto& x : r.f) if (x.st == WAIT_BLOCK) x.st = READY; }
}
inline void fiber_main() {
#ifdef EMU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &rt().main_bot, &rt().main_sz);
#endif
  Rt& r = rt(); r.entry(r.arg);
  Fiber* f = r.cur; if (!f->pend.empty() || !f->groups.empty()) { /* copies nobody waited for are dropped, as no one may read them */ }
  f->st = DONE; r.live--; r.w[f->lin / 32].live &= ~(1u << (f->lin % 32)); release_if_done();
  yield(); abort();
}
inline uint64_t rnd() { uint64_t& s = rt().rng; s ^= s << 13; s ^= s >> 7; s ^= s << 17; return s; }
inline void run_block() {
  Rt& r = rt(); unsigned n = r.block.x * r.block.y * r.block.z;
  r.at_bar = 0; r.live = n; r.bar_gen = 0; r.w.assign((n + 31) / 32, Warp{});
  memset(r.smem, 0xFF, r.smem_n);
#ifdef EMU_ASAN
  __asan_unpoison_memory_region(r.stacks.data(), n * STACK);
#endif
  for (unsigned i = 0; i < n; i++) {
    Fiber& f = r.f[i]; f = Fiber{}; f.lin = i; f.stack = r.stacks.data() + i * STACK;
    f.tid = make_uint3(i % r.block.x, i / r.block.x % r.block.y, i / (r.block.x * r.block.y));
    r.w[i / 32].exist |= 1u << (i % 32); r.w[i / 32].live |= 1u << (i % 32);
#ifdef __x86_64__
    void** sp = (void**)(((uintptr_t)f.stack + STACK) & ~(uintptr_t)15); *--sp = nullptr; *--sp = (void*)fiber_main;
    for (int k = 0; k < 6; k++) *--sp = nullptr;
    f.sp = sp;
#else
    getcontext(&f.uc); f.uc.uc_stack.ss_sp = f.stack; f.uc.uc_stack.ss_size = STACK; f.uc.uc_link = nullptr; makecontext(&f.uc, (void (*)())fiber_main, 0);
#endif
  }
  r.order.resize(n); for (unsigned i = 0; i < n; i++) r.order[i] = i;
  unsigned done = 0;
  while (done < n) {
    if (r.rng) for (unsigned i = n; i > 1; i--) std::swap(r.order[i - 1], r.order[rnd() % i]);
    bool ran = false; done = 0;
    for (unsigned i : r.order) {
      Fiber& f = r.f[i];
      if (f.st == DONE) { done++; continue; }
      if (f.st != READY) continue;
      ran = true; r.cur = &f;
#ifdef EMU_ASAN
      __sanitizer_start_switch_fiber(&r.main_fake, f.stack, STACK);
#endif
#ifdef __x86_64__
      emu_switch(&r.main_sp, f.sp);
#else
      swapcontext(&r.main_uc, &f.uc);
#endif
#ifdef EMU_ASAN
      __sanitizer_finish_switch_fiber(r.main_fake, nullptr, nullptr);
#endif
      if (f.st == DONE) done++;
    }
    if (!ran && done < n) die("deadlock: threads wait at different barriers (divergent __syncthreads or wrong *_sync mask)");
  }
}
// ---- barriers and warp collectives ----------------------------------------------------------
inline unsigned syncthreads(int pred = 0) {   // returns the generation whose reductions hold this barrier's result
  Rt& r = rt(); unsigned g = r.bar_gen & 1;
  if (r.at_bar == 0) { r.bar_cnt[g] = 0; r.bar_and[g] = 1; r.bar_pred[g] = 0; }
  r.bar_cnt[g] += pred != 0; r.bar_and[g] &= pred != 0; r.bar_pred[g] |= pred != 0;
  r.at_bar++;
  if (r.at_bar == r.live) { r.at_bar = 0; r.bar_gen++; for (auto& x : r.f) if (x.st == WAIT_BLOCK) x.st = READY; }
  else { r.cur->st = WAIT_BLOCK; yield(); }
  return g;
}
inline unsigned lane() { return rt().cur->lin & 31; }
// Every lane of mask deposits n bytes; returns all 32 slots once all of them have arrived.
inline const Slot* exchange(uint32_t mask, const void* p, size_t n) {
  Rt& r = rt(); Fiber* f = r.cur; Warp& w = r.w[f->lin / 32]; unsigned l = f->lin & 31; mask &= w.exist;
  if (!(mask >> l & 1)) die("a lane calls a warp collective with a mask that leaves it out");
  if ((mask & w.live) != mask) die("a warp collective names a lane that has already returned");
  Group& g = w.groups[mask]; unsigned b = g.gen & 1;
  if (n) memcpy(g.v[b][l].b, p, n);
  g.arrived |= 1u << l;
  if (g.arrived == mask) {
    g.arrived = 0; g.gen++;
    for (unsigned i = 0; i < 32; i++) if (mask >> i & 1) { Fiber& x = r.f[(f->lin & ~31u) + i]; if (x.st == WAIT_WARP) x.st = READY; }
  } else { f->st = WAIT_WARP; yield(); }
  return g.v[b];
}
template <class T> inline T get(const Slot* s, unsigned i) { T t; memcpy(&t, s[i & 31].b, sizeof(T)); return t; }
template <class T> inline T shfl(uint32_t m, T v, unsigned src, bool ok) {
  static_assert(sizeof(T) <= 64, ""); const Slot* s = exchange(m, &v, sizeof(T));
  if (!ok) return v;
  if (!(m >> (src & 31) & 1)) die("shfl reads a lane outside its mask");
  return get<T>(s, src);
}
// ---- launch ---------------------------------------------------------------------------------
template <class... A, size_t... I> inline void call_packed(void (*k)(A...), void** a, std::index_sequence<I...>) { k(*(std::remove_reference_t<A>*)a[I]...); }
template <class... A> inline void launch_packed(const char* name, void (*k)(A...), dim3 grid, dim3 block, size_t smem, void** args) {
  Rt& r = rt(); unsigned n = block.x * block.y * block.z;
  if (n == 0 || n > 1024 || block.z > 64) { fprintf(stderr, "emu: bad block size for %s\n", name); abort(); }
  if (smem > 227 * 1024) { fprintf(stderr, "emu: %zu bytes of shared memory asked for by %s\n", smem, name); abort(); }
  r.kname = name; r.grid = grid; r.block = block; r.f.resize(n); if (r.stacks.size() < n * STACK) r.stacks.resize(n * STACK);
  
#ifdef EMU_ASAN
  if (!r.smem_raw.empty()) __asan_unpoison_memory_region(r.smem_raw.data(), r.smem_raw.size());
#endif
  r.smem_raw.resize(std::max(r.smem_raw.size(), smem + 2048)); r.smem = (unsigned char*)(((uintptr_t)r.smem_raw.data() + 1023) & ~(uintptr_t)1023); r.smem_n = smem;
#ifdef EMU_ASAN
  __asan_poison_memory_region(r.smem + ((smem + 7) & ~(size_t)7), 1024);   // out-of-bounds shared memory
#endif
  const char* s = getenv("EMU_SEED"); r.rng = s ? strtoull(s, nullptr, 10) * 0x9E3779B97F4A7C15ull : 0;
  struct Ctx { void (*k)(A...); void** a; } c{k, args}; r.arg = &c;
  r.entry = [](void* p) { Ctx* c = (Ctx*)p; call_packed(c->k, c->a, std::index_sequence_for<A...>{}); };
  for (unsigned z = 0; z < grid.z; z++) for (unsigned y = 0; y < grid.y; y++) for (unsigned x = 0; x < grid.x; x++) { r.bid = make_uint3(x, y, z); run_block(); }
}
template <class... A, class... B> inline void launch(void (*k)(A...), dim3 g, dim3 b, size_t smem, B... v) {
  std::tuple<A...> t((A)v...); void* a[sizeof...(A) ? sizeof...(A) : 1];
  std::apply([&](auto&... e) { int i = 0; ((a[i++] = (void*)&e), ...); }, t); launch_packed("kernel", k, g, b, smem, a);
}
typedef void (*Entry)(const unsigned grid[3], const unsigned block[3], size_t smem, void** args);
}  // namespace emu
// Sizes of a kernel's parameters, in order, ended by 0: what cuFuncGetParamInfo tells.
namespace emu { template <class... A> struct ParamSizes { static constexpr size_t sizes[] = {sizeof(A)..., 0}; };
template <class... A> constexpr const size_t* param_sizes(void (*)(A...)) { return ParamSizes<A...>::sizes; } }
// Found by name, like cuModuleGetFunction finds it; the driver calls it with cuLaunchKernel's arguments.
#define EXPORT(k) extern "C" void emu_launch_##k(const unsigned* g, const unsigned* b, size_t smem, void** args) { \
  emu::launch_packed(#k, &k, dim3(g[0], g[1], g[2]), dim3(b[0], b[1], b[2]), smem, args); } \
  extern "C" const size_t* emu_params_##k() { return emu::param_sizes(&k); }
#define threadIdx (emu::rt().cur->tid)
#define blockIdx (emu::rt().bid)
#define blockDim (emu::rt().block)
#define gridDim (emu::rt().grid)
constexpr int warpSize = 32;
#define DYN_SHARED(T, name) T* name = reinterpret_cast<T*>(emu::rt().smem)
inline void __syncthreads() { emu::syncthreads(); }
inline int __syncthreads_or(int p) { unsigned g = emu::syncthreads(p); return emu::rt().bar_pred[g]; }
inline int __syncthreads_and(int p) { unsigned g = emu::syncthreads(p); return emu::rt().bar_and[g]; }
inline int __syncthreads_count(int p) { unsigned g = emu::syncthreads(p); return emu::rt().bar_cnt[g]; }
inline void __syncwarp(unsigned m = ~0u) { emu::exchange(m, nullptr, 0); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline unsigned __activemask() { auto& r = emu::rt(); return r.w[r.cur->lin / 32].live; }
template <class T> inline T __shfl_sync(unsigned m, T v, int s, int w = 32) { unsigned l = emu::lane(); return emu::shfl(m, v, (l & ~(w - 1)) | (s & (w - 1)), true); }
template <class T> inline T __shfl_xor_sync(unsigned m, T v, int x, int w = 32) { unsigned l = emu::lane(), s = l ^ x; return emu::shfl(m, v, s, (s & ~(w - 1)) <= (l & ~(w - 1))); }
template <class T> inline T __shfl_down_sync(unsigned m, T v, unsigned d, int w = 32) { unsigned l = emu::lane(); return emu::shfl(m, v, l + d, (l & (w - 1)) + d < (unsigned)w); }
template <class T> inline T __shfl_up_sync(unsigned m, T v, unsigned d, int w = 32) { unsigned l = emu::lane(); return emu::shfl(m, v, l - d, (l & (w - 1)) >= d); }
inline unsigned __ballot_sync(unsigned m, int p) { auto* s = emu::exchange(m, &p, 4); m &= emu::rt().w[emu::rt().cur->lin / 32].exist; unsigned r = 0; for (int i = 0; i < 32; i++) if (m >> i & 1 && emu::get<int>(s, i)) r |= 1u << i; return r; }
inline int __any_sync(unsigned m, int p) { return __ballot_sync(m, p) != 0; }
inline int __all_sync(unsigned m, int p) { return __ballot_sync(m, !p) == 0; }
#define EMU_ATOMIC(name, expr) template <class T, class U> inline T name(T* p, U u) { T o = *p; T v = (T)u; (void)v; *p = (expr); return o; }
EMU_ATOMIC(atomicAdd, o + v) EMU_ATOMIC(atomicSub, o - v) EMU_ATOMIC(atomicMax, o > v ? o : v) EMU_ATOMIC(atomicMin, o < v ? o : v)
EMU_ATOMIC(atomicExch, v) EMU_ATOMIC(atomicOr, o | v) EMU_ATOMIC(atomicAnd, o & v) EMU_ATOMIC(atomicInc, o >= v ? 0 : o + 1)
template <class T> inline T atomicCAS(T* p, T c, T v) { T o = *p; if (o == c) *p = v; return o; }
template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline int __float2int_rn(float x) { return (int)lrintf(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.f / a; }
inline float __saturatef(float a) { return a < 0 ? 0 : a > 1 ? 1 : a; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __float_as_int(float f) { int i; memcpy(&i, &f, 4); return i; }
inline float __int_as_float(int i) { float f; memcpy(&f, &i, 4); return f; }
inline unsigned __float_as_uint(float f) { return (unsigned)__float_as_int(f); }
inline float __uint_as_float(unsigned u) { return __int_as_float((int)u); }
using std::max; using std::min;
