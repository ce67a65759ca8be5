// attention_latent.cu: paged attention over latents; see attention_latent.cuh. The sizes are those of
// DeepSeek-V2 and V3, and small ones for tests.
#include "attention_latent.cuh"

ATTENTION_LATENT_BOTH(bf16, 64, 16)
ATTENTION_LATENT_BOTH(bf16, 512, 64)
ATTENTION_LATENT_BOTH(f16, 64, 16)
ATTENTION_LATENT_BOTH(f16, 512, 64)
