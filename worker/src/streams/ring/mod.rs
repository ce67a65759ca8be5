//! One request's recent output, by position. Pure: events are appended, any number of cursors read, and the
//! oldest output is dropped, but never what a cursor has not read yet.

use std::collections::VecDeque;

use skein_proto::delta::Delta;
use skein_proto::finish::FinishReason;
use skein_proto::logprobs::TokenLogprobs;

use super::position::{Cursor, OutOfRange, SamplePosition};
use crate::TokenId;
use crate::scheduler::{NewRequest, RequestEvent};

mod forget;
#[cfg(test)]
mod tests;

/// Most tokens or prompt scores in one delta, which keeps messages well below their size limit.
pub(super) const MAX_DELTA_TOKENS: usize = 1024;

/// The first prompt position with a score: nothing predicts position 0.
const FIRST_SCORE: u32 = 1;

/// The kept output of one request.
#[derive(Debug)]
pub(super) struct Ring {
    prompt_len: u32,
    /// Sorted by index.
    samples: Vec<SampleOutput>,
    scores_from: u32,
    scores: VecDeque<TokenLogprobs>,
    cached_tokens: Option<u32>,
    /// Samples that have not ended.
    unfinished: usize,
    bytes: usize,
    /// Bytes ever added.
    written: u64,
}

#[derive(Debug)]
struct SampleOutput {
    index: u32,
    /// Position of the first of `tokens`.
    from: u32,
    tokens: VecDeque<TokenId>,
    /// One for each of `tokens`, or none at all.
    logprobs: VecDeque<TokenLogprobs>,
    /// The vector that it ends with, if its request is pooled; else empty.
    pooled: Vec<f32>,
    /// Those of the stop token that it ends with, if its request wants them.
    stop_logprobs: Option<Box<TokenLogprobs>>,
    finish: Option<FinishReason>,
}

impl SampleOutput {
    fn end(&self) -> u32 {
        self.from + self.tokens.len() as u32
    }

    /// Bytes of the output before `position`.
    fn bytes_before(&self, position: u32) -> usize {
        let count = position.min(self.end()).saturating_sub(self.from) as usize;
        self.logprobs.iter().take(count).map(bytes_of).sum::<usize>() + count * size_of::<TokenId>()
    }

    /// Drops everything before `floor` and returns its bytes.
    fn forget_before(&mut self, floor: u32) -> usize {
        let count = floor.saturating_sub(self.from) as usize;
        let logprobs = self.logprobs.drain(..count.min(self.logprobs.len()));
        let bytes = logprobs.map(|entry| bytes_of(&entry)).sum::<usize>();
        self.tokens.drain(..count);
        self.from += count as u32;
        bytes + count * size_of::<TokenId>()
    }
}

fn bytes_of(logprobs: &TokenLogprobs) -> usize {
    size_of::<TokenLogprobs>() + logprobs.top.len() * size_of::<(TokenId, f32)>()
}

impl Ring {
    /// An empty ring. The request's delivered tokens count as output, for readers that come from further
    /// back, unless the request wants log-probabilities, which are unknown for them.
    pub fn new(request: &NewRequest) -> Self {
        let prompt_len = request.prompt.len() as u32;
        let output = |sample: &crate::scheduler::NewSample| {
            let known = if request.params.logprobs.is_none() { &sample.delivered[..] } else { &[] };
            let from = prompt_len + (sample.delivered.len() - known.len()) as u32;
            let tokens = known.iter().copied().collect();
            SampleOutput {
                index: sample.index,
                from,
                tokens,
                logprobs: VecDeque::new(),
                pooled: Vec::new(),
                stop_logprobs: None,
                finish: None,
            }
        };
        let mut samples: Vec<_> = request.samples.iter().map(output).collect();
        samples.sort_unstable_by_key(|sample| sample.index);
        let bytes = samples.iter().map(|sample| sample.tokens.len() * size_of::<TokenId>()).sum();
        Self {
            prompt_len,
            unfinished: samples.len(),
            samples,
            scores_from: FIRST_SCORE,
            scores: VecDeque::new(),
            cached_tokens: None,
            bytes,
            written: bytes as u64,
        }
    }

    /// Bytes held now.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes ever added.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// True once all samples have ended.
    pub fn has_ended(&self) -> bool {
        self.unfinished == 0
    }

    /// Appends an event.
    pub fn add(&mut self, event: RequestEvent) {
        match event {
            RequestEvent::Started { cached_tokens, .. } => {
                self.cached_tokens.get_or_insert(cached_tokens);
            }
            RequestEvent::PromptScored { from, scores, .. } => {
                assert_eq!(from, self.scores_end(), "prompt scores come in order");
                self.grew(scores.iter().map(bytes_of).sum::<usize>());
                self.scores.extend(scores);
            }
            RequestEvent::Token { sample, position, token, logprobs, .. } => {
                self.grew(size_of::<TokenId>() + logprobs.as_ref().map_or(0, bytes_of));
                let output = self.sample_mut(sample);
                assert_eq!(position, output.end(), "a sample's tokens come in order");
                output.tokens.push_back(token);
                output.logprobs.extend(logprobs);
            }
            RequestEvent::StopScored { sample, logprobs, .. } => {
                // Not counted: there is one a sample, and it stays until the ring goes.
                self.sample_mut(sample).stop_logprobs = Some(Box::new(logprobs));
            }
            RequestEvent::Pooled { sample, vector, .. } => {
                // Not counted: there is one, and it stays until the ring goes.
                self.sample_mut(sample).pooled = vector;
            }
            RequestEvent::Finished { sample, reason, .. } => {
                let before = self.sample_mut(sample).finish.replace(reason);
                assert_eq!(before, None, "a sample ends once");
                self.unfinished -= 1;
            }
        }
    }

