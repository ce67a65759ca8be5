//! The backend as the engine drives it: launch, collect, tokens and log-probabilities.

use std::sync::Arc;

use skein_proto::sampling::SamplingParams;
use skein_worker::backend::cpu::{CpuBackend, CpuOptions, NumberTypes};
use skein_worker::backend::{Backend, BackendError, Batch, PoolRows, ScoreRow, VerifyRows, Want};
use skein_worker::check::Sequence;

use crate::batches::{BLOCK_SIZE, golden, load, sample, sequence_of};

const PROMPT: [u32; 9] = [73, 99, 151, 176, 26, 250, 230, 84, 58];

fn backend() -> CpuBackend {
    let options = CpuOptions {
        threads: 2,
        kv_blocks: 256,
        window_blocks: None,
        state_slots: 16,
        block_size: BLOCK_SIZE,
        max_rows: 64,
        numbers: NumberTypes::STORED,
    };
    let mut last = None;
    let backend =
        CpuBackend::load(&golden("llama-gqa"), options, &mut |done, total| last = Some((done, total)))
            .unwrap();
    assert!(last.is_some_and(|(done, total)| done == total && total > 0), "loading ends at all bytes");
    assert_eq!(backend.kv_blocks(), 256);
    backend
}

/// Draws `count` tokens after the prompt, alone or behind others in the batch.
fn generate(
    backend: &mut CpuBackend,
    params: SamplingParams,
    count: usize,
    prompt_len: usize,
    start: &[u32],
    others: u32,
) -> Vec<u32> {
    let params = Arc::new(params);
    let mut sequence = sequence_of([&PROMPT, start].concat(), 0, BLOCK_SIZE);
    let mut company: Vec<Sequence> = (1..=others).map(|i| sequence_of(vec![i; 100], i, BLOCK_SIZE)).collect();
    for _ in 0..count {
        let mut batch = Batch::default();
        for other in &mut company {
            other.put(&mut batch, 3);
            sample(other, &mut batch, &params, 1);
        }
        let left = sequence.tokens.len() - sequence.computed;
        sequence.put(&mut batch, left);
        sample(&sequence, &mut batch, &params, prompt_len as u32);
        let step = backend.launch(batch).unwrap();
        let token = backend.collect(step).unwrap().drawn().last().unwrap().token;
        sequence.tokens.push(token);
    }
    sequence.tokens.split_off(PROMPT.len())
}

#[test]
fn a_request_resumed_anywhere_draws_the_same_tokens() {
    let backend = &mut backend();
    let greedy = SamplingParams::default();
    let seeded =
        SamplingParams { temperature: 1.2, top_p: 0.95, top_k: 50, seed: 7, ..SamplingParams::default() };
    let penalties = SamplingParams {
        repetition_penalty: 1.3,
        frequency_penalty: 0.4,
        presence_penalty: 0.2,
        ..seeded.clone()
    };
    for params in [greedy, seeded, penalties] {
        let whole = generate(backend, params.clone(), 20, PROMPT.len(), &[], 0);
        for cut in 0..20 {
            let rest =
                generate(backend, params.clone(), 20 - cut, PROMPT.len(), &whole[..cut], cut as u32 % 4);
            assert_eq!(rest, whole, "{params:?} cut at {cut}");
        }
    }
}

#[test]
fn two_steps_may_be_under_way() {
    let backend = &mut backend();
    let params = Arc::new(SamplingParams::default());
    let steps: Vec<_> = (0..2)
        .map(|i| {
            let mut batch = Batch::default();
            let mut sequence = sequence_of(PROMPT[..4 + i].to_vec(), i as u32, BLOCK_SIZE);
            sequence.put(&mut batch, 4 + i);
            sample(&sequence, &mut batch, &params, 4);
            backend.launch(batch).unwrap()
        })
        .collect();
    for step in steps {
        assert_eq!(backend.collect(step).unwrap().drawn().count(), 1);
    }
}

