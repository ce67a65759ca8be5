//! Drafts through scheduler, engine and a verifying backend give exactly the output of plain decoding.

use skein_proto::sampling::SamplingParams;

use super::scene::*;
use super::*;
use crate::draft::{Guesser, Speculate};
use crate::draft_model::DraftModel;
use crate::scheduler::{Drafts, Propose};

/// Proposes in turn correct tokens, garbage, and correct tokens followed by garbage. `wholes`: prompts with
/// their outputs.
fn in_turn(wholes: Vec<Vec<TokenId>>) -> Propose {
    let mut turn = 0;
    Box::new(move |tokens, most, draft| {
        turn += 1;
        let right = [most, 0, most / 2][turn % 3];
        let whole = wholes.iter().find(|whole| whole.starts_with(tokens));
        draft.extend(whole.iter().flat_map(|whole| &whole[tokens.len()..]).take(right));
        draft.extend((draft.len()..most).map(|at| (at * 11 + turn) as TokenId % VOCAB));
    })
}

fn ways() -> Vec<SamplingParams> {
    let plain = SamplingParams { max_tokens: 60, ..SamplingParams::default() };
    let warm = SamplingParams { temperature: 1.0, seed: 4, ..plain.clone() };
    vec![
        plain.clone(),
        warm.clone(),
        SamplingParams { frequency_penalty: 0.5, ..warm.clone() },
        SamplingParams { logprobs: Some(2), prompt_logprobs: Some(1), ..warm.clone() },
        SamplingParams { stop_token_ids: vec![1, 2, 3, 4, 5], min_tokens: 9, ..warm },
    ]
}

#[tokio::test]
async fn drafts_change_no_output_and_leave_nothing_behind() {
    for steps_in_flight in [1, 2, 3] {
        let options = FakeOptions { steps_in_flight, ..fake() };
        for params in ways() {
            let request = request(params, 3);
            let expected = undisturbed_in(options.clone(), request.clone()).await;
            let whole = |sample: u32| [&request.prompt[..], &expected.tokens(sample)].concat();
            let drafts = Drafts::new(5, in_turn((0..3).map(whole).collect()));
            let mut scene = Scene::drafting(options.clone(), drafts);
            let mut stream = scene.submit(Submission::alone("drafted", request)).await.expect("taken");
            let mut got = Got::default();
            while scene.turn() == Turn::Worked {
                got.read(&mut stream);
            }
            assert_eq!(got.read(&mut stream), Some(Ok(())));
            assert_eq!(got, expected);
            drop(stream);
            scene.run();
            assert_eq!(scene.engine.audit_at_rest(), Ok(()));
        }
    }
}

#[tokio::test]
async fn right_drafts_save_steps() {
    let request = request(SamplingParams { max_tokens: 61, ..SamplingParams::default() }, 1);
    let expected = undisturbed(request.clone()).await;
    let whole = [&request.prompt[..], &expected.tokens(0)].concat();
    let right: Propose = Box::new(move |tokens, most, draft| {
        draft.extend(whole[tokens.len()..].iter().take(most));
    });
    let mut scene = Scene::drafting(fake(), Drafts::new(5, right));
    let mut stream = scene.submit(Submission::alone("drafted", request)).await.expect("taken");
    scene.run();
    let mut got = Got::default();
    assert_eq!(got.read(&mut stream), Some(Ok(())));
    assert_eq!(got, expected);
    assert_eq!(scene.engine.steps, 1 + 10, "six tokens by each step after the prompt's");
}

#[tokio::test]
async fn guesses_change_no_output_and_save_steps() {
    for steps_in_flight in [1, 2, 3] {
        let options = FakeOptions { steps_in_flight, habits: 40..46, ..fake() };
        for params in ways() {
            let params = SamplingParams { max_tokens: 400, ..params };
            let request = request(params, 3);
            let expected = undisturbed_in(options.clone(), request.clone()).await;
            let guesser = Guesser::new(Speculate::Auto, true).expect("it is on");
            let mut scene = Scene::drafting(options.clone(), Drafts::guessed(guesser));
            let mut before = 0;
            // The second time, finished texts are a source of drafts.
            for turn in 0..2 {
                let id = format!("guessed {turn}");
                let mut stream = scene.submit(Submission::alone(id, request.clone())).await.expect("taken");
                let mut got = Got::default();
                while scene.turn() == Turn::Worked {
                    got.read(&mut stream);
                }
                assert_eq!(got.read(&mut stream), Some(Ok(())));
                assert_eq!(got.samples, expected.samples, "{params:?}, turn {turn}", params = request.params);
                drop(stream);
                scene.run();
                assert_eq!(scene.engine.audit_at_rest(), Ok(()));
                let (steps, tokens) = (scene.engine.steps - before, expected.tokens(0).len() as u64);
                before = scene.engine.steps;
                // With several steps in flight, streams skip some steps.
                let saves = steps_in_flight > 1 || tokens <= 300 || steps < tokens * 3 / 4;
                assert!(saves, "turn {turn}: {steps} steps for {tokens} tokens");
            }
        }
    }
}

/// A draft model on a fake backend with `options`.
fn draft_model(options: &FakeOptions) -> DraftModel {
    draft_model_of(options, Duration::ZERO)
}

