//! The bounds by which fields are checked here, as values: for the API's description. They are read from the
//! constants and limits of the checks. A test sends what is just inside and just outside of each.

use skein_choice::limits::ModelLimits;
use skein_proto::sampling::{MAX_ALLOWED_TOKENS, Range};
use skein_text::formats::tools::MAX_FUNCTIONS;

use super::words::{MAX_WORD_BYTES, MAX_WORDS};
use super::{HIGHEST_PRIORITY, LOWEST_PRIORITY, MAX_ID_BYTES};
use crate::config::RequestLimits;

/// What a field may be, beside its type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// A number in a range.
    Number(Range),
    /// An integer from `low` to `high`; `None` = as many as the type has.
    Whole { low: i64, high: Option<i64> },
    /// At most so many texts, each of 1 to `bytes` bytes.
    Texts { most: usize, bytes: usize },
    /// From `least` to `most` token ids, each under `vocab_size`.
    Tokens { least: usize, most: usize, vocab_size: Option<u32> },
    /// A text of at most so many bytes.
    Bytes(usize),
    /// At most so many items.
    Items(usize),
    /// At most so many members.
    Members(usize),
    /// One of these words.
    Words(&'static [&'static str]),
    /// 1 to so many printable ASCII bytes without spaces.
    Id(usize),
}

/// The bounds of `field`, by its name in OpenAI's and vLLM's APIs. Those of the model are unknown while no
/// worker is ready.
pub fn of(field: &str, limits: &RequestLimits, model: Option<&ModelLimits>) -> Option<Bound> {
    let ranges = [
        Range::TEMPERATURE,
        Range::TOP_P,
        Range::MIN_P,
        Range::REPETITION_PENALTY,
        Range::PRESENCE_PENALTY,
        Range::FREQUENCY_PENALTY,
    ];
    if let Some(range) = ranges.into_iter().find(|range| range.name == field) {
        return Some(Bound::Number(range));
    }
    let vocab_size = model.map(|model| model.vocab_size);
    let context = model.map(|model| i64::from(model.max_model_len));
    let from = |low: i64, high: Option<i64>| Some(Bound::Whole { low, high });
    match field {
        "n" => {
            let most = model.map_or(limits.n, |model| limits.n.min(model.max_num_seqs));
            from(1, Some(most.into()))
        }
        "best_of" => from(1, Some(limits.n.into())),
        "max_tokens" | "max_completion_tokens" => from(1, context),
        "min_tokens" => from(0, context),
        "top_k" => from(-1, None),
        "truncate_prompt_tokens" => from(-1, None),
        "dimensions" | "max_tokens_per_doc" => from(1, None),
        "top_n" => from(0, None),
        "encoding_format" => Some(Bound::Words(&["float", "base64"])),
        "endianness" => Some(Bound::Words(&["native", "little", "big"])),
        "priority" => from(HIGHEST_PRIORITY.into(), Some(LOWEST_PRIORITY.into())),
        "logprobs" | "top_logprobs" | "prompt_logprobs" => from(0, Some(limits.logprobs.into())),
        "stop" => Some(Bound::Texts { most: limits.stop_strings, bytes: limits.stop_string_bytes }),
        "bad_words" => Some(Bound::Texts { most: MAX_WORDS, bytes: MAX_WORD_BYTES }),
        "stop_token_ids" => Some(Bound::Tokens { least: 0, most: limits.stop_token_ids, vocab_size }),
        "allowed_token_ids" => Some(Bound::Tokens { least: 1, most: MAX_ALLOWED_TOKENS, vocab_size }),
        "logit_bias" => Some(Bound::Members(limits.logit_bias)),
        "tools" => Some(Bound::Items(MAX_FUNCTIONS)),
        "cache_salt" => Some(Bound::Bytes(MAX_ID_BYTES)),
        "request_id" => Some(Bound::Id(MAX_ID_BYTES)),
        "truncation_side" => Some(Bound::Words(&["left", "right"])),
        _ => None,
    }
}
