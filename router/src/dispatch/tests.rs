//! [`Delivery`] under every fault, compared with the undisturbed run. A failure prints its seed.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use skein_choice::worker_id::{WorkerEpoch, WorkerId};
use skein_node::clock::Timestamp;
use skein_proto::TokenId;
use skein_proto::delta::{Delta, WorkerDelta};
use skein_proto::finish::FinishReason;
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::pooling::Pooling;
use skein_proto::sampling::SamplingParams;
use skein_proto::version::Version;

use super::delivery::{Action, Actions, Delivery, Limits, MAX_MOVES, RequestEvent, Wait};
use crate::links::worker_client::CallError;
use crate::refusal::Refusal;
use crate::request::{TokenDelta, TokenRequest};

const WORKER: WorkerId = WorkerId(1);
const TIMEOUT: Duration = Duration::from_secs(30);

fn request(n: u32, max_tokens: u32, logprobs: Option<u32>, prompt_logprobs: Option<u32>) -> TokenRequest {
    let sampling = SamplingParams {
        temperature: 1.0,
        seed: 7,
        max_tokens,
        logprobs,
        prompt_logprobs,
        ..SamplingParams::default()
    };
    TokenRequest { n, ..TokenRequest::new("r", "m", [11, 12, 13, 14, 15], sampling) }
}

fn at(ms: u64) -> Timestamp {
    Timestamp::from_start(Duration::from_millis(ms))
}

fn worker_at(epoch: u64) -> WorkerEpoch {
    WorkerEpoch { worker: WORKER, epoch }
}

fn limits(migration_limit: u32) -> Limits {
    Limits { migration_limit, queue_timeout: TIMEOUT }
}

fn logprobs_of(token: TokenId) -> TokenLogprobs {
    TokenLogprobs { token, logprob: -(token as f32), rank: token, top: vec![(token, 0.5)] }
}

/// The model: the next token is a hash of the sample and all tokens before it; some tokens end the sample.
fn next(history: &[TokenId], sample: u32) -> Result<TokenId, FinishReason> {
    let hash = history.iter().fold(0x9e37_79b9u32.wrapping_add(sample), |hash, token| {
        (hash ^ token).wrapping_mul(0x85eb_ca6b).rotate_left(13)
    });
    if hash % 23 == 0 { Err(FinishReason::Stop(Some(1))) } else { Ok(hash % 1000) }
}

/// What a worker sends in one attempt: samples interleaved, tokens in chunks of random size.
fn serve(request: &TokenRequest, delivery: &Delivery, epoch: u64, rng: &mut StdRng) -> Vec<WorkerDelta> {
    let mut deltas = Vec::new();
    let mut live: Vec<(u32, Vec<TokenId>)> =
        delivery.remaining().map(|(index, tokens)| (index, tokens.to_vec())).collect();
    let first = live.first().map_or(0, |(index, _)| *index);
    if delivery.owes_prompt_logprobs() {
        for (position, &token) in request.prompt.iter().enumerate().skip(1) {
            deltas.push(Delta {
                sample_index: first,
                from_position: request.prompt.len() as u32 + live[0].1.len() as u32,
                prompt_logprobs: vec![logprobs_of(token)],
                from_prompt_position: position as u32,
                ..Delta::default()
            });
        }
    }
    while !live.is_empty() {
        let which = rng.random_range(0..live.len());
        let (sample_index, tokens) = &mut live[which];
        let mut delta = Delta {
            sample_index: *sample_index,
            from_position: (request.prompt.len() + tokens.len()) as u32,
            ..Delta::default()
        };
        for _ in 0..rng.random_range(1..4) {
            if tokens.len() as u32 == request.sampling.max_tokens {
                delta.finish = Some(FinishReason::Length);
                break;
            }
            match next(&[&request.prompt[..], tokens].concat(), *sample_index) {
                Ok(token) => {
                    tokens.push(token);
                    delta.tokens.push(token);
                }
                Err(finish) => {
                    delta.finish = Some(finish);
                    break;
                }
            }
        }
        if request.sampling.logprobs.is_some() {
            delta.logprobs = delta.tokens.iter().copied().map(logprobs_of).collect();
        }
        let ended = delta.finish.is_some();
        deltas.push(delta);
        if ended {
            live.swap_remove(which);
        }
    }
    deltas[0].cached_tokens = Some(epoch as u32);
    deltas.into_iter().map(|delta| WorkerDelta { epoch, version: Version(1), delta }).collect()
}

