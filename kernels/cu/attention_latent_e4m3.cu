// attention_latent_e4m3.cu: paged attention over latents in 8 bits; see attention_latent.cuh.
#include "attention_latent.cuh"

ATTENTION_LATENT_NARROW(bf16, 64, 16)
ATTENTION_LATENT_NARROW(bf16, 512, 64)
ATTENTION_LATENT_NARROW(f16, 64, 16)
ATTENTION_LATENT_NARROW(f16, 512, 64)