    fn grew(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.written += bytes as u64;
    }

    fn scores_end(&self) -> u32 {
        self.scores_from + self.scores.len() as u32
    }

    fn sample(&self, index: u32) -> Option<&SampleOutput> {
        let place = self.samples.binary_search_by_key(&index, |sample| sample.index).ok()?;
        Some(&self.samples[place])
    }

    fn sample_mut(&mut self, index: u32) -> &mut SampleOutput {
        let place = self.samples.binary_search_by_key(&index, |sample| sample.index);
        &mut self.samples[place.expect("events name samples of the request")]
    }

    /// A cursor at these positions. Positions not reached yet are fine: what comes before them is skipped.
    pub fn cursor(&self, samples: &[SamplePosition], from_score: u32) -> Result<Cursor, OutOfRange> {
        for &SamplePosition { index, from } in samples {
            let sample = self.sample(index).ok_or(OutOfRange::NoSample { index })?;
            if from < sample.from {
                return Err(OutOfRange::Tokens { index, from, kept: sample.from });
            }
            if sample.finish.is_some() && from > sample.end() {
                return Err(OutOfRange::PastEnd { index, from, end: sample.end() });
            }
        }
        let next_score = from_score.max(FIRST_SCORE);
        if next_score < self.scores_from.min(self.prompt_len) {
            return Err(OutOfRange::Scores { from: from_score, kept: self.scores_from });
        }
        let mut samples = samples.to_vec();
        samples.sort_unstable_by_key(|at| at.index);
        Ok(Cursor { samples, next_score, started: false })
    }

    /// Whether `delivered` are a sample's first output tokens, as far as both are known.
    pub fn agrees(&self, index: u32, delivered: &[TokenId]) -> bool {
        let Some(sample) = self.sample(index) else { return true };
        let forgotten = (sample.from - self.prompt_len) as usize;
        delivered.iter().skip(forgotten).zip(&sample.tokens).all(|(ours, theirs)| ours == theirs)
    }

    /// Reads everything after `cursor` and moves it to the end. The first delta of all reports
    /// the cached tokens.
    pub fn read(&self, cursor: &mut Cursor) -> Vec<Delta> {
        let mut deltas = Vec::new();
        self.read_scores(cursor, &mut deltas);
        cursor.samples.retain_mut(|at| {
            self.read_tokens(at, &mut deltas);
            !self.read_finish(*at, &mut deltas)
        });
        if let Some(first) = deltas.first_mut()
            && !std::mem::replace(&mut cursor.started, true)
        {
            first.cached_tokens = Some(self.cached_tokens.unwrap_or(0));
        }
        deltas
    }

    fn read_scores(&self, cursor: &mut Cursor, deltas: &mut Vec<Delta>) {
        let (sample_index, from_position) = cursor.place();
        while cursor.next_score < self.scores_end() && !cursor.is_done() {
            let skip = (cursor.next_score - self.scores_from) as usize;
            let scores: Vec<_> = self.scores.iter().skip(skip).take(MAX_DELTA_TOKENS).cloned().collect();
            let from_prompt_position = cursor.next_score;
            cursor.next_score += scores.len() as u32;
            let delta = Delta { sample_index, from_position, from_prompt_position, ..Delta::default() };
            deltas.push(Delta { prompt_logprobs: scores, ..delta });
        }
    }

    fn read_tokens(&self, at: &mut SamplePosition, deltas: &mut Vec<Delta>) {
        let Some(sample) = self.sample(at.index) else { return };
        while at.from < sample.end() {
            let skip = (at.from - sample.from) as usize;
            let part = skip..(skip + MAX_DELTA_TOKENS).min(sample.tokens.len());
            let scored = !sample.logprobs.is_empty();
            deltas.push(Delta {
                sample_index: at.index,
                from_position: at.from,
                tokens: sample.tokens.range(part.clone()).copied().collect(),
                logprobs: if scored {
                    sample.logprobs.range(part.clone()).cloned().collect()
                } else {
                    Vec::new()
                },
                ..Delta::default()
            });
            at.from += part.len() as u32;
        }
    }

    /// True if the sample has ended. The delta that ends at that position says so, or else a delta of its
    /// own. An abort always gets its own, because the tokens read before it still count.
    fn read_finish(&self, at: SamplePosition, deltas: &mut Vec<Delta>) -> bool {
        let Some(sample) = self.sample(at.index) else { return true };
        let Some(reason) = sample.finish else { return false };
        let fits = |last: &&mut Delta| {
            last.sample_index == at.index && !last.tokens.is_empty() && reason != FinishReason::Abort
        };
        let finish = Some(reason);
        match deltas.last_mut().filter(fits) {
            Some(last) => {
                last.finish = finish;
                last.stop_logprobs.clone_from(&sample.stop_logprobs);
            }
            None => deltas.push(Delta {
                sample_index: at.index,
                from_position: sample.end(),
                pooled: sample.pooled.clone(),
                stop_logprobs: sample.stop_logprobs.clone(),
                finish,
                ..Delta::default()
            }),
        }
        true
    }
}