/// A client's output. Panics on anything repeated, missing or out of place.
#[derive(Debug, Default, PartialEq, Clone)]
struct Client {
    samples: Vec<(Vec<TokenId>, Vec<TokenLogprobs>, Option<FinishReason>)>,
    prompt_logprobs: Vec<TokenLogprobs>,
    cached_tokens: Option<u32>,
    end: Option<String>,
}

impl Client {
    fn take(&mut self, request: &TokenRequest, delta: TokenDelta) {
        let (tokens, logprobs, finish) = &mut self.samples[delta.sample_index as usize];
        assert_eq!(delta.from_position as usize, request.prompt.len() + tokens.len(), "positions follow");
        assert_eq!(*finish, None, "nothing follows an end");
        assert!(delta.prompt_logprobs.is_empty() || tokens.is_empty(), "the prompt comes first");
        tokens.extend(delta.tokens);
        logprobs.extend(delta.logprobs);
        *finish = delta.finish;
        self.prompt_logprobs.extend(delta.prompt_logprobs);
        if delta.cached_tokens.is_some() {
            assert_eq!(self.cached_tokens, None, "cached tokens are reported once");
            self.cached_tokens = delta.cached_tokens;
        }
    }
}

/// Runs a request to its end. `disturb` alters what the worker sends in attempt `k` and returns how it ends.
fn run(
    request: &TokenRequest,
    seed: u64,
    mut disturb: impl FnMut(u64, &mut Vec<WorkerDelta>, &mut StdRng) -> Option<RequestEvent>,
) -> Client {
    let mut rng = StdRng::seed_from_u64(seed);
    // Faults in a row have their own test.
    let mut delivery = Delivery::new(request, limits(MAX_MOVES), at(0));
    let samples = (0..request.n).map(|_| Default::default()).collect();
    let mut client = Client { samples, ..Client::default() };
    for attempt in 1.. {
        delivery.handle(at(attempt), RequestEvent::Opened(worker_at(attempt)));
        let mut deltas = serve(request, &delivery, attempt, &mut rng);
        let end = disturb(attempt, &mut deltas, &mut rng).unwrap_or(RequestEvent::Ended(None));
        let mut open = false;
        for event in deltas.into_iter().map(RequestEvent::Delta).chain([end]) {
            for action in delivery.handle(at(attempt), event) {
                match action {
                    Action::Emit(delta) => client.take(request, delta),
                    Action::Open(_) => open = true,
                    Action::AbortSample(_) => {}
                    Action::Fail(refusal) => client.end = Some(refusal.to_string()),
                    Action::Done => client.end = Some("done".into()),
                }
            }
            // When told to reopen, a driver stops reading the old stream.
            if open || client.end.is_some() {
                break;
            }
        }
        if client.end.is_some() {
            return client;
        }
        assert!(open, "a stream that ended early is opened again");
    }
    unreachable!("attempts are endless")
}

fn requests() -> Vec<TokenRequest> {
    [
        (1, 24, None, None),
        (1, 24, Some(2), Some(2)),
        (3, 24, Some(0), None),
        (2, 1, None, Some(0)),
        (4, 40, None, None),
    ]
    .map(|(n, max_tokens, logprobs, prompt_logprobs)| request(n, max_tokens, logprobs, prompt_logprobs))
    .into()
}

#[test]
fn a_cut_at_any_position_changes_nothing() {
    for request in requests() {
        for seed in 0..20 {
            let expected = run(&request, seed, |_, _, _| None);
            assert_eq!(expected.end.as_deref(), Some("done"));
            for cut in 0..60 {
                let got = run(&request, seed, |attempt, deltas, _| {
                    if attempt == 1 {
                        deltas.truncate(cut);
                    }
                    None
                });
                // If the first worker sent nothing, the second one's cached tokens count.
                let cached_tokens = Some(if cut == 0 { 2 } else { 1 });
                assert_eq!(got, Client { cached_tokens, ..expected.clone() }, "seed {seed}, cut {cut}");
            }
        }
    }
}

