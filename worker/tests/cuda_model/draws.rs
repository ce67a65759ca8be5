//! Sampled tokens: equal to the CPU's, carried from step to step on the device, and replayed by graphs.

use std::sync::Arc;
use std::time::Duration;

use skein_grammar::Mask;
use skein_node::clock;
use skein_proto::sampling::SamplingParams;
use skein_worker::backend::cuda::CudaBackend;
use skein_worker::backend::{
    Allowed, Answer, Backend, Batch, BlockCopy, MaskSlot, Sampled, StepOutput, VerifyRows, Want,
};
use skein_worker::check::Sequence;
use skein_worker::config::CudaConfig;

use crate::models::{KINDS, LATENTS, LLAMA};
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

/// Sampling parameters with forbidden tokens.
fn limited_ways() -> Vec<Arc<SamplingParams>> {
    let seeded = SamplingParams { temperature: 1.1, seed: 5, ..SamplingParams::default() };
    let listed = SamplingParams { allowed_token_ids: (0..24).map(|i| i * 7 + 3).collect(), ..seeded.clone() };
    let words = SamplingParams {
        bad_words: (0..280).filter(|token| token % 3 == 0).map(|token| vec![token]).collect(),
        ..seeded.clone()
    };
    let pairs = SamplingParams {
        allowed_token_ids: (20..26).collect(),
        bad_words: (20..26)
            .flat_map(|a| (20..26).map(move |b| vec![a, b]))
            .filter(|w| w[0] >= w[1] && w[0] < 25)
            .collect(),
        presence_penalty: 0.2,
        ..seeded.clone()
    };
    let masked = SamplingParams { top_k: 20, stop_token_ids: vec![8], ..seeded };
    [listed, words, pairs, masked].into_iter().map(Arc::new).collect()
}

/// Mask of the grammar of the last of [`limited_ways`] at `turn`.
fn grammar(turn: usize) -> Mask {
    let mut mask = Mask::none(300);
    (0..300).filter(|token| token % (turn as u32 % 5 + 2) == 0).for_each(|token| mask.allow(token));
    mask
}

/// Whether the last of `tokens` may follow the others.
fn is_allowed(way: usize, turn: usize, tokens: &[u32]) -> bool {
    let [.., before, last] = *tokens else { return false };
    match way {
        0 => last < 24 * 7 && last % 7 == 3,
        1 => last >= 280 || last % 3 != 0,
        // Any token may follow 25: if none could, CPU and GPU would draw different tokens of the list.
        2 => (20..26).contains(&last) && (turn == 0 || before == 25 || last > before),
        _ => grammar(turn).allows(last) && last != 8,
    }
}

/// Draws `count` tokens for each way in one batch: first the prompts, then one token per step. The next input
/// is the token in `feed`, or else the token drawn.
fn generate(backend: &mut dyn Backend, count: usize, feed: Option<&[Vec<Sampled>]>) -> Vec<Vec<Sampled>> {
    generate_in(&ways(), false, backend, count, feed)
}