#[test]
fn scores_and_samples_are_read_from_their_rows() {
    let backend = &mut backend();
    let mut batch = Batch::default();
    let mut sequence = sequence_of(PROMPT.repeat(5), 0, BLOCK_SIZE);
    sequence.put(&mut batch, 45);
    let reference = load("llama-gqa", 1, BLOCK_SIZE).logits(&batch, &(0..45).collect::<Vec<_>>());
    // More rows than fit in memory at once, out of order and with repeats.
    let rows = (0..44u32).rev().chain([3, 3]);
    let scores: Vec<ScoreRow> =
        rows.map(|row| ScoreRow { row, target: sequence.tokens[row as usize + 1], top: row % 3 }).collect();
    batch.wants = scores.iter().copied().map(Want::Score).collect();
    let params = Arc::new(SamplingParams { logprobs: Some(4), ..SamplingParams::default() });
    sample(&sequence, &mut batch, &params, 45);
    let step = backend.launch(batch).unwrap();
    let output = backend.collect(step).unwrap();
    assert_eq!(output.scores().count(), 46);
    for (score, got) in scores.iter().zip(output.scores()) {
        let logits = &reference[score.row as usize];
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        let exact = f64::from(logits[score.target as usize]) - sum.ln();
        assert!((f64::from(got.logprob) - exact).abs() < 1e-5, "row {}", score.row);
        assert_eq!((got.token, got.top.len()), (score.target, score.top as usize));
    }
    let sampled = output.drawn().next().unwrap();
    let logprobs = sampled.logprobs.as_ref().unwrap();
    assert_eq!((logprobs.token, logprobs.rank, logprobs.top.len()), (sampled.token, 1, 4));
    assert_eq!(logprobs.top[0], (sampled.token, logprobs.logprob));
}

#[test]
fn a_draft_is_verified_by_the_tokens_of_plain_decoding() {
    let params =
        SamplingParams { temperature: 1.0, seed: 9, repetition_penalty: 1.2, ..SamplingParams::default() };
    let backend = &mut backend();
    let expected = generate(backend, params.clone(), 5, PROMPT.len(), &[], 0);
    let (params, prompt_len) = (Arc::new(params), PROMPT.len() as u32);
    for right in 0..=4 {
        let token = |(at, token): (usize, &u32)| if at == right { token ^ 1 } else { *token };
        let draft: Vec<u32> = expected[..4].iter().enumerate().map(token).collect();
        let mut batch = Batch::default();
        let mut sequence = sequence_of([&PROMPT[..], &draft].concat(), 0, BLOCK_SIZE);
        sequence.put(&mut batch, PROMPT.len() + draft.len());
        batch.history.extend_from_slice(&sequence.tokens);
        batch.wants.push(Want::Verify(VerifyRows {
            rows: prompt_len - 1..prompt_len + draft.len() as u32,
            params: Arc::clone(&params),
            sample_index: 0,
            position: prompt_len,
            stop_from: 0,
            history: 0..batch.history.len() as u32,
            prompt_len,
            masks: Vec::new(),
        }));
        let step = backend.launch(batch).unwrap();
        let output = backend.collect(step).unwrap();
        let got: Vec<u32> = output.drawn().map(|sampled| sampled.token).collect();
        assert_eq!(got, expected[..=right], "the first {right} tokens of the draft are right");
    }
}

#[test]
fn what_this_backend_cannot_give_is_said() {
    let backend = &mut backend();
    let mut batch = Batch::default();
    sequence_of(PROMPT.into(), 0, BLOCK_SIZE).put(&mut batch, 9);
    batch.wants.push(Want::Pool(PoolRows { rows: 8..9, second_from: None }));
    let step = backend.launch(batch).unwrap();
    let error = backend.collect(step).unwrap_err();
    assert!(matches!(error, BackendError::Unsupported { backend: "cpu", .. }), "{error}");
}

#[test]
fn a_malformed_batch_ends_the_backend_with_its_reason() {
    let backend = &mut backend();
    let mut batch = Batch::default();
    sequence_of(vec![9999], 0, BLOCK_SIZE).put(&mut batch, 1);
    let step = backend.launch(batch).unwrap();
    match backend.collect(step) {
        Err(BackendError::Stopped { reason, .. }) => assert!(reason.contains("9999"), "{reason}"),
        other => panic!("a token outside the vocabulary gave {other:?}"),
    }
    assert!(
        backend.launch(Batch::default()).is_err()
            || backend.collect(skein_worker::backend::StepHandle(2)).is_err()
    );
}