#[test]
fn no_mix_of_faults_loses_repeats_or_changes_a_token() {
    for request in requests() {
        for seed in 0..400 {
            let expected = run(&request, seed, |_, _, _| None);
            let got = run(&request, seed, |attempt, deltas, rng| {
                if attempt > 30 {
                    return None;
                }
                // After the first delta, which reports the cached tokens.
                let place = rng.random_range(1..=deltas.len());
                fault(deltas, place, rng)
            });
            assert_eq!(got.samples, expected.samples, "seed {seed}");
            assert_eq!(got.prompt_logprobs, expected.prompt_logprobs, "seed {seed}");
            assert_eq!((got.end, got.cached_tokens), (expected.end, Some(1)), "seed {seed}");
        }
    }
}

/// Injects a random fault at `place`.
fn fault(deltas: &mut Vec<WorkerDelta>, place: usize, rng: &mut StdRng) -> Option<RequestEvent> {
    let kind = rng.random_range(0..9);
    let victim = deltas.get(place).cloned();
    match (kind, victim) {
        (0, _) => deltas.truncate(place),
        // Repeated, partly repeated, lost, from another epoch, with a wrong finish, sample or position; or a
        // full worker.
        (1, Some(victim)) => deltas.insert(place, victim),
        (2, Some(mut victim)) => {
            victim.delta.tokens.truncate(1);
            victim.delta.logprobs.truncate(1);
            victim.delta.finish = None;
            deltas.insert(place, victim);
        }
        (3, Some(_)) => drop(deltas.remove(place)),
        (4, Some(_)) => deltas[place].epoch += 100,
        (5, Some(_)) => deltas[place].delta.finish = Some(FinishReason::Abort),
        (6, Some(_)) => deltas[place].delta.sample_index += 100,
        (7, Some(_)) => deltas[place].delta.from_position += 1,
        (8, Some(_)) => {
            deltas.truncate(place);
            return Some(RequestEvent::Ended(Some(CallError::Backpressure { retry_after: None })));
        }
        _ => {}
    }
    Some(RequestEvent::Ended(Some(CallError::fault("broken"))))
}

#[test]
fn an_aborted_sample_sends_nothing_more_and_the_others_continue() {
    let request = request(3, 24, None, None);
    for seed in 0..50 {
        let expected = run(&request, seed, |_, _, _| None);
        let mut delivery = Delivery::new(&request, limits(3), at(0));
        let mut rng = StdRng::seed_from_u64(seed);
        let mut client = Client { samples: vec![Default::default(); 3], ..Client::default() };
        let mut aborted = false;
        for attempt in 1..=2 {
            delivery.handle(at(0), RequestEvent::Opened(worker_at(attempt)));
            let deltas = serve(&request, &delivery, attempt, &mut rng);
            let half = deltas.len() / 2;
            for (index, delta) in deltas.into_iter().enumerate() {
                if attempt == 1 && index == 3 {
                    let actions = delivery.handle(at(0), RequestEvent::Abort(1));
                    aborted = actions.iter().any(|action| matches!(action, Action::AbortSample(1)));
                }
                for action in delivery.handle(at(0), RequestEvent::Delta(delta)) {
                    match action {
                        Action::Emit(delta) => client.take(&request, delta),
                        Action::Done => client.end = Some("done".into()),
                        other => panic!("seed {seed}: {other:?}"),
                    }
                }
                if attempt == 1 && index == half {
                    break;
                }
            }
            delivery.handle(at(0), RequestEvent::Ended(None));
        }
        assert_eq!(client.end.as_deref(), Some("done"), "seed {seed}");
        for index in [0, 2] {
            assert_eq!(client.samples[index], expected.samples[index], "seed {seed}");
        }
        assert!(expected.samples[1].0.starts_with(&client.samples[1].0), "seed {seed}");
        assert!(aborted || expected.samples[1] == client.samples[1], "seed {seed}: the worker was told");
    }
}

