//! Whole requests through the engine: two steps in flight, graphs, shared prefixes, preemption and
//! recomputation. In batch-invariant mode none of this changes a token.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use skein_worker::TokenId;
use skein_worker::backend::Backend;
use skein_worker::config::CudaConfig;
use skein_worker::draft::{Guesser, Speculate};
use skein_worker::scheduler::Drafts;

use crate::models::{COHERE2, DEEPSEEK_V3, LLAMA, LLAMA4, MISTRAL, QWEN2_MOE, Tiny};
use crate::requests::{self, Output, REQUESTS, SHORTEST, request, served};
use crate::runs::{eager, try_cuda, try_cuda_with};

/// Keys and values per token of the tiny model, in bytes: 2 layers, 2 heads of 64, bf16.
const TOKEN_BYTES: u64 = 2 * 2 * 2 * 64 * 2;
/// Latents per token of the tiny model with latent attention, in bytes: 2 layers, 40 values and 16 rotated
/// ones, bf16.
const LATENT_BYTES: u64 = 2 * (40 + 16) * 2;

/// Tokens of all samples of simultaneous requests, with the drafts of `drafts` if it is given.
async fn serve(
    dir: &std::path::Path,
    kv_tokens: u64,
    enforce_eager: bool,
    drafts: Option<Drafts>,
) -> Vec<Vec<Output>> {
    serve_with((dir, TOKEN_BYTES), kv_tokens, enforce_eager, drafts).await
}

/// As [`serve`], with as many bytes per token in the cache.
async fn serve_with(
    (dir, token_bytes): (&std::path::Path, u64),
    kv_tokens: u64,
    enforce_eager: bool,
    drafts: Option<Drafts>,
) -> Vec<Vec<Output>> {
    let backend = try_cuda(dir, settings(enforce_eager), served(), Some(kv_tokens * token_bytes)).unwrap();
    assert_eq!(u64::from(backend.kv_blocks() * served().block_size), kv_tokens);
    requests::serve(Box::new(backend), drafts).await
}

fn settings(enforce_eager: bool) -> CudaConfig {
    CudaConfig { batch_invariant: true, enforce_eager, ..eager() }
}

#[tokio::test]
async fn no_token_shows_what_else_ran_or_what_was_computed_again() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let models: [(Tiny, u64); 3] =
        [(LLAMA, TOKEN_BYTES), (QWEN2_MOE, TOKEN_BYTES), (DEEPSEEK_V3, LATENT_BYTES)];
    for (tiny, token_bytes) in models {
        let dir = tiny.make(13);
        let model = (dir.path(), token_bytes);
        let expected = serve_with(model, 2048, true, None).await;
        assert!(expected.iter().flatten().all(|(tokens, _)| tokens.len() >= SHORTEST as usize));
        // Room for two of the longest sequences, so some are preempted.
        assert_eq!(serve_with(model, 256, false, None).await, expected, "{}", tiny.model_type);
    }
}

/// One layer of two, or all, slide or attend within chunks, and have blocks apart.
#[tokio::test]
async fn layers_with_a_window_give_their_blocks_back() {
    if !skein_cuda_emulation::load() {
        return;
    }
    for (name, tiny) in [("cohere2", COHERE2), ("llama4", LLAMA4), ("mistral", MISTRAL)] {
        let dir = tiny.make(13);
        let expected = serve(dir.path(), 2048, true, None).await;
        for (kv_tokens, enforce_eager, with_drafts) in
            [(2048, false, true), (256, true, false), (256, false, true)]
        {
            let (cuda, limits, bytes) = (settings(enforce_eager), served(), Some(kv_tokens * TOKEN_BYTES));
            let backend = try_cuda_with((dir.path(), true), cuda, limits.clone(), bytes).unwrap();
            let (blocks, windows) = (backend.kv_blocks(), backend.window_blocks().unwrap().blocks);
            let shared = (kv_tokens / u64::from(limits.block_size)) as u32;
            assert!(
                windows <= shared && shared < blocks,
                "{name}: {windows} of {blocks} blocks, {shared} shared"
            );
            let drafts = with_drafts.then(|| knowing(&expected, &Arc::default()));
            let got = requests::serve(Box::new(backend), drafts).await;
            assert_eq!(got, expected, "{name}, {kv_tokens} tokens, drafts {with_drafts}");
        }
    }
}

/// Counts the draft tokens that a source proposes, and those of them that are right.
#[derive(Default)]
struct Counts {
    proposed: AtomicUsize,
    right: AtomicUsize,
}

/// Proposes right tokens, garbage, and right ones followed by garbage, in turn.
fn knowing(answers: &[Vec<Output>], counts: &Arc<Counts>) -> Drafts {
    let texts = (0..REQUESTS).zip(answers).flat_map(|(index, samples)| {
        let prompt = request(index).prompt;
        samples.iter().map(move |(tokens, _)| [&prompt[..], tokens].concat())
    });
    let (texts, counts, mut turn) = (texts.collect::<Vec<Vec<TokenId>>>(), counts.clone(), 0);
    Drafts::new(
        5,
        Box::new(move |tokens, most, draft| {
            turn += 1;
            let known = texts.iter().find(|text| text.len() > tokens.len() && text.starts_with(tokens));
            let right =
                known.iter().flat_map(|text| &text[tokens.len()..]).take([most, 0, most / 2][turn % 3]);
            draft.extend(right);
            counts.right.fetch_add(draft.len(), Relaxed);
            counts.proposed.fetch_add(most, Relaxed);
            draft.extend((draft.len()..most).map(|at| (at * 31 + turn) as TokenId % 64));
        }),
    )
}

#[tokio::test]
async fn drafts_change_no_token_and_no_log_probability() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let dir = LLAMA.make(13);
    let expected = serve(dir.path(), 2048, true, None).await;
    for (kv_tokens, enforce_eager) in [(2048, true), (2048, false), (256, false)] {
        let counts = Arc::<Counts>::default();
        let drafts = knowing(&expected, &counts);
        assert_eq!(serve(dir.path(), kv_tokens, enforce_eager, Some(drafts)).await, expected);
        let (proposed, right) = (counts.proposed.load(Relaxed), counts.right.load(Relaxed));
        assert!(right > 50 && proposed > right, "{right} right of {proposed} draft tokens");
    }
    let guesser = Guesser::new(Speculate::Auto, true).unwrap();
    assert_eq!(serve(dir.path(), 2048, false, Some(Drafts::guessed(guesser))).await, expected);
}
