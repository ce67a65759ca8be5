//! Cut at every position and resumed on another engine, a request must produce the tokens, log-probability
//! bits and finish reasons of the uninterrupted one.

use std::sync::Arc;

use safetensors::Dtype;
use serde_json::json;
use skein_proto::finish::FinishReason;
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::sampling::SamplingParams;
use skein_worker::TokenId;
use skein_worker::backend::Backend;
use skein_worker::engine::Submission;
use skein_worker::kv_cache::CacheScope;
use skein_worker::scheduler::{NewRequest, NewSample, RequestKey};
use skein_worker::streams::TokenStream;

use crate::batches::{KINDS, backend_of, small_backend, start};
use crate::groups::group;
use crate::ranks::make;
use crate::windows::{WINDOWED, with_windows};

const KV_BLOCKS: u32 = 200;
const MAX_TOKENS: u32 = 14;

/// Output of one sample: tokens, log-probability bits and finish reason.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Output {
    pub tokens: Vec<TokenId>,
    logprobs: Vec<Bits>,
    finish: Option<FinishReason>,
}

/// A log-probability, its rank, and the most probable tokens.
type Bits = (u32, u32, Vec<(TokenId, u32)>);

impl Output {
    fn extend_logprobs(&mut self, logprobs: Vec<TokenLogprobs>) {
        self.logprobs.extend(logprobs.into_iter().map(|entry| {
            let top = entry.top.into_iter().map(|(token, logprob)| (token, logprob.to_bits())).collect();
            (entry.logprob.to_bits(), entry.rank, top)
        }));
    }

    /// Output after the first `count` tokens.
    fn after(&self, count: usize) -> Self {
        let logprobs = self.logprobs.get(count..).unwrap_or_default().to_vec();
        Self { tokens: self.tokens[count..].to_vec(), logprobs, finish: self.finish }
    }
}

fn cases() -> Vec<(&'static str, u32, SamplingParams)> {
    let greedy = SamplingParams { max_tokens: MAX_TOKENS, ..SamplingParams::default() };
    let seeded = SamplingParams { temperature: 1.2, top_p: 0.95, seed: 5, ..greedy.clone() };
    let penalties = SamplingParams {
        repetition_penalty: 1.3,
        presence_penalty: 0.4,
        frequency_penalty: 0.7,
        ..seeded.clone()
    };
    // About two thirds of the pairs of these tokens are banned, so the set of banned tokens changes with
    // every token.
    let allowed = SamplingParams { allowed_token_ids: (2..12).collect(), ..seeded.clone() };
    let bad_words =
        (2..12).flat_map(|a| (2..12).map(move |b| vec![a, b])).filter(|word| (word[0] + word[1]) % 3 != 0);
    let bias = (0..20).map(|token| (token * 3, 2.0)).collect();
    let stops = SamplingParams { stop_token_ids: (0..80).collect(), min_tokens: 5, ..seeded.clone() };
    vec![
        ("greedy", 1, greedy),
        ("seeded", 1, seeded.clone()),
        ("penalties", 1, penalties.clone()),
        ("logit_bias", 1, SamplingParams { logit_bias: bias, ..seeded.clone() }),
        ("allowed tokens", 1, SamplingParams { allowed_token_ids: vec![3, 5, 7, 8, 9], ..seeded.clone() }),
        ("bad words", 1, SamplingParams { bad_words: bad_words.collect(), ..allowed.clone() }),
        ("n", 3, seeded.clone()),
        ("logprobs", 1, SamplingParams { logprobs: Some(2), ..seeded }),
        ("stop tokens and min_tokens", 4, stops),
        ("penalties, n and logprobs", 2, SamplingParams { logprobs: Some(0), ..penalties }),
    ]
}

fn request(params: &SamplingParams, samples: Vec<NewSample>) -> NewRequest {
    NewRequest {
        key: RequestKey(0),
        prompt: (0..11).map(|at| (at * at + 7 * at) % 120 + 2).collect(),
        params: Arc::new(params.clone()),
        samples,
        scope: CacheScope::new("model", ""),
        call: None,
        priority: 0,
        deadline: None,
        adapter: None,
    }
}

