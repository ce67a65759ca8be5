//! Sampled tokens: equal to the CPU's, carried from step to step on the device, and replayed by graphs.

use std::sync::Arc;
use std::time::Duration;

use skein_node::clock;
use skein_proto::sampling::SamplingParams;
use skein_worker::backend::cuda::CudaBackend;
use skein_worker::backend::{Backend, Batch, BlockCopy, Sampled, StepOutput};
use skein_worker::check::Sequence;
use skein_worker::config::CudaConfig;

use crate::models::LLAMA;
use crate::runs::{eager, on_cpu, on_cuda, prompt, sample, sequence_of, step};

/// One of each sampling method.
fn ways() -> Vec<Arc<SamplingParams>> {
    let plain = SamplingParams { logprobs: Some(3), ..SamplingParams::default() };
    let seeded = SamplingParams { temperature: 0.9, seed: 5, ..SamplingParams::default() };
    let cut = SamplingParams { top_p: 0.9, top_k: 40, min_p: 0.01, seed: 1 << 40, ..seeded.clone() };
    let penalties = SamplingParams {
        repetition_penalty: 1.3,
        presence_penalty: 0.4,
        frequency_penalty: 0.3,
        logprobs: Some(20),
        ..SamplingParams::default()
    };
    let biased = SamplingParams {
        logit_bias: vec![(17, 2.5), (3, -100.0), (299, 1.0)],
        stop_token_ids: vec![1, 2, 40],
        presence_penalty: 0.1,
        ..seeded.clone()
    };
    [plain, seeded, cut, penalties, biased].into_iter().map(Arc::new).collect()
}

/// Draws `count` tokens with each method in one batch: first the prompts, then one token per step. The next
/// input is the token in `feed`, or else the drawn one.
fn generate(backend: &mut dyn Backend, count: usize, feed: Option<&[Vec<Sampled>]>) -> Vec<Vec<Sampled>> {
    let ways = ways();
    let mut sequences: Vec<Sequence> =
        (0..ways.len()).map(|i| sequence_of(prompt(i as u32, 5 + 2 * i), i as u32)).collect();
    let mut drawn = Vec::new();
    for turn in 0..count {
        let mut batch = Batch::default();
        for (sequence, way) in sequences.iter_mut().zip(&ways) {
            let left = sequence.tokens.len() - sequence.computed;
            sequence.put(&mut batch, left);
            sample(sequence, &mut batch, way, 0, None);
        }
        let samples: Vec<Sampled> = step(backend, batch).drawn().cloned().collect();
        let fed = feed.map_or(&samples, |feed| &feed[turn]);
        sequences.iter_mut().zip(fed).for_each(|(sequence, sampled)| sequence.tokens.push(sampled.token));
        drawn.push(samples);
    }
    drawn
}

/// The same with step N + 1 launched before step N's tokens are read.
fn generate_overlapped(backend: &mut dyn Backend, count: usize) -> Vec<Vec<Sampled>> {
    let ways = ways();
    let mut sequences: Vec<Sequence> =
        (0..ways.len()).map(|i| sequence_of(prompt(i as u32, 5 + 2 * i), i as u32)).collect();
    let (mut under_way, mut drawn) = (None, Vec::new());
    let mut collect = |backend: &mut dyn Backend, sequences: &mut [Sequence], step| {
        let samples: Vec<Sampled> = backend.collect(step).unwrap().drawn().cloned().collect();
        sequences
            .iter_mut()
            .zip(&samples)
            .for_each(|(sequence, sampled)| sequence.tokens.push(sampled.token));
        drawn.push(samples);
    };
    for turn in 0..count {
        let mut batch = Batch::default();
        for (i, (sequence, way)) in sequences.iter_mut().zip(&ways).enumerate() {
            let (rows, carried) = if turn == 0 { (sequence.tokens.len(), None) } else { (1, Some(i as u32)) };
            sequence.put_carried(&mut batch, rows, carried);
            sample(sequence, &mut batch, way, 0, carried);
        }
        let step = backend.launch(batch).unwrap();
        if let Some(before) = under_way.replace(step) {
            collect(backend, &mut sequences, before);
        }
    }
    collect(backend, &mut sequences, under_way.unwrap());
    drawn
}

