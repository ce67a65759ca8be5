//! Cases of the `sample` and `score` modules of [`skein_kernels::cuda::ops`]: random parameters and logits,
//! compared with the CPU's tokens and log-probabilities.

mod draws;

use super::Scale;
use super::case::{Bench, Tolerance};
use draws::Draws;
use skein_kernels::cpu::sample::{self, Sampling, Scratch};
use skein_kernels::cpu::simd::Isa;
use skein_kernels::cuda::CudaError;
use skein_kernels::cuda::graph::Graph;
use skein_kernels::cuda::ops::sample::{NONE, SampleBatch, SampleParams, Sampler, Stages};
use skein_kernels::cuda::ops::score::{MAX_TOP, ScoreBatch, ScoreParams, Scored, Scorer, Targets};

/// (vocabulary, values from row to row, rows, samples, batches)
type BatchShape = (usize, usize, usize, usize, usize);

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let shapes: &[BatchShape] = match bench.scale {
        Scale::Small => {
            &[(7, 7, 5, 40, 2), (300, 301, 9, 60, 4), (4096, 4096, 3, 24, 1), (9001, 9004, 3, 20, 1)]
        }
        Scale::Full => &[
            (7, 7, 5, 40, 20),
            (300, 301, 9, 250, 20),
            (9001, 9004, 16, 200, 20),
            (32_000, 32_000, 16, 200, 10),
            (128_256, 128_256, 16, 100, 10),
            (262_144, 262_144, 8, 64, 4),
        ],
    };
    for &shape in shapes {
        draws(bench, shape, "", Draws::random)?;
        scores(bench, shape)?;
    }
    let tied: &[BatchShape] = match bench.scale {
        Scale::Small => &[(60, 64, 6, 60, 2), (300, 301, 6, 60, 2), (9001, 9004, 4, 40, 1)],
        Scale::Full => &[(60, 64, 16, 200, 20), (9001, 9004, 16, 200, 20), (128_256, 128_256, 16, 100, 10)],
    };
    tied.iter().try_for_each(|&shape| draws(bench, shape, ", cuts among ties", Draws::tied))
}

/// Batches made by `draw`; `kind` is a part of the case's name.
fn draws(
    bench: &mut Bench,
    shape: BatchShape,
    kind: &str,
    draw: fn(&mut Bench, BatchShape) -> Draws,
) -> Result<(), CudaError> {
    let (vocab, stride, rows, count, batches) = shape;
    let name = format!("sample {vocab} tokens, {count} samples of {rows} rows{kind}");
    if !bench.wants(&name) {
        return Ok(());
    }
    let sampler = Sampler::new(&bench.kernels)?;
    let capacity = count + 2;
    let workspace = bench.upload(&vec![0u8; Sampler::workspace_bytes(capacity, vocab)])?;
    let (mut got, mut reference, mut states, mut usable) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (isa, mut scratch) = (Isa::best(), Scratch::default());
    let (mut outside, mut past_the_count) = (0, 0);
    for _ in 0..batches {
        let mut draws = draw(bench, shape);
        let (tokens, status) = (bench.output::<u32>(capacity)?, bench.output::<u32>(capacity)?);
        let mut padded = draws.samples.clone();
        padded.resize(capacity, SampleParams::greedy(0));
        let stages = draws.samples.iter().map(Stages::of).fold(Stages::Greedy, Stages::with);
        let (logits, samples) = (bench.upload(&draws.logits)?, bench.upload(&padded)?);
        let (bias_tokens, bias_values) =
            (bench.upload(&draws.bias_tokens)?, bench.upload(&draws.bias_values)?);
        let (forbidden, history) = (bench.upload(&draws.forbidden)?, bench.upload(&draws.history)?);
        let (masks, previous) = (bench.upload(&draws.masks)?, bench.upload(&draws.previous)?);
        let number = bench.upload(&[count as u32])?;
        let batch = SampleBatch {
            logits: *logits,
            stride,
            vocab,
            samples: *samples,
            count: *number,
            bias_tokens: *bias_tokens,
            bias_values: *bias_values,
            forbidden: *forbidden,
            history: *history,
            masks: *masks,
            previous: *previous,
            tokens: *tokens,
            status: *status,
            workspace: *workspace,
            stages,
        };
        // Captured once and replayed with other and fewer samples: everything that changes is in device
        // memory.
        let graph = Graph::capture(&bench.stream, || sampler.launch(&bench.stream, batch))?;
        for count in [count, count - 1] {
            if count < draws.samples.len() {
                draws.reseed(bench);
                padded[..draws.samples.len()].copy_from_slice(&draws.samples);
                samples.write(&bench.stream, &padded)?;
                number.write(&bench.stream, &[count as u32])?;
            }
            tokens.fill_bytes(&bench.stream, 0xff)?;
            graph.launch(&bench.stream)?;
            let drawn = tokens.read(&bench.stream)?;
            outside += drawn[..count].iter().filter(|token| **token as usize >= vocab).count();
            past_the_count += drawn[count..].iter().filter(|token| **token != u32::MAX).count();
            for (i, token) in drawn[..count].iter().enumerate() {
                let logits = draws.row(i);
                usable.push(u32::from(!sample::is_usable(isa, logits)));
                if sample::is_usable(isa, logits) {
                    got.push(*token);
                    let draw = |sampling: &Sampling<'_>| sample::draw(isa, logits, sampling, &mut scratch);
                    reference.push(draws.with_sampling(i, draw));
                }
            }
            states.extend_from_slice(&status.read(&bench.stream)?[..count]);
        }
    }
    bench.compare_exact(&format!("{name}, {} tokens", got.len()), &got, &reference);
    bench.compare_exact(&format!("{name}, usable"), &states, &usable);
    let misplaced = [outside, past_the_count];
    bench.compare_exact(&format!("{name}, of the vocabulary, and no more than asked"), &misplaced, &[0, 0]);
    Ok(())
}

