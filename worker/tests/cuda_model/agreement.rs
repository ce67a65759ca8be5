//! The CUDA backend agrees with the CPU backend.

use skein_worker::backend::cuda::Fp8;
use skein_worker::config::{CudaConfig, LoadFormat};

use crate::models::{
    DEEPSEEK_V2, DEEPSEEK_V3, DEEPSEEK_V3_SHARED, GROUPED, KINDS, LATENTS, LLAMA, LLAMA4, MIXTURES, OLMO2,
    QWEN2, QWEN2_MOE, QWEN3, STARCODER2, Tiny, WIDE,
};
use crate::runs::{eager, on_cpu, on_cuda, on_cuda_in};
use crate::scores::{TOLERANCE, compare, scores};

fn check(name: &str, tiny: Tiny) {
    let dir = tiny.make(7);
    let expected = scores(&mut on_cpu(dir.path()), &[39], false);
    let cuda = &mut on_cuda(dir.path(), eager());
    compare(&format!("{name} at once"), &scores(cuda, &[39], false), &expected, TOLERANCE);
    compare(&format!("{name} in chunks"), &scores(cuda, &[7, 1, 20, 1, 10], true), &expected, TOLERANCE);
}

#[test]
fn llama_in_bfloat16() {
    if skein_cuda_emulation::load() {
        check("llama", LLAMA);
    }
}

#[test]
fn qwen2_in_half_precision_with_biases_and_a_tied_head() {
    if skein_cuda_emulation::load() {
        check("qwen2", QWEN2);
    }
}

#[test]
fn single_precision_is_converted() {
    if skein_cuda_emulation::load() {
        check("f32", WIDE);
    }
}

/// 32 rows of a sequence fill a tile: some chunks go to one kernel, some to the other, and some steps contain
/// both.
#[test]
fn long_chunks_beside_short_ones() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let dir = GROUPED.make(7);
    let expected = scores(&mut on_cpu(dir.path()), &[39], false);
    let cuda = &mut on_cuda(dir.path(), eager());
    for chunks in [&[39][..], &[32, 7], &[5, 34], &[31, 8]] {
        let name = format!("grouped heads, chunks {chunks:?}");
        compare(&name, &scores(cuda, chunks, chunks.len() > 1), &expected, TOLERANCE);
    }
}

#[test]
fn qwen3_with_normalised_heads() {
    if skein_cuda_emulation::load() {
        check("qwen3", QWEN3);
    }
}

#[test]
fn every_kind_of_layer() {
    if !skein_cuda_emulation::load() {
        return;
    }
    for (name, tiny) in KINDS {
        check(name, tiny);
        check(&format!("{name} in half precision"), Tiny { dtype: "F16", kv_heads: 4, ..tiny });
    }
}

#[test]
fn mixtures_of_experts() {
    if !skein_cuda_emulation::load() {
        return;
    }
    for (name, tiny) in MIXTURES {
        check(name, tiny);
        check(&format!("{name} in half precision"), Tiny { dtype: "F16", ..tiny });
    }
}

#[test]
fn latent_attention() {
    if !skein_cuda_emulation::load() {
        return;
    }
    for (name, tiny) in LATENTS {
        check(&format!("{name} in half precision"), Tiny { dtype: "F16", ..tiny });
    }
    // Of nearly equal experts, bfloat16 may choose another one, and this model has none.
    check("deepseek_v2", DEEPSEEK_V2);
}

#[test]
fn odd_latents_are_not_cached_in_fp8() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let dir = DEEPSEEK_V3.make(7);
    let error = on_cuda_in(dir.path(), eager(), Fp8 { weights: false, kv_cache: true }).err().unwrap();
    let expected = "latent attention over a KV cache of e4m3 has kernels for latents of a multiple of 16 values, and \
                    kv_lora_rank is 40; use --kv-cache-dtype auto";
    assert!(error.to_string().contains(expected), "{error}");
}

/// A load ends with a step, whose logits must be finite.
#[test]
fn mixtures_and_latents_with_random_weights() {
    if !skein_cuda_emulation::load() {
        return;
    }
    for (name, tiny) in MIXTURES.into_iter().chain(LATENTS) {
        let dir = tiny.make(7);
        let cuda = || CudaConfig { load_format: LoadFormat::Dummy, ..eager() };
        for weights in [false, true] {
            let loaded = on_cuda_in(dir.path(), cuda(), Fp8 { weights, kv_cache: false });
            assert!(
                loaded.is_ok(),
                "{name}, fp8 {weights}: {:?}",
                loaded.err().map(|error| error.to_string())
            );
        }
    }
}

/// With the attention of long chunks beside that of short ones.
#[test]
fn every_kind_of_layer_with_grouped_heads() {
    if !skein_cuda_emulation::load() {
        return;
    }
    for (name, tiny) in [("starcoder2", STARCODER2), ("olmo2", OLMO2), ("llama4", LLAMA4)] {
        let dir = Tiny { heads: 8, head_dim: 128, ..tiny }.make(7);
        let expected = scores(&mut on_cpu(dir.path()), &[39], false);
        let cuda = &mut on_cuda(dir.path(), eager());
        for chunks in [&[39][..], &[5, 34]] {
            let name = format!("{name} with grouped heads, chunks {chunks:?}");
            compare(&name, &scores(cuda, chunks, chunks.len() > 1), &expected, TOLERANCE);
        }
    }
}

#[test]
fn fp8_weights_and_fp8_cache_stay_near() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let weights = Fp8 { weights: true, kv_cache: false };
    let cache = Fp8 { weights: false, kv_cache: true };
    for (name, tiny) in [("llama", LLAMA), ("qwen2_moe", QWEN2_MOE)] {
        check_fp8(name, tiny, &[("fp8 weights", weights), ("fp8 cache", cache)]);
    }
    check_fp8("deepseek_v3", DEEPSEEK_V3_SHARED, &[("fp8 weights", weights), ("fp8 cache", cache)]);
    check_fp8("deepseek_v2", DEEPSEEK_V2, &[("fp8 cache", cache)]);
}

fn check_fp8(model: &str, tiny: Tiny, kinds: &[(&str, Fp8)]) {
    let dir = tiny.make(7);
    let expected = scores(&mut on_cpu(dir.path()), &[39], false);
    // Three bits of mantissa: an error of at most 2^-4, on average 3%, per product. It averages out over two
    // layers of 128 inputs.
    for &(name, fp8) in kinds {
        let got = scores(&mut on_cuda_in(dir.path(), eager(), fp8).unwrap(), &[20, 19], true);
        let mean = got.iter().zip(&expected).map(|(a, b)| (a.logprob - b.logprob).abs()).sum::<f32>() / 39.0;
        println!("{model}, {name}: log-probabilities differ by {mean:.3} on average");
        assert!(mean < 0.15 && mean > 0.0, "{model}, {name}: {mean}");
    }
}

#[test]
fn nan_and_infinite_weights_are_refused() {
    if !skein_cuda_emulation::load() {
        return;
    }
    for tensor in ["model.layers.1.mlp.down_proj.weight", "model.layers.0.self_attn.k_proj.weight"] {
        let dir = LLAMA.make(3);
        Tiny::spoil(dir.path(), tensor);
        for weights in [false, true] {
            let fp8 = Fp8 { weights, kv_cache: false };
            let error = on_cuda_in(dir.path(), eager(), fp8).err().map(|error| error.to_string());
            let said = error.unwrap_or_else(|| panic!("{tensor} with a NaN was taken, {fp8:?}"));
            assert!(said.contains("not finite") || said.contains("NaN"), "{said}");
        }
    }
}
