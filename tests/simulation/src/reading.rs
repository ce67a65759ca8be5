//! A client's copy of its answer, checked message by message: every position once and in order, every value
//! equal to the reference of one version of the model.

use skein_proto::TokenId;
use skein_proto::finish::FinishReason;
use skein_proto::version::Version;
use skein_router::request::{Resume, ResumeSample, TokenDelta};

use crate::reference::{Answer, Answers};
use crate::served::{Ask, Part};

/// The part of the answer that a client has received.
#[derive(Debug, Clone)]
pub struct Reading {
    prompt_len: u32,
    wants_logprobs: bool,
    /// Indexed by sample.
    samples: Vec<Progress>,
    prompt_logprobs: usize,
    /// Whether all prompt log-probabilities have arrived, or none were requested.
    has_prompt_logprobs: bool,
    told_cached: bool,
    /// Version that everything received is from; unknown before the first part.
    version: Version,
}

#[derive(Debug, Clone, Default)]
struct Progress {
    tokens: usize,
    ended: bool,
    stop_after: Option<u32>,
}

impl Reading {
    /// State before the first token.
    pub fn new(ask: &Ask) -> Self {
        let progress = |&stop_after: &Option<u32>| Progress { stop_after, ..Progress::default() };
        Self {
            prompt_len: ask.request.prompt.len() as u32,
            wants_logprobs: ask.request.sampling.logprobs.is_some(),
            samples: ask.stop_after.iter().map(progress).collect(),
            prompt_logprobs: 0,
            has_prompt_logprobs: ask.request.sampling.prompt_logprobs.is_none(),
            told_cached: false,
            version: Version::UNKNOWN,
        }
    }

    /// Version that everything received is from.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Starts a new attempt, which continues from here.
    pub fn resume(&mut self) {
        self.told_cached = false;
        if !self.has_prompt_logprobs {
            self.prompt_logprobs = 0;
        }
    }

    /// What a router must know to continue from here.
    pub fn resume_from(&self, answers: &Answers) -> Resume {
        let answer = answers.of(self.version);
        let wanted = self.samples.iter().enumerate().filter(|(_, sample)| !sample.ended);
        let sample = |(index, sample): (usize, &Progress)| ResumeSample {
            index: index as u32,
            delivered: answer.samples[index].tokens[..sample.tokens].to_vec(),
        };
        Resume { samples: wanted.map(sample).collect(), prompt_logprobs_done: self.has_prompt_logprobs }
    }

    /// Number of tokens received, by sample.
    pub fn tokens_by_sample(&self) -> Vec<u32> {
        self.samples.iter().map(|sample| sample.tokens as u32).collect()
    }

    /// Whether every sample has ended.
    pub fn is_whole(&self) -> bool {
        self.samples.iter().all(|sample| sample.ended)
    }

    /// Number of tokens received, all samples together.
    pub fn tokens(&self) -> usize {
        self.samples.iter().map(|sample| sample.tokens).sum()
    }

    /// Appends a delta; the error says how it differs from the expected answer.
    pub fn take(&mut self, Part { delta, version }: &Part, answers: &Answers) -> Result<(), String> {
        let has_output =
            !delta.tokens.is_empty() || delta.finish.is_some() || !delta.prompt_logprobs.is_empty();
        if !self.version.fits(*version) || has_output && !version.is_known() {
            return Err(format!("output of version {version} after output of {}", self.version));
        }
        self.version = self.version.or(*version);
        let answer = answers.of(self.version);
        self.take_prompt(delta, answer)?;
        let index = delta.sample_index as usize;
        let (Some(sample), Some(whole)) = (self.samples.get_mut(index), answer.samples.get(index)) else {
            return Err(format!("tokens of sample {index}, which was not requested"));
        };
        if delta.tokens.is_empty() && delta.finish.is_none() {
            return Ok(());
        }
        if sample.ended {
            return Err(format!("sample {index} continues after its end"));
        }
        let next = self.prompt_len + sample.tokens as u32;
        if delta.from_position != next {
            return Err(format!("sample {index} continues at position {}, not {next}", delta.from_position));
        }
        let range = sample.tokens..sample.tokens + delta.tokens.len();
        let expected: &[TokenId] = whole.tokens.get(range.clone()).unwrap_or_default();
        if expected != delta.tokens {
            return Err(format!("sample {index} from {next}: {:?} instead of {expected:?}", delta.tokens));
        }
        if self.wants_logprobs && whole.logprobs.get(range) != Some(&delta.logprobs) {
            return Err(format!("sample {index} from {next}: log-probabilities differ"));
        }
        sample.tokens += delta.tokens.len();
        let Some(finish) = delta.finish else { return Ok(()) };
        sample.ended = true;
        let stopped = finish == FinishReason::Abort && sample.stop_after == Some(sample.tokens as u32);
        let complete = sample.tokens == whole.tokens.len() && whole.finish == Some(finish);
        if stopped || complete {
            return Ok(());
        }
        let (got, all) = (sample.tokens, whole.tokens.len());
        Err(format!(
            "sample {index} ends with {finish:?} after {got} of {all} tokens, not {:?}",
            whole.finish
        ))
    }

    fn take_prompt(&mut self, delta: &TokenDelta, answer: &Answer) -> Result<(), String> {
        if delta.cached_tokens.is_some() && std::mem::replace(&mut self.told_cached, true) {
            return Err("the cache hit is reported twice".to_owned());
        }
        let range = self.prompt_logprobs..self.prompt_logprobs + delta.prompt_logprobs.len();
        if answer.prompt_logprobs.get(range.clone()) != Some(&delta.prompt_logprobs) {
            return Err(format!("log-probabilities of the prompt differ from entry {}", range.start));
        }
        self.prompt_logprobs = range.end;
        let all = answer.prompt_logprobs.len();
        self.has_prompt_logprobs |= range.end == all;
        if self.prompt_logprobs < all && !(delta.tokens.is_empty() && delta.finish.is_none()) {
            return Err(format!(
                "output after {} of {all} of the prompt's log-probabilities",
                self.prompt_logprobs
            ));
        }
        Ok(())
    }
}
