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
  float a = exponent ? ldexpf(1.f + (float)mantissa / 8.f, (int)exponent - 7) : ldexpf((float)mantissa, -9);
  return x & 0x80 ? -a : a;
}
// By search over all codes: slow, and independent of the arithmetic it checks.
inline u8 f32_to_e4m3(float x) {
  u8 sign = __float_as_uint(x) >> 24 & 0x80;
  float a = fabsf(x);
  if (x != x) return sign | 0x7f;
  if (a >= 448.f) return sign | 0x7e;
  u8 low = 0;
  while (e4m3_to_f32(low + 1) <= a) low++;
  float below = a - e4m3_to_f32(low), above = e4m3_to_f32(low + 1) - a;
  return sign | (u8)(below < above || (below == above && !(low & 1)) ? low : low + 1);
}

// ---- cp.async: copies land only at wait, so that a kernel that forgets to wait reads poison -------------------------
inline void cp_async16(void* s, const void* g, bool pred = true) {
  if (((uintptr_t)s | (uintptr_t)g) & 15) emu::die("cp.async: address not 16-byte aligned");
  emu::rt().cur->pend.push_back({s, g, 16, !pred});
}
inline void cp_async_commit() {
  auto* f = emu::rt().cur;
  f->groups.push_back(std::move(f->pend));
  f->pend.clear();
}
template <int N> inline void cp_async_wait() {
  auto* f = emu::rt().cur;
  while (f->groups.size() > (size_t)N) {
    for (auto& c : f->groups.front()) {
      if (c.zero) memset(c.d, 0, c.n);
      else memcpy(c.d, c.s, c.n);
    }
    f->groups.pop_front();
  }
}

// ---- warp matrix instructions ---------------------------------------------------------------
template <class Convert> inline void mma_m16n8k16_with(Convert to_float, float* d, const u32* a, const u32* b) {
  struct Fragments {
    u32 a[4], b[2];
  } mine;
  memcpy(mine.a, a, 16);
  memcpy(mine.b, b, 8);
  const emu::Slot* all = emu::exchange(~0u, &mine, sizeof mine);
  unsigned lane = emu::lane(), group = lane / 4, in_group = lane % 4;
  for (int i = 0; i < 4; i++) {
    unsigned row = group + (i >= 2 ? 8 : 0), col = in_group * 2 + (i & 1);
    float sum = d[i];
    for (unsigned k = 0; k < 16; k++) {
      Fragments fa = emu::get<Fragments>(all, (row % 8) * 4 + (k % 8) / 2);
      Fragments fb = emu::get<Fragments>(all, col * 4 + (k % 8) / 2);
      u32 wa = fa.a[(row >= 8) + 2 * (k >= 8)], wb = fb.b[k >= 8];
      sum += to_float((u16)(k & 1 ? wa >> 16 : wa)) * to_float((u16)(k & 1 ? wb >> 16 : wb));
    }
    d[i] = sum;
  }
}
inline void mma_m16n8k16(bf16, float* d, const u32* a, const u32* b) {
  mma_m16n8k16_with([](u16 x) { return __uint_as_float((u32)x << 16); }, d, a, b);
}
inline void mma_m16n8k16(f16, float* d, const u32* a, const u32* b) { mma_m16n8k16_with(f16_to_f32, d, a, b); }

inline const emu::Slot* ldmatrix_rows(const void* p) {
  if ((uintptr_t)p & 15) emu::die("ldmatrix: address not 16-byte aligned");
  return emu::exchange(~0u, &p, sizeof p);
}
inline void ldmatrix_x4(u32* r, const void* p) {
  const emu::Slot* rows = ldmatrix_rows(p);
  unsigned lane = emu::lane();
  for (int m = 0; m < 4; m++) memcpy(&r[m], emu::get<const char*>(rows, m * 8 + lane / 4) + (lane % 4) * 4, 4);
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

// ---- programmatic dependent launch: one grid at a time here ----------------------------------
inline void grid_dependency_wait() {}
inline void grid_dependency_launch() {}

}  // namespace ptx