/// Feeds `events` to a fresh delivery and returns the last actions.
fn last_actions(request: &TokenRequest, events: Vec<(u64, RequestEvent)>) -> Actions {
    let mut delivery = Delivery::new(request, limits(3), at(0));
    events.into_iter().map(|(ms, event)| delivery.handle(at(ms), event)).last().expect("there are events")
}

fn broken() -> RequestEvent {
    RequestEvent::Ended(Some(CallError::fault("broken")))
}

fn full() -> CallError {
    CallError::Backpressure { retry_after: Some(Duration::from_millis(70)) }
}

/// A delta with the next token of a single-sample request.
fn token(position: u32) -> RequestEvent {
    let delta = Delta { from_position: position, tokens: vec![9], ..Delta::default() };
    RequestEvent::Delta(WorkerDelta { epoch: 1, version: Version(1), delta })
}

#[test]
fn moves_without_progress_are_bounded_and_progress_resets_the_count() {
    let request = request(1, 1000, None, None);
    let opened = || (0, RequestEvent::Opened(worker_at(1)));
    let faults = |count: usize| (0..count).flat_map(|_| [opened(), (0, broken())]);
    let last = last_actions(&request, faults(1).collect());
    assert!(matches!(last[..], [Action::Open(Wait::No)]), "{last:?}");
    let last = last_actions(&request, faults(3).collect());
    assert!(matches!(last[..], [Action::Open(Wait::For(_))]), "{last:?}");
    let last = last_actions(&request, faults(4).collect());
    assert!(matches!(last[..], [Action::Fail(Refusal::WorkersLost { moves: 3, .. })]), "{last:?}");
    // Three in a row, a token, three more: still alive.
    let events = faults(3).chain([opened(), (0, token(5))]).chain([(0, broken())]).chain(faults(2));
    let last = last_actions(&request, events.collect());
    assert!(matches!(last[..], [Action::Open(_)]), "{last:?}");
    // But not forever.
    let endless = (0..=MAX_MOVES).flat_map(|round| [opened(), (0, token(5 + round)), (0, broken())]);
    let last = last_actions(&request, endless.collect());
    assert!(matches!(last[..], [Action::Fail(Refusal::WorkersLost { moves: MAX_MOVES, .. })]), "{last:?}");
}

#[test]
fn a_request_waits_for_a_seat_when_all_are_full() {
    let request = request(1, 10, None, None);
    let refused = |worker| (0, RequestEvent::NotOpened(WorkerId(worker), full()));
    let last = last_actions(&request, vec![refused(1)]);
    assert!(matches!(last[..], [Action::Open(Wait::No)]), "another worker is tried: {last:?}");
    let both = |ms| vec![refused(1), refused(2), (0, RequestEvent::NobodyReady), (ms, RequestEvent::AllFull)];
    let last = last_actions(&request, both(1));
    assert!(matches!(last[..], [Action::Open(Wait::Seat)]), "it waits for a seat: {last:?}");
    let last = last_actions(&request, both(TIMEOUT.as_millis() as u64));
    assert!(matches!(last[..], [Action::Fail(Refusal::Overloaded { .. })]), "not for ever: {last:?}");
    // A gateway's request goes to another router instead.
    let without_wait = TokenRequest { waits_for_worker: false, ..request.clone() };
    let last = last_actions(&without_wait, vec![refused(1), refused(2), (0, RequestEvent::NobodyReady)]);
    assert!(matches!(last[..], [Action::Fail(Refusal::Overloaded { .. })]), "{last:?}");

    let accepted = || vec![(0, RequestEvent::Opened(worker_at(1))), (0, token(5)), (0, broken())];
    let with =
        |more: Vec<(u64, RequestEvent)>| last_actions(&request, accepted().into_iter().chain(more).collect());
    let last = with(vec![refused(1)]);
    assert!(matches!(last[..], [Action::Open(Wait::For(_))]), "{last:?}");
    let last = with(vec![(0, RequestEvent::NobodyReady)]);
    assert!(matches!(last[..], [Action::Open(Wait::FleetChange)]), "{last:?}");
    let too_long = TIMEOUT.as_millis() as u64;
    let last = with(vec![(0, RequestEvent::NobodyReady), (too_long, RequestEvent::NobodyReady)]);
    assert!(matches!(last[..], [Action::Fail(Refusal::WorkersLost { .. })]), "{last:?}");
}

