//! Ollama's `options`, and the fields that are refused.

use serde_json::Value;
use skein_proto::sampling::SamplingOptions;

use crate::api::fields::object::Fields;
use crate::refusal::Refusal;

/// Settings of Ollama's engine that do not affect answers.
const OF_ENGINE: [&str; 13] = [
    "num_ctx",
    "num_keep",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "numa",
    "low_vram",
    "use_mmap",
    "use_mlock",
    "f16_kv",
    "vocab_only",
    "logits_all",
];

/// More tokens than any answer has.
const MOST_TOKENS: i64 = u32::MAX as i64;

/// The options that are read.
const KNOWN: [&str; 14] = [
    "num_predict",
    "repeat_penalty",
    "repeat_last_n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "mirostat",
    "typical_p",
    "tfs_z",
];

/// Takes `options`. Unknown ones count as unknown fields.
pub fn sampling(fields: &mut Fields) -> SamplingOptions {
    for (name, _) in fields.spread("options", &KNOWN) {
        if !OF_ENGINE.contains(&name.as_str()) {
            fields.leave(format!("options.{name}"));
        }
    }
    SamplingOptions {
        // Ollama knows no limit of 0; -1 and -2 are none, too.
        max_tokens: fields.i64("num_predict").filter(|count| *count > 0).map(|count| count.min(MOST_TOKENS)),
        temperature: fields.f64("temperature"),
        top_p: fields.f64("top_p"),
        top_k: fields.i64("top_k"),
        min_p: fields.f64("min_p"),
        seed: fields.i64("seed"),
        stop: fields.strings("stop").into_iter().filter(|stop| !stop.is_empty()).collect(),
        repetition_penalty: repetition_penalty(fields),
        presence_penalty: fields.f64("presence_penalty"),
        frequency_penalty: fields.f64("frequency_penalty"),
        ..SamplingOptions::default()
    }
}

/// Reads `repeat_penalty` and `repeat_last_n`. The penalty covers all tokens, as with -1; another number of
/// last tokens counts as ignored. 0 switches the penalty off.
fn repetition_penalty(fields: &mut Fields) -> Option<f64> {
    let penalty = fields.f64("repeat_penalty");
    let last = fields.i64("repeat_last_n").unwrap_or(-1);
    if last == 0 {
        return None;
    }
    if last != -1 && penalty.is_some_and(|penalty| penalty != 1.0) {
        fields.leave("options.repeat_last_n".to_owned());
    }
    penalty
}

/// Refuses unsupported fields that would change an answer, unless their value is neutral.
pub fn take_unserved(fields: &mut Fields) {
    let is_off = |value: &Value| match value {
        Value::Bool(flag) => !flag,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        number => number.as_f64() == Some(0.0),
    };
    for name in ["images", "template", "suffix", "context", "logprobs", "top_logprobs", "mirostat"] {
        if fields.take_strange(name).is_some_and(|value| !is_off(&value)) {
            fields.note(Refusal::invalid(name, format!("{name} is not supported yet; leave it out.")));
        }
    }
    for name in ["typical_p", "tfs_z"] {
        if fields.take_strange(name).is_some_and(|value| value.as_f64() != Some(1.0)) {
            fields.note(Refusal::invalid(name, format!("{name} is not supported; leave it out.")));
        }
    }
}
