//! Samples constrained by a grammar.

use skein_grammar::token_bytes::TokenBytes;
use skein_grammar::{Library, Source};
use skein_proto::sampling::Grammar;

use super::scene::*;
use super::*;
use crate::draft::{Guesser, Speculate};
use crate::scheduler::{Drafts, Propose};

/// The bytes are the tokens; the token after them ends a sample.
const VOCAB_SIZE: u32 = 257;
const END: TokenId = 256;

fn options(steps_in_flight: usize) -> FakeOptions {
    FakeOptions { vocab_size: VOCAB_SIZE, steps_in_flight, ..fake() }
}

fn held(source: &Source, params: SamplingParams, n: u32) -> NewRequest {
    let grammar = Some(Arc::new(Grammar { text: source.text().into(), fingerprint: 1 }));
    let params = SamplingParams { grammar, temperature: 1.0, stop_token_ids: vec![END], ..params };
    request(params, n)
}

/// Submission as the service builds it, for a model whose vocabulary has only the first `known` bytes.
fn submission_of(id: &str, asked: &NewRequest, known: u32) -> Submission {
    let library = Library::new(&TokenBytes::of_bytes(), known).unwrap();
    let grammar = asked.params.grammar.as_ref().unwrap();
    let compiled = library.compile(&Source::from_text(&grammar.text).unwrap()).unwrap();
    let matcher = |sample: &NewSample| {
        let mut matcher = compiled.matcher();
        sample.delivered.iter().for_each(|token| matcher.advance(*token).unwrap());
        (sample.index, matcher)
    };
    let constraint = Constraint { matchers: asked.samples.iter().map(matcher).collect() };
    Submission { constraint: Some(constraint), ..Submission::alone(id, asked.clone()) }
}

async fn run(mut scene: Scene, asked: &NewRequest) -> Got {
    let mut stream = scene.submit(submission_of("held", asked, VOCAB_SIZE)).await.expect("taken");
    let mut got = Got::default();
    while scene.turn() == Turn::Worked {
        got.read(&mut stream);
    }
    assert_eq!(got.read(&mut stream), Some(Ok(())));
    assert!(scene.engine.constraints.is_empty(), "nothing is left");
    got
}

fn tokens(output: &Output) -> Vec<TokenId> {
    output.tokens.values().map(|(token, _)| *token).collect()
}

/// Proposes `right` right tokens, followed by others that a grammar may or may not allow.
fn right_for(right: usize, wholes: Vec<Vec<TokenId>>) -> Propose {
    let mut turn = 0;
    Box::new(move |tokens, most, draft| {
        turn += 1;
        let whole = wholes.iter().find(|whole| whole.starts_with(tokens));
        draft.extend(whole.iter().flat_map(|whole| &whole[tokens.len()..]).take(right));
        draft.extend((draft.len()..most).map(|at| [65, 97, 34, 120][(at + turn) % 4]));
    })
}

fn text(output: &Output) -> String {
    String::from_utf8(output.tokens.values().map(|(token, _)| *token as u8).collect()).unwrap()
}

fn sources() -> Vec<Source> {
    let schema = serde_json::json!({"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
        "required": ["a", "b"], "additionalProperties": false});
    vec![
        Source::choice(&["yes", "no", "not now"]).unwrap(),
        Source::regex("[a-f]{2,9}").unwrap(),
        Source::json_schema(&schema).unwrap(),
        Source::grammar("start: \"(\" start \")\" | \"x\"").unwrap(),
    ]
}

#[tokio::test]
async fn answers_follow_their_grammar_and_end_with_it() {
    for source in sources() {
        for seed in 0..6 {
            let params = SamplingParams { seed, max_tokens: 400, ..SamplingParams::default() };
            let asked = held(&source, params, 3);
            let mut alike: Option<Got> = None;
            for depth in [1, 2, 3] {
                let got = run(Scene::new(options(depth)), &asked).await;
                assert_eq!(alike.get_or_insert_with(|| got.clone()).samples, got.samples, "depth {depth}");
                for output in got.samples.values() {
                    let (text, finish) = (text(output), output.finish.expect("it ended"));
                    assert!(matches!(finish, FinishReason::Stop(_)), "{finish:?} after {text:?}");
                    let mut matcher =
                        submission_of("judge", &held(&source, SamplingParams::default(), 1), 257);
                    let mut matcher = matcher.constraint.take().unwrap().matchers.remove(0).1;
                    text.bytes().for_each(|byte| matcher.advance(byte.into()).expect("it is allowed"));
                    assert!(matcher.next_tokens().unwrap().may_end, "{text:?} is complete");
                }
            }
            // Neither wrong nor partly right drafts change the output.
            let alike = alike.expect("it ran");
            let wholes: Vec<Vec<TokenId>> =
                alike.samples.values().map(|output| [&asked.prompt[..], &tokens(output)].concat()).collect();
            for right in 0..4 {
                let drafts = Drafts::new(4, right_for(right, wholes.clone()));
                let drafted = run(Scene::drafting(options(1), drafts), &asked).await;
                assert_eq!(alike.samples, drafted.samples, "{right} right");
            }
        }
    }
}