#[test]
fn an_answer_is_of_one_version_and_ends_when_that_has_gone() {
    let request = request(1, 10, None, None);
    let mut delivery = Delivery::new(&request, limits(3), at(0));
    let of = |version, position, tokens: &[TokenId]| {
        let delta = Delta { from_position: position, tokens: tokens.to_vec(), ..Delta::default() };
        RequestEvent::Delta(WorkerDelta { epoch: 1, version: Version(version), delta })
    };
    delivery.handle(at(0), RequestEvent::Opened(worker_at(1)));
    let nothing = Delta { from_position: 5, cached_tokens: Some(4), ..Delta::default() };
    let nothing = RequestEvent::Delta(WorkerDelta { epoch: 1, version: Version(8), delta: nothing });
    assert!(matches!(delivery.handle(at(0), nothing)[..], [Action::Emit(_)]));
    assert_eq!(delivery.version(), Version::UNKNOWN, "a count of cached tokens is no part of the answer");
    assert!(matches!(delivery.handle(at(0), of(7, 5, &[9]))[..], [Action::Emit(_)]));
    assert_eq!(delivery.version(), Version(7));
    let actions = delivery.handle(at(0), of(8, 6, &[9]));
    assert!(matches!(actions[..], [Action::Open(Wait::No)]), "another version is a fault: {actions:?}");
    assert_eq!(delivery.remaining().next(), Some((0, &[9][..])), "and changes nothing");
    let actions = delivery.handle(at(0), RequestEvent::NoneOfVersion);
    assert!(matches!(actions[..], [Action::Open(Wait::FleetChange)]), "it may be restarting: {actions:?}");
    let actions = delivery.handle(at(TIMEOUT.as_millis() as u64), RequestEvent::NoneOfVersion);
    assert!(matches!(actions[..], [Action::Fail(Refusal::VersionGone)]), "{actions:?}");
    // A gateway's router has waited already.
    let gone = vec![
        (0, RequestEvent::Opened(worker_at(1))),
        (0, token(5)),
        (0, broken()),
        (0, RequestEvent::NotOpened(WORKER, CallError::VersionGone)),
    ];
    let last = last_actions(&request, gone);
    assert!(matches!(last[..], [Action::Fail(Refusal::VersionGone)]), "{last:?}");
}

#[test]
fn a_new_request_waits_for_a_worker_that_restarts_and_not_for_ever() {
    let too_long = TIMEOUT.as_millis() as u64;
    let request = request(1, 10, None, None);
    let last = last_actions(
        &request,
        vec![(0, RequestEvent::NobodyReady), (too_long - 1, RequestEvent::NobodyReady)],
    );
    assert!(matches!(last[..], [Action::Open(Wait::FleetChange)]), "{last:?}");
    let last =
        last_actions(&request, vec![(0, RequestEvent::NobodyReady), (too_long, RequestEvent::NobodyReady)]);
    assert!(matches!(last[..], [Action::Fail(Refusal::NoReadyWorker { .. })]), "{last:?}");
    // A gateway's request goes to another router instead.
    let without_wait = TokenRequest { waits_for_worker: false, ..request };
    let last = last_actions(&without_wait, vec![(0, RequestEvent::NobodyReady)]);
    assert!(matches!(last[..], [Action::Fail(Refusal::NoReadyWorker { .. })]), "{last:?}");
}