/// A draft model whose steps take `step` of simulated time.
fn draft_model_of(options: &FakeOptions, step: Duration) -> DraftModel {
    let backend = FakeBackend::new(FakeOptions { steps_in_flight: 1, ..options.clone() });
    let vocab = (options.vocab_size, VOCAB);
    DraftModel::start(Box::new(Ticking(backend, step)), options.block_size, vocab, true).expect("it runs")
}

/// The fake backend's tokens depend on all keys and values that it reads, so a draft model with the same
/// options is right only if it always reads the right ones.
#[tokio::test]
async fn a_draft_model_equal_to_the_model_is_always_right() {
    let options = FakeOptions { steps_in_flight: 1, ..fake() };
    for params in ways() {
        let request = request(params, 3);
        let expected = undisturbed_in(options.clone(), request.clone()).await;
        let mut scene = Scene::drafting(options.clone(), Drafts::modelled(5));
        scene.engine.draft_with(draft_model(&options));
        let mut before = 0;
        for turn in 0..2 {
            let mut stream =
                scene.submit(Submission::alone(format!("{turn}"), request.clone())).await.expect("taken");
            let mut got = Got::default();
            while scene.turn() == Turn::Worked {
                got.read(&mut stream);
            }
            assert_eq!(got.read(&mut stream), Some(Ok(())));
            assert_eq!(got.samples, expected.samples);
            drop(stream);
            scene.run();
            assert_eq!(scene.engine.audit_at_rest(), Ok(()));
            let longest = (0..3).map(|sample| expected.tokens(sample).len() as u64).max().expect("three");
            let steps = scene.engine.steps - before;
            // Stop tokens are not drafted, and a draft leaves room for the token after it.
            assert!(
                steps <= 3 + longest.div_ceil(6),
                "{steps} steps for {longest} tokens, {:?}",
                request.params
            );
            before = scene.engine.steps;
        }
    }
}

#[tokio::test]
async fn another_draft_model_changes_no_output_even_with_few_blocks_and_tokens() {
    let options = FakeOptions { steps_in_flight: 1, habits: 40..46, ..fake() };
    for (vocab_size, kv_blocks) in [(VOCAB, 9), (VOCAB / 2, 1024), (VOCAB * 2, 1024)] {
        for params in ways() {
            let request = request(SamplingParams { max_tokens: 90, ..params }, 3);
            let expected = undisturbed_in(options.clone(), request.clone()).await;
            let mut scene = Scene::drafting(options.clone(), Drafts::modelled(5));
            scene.engine.draft_with(draft_model(&FakeOptions { vocab_size, kv_blocks, ..options.clone() }));
            let mut stream = scene.submit(Submission::alone("drafted", request)).await.expect("taken");
            let mut got = Got::default();
            while scene.turn() == Turn::Worked {
                got.read(&mut stream);
            }
            assert_eq!(got.read(&mut stream), Some(Ok(())));
            assert_eq!(got, expected, "{vocab_size} tokens, {kv_blocks} blocks");
            drop(stream);
            scene.run();
            assert_eq!(scene.engine.audit_at_rest(), Ok(()));
        }
    }
}

#[tokio::test]
async fn a_failing_draft_model_is_dropped_and_nothing_else_happens() {
    let options = FakeOptions { steps_in_flight: 1, ..fake() };
    let request = request(SamplingParams { max_tokens: 60, ..SamplingParams::default() }, 1);
    let expected = undisturbed_in(options.clone(), request.clone()).await;
    let mut scene = Scene::drafting(options.clone(), Drafts::modelled(5));
    scene.engine.draft_with(draft_model(&FakeOptions { fail_at_step: Some(20), ..options }));
    let mut stream = scene.submit(Submission::alone("drafted", request)).await.expect("taken");
    scene.run();
    let mut got = Got::default();
    assert_eq!(got.read(&mut stream), Some(Ok(())));
    assert_eq!(got, expected);
    assert!(scene.engine.steps > 20 && scene.engine.steps < 55, "{} steps", scene.engine.steps);
}

/// With measured times, a draft model runs where it saves time, and only there.
#[tokio::test]
async fn a_draft_model_runs_where_it_pays() {
    // A step of the model takes a millisecond.
    for (step, pays) in [(Duration::from_micros(50), true), (Duration::from_millis(1), false)] {
        let options = FakeOptions { steps_in_flight: 1, ..fake() };
        let request = request(SamplingParams { max_tokens: 300, ..SamplingParams::default() }, 1);
        let guesser = Guesser::new(Speculate::Auto, true).expect("it is on").with_model();
        let mut scene = Scene::drafting(options.clone(), Drafts::guessed(guesser));
        scene.engine.draft_with(draft_model_of(&options, step));
        let mut stream = scene.submit(Submission::alone("drafted", request)).await.expect("taken");
        scene.run();
        let mut got = Got::default();
        assert_eq!(got.read(&mut stream), Some(Ok(())));
        let (steps, tokens) = (scene.engine.steps, got.tokens(0).len() as u64);
        assert_eq!(steps < tokens / 3, pays, "{steps} steps for {tokens} tokens");
    }
}