#[test]
fn tokens_are_those_of_the_cpu() {
    if !skein_cuda_emulation::load() {
        return;
    }
    const TURNS: usize = 30;
    let dir = LLAMA.make(7);
    let expected = generate(&mut on_cpu(dir.path()), TURNS, None);
    let got = generate(&mut on_cuda(dir.path(), eager()), TURNS, Some(&expected));
    let mut differing = [0; 5];
    for (turn, (got, expected)) in got.iter().zip(&expected).enumerate() {
        for (way, (got, expected)) in got.iter().zip(expected).enumerate() {
            differing[way] += usize::from(got.token != expected.token);
            let (Some(a), Some(b)) = (&got.logprobs, &expected.logprobs) else { continue };
            assert_eq!(a.top.len(), b.top.len());
            if got.token == expected.token {
                assert!((a.logprob - b.logprob).abs() < 0.06, "turn {turn}: {a:?} is not {b:?}");
            }
        }
    }
    // Rounding to bf16 decides between nearly equal tokens. A wrong seed or a lost penalty would differ
    // nearly always.
    assert!(differing.iter().all(|differing| *differing <= 3), "of {TURNS} draws each: {differing:?} differ");
}

#[test]
fn overlapped_steps_draw_the_same_tokens() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let dir = LLAMA.make(7);
    let expected = generate(&mut on_cuda(dir.path(), eager()), 12, None);
    assert!(generate_overlapped(&mut on_cuda(dir.path(), eager()), 12) == expected);
}

fn with_graphs(dir: &std::path::Path) -> CudaBackend {
    let backend = on_cuda(dir, CudaConfig { enforce_eager: false, ..eager() });
    let start = clock::now();
    // Sizes 1, 2, 4 and 6.
    while backend.captured_graphs() < 4 {
        assert!(clock::now().since(start) < Duration::from_secs(20), "{} graphs", backend.captured_graphs());
        std::thread::sleep(Duration::from_millis(5));
    }
    backend
}

#[test]
fn graphs_replay_the_same_bits() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let dir = LLAMA.make(9);
    let expected = generate(&mut on_cuda(dir.path(), eager()), 12, None);
    let backend = &mut with_graphs(dir.path());
    assert!(generate(backend, 12, None) == expected);
    assert!(generate_overlapped(backend, 12) == expected);
}

#[test]
fn samples_of_one_prompt_part_in_copies_of_its_last_block() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let dir = LLAMA.make(3);
    let backend = &mut with_graphs(dir.path());
    let way = Arc::new(SamplingParams { temperature: 1.0, seed: 3, ..SamplingParams::default() });
    let alone = |backend: &mut CudaBackend, index: u32, place: u32| {
        let mut sequence = sequence_of(prompt(4, 20), place);
        for _ in 0..6 {
            let mut batch = Batch::default();
            let left = sequence.tokens.len() - sequence.computed;
            sequence.put(&mut batch, left);
            sample(&sequence, &mut batch, &way, index, None);
            sequence.tokens.push(drawn(&step(backend, batch))[0]);
        }
        sequence.tokens
    };
    let expected = [alone(backend, 0, 4), alone(backend, 1, 5)];
    assert_ne!(expected[0], expected[1], "two samples of one seed are two streams");

    let mut parent = sequence_of(prompt(4, 20), 0);
    let mut batch = Batch::default();
    parent.put(&mut batch, 20);
    sample(&parent, &mut batch, &way, 0, None);
    sample(&parent, &mut batch, &way, 1, None);
    let first = drawn(&step(backend, batch));
    let mut fork = parent.clone();
    fork.blocks = sequence_of(Vec::new(), 1).blocks;
    fork.blocks[0] = parent.blocks[0];
    let mut copies = vec![BlockCopy { from: parent.blocks[1], to: fork.blocks[1] }];
    parent.tokens.push(first[0]);
    fork.tokens.push(first[1]);
    for _ in 0..5 {
        let mut batch = Batch { copies: std::mem::take(&mut copies), ..Batch::default() };
        parent.put(&mut batch, 1);
        sample(&parent, &mut batch, &way, 0, None);
        fork.put(&mut batch, 1);
        sample(&fork, &mut batch, &way, 1, None);
        let samples = drawn(&step(backend, batch));
        parent.tokens.push(samples[0]);
        fork.tokens.push(samples[1]);
    }
    assert_eq!([parent.tokens, fork.tokens], expected);
}

fn drawn(output: &StepOutput) -> Vec<u32> {
    output.drawn().map(|sampled| sampled.token).collect()
}