#[test]
fn a_rejected_request_is_not_retried_and_a_deadline_ends_it() {
    let request = request(1, 10, None, None);
    let rejected = || CallError::Rejected("max_tokens must be at least 1".into());
    let last = last_actions(&request, vec![(0, RequestEvent::NotOpened(WORKER, rejected()))]);
    assert!(matches!(last[..], [Action::Fail(Refusal::Invalid { param: None, .. })]), "{last:?}");
    let resumed = vec![
        (0, RequestEvent::Opened(worker_at(1))),
        (0, token(5)),
        (0, broken()),
        (0, RequestEvent::NotOpened(WORKER, rejected())),
    ];
    let last = last_actions(&request, resumed);
    assert!(matches!(last[..], [Action::Fail(Refusal::Internal)]), "{last:?}");
    // A grammar that cannot go on is the client's, wherever in the answer that shows.
    let stuck = vec![
        (0, RequestEvent::Opened(worker_at(1))),
        (0, token(5)),
        (0, RequestEvent::Ended(Some(CallError::Rejected("the answer cannot continue".into())))),
    ];
    let last = last_actions(&request, stuck);
    assert!(matches!(last[..], [Action::Fail(Refusal::Invalid { param: None, .. })]), "{last:?}");
    let last =
        last_actions(&request, vec![(0, RequestEvent::Opened(worker_at(1))), (9, RequestEvent::Deadline)]);
    assert!(matches!(last[..], [Action::Fail(Refusal::DeadlineExceeded { .. })]), "{last:?}");
}

#[test]
fn a_hand_back_moves_at_once_and_counts_only_against_the_bound_on_all_moves() {
    let request = request(1, 1000, None, None);
    let delta = Delta { hand_back: true, ..Delta::default() };
    let hand_back =
        |epoch| RequestEvent::Delta(WorkerDelta { epoch, version: Version(1), delta: delta.clone() });
    // No move without progress is allowed here, and no token ever arrives.
    let mut delivery = Delivery::new(&request, limits(0), at(0));
    for moves in 1..=MAX_MOVES {
        delivery.handle(at(0), RequestEvent::Opened(worker_at(1)));
        let actions = delivery.handle(at(0), hand_back(1));
        assert!(matches!(actions[..], [Action::Open(Wait::No)]), "{actions:?}");
        assert_eq!((delivery.moves(), delivery.broken()), (moves, None));
    }
    delivery.handle(at(0), RequestEvent::Opened(worker_at(1)));
    let actions = delivery.handle(at(0), hand_back(1));
    assert!(
        matches!(actions[..], [Action::Fail(Refusal::WorkersLost { moves: MAX_MOVES, .. })]),
        "{actions:?}"
    );
    // With no other worker ready, it waits as an accepted request; a hand-back from another epoch is a fault.
    let mut delivery = Delivery::new(&request, limits(1), at(0));
    delivery.handle(at(0), RequestEvent::Opened(worker_at(1)));
    delivery.handle(at(0), hand_back(1));
    let actions = delivery.handle(at(0), RequestEvent::NobodyReady);
    assert!(matches!(actions[..], [Action::Open(Wait::FleetChange)]), "{actions:?}");
    delivery.handle(at(0), RequestEvent::Opened(worker_at(2)));
    delivery.handle(at(0), hand_back(1));
    delivery.handle(at(0), RequestEvent::Opened(worker_at(3)));
    let actions = delivery.handle(at(0), hand_back(1));
    assert!(matches!(actions[..], [Action::Fail(_)]), "{actions:?}");
}

#[test]
fn tokens_before_a_hand_back_count() {
    for request in requests() {
        for seed in 0..20 {
            let expected = run(&request, seed, |_, _, _| None);
            for cut in 1..40 {
                let got = run(&request, seed, |attempt, deltas, _| {
                    if attempt == 1 && cut < deltas.len() {
                        deltas.truncate(cut);
                        deltas[cut - 1].delta.hand_back = deltas[cut - 1].delta.finish.is_none();
                    }
                    None
                });
                assert_eq!(got, expected, "seed {seed}, cut {cut}");
            }
        }
    }
}

