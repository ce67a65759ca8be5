//! The comparisons and their measures.

use std::sync::Arc;
use std::time::Duration;

use skein_node::clock;
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::sampling::SamplingParams;

use super::run::{BLOCKS_EACH, Cut, SEQUENCES, on_cpu, on_cuda, scores, step, vocab};
use super::sequence::{BLOCK_SIZE, Draw, Sequence, prompt};
use super::subject::{LOGITS_DIFFER, Subject};
use crate::backend::{Backend, Batch, Sampled};
use crate::config::CudaConfig;

/// Tokens drawn step by step.
const DRAWN: usize = 8;
/// Longest wait for decode graphs to be captured.
const CAPTURE_WITHIN: Duration = Duration::from_secs(60);
/// Prompt length for random batches.
const BATCHED: usize = 60;

/// Name, measured value and allowed value of each comparison.
type Results = Result<Vec<(String, f64, f64)>, String>;

/// All comparisons, in order.
pub(super) const ALL: [fn(&Subject<'_>) -> Results; 3] = [agreement, invariance, graphs];

fn eager() -> CudaConfig {
    CudaConfig { enforce_eager: true, ..CudaConfig::default() }
}

/// Logits and best tokens equal the CPU's, for whole prompts and for chunks mixed with others.
fn agreement(subject: &Subject<'_>) -> Results {
    let vocab = vocab(subject)?;
    let draw = |(i, len): (usize, &usize)| prompt(subject.seed + i as u64, *len, vocab);
    let prompts: Vec<Vec<u32>> = subject.lengths.iter().enumerate().map(draw).collect();
    let expected = scores(&mut on_cpu(subject)?, &prompts, vocab, Cut::Whole)?;
    let mut results = Vec::new();
    for (kind, invariant) in [("", false), (", batch-invariant", true)] {
        let backend = &mut on_cuda(subject, CudaConfig { batch_invariant: invariant, ..eager() })?;
        for (how, cut) in [("whole prompts", Cut::Whole), ("mixed chunks", Cut::Random(subject.seed))] {
            let got = scores(backend, &prompts, vocab, cut)?;
            let name = format!("logits of {how}{kind}, relative norm");
            results.push((name, relative_norm(&got, &expected), LOGITS_DIFFER));
            let name = format!("best tokens of {how}{kind}, differing");
            results.push((name, differing_best(&got, &expected), 0.0));
        }
    }
    Ok(results)
}

/// Random batches change no bit.
fn invariance(subject: &Subject<'_>) -> Results {
    let vocab = vocab(subject)?;
    let backend = &mut on_cuda(subject, CudaConfig { batch_invariant: true, ..eager() })?;
    let prompts: Vec<Vec<u32>> =
        (0..u64::from(SEQUENCES)).map(|i| prompt(subject.seed + i, BATCHED, vocab)).collect();
    let expected = bits(&scores(backend, &prompts, vocab, Cut::Whole)?);
    let mut differing = 0;
    for batching in 0..subject.batchings as u64 {
        let got = bits(&scores(backend, &prompts, vocab, Cut::Random(subject.seed ^ batching << 16))?);
        differing += got.iter().zip(&expected).map(|(a, b)| (a ^ b).count_ones() as usize).sum::<usize>();
    }
    let name = format!("differing bits over {} random batchings", subject.batchings);
    Ok(vec![(name, differing as f64, 0.0)])
}

/// Graphs give the same results as eager launches.
fn graphs(subject: &Subject<'_>) -> Results {
    let vocab = vocab(subject)?;
    let expected = generate(&mut on_cuda(subject, eager())?, subject.seed, vocab)?;
    let backend = &mut on_cuda(subject, CudaConfig { enforce_eager: false, ..eager() })?;
    let start = clock::now();
    // Sizes 1, 2, 4 and 8.
    while backend.captured_graphs() < 4 {
        if let Some(why) = backend.capture_refusal() {
            return Err(format!("a decode graph was refused: {why}"));
        }
        if clock::now().since(start) > CAPTURE_WITHIN {
            return Err(format!("{} decode graphs after {CAPTURE_WITHIN:?}", backend.captured_graphs()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let got = generate(backend, subject.seed, vocab)?;
    let differing = got.iter().zip(&expected).filter(|(got, expected)| got != expected).count();
    Ok(vec![("tokens and scores of graphs, differing from eager".into(), differing as f64, 0.0)])
}

/// Greedy and seeded tokens of three sequences, with their scores.
fn generate(backend: &mut dyn Backend, seed: u64, vocab: u32) -> Result<Vec<Sampled>, String> {
    let greedy = SamplingParams { logprobs: Some(3), ..SamplingParams::default() };
    let seeded = SamplingParams { temperature: 0.9, top_p: 0.9, seed: 5, ..greedy.clone() };
    let ways = [&greedy, &seeded, &greedy].map(|way| Arc::new(way.clone()));
    let mut sequences: Vec<Sequence> = (0..3)
        .map(|i| Sequence::new(prompt(seed + i, 9 + i as usize, vocab), i as u32, BLOCKS_EACH, BLOCK_SIZE))
        .collect();
    let mut drawn = Vec::new();
    for _ in 0..DRAWN {
        let mut batch = Batch::default();
        for (sequence, way) in sequences.iter_mut().zip(&ways) {
            sequence.put(&mut batch, sequence.left());
            sequence.sample(&mut batch, way, Draw { prompt_len: 1, ..Draw::default() });
        }
        let samples: Vec<Sampled> = step(backend, batch)?.drawn().cloned().collect();
        sequences.iter_mut().zip(&samples).for_each(|(sequence, it)| sequence.tokens.push(it.token));
        drawn.extend(samples);
    }
    Ok(drawn)
}

/// |got - expected| / |expected|, both without each row's mean.
fn relative_norm(got: &[Vec<TokenLogprobs>], expected: &[Vec<TokenLogprobs>]) -> f64 {
    let (mut difference, mut norm) = (0.0, 0.0);
    for (got, expected) in got.iter().zip(expected) {
        for (got, expected) in centred(got).into_iter().zip(centred(expected)) {
            difference += (got - expected).powi(2);
            norm += expected.powi(2);
        }
    }
    (difference / norm).sqrt()
}

fn centred(row: &[TokenLogprobs]) -> Vec<f64> {
    let mean = row.iter().map(|it| f64::from(it.logprob)).sum::<f64>() / row.len() as f64;
    row.iter().map(|it| f64::from(it.logprob) - mean).collect()
}

/// Rows with a different best token although the CPU's leads by more than twice the largest error
/// of that row.
fn differing_best(got: &[Vec<TokenLogprobs>], expected: &[Vec<TokenLogprobs>]) -> f64 {
    let differs = |(got, expected): &(&Vec<TokenLogprobs>, &Vec<TokenLogprobs>)| {
        let errors = got.iter().zip(*expected).map(|(a, b)| (a.logprob - b.logprob).abs());
        let error = errors.fold(0f32, f32::max);
        let (got, expected) = (&got[0].top, &expected[0].top);
        expected[0].1 - expected[1].1 > 2.0 * error && got[0].0 != expected[0].0
    };
    got.iter().zip(expected).filter(differs).count() as f64
}

fn bits(rows: &[Vec<TokenLogprobs>]) -> Vec<u32> {
    let of = |it: &TokenLogprobs| {
        let top = it.top.iter().flat_map(|(token, logprob)| [*token, logprob.to_bits()]);
        std::iter::once(it.logprob.to_bits()).chain(top).collect::<Vec<_>>()
    };
    rows.iter().flatten().flat_map(of).collect()
}