#[tokio::test]
async fn a_resume_at_every_position_of_a_held_answer_is_exact() {
    for source in sources() {
        let params = SamplingParams { seed: 5, max_tokens: 40, ..SamplingParams::default() };
        let asked = held(&source, params, 1);
        let whole = run(Scene::new(options(2)), &asked).await;
        let all = whole.tokens(0);
        // The last cut is after the last token and before the end.
        for cut in 0..=all.len() {
            let samples = vec![NewSample { index: 0, delivered: all[..cut].to_vec() }];
            let rest = run(Scene::new(options(2)), &NewRequest { samples, ..asked.clone() }).await;
            assert_eq!(rest.tokens(0), &all[cut..], "cut at {cut} of {:?}", text(&whole.samples[&0]));
            assert_eq!(rest.samples[&0].finish, whole.samples[&0].finish, "cut at {cut}");
        }
    }
}

#[tokio::test]
async fn preemption_changes_no_held_answer() {
    let asked =
        held(&sources()[2], SamplingParams { max_tokens: 400, seed: 3, ..SamplingParams::default() }, 4);
    let whole = run(Scene::new(options(2)), &asked).await;
    let tight = FakeOptions { kv_blocks: 14, block_size: 8, ..options(2) };
    let tight = run(Scene::new(tight), &asked).await;
    assert_eq!(tight.samples, whole.samples);
}

#[tokio::test]
async fn a_complete_answer_at_max_tokens_has_stopped_and_an_incomplete_one_has_not() {
    let check = async |max_tokens, min_tokens, expected: FinishReason| {
        let source = Source::choice(&["abc"]).unwrap();
        let params = SamplingParams { max_tokens, min_tokens, ..SamplingParams::default() };
        let got = run(Scene::new(options(2)), &held(&source, params, 1)).await;
        assert_eq!(got.samples[&0].finish, Some(expected), "{max_tokens}, {min_tokens}");
        assert_eq!(text(&got.samples[&0]), "abc"[..3.min(max_tokens as usize)]);
    };
    check(2, 0, FinishReason::Length).await;
    check(3, 0, FinishReason::Stop(None)).await;
    check(9, 0, FinishReason::Stop(None)).await;
    // A complete answer takes precedence over `min_tokens`.
    check(9, 9, FinishReason::Stop(None)).await;
}

#[tokio::test]
async fn an_answer_that_no_token_continues_fails_alone() {
    // The model has no token for `b`, the 99th byte.
    let asked = held(&Source::choice(&["ab"]).unwrap(), SamplingParams::default(), 1);
    let mut scene = Scene::new(options(2));
    let mut stuck = scene.submit(submission_of("stuck", &asked, 98)).await.expect("taken");
    let free = request(SamplingParams { max_tokens: 5, ..SamplingParams::default() }, 1);
    let mut other = scene.submit(Submission::alone("free", free)).await.expect("taken");
    scene.run();
    let mut got = Got::default();
    let fault = std::iter::from_fn(|| got.read(&mut stuck)).find_map(Result::err);
    let Some(StreamFault::Unfollowable { reason }) = fault else { panic!("{fault:?}") };
    assert!(reason.contains("no token of the model continues it"), "{reason}");
    let mut free = Got::default();
    assert_eq!(free.read(&mut other), Some(Ok(())));
    assert_eq!(free.samples[&0].finish, Some(FinishReason::Length));
    assert_eq!(scene.engine.counts().errored, 1);
    assert!(scene.engine.constraints.is_empty());
}

#[tokio::test]
async fn what_a_grammar_forces_is_drafted() {
    let source = Source::choice(&["this text has no other end"]).unwrap();
    let params = SamplingParams { max_tokens: 400, seed: 1, ..SamplingParams::default() };
    let asked = held(&source, params, 1);
    let whole = run(Scene::new(options(1)), &asked).await;
    let guesser = Guesser::new(Speculate::Auto, false).expect("it is on");
    let mut scene = Scene::drafting(options(1), Drafts::guessed(guesser));
    let mut stream = scene.submit(submission_of("held", &asked, VOCAB_SIZE)).await.expect("taken");
    let (mut got, mut steps) = (Got::default(), 0);
    // The mask thread has enough time between two steps.
    while scene.turn() == Turn::Worked {
        std::thread::sleep(Duration::from_millis(5));
        steps += 1;
    }
    assert_eq!(got.read(&mut stream), Some(Ok(())));
    assert_eq!(got.samples, whole.samples);
    let tokens = whole.tokens(0).len();
    assert!(steps < tokens / 2, "{steps} steps for {tokens} tokens");
}