#[test]
fn a_broken_stream_is_attached_to_again_but_not_twice_without_progress() {
    let request = request(1, 1000, None, None);
    let mut delivery = Delivery::new(&request, limits(9), at(0));
    assert!(delivery.may_attach() && delivery.broken().is_none());
    delivery.handle(at(0), RequestEvent::Opened(worker_at(1)));
    delivery.handle(at(0), token(5));
    delivery.handle(at(0), broken());
    assert_eq!((delivery.broken(), delivery.may_attach()), (Some(worker_at(1)), true));
    assert_eq!(delivery.positions().collect::<Vec<_>>(), [(0, 6)]);
    // The attached stream sends a token, so if it breaks, attaching is tried again.
    delivery.handle(at(0), RequestEvent::Attached(worker_at(1)));
    delivery.handle(at(0), token(6));
    delivery.handle(at(0), broken());
    assert_eq!((delivery.broken(), delivery.may_attach()), (Some(worker_at(1)), true));
    delivery.handle(at(0), RequestEvent::Attached(worker_at(1)));
    delivery.handle(at(0), broken());
    assert!(!delivery.may_attach());
    // A stream that was wrong, not just cut off, is not attached to again.
    delivery.handle(at(0), RequestEvent::Opened(worker_at(1)));
    assert!(delivery.may_attach());
    delivery.handle(at(0), token(9));
    assert_eq!(delivery.broken(), None);
}

#[test]
fn a_resume_starts_where_the_client_is() {
    use crate::request::{Resume, ResumeSample};
    for request in requests() {
        for seed in 0..20 {
            let expected = run(&request, seed, |_, _, _| None);
            let mut rng = StdRng::seed_from_u64(seed);
            // Each sample has delivered a random part; with several samples, the first has already ended.
            let samples: Vec<ResumeSample> = (u32::from(request.n > 1)..request.n)
                .map(|index| {
                    let tokens = &expected.samples[index as usize].0;
                    ResumeSample { index, delivered: tokens[..rng.random_range(0..=tokens.len())].to_vec() }
                })
                .collect();
            let resume = Resume { samples: samples.clone(), prompt_logprobs_done: true };
            let resumed = TokenRequest { resume: Some(Arc::new(resume)), ..request.clone() };
            let mut delivery = Delivery::new(&resumed, limits(3), at(0));
            assert!(!delivery.owes_prompt_logprobs() && !delivery.is_over());
            delivery.handle(at(0), RequestEvent::Opened(worker_at(1)));
            let mut tokens: Vec<Vec<TokenId>> =
                expected.samples.iter().map(|(tokens, _, _)| tokens.clone()).collect();
            samples.into_iter().for_each(|sample| tokens[sample.index as usize] = sample.delivered);
            let mut done = false;
            for delta in serve(&resumed, &delivery, 1, &mut rng) {
                for action in delivery.handle(at(0), RequestEvent::Delta(delta)) {
                    match action {
                        Action::Emit(delta) => {
                            let have = &mut tokens[delta.sample_index as usize];
                            assert_eq!(delta.from_position as usize, request.prompt.len() + have.len());
                            have.extend(delta.tokens);
                        }
                        Action::Done => done = true,
                        other => panic!("seed {seed}: {other:?}"),
                    }
                }
            }
            assert!(done, "seed {seed}");
            let whole: Vec<_> = expected.samples.iter().map(|(tokens, _, _)| tokens.clone()).collect();
            assert_eq!(tokens, whole, "seed {seed}");
        }
    }
}

#[test]
fn a_vector_that_is_missing_or_no_number_is_a_fault() {
    let sampling =
        SamplingParams { pooling: Some(Pooling::default()), max_tokens: 1, ..SamplingParams::default() };
    let request = TokenRequest::new("r", "m", [11, 12], sampling);
    let ended = |epoch, pooled: &[f32]| {
        let finish = Some(FinishReason::Stop(None));
        let delta = Delta { from_position: 2, finish, pooled: pooled.to_vec(), ..Delta::default() };
        RequestEvent::Delta(WorkerDelta { epoch, delta, ..WorkerDelta::default() })
    };
    let mut delivery = Delivery::new(&request, limits(3), at(0));
    for (epoch, vector) in [(1, &[][..]), (2, &[0.5, f32::NAN])] {
        delivery.handle(at(0), RequestEvent::Opened(worker_at(epoch)));
        let actions = delivery.handle(at(1), ended(epoch, vector));
        assert!(matches!(actions[..], [Action::Open(_)]), "{actions:?}");
    }
    delivery.handle(at(2), RequestEvent::Opened(worker_at(3)));
    let actions = delivery.handle(at(3), ended(3, &[0.5, -2.0]));
    let [Action::Emit(delta), Action::Done] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(delta.pooled, [0.5, -2.0]);
    assert_eq!(delivery.moves(), 2);
}