fn scores(bench: &mut Bench, shape: BatchShape) -> Result<(), CudaError> {
    let (vocab, stride, rows, count, _) = shape;
    let name = format!("score {vocab} tokens, {count} of {rows} rows");
    if !bench.wants(&name) {
        return Ok(());
    }
    let draws = Draws::random(bench, shape);
    let targets: Vec<ScoreParams> = (0..count)
        .map(|i| ScoreParams {
            row: draws.samples[i].row,
            target: bench.below(vocab as u32),
            top: [0, 1, 5, MAX_TOP as u32][bench.below(4) as usize],
        })
        .collect();
    // The same entries as if they had been sampled; the last one wants no log-probabilities.
    let tokens: Vec<u32> = targets.iter().map(|target| target.target).collect();
    let mut samples = draws.samples.clone();
    samples.iter_mut().zip(&targets).for_each(|(sample, target)| sample.logprobs = target.top);
    samples[count - 1].logprobs = NONE;

    let workspace = bench.upload(&vec![0u8; Scorer::workspace_bytes(count, vocab)])?;
    let (logits, number) = (bench.upload(&draws.logits)?, bench.upload(&[count as u32])?);
    let (given, samples, tokens) = (bench.upload(&targets)?, bench.upload(&samples)?, bench.upload(&tokens)?);
    let scorer = Scorer::new(&bench.kernels)?;
    let mut results = Vec::new();
    for targets in [Targets::Given(*given), Targets::Drawn(*samples, *tokens)] {
        let out = bench.output::<Scored>(count)?;
        let batch = ScoreBatch {
            logits: *logits,
            stride,
            vocab,
            targets,
            count: *number,
            out: *out,
            workspace: *workspace,
        };
        scorer.launch(&bench.stream, batch)?;
        results.push(out.read(&bench.stream)?);
    }
    let is_usable: Vec<bool> = (0..count).map(|i| sample::is_usable(Isa::best(), draws.row(i))).collect();
    let flat = |scored: &Scored| {
        let len = (scored.top_len as usize).min(MAX_TOP);
        (scored.rank, scored.top_tokens[..len].to_vec())
    };
    let logprobs = |scored: &Scored| {
        let len = (scored.top_len as usize).min(MAX_TOP);
        [&[scored.logprob], &scored.top_logprobs[..len]].concat()
    };
    let (mut ranks, mut wanted, mut got, mut reference) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for i in (0..count).filter(|i| is_usable[*i]) {
        let ScoreParams { target, top, .. } = targets[i];
        let exact = sample::score(Isa::best(), draws.row(i), target, top as usize, &mut Scratch::default());
        ranks.push(flat(&results[0][i]));
        wanted.push((exact.rank, exact.top.iter().map(|(token, _)| *token).collect::<Vec<_>>()));
        got.extend(logprobs(&results[0][i]));
        reference.push(exact.logprob);
        reference.extend(exact.top.iter().map(|(_, logprob)| *logprob));
    }
    let states: Vec<bool> = results[0].iter().map(|scored| scored.status == 0).collect();
    bench.compare_exact(&format!("{name}, ranks and best"), &ranks, &wanted);
    got.resize(reference.len(), f32::NAN);
    bench.compare(&name, &got, &reference, Tolerance { absolute: 1e-4, relative: 1e-6 });
    bench.compare_exact(&format!("{name}, usable"), &states, &is_usable);
    let as_bits =
        |scored: &Scored| (flat(scored), logprobs(scored).iter().map(|it| it.to_bits()).collect::<Vec<_>>());
    let given: Vec<_> = results[0][..count - 1].iter().map(as_bits).collect();
    let drawn: Vec<_> = results[1][..count - 1].iter().map(as_bits).collect();
    bench.compare_exact(&format!("{name}, drawn"), &drawn, &given);
    bench.compare_exact(&format!("{name}, not asked"), &[results[1][count - 1].rank], &[u32::MAX]);
    Ok(())
}
