//! Models with layers that have a recurrent state: conversations resume from kept states. `overlap`, `resume`
//! and `speculation` run these models, too.

use std::sync::Arc;

use serde_json::{Value, json};
use skein_proto::sampling::SamplingParams;
use skein_worker::TokenId;
use skein_worker::backend::{Backend, KvBlocks};
use skein_worker::config::SchedulerConfig;
use skein_worker::engine::{Engine, EngineHandle, Submission};
use skein_worker::kv_cache::CacheScope;
use skein_worker::scheduler::{NewRequest, NewSample, RequestKey, Scheduler};

use crate::batches::{Running, SMALL_BLOCK, backend_of};

/// Models in which some layers have a state.
pub const WITH_STATES: [&str; 10] = [
    "qwen3-5",
    "qwen3-5-moe",
    "qwen3-next",
    "lfm2",
    "lfm2-moe",
    "granite-hybrid",
    "nemotron-h",
    "nemotron-h-moe",
    "nemotron-h-latent",
    "kimi-linear",
];

/// Changes of the configuration of `name` for four layers, one of which attends, and for up to four ranks.
/// Some layers of Nemotron-H have only a network.
pub fn with_states_for_ranks(name: &str) -> Value {
    if name.starts_with("lfm2") {
        let types = ["conv", "full_attention", "conv", "conv"];
        return json!({"num_hidden_layers": 4, "hidden_size": 128, "block_auto_adjust_ff_dim": false,
            "block_ff_dim": 256, "layer_types": types});
    }
    if name.starts_with("granite") {
        let types = ["mamba", "attention", "mamba", "mamba"];
        return json!({"num_hidden_layers": 4, "mamba_n_groups": 4, "mamba_d_head": "auto", "layer_types": types});
    }
    if name.starts_with("nemotron") {
        let network = if name == "nemotron-h" { "mlp" } else { "moe" };
        return json!({"num_hidden_layers": 4, "hybrid_override_pattern": null, "n_groups": 4, "mamba_num_heads": 16,
            "mamba_head_dim": 16, "layers_block_type": ["linear_attention", network, "full_attention", network]});
    }
    if name.starts_with("kimi") {
        let states = json!({"num_heads": 8, "head_dim": 16, "short_conv_kernel_size": 4});
        let types = ["linear_attention", "full_attention", "linear_attention", "linear_attention"];
        return json!({"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "v_head_dim": 32,
            "intermediate_size": 256, "linear_attn_config": states, "layer_types": types});
    }
    json!({"num_hidden_layers": 4, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
        "linear_key_head_dim": 12, "linear_value_head_dim": 16, "num_experts_per_tok": 2})
}

const LONGEST: u32 = 1200;

fn start(model: &str, share_prefixes: bool) -> (EngineHandle, Running) {
    let config = SchedulerConfig {
        block_size: SMALL_BLOCK,
        max_num_seqs: 4,
        max_num_batched_tokens: 64,
        enable_prefix_caching: share_prefixes,
        ..SchedulerConfig::default()
    };
    let backend = backend_of(model, KvBlocks { states: Some(24), ..(3 * LONGEST / SMALL_BLOCK).into() });
    let scheduler = Scheduler::new(&config, backend.all_blocks(), LONGEST);
    let (engine, handle) = Engine::new(scheduler, Box::new(backend), 100);
    (handle, std::thread::spawn(move || engine.run()))
}

/// Prompt tokens found in the cache, drawn tokens, and the bits of their log-probabilities.
type Turn = (u32, Vec<TokenId>, Vec<u32>);

async fn ask(handle: &EngineHandle, id: String, prompt: &[TokenId]) -> Turn {
    let params = SamplingParams {
        max_tokens: 9,
        ignore_eos: true,
        logprobs: Some(1),
        temperature: 0.8,
        seed: 7,
        ..SamplingParams::default()
    };
    let request = NewRequest {
        key: RequestKey(0),
        prompt: prompt.to_vec(),
        params: Arc::new(params),
        samples: vec![NewSample { index: 0, delivered: Vec::new() }],
        scope: CacheScope::new("model", ""),
        call: None,
        priority: 0,
        deadline: None,
        adapter: None,
    };
    let mut stream = handle.submit(Submission::alone(id, request)).await.unwrap();
    let (mut cached, mut tokens, mut bits) = (0, Vec::new(), Vec::new());
    while let Some(deltas) = stream.next().await {
        for delta in deltas.unwrap() {
            cached = delta.cached_tokens.unwrap_or(cached);
            tokens.extend(delta.tokens);
            bits.extend(delta.logprobs.iter().map(|entry| entry.logprob.to_bits()));
        }
    }
    (cached, tokens, bits)
}

/// `len` tokens that differ by `seed`.
fn text(seed: u32, len: u32) -> Vec<TokenId> {
    (0..len).map(|at| (at * at * 7 + at * (seed % 31) + seed * 17) % 120 + 2).collect()
}

/// A conversation of 16 turns with a long first prompt, and a second one that parts from it at every fourth
/// turn.
#[tokio::test]
async fn turns_that_resume_have_every_bit_of_turns_that_do_not() {
    for model in WITH_STATES {
        let (warm, running) = start(model, true);
        let (cold, running_cold) = start(model, false);
        let (mut conversation, mut recomputed, mut unavoidable) = (text(1, 401), 0, 0);
        let mut known = 0;
        for turn in 0..16 {
            let mut branches = vec![conversation.clone()];
            if turn % 4 == 3 {
                branches.push([&conversation[..], &text(100 + turn, 25)].concat());
            }
            for (branch, prompt) in branches.iter().enumerate() {
                let id = format!("{turn}, {branch}");
                let (cached, tokens, bits) = ask(&warm, id.clone(), prompt).await;
                let expected = ask(&cold, id.clone(), prompt).await;
                assert_eq!((0, &tokens, &bits), (expected.0, &expected.1, &expected.2), "{model}: turn {id}");
                recomputed += prompt.len() as u32 - cached;
                if branch == 0 {
                    unavoidable += prompt.len() as u32 - known;
                    known = (prompt.len() + tokens.len()) as u32;
                    conversation.extend(&tokens);
                } else {
                    unavoidable += 25;
                }
            }
            conversation.extend(text(turn + 2, 30));
        }
        // At most the rest of a block and the last token, whose keys no step has computed, in each of 20
        // turns.
        let most = unavoidable + 20 * (SMALL_BLOCK + 1);
        assert!(recomputed <= most, "{model}: {recomputed} tokens, {unavoidable} are new");
        for (handle, running) in [(warm, running), (cold, running_cold)] {
            handle.stop().await;
            running.join().unwrap().unwrap();
        }
    }
}
