use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt};
use skein_node::clock;
use skein_proto::TokenId;
use skein_proto::finish::FinishReason;
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::sampling::SamplingParams;
use skein_proto::version::Version;
use tokio::sync::watch;

use super::{PauseMode, Pauses};
use crate::drain::Drain;
use crate::generator::{Generator, TokenSource};
use crate::refusal::Refusal;
use crate::request::{Journey, TokenDelta, TokenRequest};

const VERSION: Version = Version(7);
const PROMPT: [TokenId; 3] = [1, 2, 3];

/// Generates `position` at each position, as far as the test allows, from wherever a request continues.
struct Counting {
    /// Position before which tokens may be drawn.
    allowed: watch::Sender<u32>,
    submitted: Mutex<Vec<TokenRequest>>,
    /// Refuses the next requests so.
    refusals: Mutex<VecDeque<Refusal>>,
    open: Arc<AtomicUsize>,
}

impl Counting {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            allowed: watch::Sender::new(0),
            submitted: Mutex::default(),
            refusals: Mutex::default(),
            open: Arc::default(),
        })
    }

    fn allow(&self, before: u32) {
        self.allowed.send_replace(before);
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

impl Generator for Counting {
    fn submit(&self, request: TokenRequest) -> BoxFuture<'_, Result<Box<dyn TokenSource>, Refusal>> {
        self.submitted.lock().unwrap().push(request.clone());
        let refusal = self.refusals.lock().unwrap().pop_front();
        self.open.fetch_add(usize::from(refusal.is_none()), Ordering::SeqCst);
        let source = || Counted {
            deltas: deltas(request, self.allowed.subscribe()).boxed(),
            open: self.open.clone(),
            begun: false,
        };
        let answer = refusal.map_or_else(|| Ok(Box::new(source()) as Box<dyn TokenSource>), Err);
        async { answer }.boxed()
    }

    fn leave(&self) {}
}

/// Prompt log-probabilities one by one, then the samples' tokens position by position.
fn deltas(
    request: TokenRequest,
    mut allowed: watch::Receiver<u32>,
) -> impl Stream<Item = Result<TokenDelta, Refusal>> {
    let prompt_len = request.prompt.len() as u32;
    let mut next: Vec<Option<u32>> = vec![Some(prompt_len); request.n as usize];
    if let Some(resume) = &request.resume {
        next.fill(None);
        for sample in &resume.samples {
            next[sample.index as usize] = Some(prompt_len + sample.delivered.len() as u32);
        }
    }
    let scores = request.sampling.prompt_logprobs.is_some()
        && !request.resume.as_ref().is_some_and(|resume| resume.prompt_logprobs_done);
    let end = prompt_len + request.sampling.max_tokens;
    async_stream::stream! {
        yield Ok(TokenDelta { cached_tokens: Some(2), ..TokenDelta::default() });
        for position in (1..prompt_len).filter(|_| scores) {
            // A resumed request that owes a score has to wait for it, too.
            let _ = allowed.wait_for(|allowed| *allowed >= position).await;
            let score = TokenLogprobs { token: position, logprob: -0.5, rank: 1, top: Vec::new() };
            yield Ok(TokenDelta { prompt_logprobs: vec![score], ..TokenDelta::default() });
        }
        while let Some(position) = next.iter().flatten().min().copied() {
            let _ = allowed.wait_for(|allowed| *allowed > position).await;
            for (sample, next) in next.iter_mut().enumerate().filter(|(_, next)| **next == Some(position)) {
                let finish = (position + 1 == end).then_some(FinishReason::Length);
                *next = finish.is_none().then_some(position + 1);
                yield Ok(TokenDelta {
                    sample_index: sample as u32, from_position: position, tokens: vec![position], finish,
                    ..TokenDelta::default()
                });
            }
        }
    }
}

struct Counted {
    deltas: BoxStream<'static, Result<TokenDelta, Refusal>>,
    open: Arc<AtomicUsize>,
    begun: bool,
}