/// The same for given `ways`; `masked`: the last one under the mask of [`grammar`].
fn generate_in(
    ways: &[Arc<SamplingParams>],
    masked: bool,
    backend: &mut dyn Backend,
    count: usize,
    feed: Option<&[Vec<Sampled>]>,
) -> Vec<Vec<Sampled>> {
    let mut sequences: Vec<Sequence> =
        (0..ways.len()).map(|i| sequence_of(prompt(i as u32, 5 + 2 * i), i as u32)).collect();
    let mut drawn = Vec::new();
    for turn in 0..count {
        let mut batch = Batch::default();
        for (sequence, way) in sequences.iter_mut().zip(ways) {
            let left = sequence.tokens.len() - sequence.computed;
            sequence.put(&mut batch, left);
            sample(sequence, &mut batch, way, 0, None);
        }
        if let Some(Want::Sample(last)) = batch.wants.last_mut().filter(|_| masked) {
            last.mask = Some(MaskSlot::filled(Allowed::Tokens(grammar(turn))));
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
fn what_must_not_be_drawn_is_not_drawn_and_the_rest_is_as_on_the_cpu() {
    if !skein_cuda_emulation::load() {
        return;
    }
    const TURNS: usize = 40;
    let (dir, ways) = (LLAMA.make(7), limited_ways());
    let expected = generate_in(&ways, true, &mut on_cpu(dir.path()), TURNS, None);
    let got = generate_in(&ways, true, &mut on_cuda(dir.path(), eager()), TURNS, Some(&expected));
    let mut differing = [0; 4];
    for way in 0..ways.len() {
        let mut before = 0;
        for (turn, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let (got, expected) = (got[way].token, expected[way].token);
            for token in [got, expected] {
                assert!(is_allowed(way, turn, &[before, token]), "way {way}, turn {turn}: {before}, {token}");
            }
            differing[way] += usize::from(got != expected);
            before = expected;
        }
    }
    assert!(differing.iter().all(|differing| *differing <= 4), "of {TURNS} draws each: {differing:?} differ");
}

#[test]
fn a_sample_whose_grammar_is_complete_is_not_drawn() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let (dir, way) = (LLAMA.make(7), Arc::new(SamplingParams::default()));
    let backend = &mut on_cuda(dir.path(), eager());
    let mut batch = Batch::default();
    for place in 0..2 {
        let mut sequence = sequence_of(prompt(place, 9), place);
        sequence.put(&mut batch, 9);
        sample(&sequence, &mut batch, &way, 0, None);
    }
    if let Want::Sample(first) = &mut batch.wants[0] {
        first.mask = Some(MaskSlot::filled(Allowed::End));
    }
    let answers = step(backend, batch).answers;
    assert!(matches!(answers[..], [Answer::Undrawn, Answer::Sampled(_)]), "{answers:?}");
}

/// The CPU's tokens are drafted, one of them wrongly, under masks of which the last allows nothing.
#[test]
fn a_draft_under_a_grammar_is_verified_up_to_its_end() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let dir = LLAMA.make(7);
    let cuda = &mut on_cuda(dir.path(), CudaConfig { batch_invariant: true, ..eager() });
    let params = Arc::new(SamplingParams { temperature: 0.0, ..SamplingParams::default() });
    let allowed = || {
        let mut mask = Mask::none(300);
        (0..300).step_by(3).for_each(|token| mask.allow(token));
        MaskSlot::filled(Allowed::Tokens(mask))
    };
    let verify = |backend: &mut dyn Backend, draft: &[u32], open: usize| {
        let mut batch = Batch::default();
        let tokens = [&prompt(1, 9)[..], draft].concat();
        sequence_of(tokens, 0).put(&mut batch, 9 + draft.len());
        let mut masks: Vec<_> = (0..open).map(|_| allowed()).collect();
        masks.resize_with(draft.len() + 1, || MaskSlot::filled(Allowed::End));
        let (rows, params) = (8..9 + draft.len() as u32, params.clone());
        let (position, stop_from, history, prompt_len) = (9, 0, 0..0, 9);
        batch.wants.push(Want::Verify(VerifyRows {
            rows,
            params,
            sample_index: 0,
            position,
            stop_from,
            history,
            prompt_len,
            masks,
        }));
        let answers = step(backend, batch).answers;
        answers[0].drawn().iter().map(|drawn| drawn.token).collect::<Vec<u32>>()
    };
    let mut right = Vec::new();
    for _ in 0..5 {
        let drawn = verify(cuda, &right, right.len() + 1);
        assert_eq!(drawn.len(), right.len() + 1, "what it drew before is right");
        right = drawn;
    }
    assert!(right.iter().all(|token| token % 3 == 0));
    let wrong = [right[0], right[1], right[2] + 1, right[3]];
    assert_eq!(verify(cuda, &wrong, 5), right[..3], "up to the right token in place of the wrong one");
    assert_eq!(verify(cuda, &right[..4], 2), right[..2], "up to where the grammar ends");
    assert!(verify(cuda, &right[..2], 0).is_empty(), "a complete grammar draws nothing");
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
    for (name, tiny) in [("llama", LLAMA)].into_iter().chain(KINDS).chain(LATENTS) {
        let dir = tiny.make(9);
        let expected = generate(&mut on_cuda(dir.path(), eager()), 12, None);
        let backend = &mut with_graphs(dir.path());
        assert!(generate(backend, 12, None) == expected, "{name}");
        assert!(generate_overlapped(backend, 12) == expected, "{name}, overlapped");
    }
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
