//! The ring against the simplest model: everything that ever happened, and a position for each reader.

use proptest::prelude::*;
use skein_proto::sampling::SamplingParams;

use super::*;
use crate::engine::Submission;
use crate::kv_cache::CacheScope;
use crate::scheduler::{NewSample, RequestKey};

const PROMPT_LEN: u32 = 12;
const SAMPLES: u32 = 3;

#[derive(Debug, Clone)]
enum Act {
    Token {
        sample: u32,
        count: u32,
    },
    Score(u32),
    Finish(u32),
    /// Attaches at these distances before (or, if negative, after) the end of each sample.
    Attach([Option<i32>; SAMPLES as usize], u32),
    Read(usize),
    Leave(usize),
    Forget(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let back = || proptest::option::weighted(0.8, -3i32..12);
    prop_oneof![
        8 => (0..SAMPLES, 1u32..6).prop_map(|(sample, count)| Act::Token { sample, count }),
        1 => (0..SAMPLES, 1020u32..1030).prop_map(|(sample, count)| Act::Token { sample, count }),
        2 => (1u32..6).prop_map(Act::Score),
        1 => (0..SAMPLES).prop_map(Act::Finish),
        3 => ([back(), back(), back()], 0..PROMPT_LEN + 1).prop_map(|(back, score)| Act::Attach(back, score)),
        6 => any::<usize>().prop_map(Act::Read),
        1 => any::<usize>().prop_map(Act::Leave),
        3 => prop_oneof![Just(0usize), 0usize..20_000].prop_map(Act::Forget),
    ]
}

fn request(logprobs: bool, delivered: usize) -> NewRequest {
    let params = SamplingParams { logprobs: logprobs.then_some(1), ..SamplingParams::default() };
    let sample = |index| NewSample { index, delivered: (0..delivered as u32).collect() };
    let request = NewRequest {
        key: RequestKey(1),
        prompt: vec![0; PROMPT_LEN as usize],
        params: params.into(),
        samples: (0..SAMPLES).map(sample).collect(),
        scope: CacheScope::new("model", ""),
        call: None,
        priority: 0,
        deadline: None,
        adapter: None,
    };
    Submission::alone("a", request).request
}

fn logprob(token: TokenId) -> TokenLogprobs {
    TokenLogprobs { token, logprob: -1.0, rank: token + 1, top: vec![(token, -1.0); token as usize % 3] }
}

/// All tokens of one sample, from the first output position on.
#[derive(Debug, Clone, Default)]
struct Output {
    tokens: Vec<TokenId>,
    finished: bool,
}

struct Reader {
    cursor: Cursor,
    /// Next position of each wanted sample whose end it has not read.
    next: Vec<Option<u32>>,
    next_score: u32,
    started: bool,
}

struct World {
    ring: Ring,
    logprobs: bool,
    expected: Vec<Output>,
    scores: Vec<TokenLogprobs>,
    readers: Vec<Reader>,
    /// First position of each sample at which a reader can start.
    kept_from: Vec<u32>,
    scores_from: u32,
}

impl World {
    fn new(logprobs: bool, delivered: usize) -> Self {
        let expected = Output { tokens: (0..delivered as u32).collect(), finished: false };
        let unknown = if logprobs { delivered as u32 } else { 0 };
        Self {
            ring: Ring::new(&request(logprobs, delivered)),
            logprobs,
            expected: vec![expected; SAMPLES as usize],
            scores: Vec::new(),
            readers: Vec::new(),
            kept_from: vec![PROMPT_LEN + unknown; SAMPLES as usize],
            scores_from: 1,
        }
    }

    fn end(&self, sample: u32) -> u32 {
        PROMPT_LEN + self.expected[sample as usize].tokens.len() as u32
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Token { sample, count } => (0..count).for_each(|_| self.token(sample)),
            Act::Score(count) => self.score(count),
            Act::Finish(sample) => self.finish(sample),
            Act::Attach(back, score) => self.attach(back, score),
            Act::Read(which) if !self.readers.is_empty() => {
                let which = which % self.readers.len();
                self.read(which);
            }
            Act::Leave(which) if !self.readers.is_empty() => {
                let which = which % self.readers.len();
                drop(self.readers.remove(which));
            }
            Act::Read(_) | Act::Leave(_) => {}
            Act::Forget(goal) => self.forget(goal),
        }
    }

    fn token(&mut self, sample: u32) {
        let (position, expected) = (self.end(sample), &mut self.expected[sample as usize]);
        // A real request scores its prompt before it draws; here scores are optional.
        if expected.finished {
            return;
        }
        let token = (position * 7 + sample) % 50;
        expected.tokens.push(token);
        let logprobs = self.logprobs.then(|| logprob(token));
        self.ring.add(RequestEvent::Token { request: RequestKey(1), sample, position, token, logprobs });
    }

    fn score(&mut self, count: u32) {
        let from = 1 + self.scores.len() as u32;
        let scores: Vec<_> = (from..(from + count).min(PROMPT_LEN)).map(logprob).collect();
        self.scores.extend(scores.clone());
        self.ring.add(RequestEvent::PromptScored { request: RequestKey(1), from, scores });
    }

    fn finish(&mut self, sample: u32) {
        let position = self.end(sample);
        if !std::mem::replace(&mut self.expected[sample as usize].finished, true) {
            let (mut reason, request) = (FinishReason::Length, RequestKey(1));
            if self.logprobs {
                reason = FinishReason::Stop(Some(sample));
                self.ring.add(RequestEvent::StopScored { request, sample, logprobs: logprob(sample) });
            }
            self.ring.add(RequestEvent::Finished { request, sample, position, reason });
        }
    }

