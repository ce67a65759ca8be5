//! A request cut anywhere and resumed elsewhere produces the same output as one that was not cut.

use super::scene::*;
use super::*;

/// Every kind of sampling that depends on the tokens so far, the seed, the sample or the position.
fn cases() -> Vec<(&'static str, NewRequest)> {
    let base = SamplingParams { max_tokens: 24, ..SamplingParams::default() };
    let seeded = SamplingParams { temperature: 0.8, seed: 11, ..base.clone() };
    let penalties = SamplingParams {
        repetition_penalty: 1.2,
        presence_penalty: 0.5,
        frequency_penalty: 0.3,
        ..seeded.clone()
    };
    let biased = SamplingParams { logit_bias: vec![(3, 5.0), (4, -5.0)], ..seeded.clone() };
    // One token in ten is a stop token, but none before the twelfth position.
    let stopping = SamplingParams { stop_token_ids: (0..5).collect(), min_tokens: 12, ..seeded.clone() };
    vec![
        ("greedy", request(base.clone(), 1)),
        ("seeded", request(seeded.clone(), 1)),
        ("penalties", request(penalties.clone(), 1)),
        ("logit_bias", request(biased, 1)),
        ("stop tokens and min_tokens", request(stopping.clone(), 1)),
        ("n", request(seeded.clone(), 3)),
        ("n with stop tokens", request(stopping, 4)),
        ("logprobs", request(SamplingParams { logprobs: Some(3), ..seeded.clone() }, 1)),
        ("prompt_logprobs", request(SamplingParams { prompt_logprobs: Some(2), ..seeded }, 1)),
        (
            "everything",
            request(SamplingParams { logprobs: Some(1), prompt_logprobs: Some(0), ..penalties }, 2),
        ),
    ]
}

/// Runs `turns` turns, then hands back. Returns the reader's output.
async fn cut_after(turns: u32, asked: &NewRequest) -> Got {
    let mut scene = Scene::new(fake());
    let mut stream = scene.submit(keyed("cut", asked.clone())).await.expect("taken");
    let mut got = Got::default();
    for turn in 0..turns {
        scene.turn();
        // Some readers are up to date at the hand-back; others have read nothing.
        if turn % 3 == 0 {
            got.read(&mut stream);
        }
    }
    scene.handle.hand_back().await;
    scene.turn();
    let refused = scene.submit(Submission::alone("new", asked.clone())).await.map(drop);
    assert_eq!(refused, Err(SubmitError::HandedBack));
    assert_eq!(got.read(&mut stream), Some(Ok(())));
    let all_ended = got.samples.len() == asked.samples.len()
        && got.samples.values().all(|output| output.finish.is_some());
    assert_eq!(got.handed_back, !all_ended, "given back if there was something left");
    let counts = scene.engine.counts();
    assert_eq!((counts.running, counts.handed_back), (0, u64::from(got.handed_back)));
    assert_eq!(scene.engine.scheduler.blocks_held(), 0);
    got
}

/// Request that resumes the rest on another worker.
fn rest_of(asked: &NewRequest, got: &Got) -> NewRequest {
    let left = |index: u32| got.samples.get(&index).is_none_or(|output| output.finish.is_none());
    let samples = asked.samples.iter().filter(|sample| left(sample.index));
    let samples =
        samples.map(|sample| NewSample { index: sample.index, delivered: got.tokens(sample.index) });
    let scored = got.scores.len() as u32 == PROMPT_LEN - 1;
    let prompt_logprobs = asked.params.prompt_logprobs.filter(|_| !scored);
    let params = Arc::new(SamplingParams { prompt_logprobs, ..(*asked.params).clone() });
    NewRequest { samples: samples.collect(), params, ..asked.clone() }
}

fn joined(mut got: Got, rest: Got) -> Got {
    for (index, output) in rest.samples {
        let whole = got.samples.entry(index).or_default();
        let next = whole.tokens.last_key_value().map_or(PROMPT_LEN, |(&last, _)| last + 1);
        assert!(output.tokens.keys().next().is_none_or(|&first| first == next), "goes on where it was");
        whole.tokens.extend(output.tokens);
        whole.finish = output.finish;
    }
    // If some scores were missing, they restart from the first.
    got.scores.extend(rest.scores);
    got
}

#[tokio::test]
async fn a_hand_back_after_every_step_of_every_case_loses_repeats_and_alters_nothing() {
    for (name, asked) in cases() {
        let whole = undisturbed(asked.clone()).await;
        for turns in 0..40 {
            let mut got = cut_after(turns, &asked).await;
            if got.handed_back {
                let rest = undisturbed(rest_of(&asked, &got)).await;
                got = joined(got, rest);
            }
            assert_eq!(got.samples, whole.samples, "{name}, cut after {turns} turns");
            assert_eq!(got.scores, whole.scores, "{name}, cut after {turns} turns");
        }
    }
}

#[tokio::test]
async fn a_resume_at_every_position_of_every_case_is_exact() {
    for (name, asked) in cases() {
        let whole = undisturbed(asked.clone()).await;
        let longest = whole.samples.values().map(|output| output.tokens.len()).max().expect("some");
        for cut in 0..=longest {
            // Client state after reading this far; samples that have ended are not requested again.
            let mut got = Got { scores: whole.scores.clone(), ..Got::default() };
            for (&index, output) in &whole.samples {
                let tokens = output.tokens.clone().into_iter().take(cut).collect();
                let finish = output.finish.filter(|_| output.tokens.len() < cut);
                got.samples.insert(index, Output { tokens, finish });
            }
            if got.samples.values().all(|output| output.finish.is_some()) {
                continue;
            }
            let rest = undisturbed(rest_of(&asked, &got)).await;
            assert_eq!(joined(got, rest).samples, whole.samples, "{name}, cut at {cut}");
        }
    }
}

#[tokio::test]
async fn orphans_are_handed_back_too_and_a_late_reader_learns_it() {
    let asked = request(SamplingParams { max_tokens: 100, ..SamplingParams::default() }, 1);
    let whole = undisturbed(asked.clone()).await.tokens(0);
    let mut scene = Scene::new(fake());
    drop(scene.submit(keyed("first", asked)).await.expect("taken"));
    for _ in 0..10 {
        scene.turn();
    }
    scene.handle.hand_back().await;
    scene.turn();
    let mut late = scene.attach("late", &[(0, PROMPT_LEN)]).await.expect("what there was is kept");
    let mut got = Got::default();
    assert_eq!(got.read(&mut late), Some(Ok(())));
    assert!(got.handed_back && whole.starts_with(&got.tokens(0)) && !got.tokens(0).is_empty());
}
