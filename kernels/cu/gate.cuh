// gate.cuh: activations of gated linear units (src/gate.rs); all of them are x / (1 + exp(-z)).
#pragma once
#include "device.cuh"

constexpr u32 SILU = 0;  // any other value: GELU by tanh

// z as a function of x: x itself, or 2 sqrt(2 / pi) (x + 0.044715 x^3), because 0.5 (1 + tanh(u)) is 1 / (1 +
// exp(-2 u)).
__device__ __forceinline__ float gate_logit(u32 function, float x) {
  return function == SILU ? x : 1.5957691f * (x + 0.044715f * x * x * x);
}