impl Stream for Counted {
    type Item = Result<TokenDelta, Refusal>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let item = self.deltas.poll_next_unpin(context);
        self.begun |= matches!(&item, Poll::Ready(Some(Ok(delta))) if !delta.tokens.is_empty());
        item
    }
}

impl TokenSource for Counted {
    fn abort_sample(&mut self, _: u32) {}

    fn journey(&self) -> Journey {
        let version = if self.begun { VERSION } else { Version::UNKNOWN };
        Journey { moves: 1, version, ..Journey::default() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

fn paused_over(counting: &Arc<Counting>) -> Pauses {
    Pauses::new(counting.clone(), Drain::default(), 2)
}

fn request(id: &str, max_tokens: u32) -> TokenRequest {
    TokenRequest::new(id, "m", PROMPT, SamplingParams { max_tokens, ..SamplingParams::default() })
}

/// Everything that a stream says at once: tokens of each sample, and ends.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    tokens: Vec<(u32, TokenId)>,
    ends: Vec<(u32, FinishReason)>,
    scores: Vec<TokenId>,
    cached: usize,
    over: bool,
}

async fn listen(source: &mut Box<dyn TokenSource>, heard: &mut Heard) {
    // Time is paused: a stream that stays silent lets it pass at once.
    while let Ok(item) = tokio::time::timeout(Duration::from_millis(1), source.next()).await {
        match item {
            None => {
                heard.over = true;
                return;
            }
            Some(delta) => {
                let delta = delta.expect("no refusal");
                heard.tokens.extend(delta.tokens.iter().map(|token| (delta.sample_index, *token)));
                heard.ends.extend(delta.finish.map(|finish| (delta.sample_index, finish)));
                heard.scores.extend(delta.prompt_logprobs.iter().map(|score| score.token));
                heard.cached += usize::from(delta.cached_tokens.is_some());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_kept_request_leaves_its_worker_and_continues_where_its_client_is() {
    let counting = Counting::new();
    let pauses = paused_over(&counting);
    let mut source = pauses.submit(TokenRequest { n: 2, ..request("a", 4) }).await.unwrap();
    let mut heard = Heard::default();
    counting.allow(5);
    listen(&mut source, &mut heard).await;
    pauses.pause(PauseMode::Keep).await.unwrap();
    assert_eq!((pauses.is_paused(), counting.open()), (true, 0), "it is at no worker");
    counting.allow(9);
    listen(&mut source, &mut heard).await;
    assert_eq!(heard.tokens, [(0, 3), (1, 3), (0, 4), (1, 4)], "it stands still");
    pauses.resume().unwrap();
    listen(&mut source, &mut heard).await;
    assert_eq!(heard.tokens[4..], [(0, 5), (1, 5), (0, 6), (1, 6)]);
    assert_eq!((heard.ends.len(), heard.cached, heard.over), (2, 1, true));
    let again = counting.submitted.lock().unwrap()[1].clone();
    assert_eq!(again.version, VERSION, "on the version that it began on");
    assert_eq!(again.resume.unwrap().samples[1].delivered, [3, 4]);
    let journey = source.journey();
    assert_eq!((journey.moves, journey.version), (2, VERSION), "moves of both streams count");
}

#[tokio::test(start_paused = true)]
async fn log_probabilities_of_the_prompt_come_once() {
    let counting = Counting::new();
    let pauses = paused_over(&counting);
    let mut request = request("a", 1);
    Arc::make_mut(&mut request.sampling).prompt_logprobs = Some(0);
    let mut source = pauses.submit(request).await.unwrap();
    let mut heard = Heard::default();
    counting.allow(1);
    listen(&mut source, &mut heard).await;
    assert_eq!(heard.scores, [1]);
    pauses.pause(PauseMode::Keep).await.unwrap();
    pauses.resume().unwrap();
    counting.allow(9);
    listen(&mut source, &mut heard).await;
    assert_eq!((&heard.scores[..], heard.tokens.len(), heard.over), (&[1, 2][..], 1, true));
}

#[tokio::test(start_paused = true)]
async fn new_requests_wait_until_generation_goes_on_but_no_longer_than_their_time() {
    let counting = Counting::new();
    counting.allow(99);
    let pauses = paused_over(&counting);
    pauses.pause(PauseMode::Abort).await.unwrap();
    let submit = async |id: &str, seconds: u64| {
        let now = clock::now();
        let deadline = Some(now + Duration::from_secs(seconds));
        pauses.submit(TokenRequest { deadline, arrived: Some(now), ..request(id, 1) }).await
    };
    let (mut late, mut patient) = (submit("a", 1).await.unwrap(), submit("b", 60).await.unwrap());
    let crowded = submit("c", 60).await.map(drop);
    assert!(matches!(crowded, Err(Refusal::Overloaded { .. })), "two wait already");
    let late = late.next().await.unwrap();
    assert!(matches!(late, Err(Refusal::DeadlineExceeded { timeout }) if timeout.as_secs() == 1), "{late:?}");
    pauses.pause(PauseMode::Abort).await.unwrap();
    let mut heard = Heard::default();
    listen(&mut patient, &mut heard).await;
    assert_eq!(heard, Heard::default(), "another pause ends what runs, not what waits");
    assert!(counting.submitted.lock().unwrap().is_empty() && pauses.standing() == 1);
    pauses.resume().unwrap();
    listen(&mut patient, &mut heard).await;
    assert_eq!((heard.tokens.len(), heard.over), (1, true));
    assert_eq!(counting.submitted.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_can_be_aborted() {
    let counting = Counting::new();
    let pauses = paused_over(&counting);
    pauses.pause(PauseMode::Keep).await.unwrap();
    let mut source = pauses.submit(request("a", 1)).await.unwrap();
    assert_eq!(pauses.abort(Some(&["a".to_owned()])), 1);
    let mut heard = Heard::default();
    listen(&mut source, &mut heard).await;
    assert_eq!((&heard.ends[..], heard.over), (&[(0, FinishReason::Abort)][..], true));
    assert!(counting.submitted.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn generation_goes_on_when_the_process_begins_to_end() {
    let counting = Counting::new();
    counting.allow(99);
    let drain = Drain::default();
    let pauses = Pauses::new(counting.clone(), drain.clone(), 2);
    pauses.pause(PauseMode::Keep).await.unwrap();
    let mut source = pauses.submit(request("a", 2)).await.unwrap();
    drain.drain(Duration::from_secs(1), || ()).await;
    let mut heard = Heard::default();
    listen(&mut source, &mut heard).await;
    assert_eq!((heard.tokens.len(), heard.over, pauses.is_paused()), (2, true, false));
}

#[tokio::test(start_paused = true)]
async fn requests_that_stand_still_count_for_the_version_that_they_began_on() {
    let counting = Counting::new();
    counting.allow(4);
    let pauses = paused_over(&counting);
    let mut begun = pauses.submit(request("a", 3)).await.unwrap();
    listen(&mut begun, &mut Heard::default()).await;
    pauses.pause(PauseMode::Keep).await.unwrap();
    let _waiting = pauses.submit(request("b", 3)).await.unwrap();
    assert_eq!((pauses.standing(), pauses.standing_on_others_than(VERSION)), (2, 0));
    assert_eq!(pauses.standing_on_others_than(Version(8)), 1);
    drop(begun);
    assert_eq!((pauses.standing(), pauses.standing_on_others_than(Version(8))), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn aborted_requests_end_with_what_they_have() {
    let counting = Counting::new();
    let pauses = paused_over(&counting);
    let mut source = pauses.submit(TokenRequest { n: 2, ..request("a", 9) }).await.unwrap();
    let mut other = pauses.submit(TokenRequest { part: 3, ..request("call-3", 9) }).await.unwrap();
    counting.allow(4);
    let (mut heard, mut heard_other) = (Heard::default(), Heard::default());
    listen(&mut source, &mut heard).await;
    assert_eq!(pauses.abort(Some(&["call".to_owned(), "nobody".to_owned()])), 1);
    listen(&mut source, &mut heard).await;
    listen(&mut other, &mut heard_other).await;
    assert_eq!((heard.ends.len(), &heard_other.ends[..]), (0, &[(0, FinishReason::Abort)][..]));
    pauses.pause(PauseMode::Abort).await.unwrap();
    listen(&mut source, &mut heard).await;
    assert_eq!(heard.tokens, [(0, 3), (1, 3)]);
    assert_eq!(heard.ends, [(0, FinishReason::Abort), (1, FinishReason::Abort)]);
    assert_eq!((heard.over, heard_other.over, counting.open()), (true, true, 0));
    assert_eq!(pauses.abort(None), 0, "all have ended");
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_waits_is_answered_when_the_last_request_has_ended() {
    let counting = Counting::new();
    let pauses = paused_over(&counting);
    let mut source = pauses.submit(request("a", 2)).await.unwrap();
    let order = |pauses: &Pauses| {
        let pauses = pauses.clone();
        tokio::spawn(async move { pauses.pause(PauseMode::Wait).await })
    };
    let given_up = order(&pauses);
    tokio::time::sleep(Duration::from_millis(1)).await;
    pauses.resume().unwrap();
    assert!(matches!(given_up.await.unwrap(), Err(Refusal::Conflict(_))));
    let waiting = order(&pauses);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(!waiting.is_finished() && pauses.is_paused());
    counting.allow(9);
    let mut heard = Heard::default();
    listen(&mut source, &mut heard).await;
    assert_eq!((heard.tokens.len(), heard.ends[0].1), (2, FinishReason::Length), "it ran to its end");
    drop(source);
    waiting.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_kept_request_that_finds_the_cluster_full_asks_again() {
    let counting = Counting::new();
    let pauses = paused_over(&counting);
    let mut source = pauses.submit(request("a", 2)).await.unwrap();
    pauses.pause(PauseMode::Keep).await.unwrap();
    let full = Refusal::Overloaded { reason: "full".into(), retry_after: Duration::from_secs(30) };
    counting.refusals.lock().unwrap().extend([full.clone(), full]);
    counting.allow(9);
    pauses.resume().unwrap();
    let whole = async {
        let mut tokens = 0;
        while let Some(delta) = source.next().await {
            tokens += delta.unwrap().tokens.len();
        }
        tokens
    };
    assert_eq!(tokio::time::timeout(Duration::from_secs(3), whole).await, Ok(2));
    assert_eq!(counting.submitted.lock().unwrap().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn weights_are_replaced_in_place_only_while_nothing_runs_and_end_what_has_begun() {
    let counting = Counting::new();
    let pauses = paused_over(&counting);
    let refused = |pauses: &Pauses| matches!(pauses.hold(), Err(Refusal::Conflict(_)));
    let mut begun = pauses.submit(request("a", 3)).await.unwrap();
    assert!(refused(&pauses), "generation goes on");
    counting.allow(4);
    let (mut heard, mut heard_fresh) = (Heard::default(), Heard::default());
    listen(&mut begun, &mut heard).await;
    counting.allow(0);
    let mut fresh = pauses.submit(request("b", 3)).await.unwrap();
    let waiting = tokio::spawn({
        let pauses = pauses.clone();
        async move { pauses.pause(PauseMode::Wait).await }
    });
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(refused(&pauses), "two run");
    pauses.pause(PauseMode::Keep).await.unwrap();
    waiting.await.unwrap().unwrap();
    let hold = pauses.hold().unwrap();
    assert!(refused(&pauses) && matches!(pauses.resume(), Err(Refusal::Conflict(_))));
    hold.abort_begun();
    drop(hold);
    pauses.resume().unwrap();
    counting.allow(9);
    listen(&mut begun, &mut heard).await;
    listen(&mut fresh, &mut heard_fresh).await;
    assert_eq!((heard.tokens.len(), &heard.ends[..]), (1, &[(0, FinishReason::Abort)][..]));
    assert_eq!((heard_fresh.tokens.len(), heard_fresh.over), (3, true), "it had nothing, so it begins anew");
    let again = counting.submitted.lock().unwrap().last().cloned().unwrap();
    assert_eq!((again.resume, again.version), (None, Version::UNKNOWN));
}
