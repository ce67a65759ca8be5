// attention_bf16_e4m3.cu: paged attention with activations of bf16 over a cache of e4m3; see
// attention_kernel.cuh.
#include "attention_kernel.cuh"

ATTENTION_BOTH(bf16, e4m3, 64)
ATTENTION_BOTH(bf16, e4m3, 96)
ATTENTION_BOTH(bf16, e4m3, 128)
