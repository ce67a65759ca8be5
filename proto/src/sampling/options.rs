//! Sampling parameters as a client sends them, not yet checked.

use super::{OutOfRange, Range, SamplingParams};
use crate::v1;

/// Sampling parameters as a client sends them. An absent field takes its value from the model's
/// generation_config.json, else the neutral value. Numbers are wide, so that the range check reports an error
/// rather than the parser.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs)] // named and ranged as in skein.v1.SamplingOptions
pub struct SamplingOptions {
    pub max_tokens: Option<i64>,
    pub min_tokens: Option<i64>,
    pub n: Option<i64>,
    pub best_of: Option<i64>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    pub min_p: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub seed: Option<i64>,
    pub logit_bias: Vec<(i64, f64)>,
    pub stop: Vec<String>,
    pub stop_token_ids: Vec<i64>,
    pub include_stop_str_in_output: bool,
    pub ignore_eos: bool,
    pub logprobs: Option<i64>,
    pub prompt_logprobs: Option<i64>,
    pub skip_special_tokens: Option<bool>,
    pub spaces_between_special_tokens: Option<bool>,
    /// `None` = any token. An empty list is refused.
    pub allowed_token_ids: Option<Vec<i64>>,
    pub bad_words: Vec<String>,
}

impl SamplingOptions {
    /// The numeric parameters. An absent one is taken from `defaults`, else it is neutral. All other
    /// parameters keep their own defaults.
    ///
    /// One that is out of its range goes to `refused` and reads as neutral.
    pub fn numbers(&self, defaults: &Self, mut refused: impl FnMut(OutOfRange)) -> SamplingParams {
        let mut number = |range: Range, of: fn(&Self) -> Option<f64>, neutral: f32| {
            let Some(value) = of(self).or_else(|| of(defaults)) else { return neutral };
            range.check(value).unwrap_or_else(|error| {
                refused(error);
                neutral
            })
        };
        SamplingParams {
            temperature: number(Range::TEMPERATURE, |it| it.temperature, 1.0),
            top_p: number(Range::TOP_P, |it| it.top_p, 1.0),
            min_p: number(Range::MIN_P, |it| it.min_p, 0.0),
            repetition_penalty: number(Range::REPETITION_PENALTY, |it| it.repetition_penalty, 1.0),
            presence_penalty: number(Range::PRESENCE_PENALTY, |it| it.presence_penalty, 0.0),
            frequency_penalty: number(Range::FREQUENCY_PENALTY, |it| it.frequency_penalty, 0.0),
            ..SamplingParams::default()
        }
    }

    /// The numeric field called `name`, if there is one; see [`Range::name`].
    pub fn number_mut(&mut self, name: &str) -> Option<&mut Option<f64>> {
        match name {
            "temperature" => Some(&mut self.temperature),
            "top_p" => Some(&mut self.top_p),
            "min_p" => Some(&mut self.min_p),
            "repetition_penalty" => Some(&mut self.repetition_penalty),
            "presence_penalty" => Some(&mut self.presence_penalty),
            "frequency_penalty" => Some(&mut self.frequency_penalty),
            _ => None,
        }
    }
}

impl From<v1::SamplingOptions> for SamplingOptions {
    /// OpenAI's `best_of` and `spaces_between_special_tokens` are not in `skein.v1`.
    fn from(options: v1::SamplingOptions) -> Self {
        let (biases, allowed) = (options.logit_bias.into_iter(), options.allowed_token_ids);
        Self {
            max_tokens: options.max_tokens.map(i64::from),
            min_tokens: options.min_tokens.map(i64::from),
            n: options.n.map(i64::from),
            best_of: None,
            temperature: options.temperature,
            top_p: options.top_p,
            top_k: options.top_k,
            min_p: options.min_p,
            repetition_penalty: options.repetition_penalty,
            presence_penalty: options.presence_penalty,
            frequency_penalty: options.frequency_penalty,
            seed: options.seed,
            logit_bias: biases.map(|(id, bias)| (i64::from(id), f64::from(bias))).collect(),
            stop: options.stop,
            stop_token_ids: options.stop_token_ids.into_iter().map(i64::from).collect(),
            include_stop_str_in_output: options.include_stop_str_in_output,
            ignore_eos: options.ignore_eos,
            logprobs: options.logprobs.map(i64::from),
            prompt_logprobs: options.prompt_logprobs.map(i64::from),
            skip_special_tokens: options.skip_special_tokens,
            spaces_between_special_tokens: None,
            allowed_token_ids: (!allowed.is_empty()).then(|| allowed.into_iter().map(i64::from).collect()),
            bad_words: options.bad_words,
        }
    }
}