    fn attach(&mut self, back: [Option<i32>; SAMPLES as usize], from_score: u32) {
        let from = |(sample, back): (u32, Option<i32>)| {
            Some(self.end(sample).saturating_add_signed(-back?))
                .map(|from| SamplePosition { index: sample, from })
        };
        let wanted: Vec<SamplePosition> = (0..SAMPLES).zip(back).filter_map(from).collect();
        let fits = |at: &SamplePosition| {
            let expected = &self.expected[at.index as usize];
            at.from >= self.kept_from[at.index as usize]
                && (!expected.finished || at.from <= self.end(at.index))
        };
        let fits = wanted.iter().all(fits) && from_score.max(1) >= self.scores_from.min(PROMPT_LEN);
        let cursor = self.ring.cursor(&wanted, from_score);
        assert_eq!(cursor.is_ok(), fits, "{wanted:?} {from_score}: {cursor:?}");
        if let Ok(cursor) = cursor {
            let mut next = vec![None; SAMPLES as usize];
            wanted.iter().for_each(|at| next[at.index as usize] = Some(at.from));
            self.readers.push(Reader { cursor, next, next_score: from_score.max(1), started: false });
        }
    }

    fn read(&mut self, which: usize) {
        let reader = &mut self.readers[which];
        let (ring, wants) = (&self.ring, reader.next.iter().any(Option::is_some));
        let deltas = ring.read(&mut reader.cursor);
        for delta in deltas {
            assert_eq!(delta.cached_tokens.is_some(), !std::mem::replace(&mut reader.started, true));
            assert!(delta.tokens.len() <= MAX_DELTA_TOKENS);
            for score in delta.prompt_logprobs {
                assert_eq!(score, self.scores[reader.next_score as usize - 1]);
                reader.next_score += 1;
            }
            if delta.tokens.is_empty() && delta.finish.is_none() {
                continue;
            }
            let expected = &self.expected[delta.sample_index as usize];
            let next = reader.next[delta.sample_index as usize]
                .as_mut()
                .expect("it wants that sample, and has no end of it");
            assert!(delta.tokens.is_empty() || delta.from_position == *next);
            let first = (delta.from_position - PROMPT_LEN) as usize;
            assert_eq!(delta.tokens, expected.tokens[first..first + delta.tokens.len()]);
            if self.logprobs {
                assert!(delta.logprobs.iter().map(|entry| entry.token).eq(delta.tokens.iter().copied()));
            }
            let stop = delta.finish.filter(|_| self.logprobs).map(|_| Box::new(logprob(delta.sample_index)));
            assert_eq!(delta.stop_logprobs, stop);
            *next += delta.tokens.len() as u32;
            if delta.finish.is_some() {
                // Beyond the sample's end only if it started there.
                assert!(expected.finished && *next >= PROMPT_LEN + expected.tokens.len() as u32);
                reader.next[delta.sample_index as usize] = None;
            }
        }
        // It has read everything.
        for (sample, next) in reader.next.iter().enumerate() {
            let expected = &self.expected[sample];
            assert!(
                next.is_none_or(
                    |next| !expected.finished && next >= PROMPT_LEN + expected.tokens.len() as u32
                )
            );
        }
        assert!(!wants || reader.next_score > self.scores.len() as u32);
        assert_eq!(reader.cursor.is_done(), reader.next.iter().all(Option::is_none));
    }

    fn forget(&mut self, goal: usize) {
        let Self { ring, readers, .. } = self;
        ring.forget_read(goal, readers.iter().map(|reader| &reader.cursor));
        let mut nothing_may_go = true;
        for sample in 0..SAMPLES {
            let output = ring.sample(sample).expect("it is there");
            let unread = self.readers.iter().filter_map(|reader| reader.next[sample as usize]).min();
            let floor = unread.unwrap_or(u32::MAX).min(output.end());
            assert!(output.from <= floor.max(self.kept_from[sample as usize]), "what is unread stays");
            nothing_may_go &= output.from >= floor;
            self.kept_from[sample as usize] = output.from;
        }
        let unread = self.readers.iter().map(|reader| reader.next_score).min().unwrap_or(u32::MAX);
        assert!(self.ring.scores_from <= unread.max(self.scores_from), "unread scores stay");
        self.scores_from = self.ring.scores_from;
        assert!(self.ring.bytes() <= goal || nothing_may_go, "{} of {goal} bytes", self.ring.bytes());
        // The byte count matches the content.
        let held: usize = self.ring.samples.iter().map(|sample| sample.bytes_before(u32::MAX)).sum();
        assert_eq!(held + self.ring.scores.iter().map(bytes_of).sum::<usize>(), self.ring.bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_readers_at_any_time_read_what_happened_and_bytes_are_bounded(
        logprobs in any::<bool>(),
        delivered in 0usize..8,
        acts in prop::collection::vec(act(), 0..80),
    ) {
        let mut world = World::new(logprobs, delivered);
        for act in acts {
            world.act(act);
        }
        // At the end every reader reads to the end.
        (0..SAMPLES).for_each(|sample| world.finish(sample));
        for which in 0..world.readers.len() {
            world.read(which);
            prop_assert!(world.readers[which].cursor.is_done());
        }
        prop_assert!(world.ring.has_ended());
        world.readers.clear();
        world.forget(0);
        prop_assert_eq!(world.ring.bytes(), 0);
    }
}
