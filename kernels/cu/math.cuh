// math.cuh: functions whose bits must equal those of the CPU kernels: exp and ln(1 + x), and Philox.
//
// Every operation is correctly rounded by IEEE 754 and written as the intrinsic for its rounding, so that no
// compiler contracts a product and a sum.
#pragma once
#include "device.cuh"

// e^x: cpu::math::exp, operation by operation. Zero below -87.3; NaN stays NaN.
__device__ __forceinline__ float exact_exp(float x) {
  constexpr float ROUND = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  float clamped = x < -87.3f ? -87.3f : x > 88.f ? 88.f : x;
  float rounded = __fmaf_rn(clamped, 1.44269504088896340736f, ROUND);
  float n = __fadd_rn(rounded, -ROUND);
  float r = __fmaf_rn(n, 2.1219444e-4f, __fmaf_rn(n, -0.6933594f, clamped));
  float p = 1.9875691e-4f;
  p = __fmaf_rn(p, r, 1.3981999e-3f);
  p = __fmaf_rn(p, r, 8.333452e-3f);
  p = __fmaf_rn(p, r, 4.1665796e-2f);
  p = __fmaf_rn(p, r, 1.6666665e-1f);
  p = __fmaf_rn(p, r, 5e-1f);
  p = __fadd_rn(__fmaf_rn(p, __fmul_rn(r, r), r), 1.f);
  float scale = __uint_as_float((__float_as_uint(rounded) - 0x4b400000u + 127u) << 23);
  return x < -87.3f ? 0.f : __fmul_rn(p, scale);
}

// ln(1 + x) for -1 < x < 2^53, within 1 ulp: the same operations in the same order as the log1p that the CPU
// kernels use. Method and coefficients: FreeBSD msun, s_log1p.c, "Copyright (C) 1993 by Sun Microsystems,
// Inc. All rights reserved. Developed at SunPro, a Sun Microsystems, Inc. business. Permission to use, copy,
// modify, and distribute this software is freely granted, provided that this notice is preserved."
//   1 + x = 2^k * (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2); c corrects the rounding of 1 + x.
//   ln(1 + f) = f - f^2/2 + s * (f^2/2 + R(s^2)), s = f / (2 + f), R a minimax polynomial.
__device__ __forceinline__ double exact_log1p(double x) {
  int k = 0;
  double f = x, c = 0.0;
  u64 bits = (u64)__double_as_longlong(x);
  u32 high = (u32)(bits >> 32);
  if (high << 1 < 0x3ca00000u << 1) return x;  // |x| < 2^-53
  bool is_near = high < 0x80000000u ? high < 0x3fda827au : high <= 0xbfd2bec4u;
  if (!is_near) {
    double y = __dadd_rn(1.0, x);
    bits = (u64)__double_as_longlong(y);
    high = (u32)(bits >> 32) + (0x3ff00000u - 0x3fe6a09eu);
    k = (int)(high >> 20) - 0x3ff;
    if (k < 54) {
      c = k >= 2 ? __dadd_rn(1.0, -__dadd_rn(y, -x)) : __dadd_rn(x, -__dadd_rn(y, -1.0));
      c = __ddiv_rn(c, y);
    }
    high = (high & 0x000fffffu) + 0x3fe6a09eu;
    f = __dadd_rn(__longlong_as_double((long long)((u64)high << 32 | (bits & 0xffffffffu))), -1.0);
  }
  double square = __dmul_rn(__dmul_rn(0.5, f), f);
  double s = __ddiv_rn(f, __dadd_rn(2.0, f));
  double z = __dmul_rn(s, s), w = __dmul_rn(z, z);
  double even = __dmul_rn(w, 1.531383769920937332e-01);
  even = __dmul_rn(w, __dadd_rn(2.222219843214978396e-01, even));
  even = __dmul_rn(w, __dadd_rn(3.999999999940941908e-01, even));
  double odd = __dmul_rn(w, 1.479819860511658591e-01);
  odd = __dmul_rn(w, __dadd_rn(1.818357216161805012e-01, odd));
  odd = __dmul_rn(w, __dadd_rn(2.857142874366239149e-01, odd));
  odd = __dmul_rn(z, __dadd_rn(6.666666666666735130e-01, odd));
  double sum = __dmul_rn(s, __dadd_rn(square, __dadd_rn(odd, even)));
  sum = __dadd_rn(sum, __dadd_rn(__dmul_rn((double)k, 1.90821492927058770002e-10), c));
  sum = __dadd_rn(__dadd_rn(sum, -square), f);
  return __dadd_rn(sum, __dmul_rn((double)k, 6.93147180369123816490e-01));
}

// Four random words for a counter under a key: Philox4x32-10 (Salmon et al. 2011), cpu::philox.
__device__ __forceinline__ uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; round++) {
    u32 a_high = __umulhi(counter.x, 0xD2511F53u), a_low = counter.x * 0xD2511F53u;
    u32 b_high = __umulhi(counter.z, 0xCD9E8D57u), b_low = counter.z * 0xCD9E8D57u;
    counter = make_uint4(b_high ^ counter.y ^ key.x, b_low, a_high ^ counter.w ^ key.y, a_low);
    key = make_uint2(key.x + 0x9E3779B9u, key.y + 0xBB67AE85u);
  }
  return counter;
}
