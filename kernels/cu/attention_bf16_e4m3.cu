// attention_bf16_e4m3.cu: paged attention with bf16 activations over an e4m3 cache; see attention_kernel.cuh.
#include "attention_kernel.cuh"

ATTENTION_BOTH(bf16, e4m3, 64)
ATTENTION_BOTH(bf16, e4m3, 96)
ATTENTION_BOTH(bf16, e4m3, 128)
