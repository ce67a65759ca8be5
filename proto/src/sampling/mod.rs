//! Sampling parameters: as a worker takes them ([`SamplingParams`]), as a client sends them
//! ([`SamplingOptions`]), and the range of each number ([`Range`]).
//!
//! A token is a function of (model, tokens so far, these parameters, sample index). No state is kept between
//! draws, so any worker can continue any request.

mod check;
mod options;
mod range;

pub use check::{MAX_ALLOWED_TOKENS, MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS};
pub use options::SamplingOptions;
pub use range::{OutOfRange, Range, shown};

use std::sync::Arc;

use crate::TokenId;
use crate::pooling::Pooling;
use crate::same_fields::same_fields;
use crate::stream_key::Encoding;
use crate::worker::v1 as wire;

/// Sampling parameters of a request, the same for all its samples. The seed is always set.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 = greedy.
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probabilities add up to this; 1 = off.
    pub top_p: f32,
    /// Keep this many tokens; 0 = off.
    pub top_k: u32,
    /// Keep tokens at least this probable relative to the most probable one; 0 = off.
    pub min_p: f32,
    /// 1 = off; over prompt and output tokens (as in CTRL, Keskar et al. 2019).
    pub repetition_penalty: f32,
    /// 0 = off; over output tokens.
    pub presence_penalty: f32,
    /// 0 = off; over output tokens.
    pub frequency_penalty: f32,
    /// Key of the Philox stream.
    pub seed: u64,
    /// Added to the logits of these tokens, before penalties.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Most output tokens, including those delivered before a resume.
    pub max_tokens: u32,
    /// Stop tokens cannot be drawn before this many output tokens.
    pub min_tokens: u32,
    /// Tokens that end a sample when drawn.
    pub stop_token_ids: Vec<TokenId>,
    /// The model's own end-of-sequence tokens end a sample only if they are in `stop_token_ids`.
    pub ignore_eos: bool,
    /// Report the log-probabilities of the chosen token and of this many most probable ones.
    pub logprobs: Option<u32>,
    /// The same for the tokens of the prompt.
    pub prompt_logprobs: Option<u32>,
    /// Only these tokens are drawn; empty = any. A grammar that allows none of them takes precedence.
    pub allowed_token_ids: Vec<TokenId>,
    /// The last token of each is not drawn if the output ends with the tokens before it, unless nothing else
    /// can be drawn.
    pub bad_words: Vec<Vec<TokenId>>,
    /// Grammar that constrains the answer.
    pub grammar: Option<Arc<Grammar>>,
    /// The vector of the prompt is wanted, and no token; `max_tokens` is 1.
    pub pooling: Option<Pooling>,
}

/// Grammar of an answer. Both fields together determine which tokens it allows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Grammar {
    /// Grammar text in the notation of the grammar crate.
    pub text: String,
    /// Identifies tokenizer, library and limits; workers refuse any other than their own.
    pub fingerprint: u64,
}

impl Default for SamplingParams {
    /// Greedy, everything else off, 16 tokens.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            logit_bias: Vec::new(),
            max_tokens: 16,
            min_tokens: 0,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            prompt_logprobs: None,
            allowed_token_ids: Vec::new(),
            bad_words: Vec::new(),
            grammar: None,
            pooling: None,
        }
    }
}

impl SamplingParams {
    /// Whether a draw depends on the tokens so far.
    pub fn needs_history(&self) -> bool {
        self.has_penalties() || self.bans_sequences()
    }

    /// Whether any penalty is set.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Whether a banned sequence has several tokens, so that the banned tokens depend on the output.
    pub fn bans_sequences(&self) -> bool {
        self.bad_words.iter().any(|word| word.len() > 1)
    }

    /// Appends every parameter to a stream's key. The pattern names every field, so that a new parameter does
    /// not compile until it is added here.
    pub fn encode(&self, encoding: &mut Encoding) {
        let Self {
            temperature,
            top_p,
            top_k,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            seed,
            logit_bias,
            max_tokens,
            min_tokens,
            stop_token_ids,
            ignore_eos,
            logprobs,
            prompt_logprobs,
            allowed_token_ids,
            bad_words,
            grammar,
            pooling,
        } = self;
        for value in [temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty] {
            encoding.number(u64::from(value.to_bits()));
        }
        for value in [*top_k, *max_tokens, *min_tokens, u32::from(*ignore_eos)] {
            encoding.number(u64::from(value));
        }
        encoding.number(*seed);
        encoding.list(logit_bias.iter().map(|(token, _)| *token));
        encoding.list(logit_bias.iter().map(|(_, bias)| bias.to_bits()));
        encoding.list(stop_token_ids.iter().copied());
        encoding.optional(*logprobs);
        encoding.optional(*prompt_logprobs);
        // Appended only if set: streams without them keep the keys of earlier releases.
        if let Some(grammar) = grammar {
            encoding.bytes(grammar.text.as_bytes());
            encoding.number(grammar.fingerprint);
        }
        if !allowed_token_ids.is_empty() || !bad_words.is_empty() {
            // Separates these fields from a grammar, which never has this text.
            encoding.bytes(b"allowed_token_ids and bad_words");
            encoding.list(allowed_token_ids.iter().copied());
            encoding.number(bad_words.len() as u64);
            bad_words.iter().for_each(|word| encoding.list(word.iter().copied()));
        }
        if let Some(Pooling { second_from }) = pooling {
            encoding.bytes(b"pooling");
            encoding.optional(*second_from);
        }
    }