pub async fn read(mut stream: TokenStream, n: usize) -> Vec<Output> {
    let mut outputs = vec![Output::default(); n];
    while let Some(deltas) = stream.next().await {
        for delta in deltas.unwrap() {
            let output = &mut outputs[delta.sample_index as usize];
            output.tokens.extend(delta.tokens);
            output.extend_logprobs(delta.logprobs);
            output.finish = output.finish.or(delta.finish);
        }
    }
    outputs
}

#[tokio::test]
async fn a_request_cut_at_any_position_continues_elsewhere_bit_for_bit() {
    for model in KINDS {
        let backend = || small_backend(model, KV_BLOCKS);
        check(model, backend, backend).await;
    }
}

#[tokio::test]
async fn a_request_continues_with_other_numbers_of_ranks_and_stages_bit_for_bit() {
    let model = make("llama-gqa", Dtype::F32, json!({"num_hidden_layers": 4, "vocab_size": 256}));
    let path = model.path().to_str().unwrap();
    let alone = || small_backend(path, KV_BLOCKS);
    check("1 to 4", alone, || group(model.path(), (4, 1), KV_BLOCKS)).await;
    check("2 x 2 to 1", || group(model.path(), (2, 2), KV_BLOCKS), alone).await;
}

#[tokio::test]
async fn a_request_continues_with_and_without_window_blocks_bit_for_bit() {
    for model in WINDOWED {
        let windowed = || backend_of(model, with_windows(model, KV_BLOCKS, 8));
        let plain = || small_backend(model, KV_BLOCKS);
        check(&format!("{model}, to windows"), plain, windowed).await;
        check(&format!("{model}, from windows"), windowed, plain).await;
    }
}

/// Starts requests on one backend and continues them on another.
async fn check<A: Backend + 'static, B: Backend + 'static>(
    model: &str,
    first: impl Fn() -> A,
    second: impl Fn() -> B,
) {
    let (handle, running) = start(first(), true, 1000);
    let mut wholes = Vec::new();
    for (name, n, params) in cases() {
        let samples = (0..n).map(|index| NewSample { index, delivered: Vec::new() }).collect();
        let stream = handle.submit(Submission::alone(name, request(&params, samples))).await.unwrap();
        wholes.push(read(stream, n as usize).await);
    }
    handle.stop().await;
    running.join().unwrap().unwrap();
    let all = || wholes.iter().flatten();
    assert!(all().any(|output| matches!(output.finish, Some(FinishReason::Stop(_)))), "{model}");
    for share_prefixes in [true, false] {
        let (handle, running) = start(second(), share_prefixes, 1000);
        let mut cuts = Vec::new();
        for ((name, n, params), whole) in cases().into_iter().zip(&wholes) {
            for cut in 0..MAX_TOKENS as usize {
                let (samples, expected) = cut_at(cut, n, whole);
                if !samples.is_empty() {
                    let id = format!("{name}, cut at {cut}");
                    let submission = Submission::alone(id.clone(), request(&params, samples));
                    cuts.push((id, handle.submit(submission).await.unwrap(), expected));
                }
            }
        }
        for (id, stream, expected) in cuts {
            let got = read(stream, expected.len()).await;
            assert_eq!(got, expected, "{model}, {id}, prefixes shared: {share_prefixes}");
        }
        handle.stop().await;
        running.join().unwrap().unwrap();
    }
}

/// Samples to resume, each cut at a different position, and their expected output. Omits samples that have
/// ended.
fn cut_at(cut: usize, n: u32, whole: &[Output]) -> (Vec<NewSample>, Vec<Output>) {
    let had = |index: u32| (cut + 3 * index as usize) % MAX_TOKENS as usize;
    let mut samples = Vec::new();
    let mut expected = Vec::new();
    for (index, output) in (0..n).zip(whole) {
        let asked = had(index) <= output.tokens.len();
        expected.push(if asked { output.after(had(index)) } else { Output::default() });
        if asked {
            samples.push(NewSample { index, delivered: output.tokens[..had(index)].to_vec() });
        }
    }
    (samples, expected)
}
