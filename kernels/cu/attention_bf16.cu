// attention_bf16.cu: paged attention with bf16 activations; see attention_kernel.cuh.
#include "attention_kernel.cuh"

ATTENTION_BOTH(bf16, bf16, 16)
ATTENTION_BOTH(bf16, bf16, 32)
ATTENTION_BOTH(bf16, bf16, 64)
ATTENTION_BOTH(bf16, bf16, 96)
ATTENTION_BOTH(bf16, bf16, 128)
ATTENTION_BOTH(bf16, bf16, 256)
