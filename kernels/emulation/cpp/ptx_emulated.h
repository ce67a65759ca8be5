// ptx_emulated.h: the functions of ptx.cuh, on the CPU. Semantics and fragment layouts as in the PTX ISA.
#pragma once
namespace ptx {

// ---- conversions ----------------------------------------------------------------------------
inline float f16_to_f32(u16 x) {
  u32 sign = (u32)(x & 0x8000) << 16, exponent = x >> 10 & 31, mantissa = x & 1023;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | mantissa << 13);
  float a = exponent ? __uint_as_float((exponent + 112) << 23 | mantissa << 13) : (float)mantissa * 0x1p-24f;
  return sign ? -a : a;
}
inline u16 f32_to_bf16(float x) {
  u32 bits = __float_as_uint(x);
  if (x != x) return 0x7fff;
  return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline u16 f32_to_f16(float x) {
  u32 sign = __float_as_uint(x) >> 16 & 0x8000;
  float a = fabsf(x);
  if (x != x) return 0x7fff;
  if (a >= 65520.f) return (u16)(sign | 0x7c00);
  if (a < 0x1p-14f) return (u16)(sign | (u32)lrintf(a * 0x1p24f));
  u32 bits = __float_as_uint(a);
  bits += 0xfff + (bits >> 13 & 1);
  return (u16)(sign | ((bits >> 13) - (112u << 10)));
}
inline float e4m3_to_f32(u8 x) {
  u32 exponent = x >> 3 & 15, mantissa = x & 7;
  if ((x & 0x7f) == 0x7f) return NAN;
  float a = exponent ? __uint_as_float((exponent + 120) << 23 | mantissa << 20) : (float)mantissa * 0x1p-9f;
  return x & 0x80 ? -a : a;
}
// Searches all codes: independent of the arithmetic that it checks.
inline u8 f32_to_e4m3(float x) {
  static const auto values = [] {
    std::array<float, 127> all;
    for (unsigned code = 0; code < all.size(); code++) all[code] = e4m3_to_f32((u8)code);
    return all;
  }();
  u8 sign = __float_as_uint(x) >> 24 & 0x80;
  float a = fabsf(x);
  if (x != x) return sign | 0x7f;
  if (a >= 448.f) return sign | 0x7e;
  u8 low = (u8)(std::upper_bound(values.begin(), values.end(), a) - values.begin() - 1);
  float below = a - values[low], above = values[low + 1] - a;
  return sign | (u8)(below < above || (below == above && !(low & 1)) ? low : low + 1);
}

// ---- cp.async: copies land only at wait, so that a kernel that forgets to wait reads poison -----
inline void cp_async16(void* s, const void* g, bool pred = true) {
  if (((uintptr_t)s | (uintptr_t)g) & 15) emu::die("cp.async: address not 16-byte aligned");
  emu::rt().current->copies.push_back({s, g, 16, !pred});
}
inline void cp_async_commit() {
  emu::Fiber* fiber = emu::rt().current;
  fiber->commits.push_back((unsigned)fiber->copies.size());
}
template <int N> inline void cp_async_wait() {
  emu::Fiber* fiber = emu::rt().current;
  if (fiber->commits.size() <= (size_t)N) return;
  size_t groups = fiber->commits.size() - N;
  unsigned landed = fiber->commits[groups - 1];
  for (unsigned i = 0; i < landed; i++) {
    const emu::Copy& copy = fiber->copies[i];
    if (copy.zero) memset(copy.to, 0, copy.bytes);
    else memcpy(copy.to, copy.from, copy.bytes);
  }
  fiber->copies.erase(fiber->copies.begin(), fiber->copies.begin() + landed);
  fiber->commits.erase(fiber->commits.begin(), fiber->commits.begin() + (ptrdiff_t)groups);
  for (unsigned& end : fiber->commits) end -= landed;
}

// ---- warp matrix instructions ---------------------------------------------------------------
// What a lane brings; it takes away `d`. Lane 4 * g + t holds rows g and g + 8 of a and d, column g of b; in
// a word of a and b, k = 2 * t and 2 * t + 1 (PTX ISA 9.0, 9.7.14.5.8, "Matrix Fragments for mma.m16n8k16
// with floating point type").
struct MmaFragments {
  float d[4];
  u32 a[4], b[2];
};
template <class Convert> inline void mma_m16n8k16_of(emu::Slot* slots, Convert to_float) {
  typedef float Four __attribute__((vector_size(16), may_alias));
  alignas(16) float a[16][16], b[16][8], d[16][8];
  MmaFragments of;
  auto low = [&](u32 word) { return to_float((u16)word); };
  auto high = [&](u32 word) { return to_float((u16)(word >> 16)); };
  for (unsigned lane = 0; lane < 32; lane++) {
    memcpy(&of, slots[lane].bytes, sizeof of);
    unsigned g = lane / 4, t = lane % 4;
    for (unsigned i = 0; i < 4; i++) {
      unsigned row = g + 8 * (i & 1), k = 2 * t + 8 * (i >> 1);
      a[row][k] = low(of.a[i]), a[row][k + 1] = high(of.a[i]);
      d[g + 8 * (i >> 1)][2 * t + (i & 1)] = of.d[i];
    }
    for (unsigned i = 0; i < 2; i++)
      b[2 * t + 8 * i][g] = low(of.b[i]), b[2 * t + 8 * i + 1][g] = high(of.b[i]);
  }
  for (unsigned row = 0; row < 16; row++) {
    Four* sums = (Four*)d[row];
    Four low = sums[0], high = sums[1];
    for (unsigned k = 0; k < 16; k++) {
      const Four* of = (const Four*)b[k];
      low += a[row][k] * of[0], high += a[row][k] * of[1];
    }
    sums[0] = low, sums[1] = high;
  }
  for (unsigned lane = 0; lane < 32; lane++) {
    for (unsigned i = 0; i < 4; i++) of.d[i] = d[lane / 4 + 8 * (i >> 1)][2 * (lane % 4) + (i & 1)];
    memcpy(slots[lane].bytes, of.d, sizeof of.d);
  }
}
template <class Convert>
inline void mma_m16n8k16_with(Convert to_float, float* d, const u32* a, const u32* b) {
  MmaFragments mine;
  memcpy(mine.d, d, 16);
  memcpy(mine.a, a, 16);
  memcpy(mine.b, b, 8);
  auto combine = [=](emu::Slot* slots) { mma_m16n8k16_of(slots, to_float); };
  const emu::Slot* all = emu::meet(~0u, &mine, sizeof mine, combine);
  memcpy(d, all[emu::lane()].bytes, 16);
}
inline void mma_m16n8k16(bf16, float* d, const u32* a, const u32* b) {
  mma_m16n8k16_with([](u16 x) { return __uint_as_float((u32)x << 16); }, d, a, b);
}
inline void mma_m16n8k16(f16, float* d, const u32* a, const u32* b) {
  mma_m16n8k16_with(f16_to_f32, d, a, b);
}

inline const emu::Slot* ldmatrix_rows(const void* p) {
  if ((uintptr_t)p & 15) emu::die("ldmatrix: address not 16-byte aligned");
  return emu::exchange(~0u, &p, sizeof p);
}
inline void ldmatrix_x4(u32* r, const void* p) {
  const emu::Slot* rows = ldmatrix_rows(p);
  unsigned lane = emu::lane();
  for (int m = 0; m < 4; m++)
    memcpy(&r[m], emu::get<const char*>(rows, m * 8 + lane / 4) + (lane % 4) * 4, 4);
}
inline void ldmatrix_x4_trans(u32* r, const void* p) {
  const emu::Slot* rows = ldmatrix_rows(p);
  unsigned lane = emu::lane();
  for (int m = 0; m < 4; m++) {
    u16 h[2];
    for (int e = 0; e < 2; e++) {
      memcpy(&h[e], emu::get<const char*>(rows, m * 8 + (lane % 4) * 2 + e) + (lane / 4) * 2, 2);
    }
    r[m] = h[0] | (u32)h[1] << 16;
  }
}

// ---- softmax --------------------------------------------------------------------------------
inline float exp2_approx(float x) {
  float y = exp2f(x);
  return y < 0x1p-126f ? 0.f : y;
}
inline u32 round_pair(bf16, float low, float high) { return f32_to_bf16(low) | (u32)f32_to_bf16(high) << 16; }
inline u32 round_pair(f16, float low, float high) { return f32_to_f16(low) | (u32)f32_to_f16(high) << 16; }

// ---- streaming loads ------------------------------------------------------------------------
inline uint4 load_stream16(const void* p) {
  if ((uintptr_t)p & 15) emu::die("ld.v4: address not 16-byte aligned");
  uint4 v;
  memcpy(&v, p, 16);
  return v;
}
// Reads a byte, so that a sanitizer detects a prefetch of unmapped memory.
inline void prefetch_l2(const void* p) { (void)*(const volatile u8*)p; }

// ---- packed pairs ---------------------------------------------------------------------------
// The product of two such values, plus a third of similar size, is exact in f64, so the result is rounded
// once.
inline u32 fma_pair(bf16, u32 a, u32 b, u32 c) {
  auto half = [](u32 x, u32 y, u32 z) {
    auto value = [](u32 w) { return (double)__uint_as_float(w << 16); };
    return (u32)f32_to_bf16((float)(value(x & 0xffff) * value(y & 0xffff) + value(z & 0xffff)));
  };
  return half(a, b, c) | half(a >> 16, b >> 16, c >> 16) << 16;
}
inline u32 fma_pair(f16, u32 a, u32 b, u32 c) {
  auto half = [](u32 x, u32 y, u32 z) {
    auto value = [](u32 w) { return (double)f16_to_f32((u16)w); };
    return (u32)f32_to_f16((float)(value(x) * value(y) + value(z)));
  };
  return half(a, b, c) | half(a >> 16, b >> 16, c >> 16) << 16;
}

// ---- memory of other devices ----------------------------------------------------------------
inline void store_peer16(void* p, uint4 v) {
  if ((uintptr_t)p & 15) emu::die("st.v4: address not 16-byte aligned");
  const u32 words[4] = {v.x, v.y, v.z, v.w};
  for (int i = 0; i < 4; i++) emu::store_to_peer((u32*)p + i, words[i]);
}
inline void store_peer8(void* p, uint2 v) {
  if ((uintptr_t)p & 7) emu::die("st.v2: address not 8-byte aligned");
  emu::store_to_peer(p, v.x);
  emu::store_to_peer((u32*)p + 1, v.y);
}
inline void store_peer4(u32* p, u32 v) { emu::store_to_peer(p, v); }
inline void store_release(u32* p, u32 v) { emu::release_to_peer(p, v); }
inline u32 load_peer4(const u32* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
inline uint4 load_peer16(const void* p) {
  if ((uintptr_t)p & 15) emu::die("ld.v4: address not 16-byte aligned");
  const u32* words = (const u32*)p;
  return {load_peer4(words), load_peer4(words + 1), load_peer4(words + 2), load_peer4(words + 3)};
}
inline uint2 load_peer8(const void* p) {
  if ((uintptr_t)p & 7) emu::die("ld.v2: address not 8-byte aligned");
  const u32* words = (const u32*)p;
  return {load_peer4(words), load_peer4(words + 1)};
}
inline u32 load_acquire(const u32* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
inline u64 globaltimer() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (u64)now.tv_sec * 1000000000ull + (u64)now.tv_nsec;
}
inline void poll_pause() { emu::poll_peers(); }

// ---- programmatic dependent launch: one grid at a time here ----------------------------------
inline void grid_dependency_wait() { emu::rt().waited_for_grids = true; }
inline void grid_dependency_launch() {}

}  // namespace ptx