    /// The numeric parameters, each with its range.
    fn numbers(&self) -> [(Range, f32); 6] {
        [
            (Range::TEMPERATURE, self.temperature),
            (Range::TOP_P, self.top_p),
            (Range::MIN_P, self.min_p),
            (Range { high: f64::INFINITY, ..Range::REPETITION_PENALTY }, self.repetition_penalty),
            (Range::PRESENCE_PENALTY, self.presence_penalty),
            (Range::FREQUENCY_PENALTY, self.frequency_penalty),
        ]
    }
}

impl From<wire::SamplingParams> for SamplingParams {
    fn from(params: wire::SamplingParams) -> Self {
        let biases = params.logit_bias.into_iter();
        let logit_bias = biases.map(|wire::LogitBias { token_id, bias }| (token_id, bias)).collect();
        same_fields!(params:
            temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty, frequency_penalty, seed, max_tokens,
            min_tokens, stop_token_ids, ignore_eos, logprobs, prompt_logprobs, allowed_token_ids;
            logit_bias: logit_bias,
            bad_words: params.bad_words.into_iter().map(|word| word.token_ids).collect(),
            grammar: params.grammar.map(|grammar| Arc::new(Grammar { text: grammar.text, fingerprint: grammar.fingerprint })),
            pooling: params.pooling.map(Into::into)
        )
    }
}

impl From<SamplingParams> for wire::SamplingParams {
    fn from(params: SamplingParams) -> Self {
        let biases = params.logit_bias.into_iter();
        let logit_bias = biases.map(|(token_id, bias)| wire::LogitBias { token_id, bias }).collect();
        same_fields!(params:
            temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty, frequency_penalty, seed, max_tokens,
            min_tokens, stop_token_ids, ignore_eos, logprobs, prompt_logprobs, allowed_token_ids;
            logit_bias: logit_bias,
            bad_words: params.bad_words.into_iter().map(|token_ids| wire::TokenSequence { token_ids }).collect(),
            grammar: params.grammar.map(|grammar| wire::Grammar {
                text: grammar.text.clone(),
                fingerprint: grammar.fingerprint,
            }),
            pooling: params.pooling.map(Into::into)
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_parameter_changes_the_key_of_a_stream() {
        let changes: [fn(&mut SamplingParams); 24] = [
            |params| params.temperature = 0.5,
            |params| params.top_p = 0.5,
            |params| params.min_p = 0.5,
            |params| params.top_k = 5,
            |params| params.repetition_penalty = 1.5,
            |params| params.presence_penalty = 1.0,
            |params| params.frequency_penalty = 1.0,
            |params| params.seed = 8,
            |params| params.logit_bias = vec![(1, 0.5)],
            |params| params.logit_bias = vec![(1, 1.5)],
            |params| params.max_tokens = 11,
            |params| params.min_tokens = 1,
            |params| params.stop_token_ids = vec![1],
            |params| params.ignore_eos = true,
            |params| params.logprobs = Some(0),
            |params| params.prompt_logprobs = Some(0),
            |params| params.allowed_token_ids = vec![1],
            |params| params.bad_words = vec![vec![1]],
            |params| params.bad_words = vec![vec![1, 2]],
            |params| params.bad_words = vec![vec![1], vec![2]],
            |params| params.grammar = Some(Arc::new(Grammar { text: "a".into(), fingerprint: 1 })),
            |params| params.grammar = Some(Arc::new(Grammar { text: "a".into(), fingerprint: 2 })),
            |params| params.pooling = Some(Pooling { second_from: None }),
            |params| params.pooling = Some(Pooling { second_from: Some(2) }),
        ];
        let key = |change: fn(&mut SamplingParams)| {
            let (mut params, mut encoding) = (SamplingParams::default(), Encoding::begin());
            change(&mut params);
            params.encode(&mut encoding);
            encoding.key()
        };
        let keys: HashSet<_> = changes.into_iter().chain([(|_| {}) as fn(&mut _)]).map(key).collect();
        assert_eq!(keys.len(), changes.len() + 1);
    }
}
