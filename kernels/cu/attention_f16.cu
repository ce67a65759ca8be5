// attention_f16.cu: paged attention with f16 activations; see attention_kernel.cuh.
#include "attention_kernel.cuh"

ATTENTION_BOTH(f16, f16, 16)
ATTENTION_BOTH(f16, f16, 32)
ATTENTION_BOTH(f16, f16, 64)
ATTENTION_BOTH(f16, f16, 96)
ATTENTION_BOTH(f16, f16, 128)
ATTENTION_BOTH(f16, f16, 256)
