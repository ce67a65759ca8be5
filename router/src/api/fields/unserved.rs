//! Fields of OpenAI's and vLLM's requests that are not supported. None is dropped silently: a neutral value
//! is accepted, any other is refused by name, or listed as ignored if the answer is right without it.

use serde_json::{Value, json};

use super::listing::Kind;
use super::object::Fields;
use crate::refusal::Refusal;

/// Accepted with any value: they do not change the answer.
const WITHOUT_EFFECT: [&str; 11] = [
    "user",
    "store",
    "metadata",
    "service_tier",
    "safety_identifier",
    "session_id",
    "prompt_cache_key",
    "prompt_cache_retention",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "return_mm_kwargs",
];

/// Whether a value asks for nothing.
type IsNeutral = fn(&Value) -> bool;

/// Fields of vLLM that have no effect here and change no answer: listed as ignored unless their value is
/// neutral. Remote KV blocks are computed again; extra arguments are for plugins; offsets belong to vLLM's
/// render endpoints, and its other endpoints ignore them, too; without a template nothing reads documents.
const IGNORED: [(&str, IsNeutral); 4] = [
    ("kv_transfer_params", is_empty),
    ("vllm_xargs", is_empty),
    ("return_token_offsets", is_false),
    ("documents", is_empty),
];

/// A field that is refused unless its value is neutral.
struct Unserved {
    name: &'static str,
    is_neutral: IsNeutral,
    /// Rest of the message: the reason and what to do.
    hint: &'static str,
}

const fn unserved(name: &'static str, is_neutral: IsNeutral, hint: &'static str) -> Unserved {
    Unserved { name, is_neutral, hint }
}

const LEAVE_OUT: &str = "is not supported yet; leave it out";
const NO_GRAMMAR: &str = "is not supported; constrain the answer with response_format or structured_outputs";
const OF_CHAT: &str = "is a field of /v1/chat/completions; leave it out";
const OF_COMPLETIONS: &str = "is a field of /v1/completions; leave it out";

/// The table. A handler first takes the fields that its API supports.
const UNSERVED: &[Unserved] = &[
    // Tools and answer formats.
    unserved("tools", is_empty, OF_CHAT),
    unserved("functions", is_empty, "is OpenAI's older field; use tools"),
    unserved("tool_choice", is_auto, OF_CHAT),
    unserved("parallel_tool_calls", is_bool, OF_CHAT),
    unserved("function_call", is_auto, "is OpenAI's older field; use tool_choice"),
    unserved(
        "guided_whitespace_pattern",
        never,
        "is not supported: up to 32 characters of white space are allowed between tokens; leave it out",
    ),
    unserved("structural_tag", never, NO_GRAMMAR),
    unserved("regex", never, NO_GRAMMAR),
    unserved("ebnf", never, NO_GRAMMAR),
    unserved("json_schema", never, NO_GRAMMAR),
    // Search and sampling.
    unserved("use_beam_search", is_false, "is not supported; leave it out"),
    unserved(
        "length_penalty",
        |value| value.as_f64() == Some(1.0),
        "belongs to beam search, which is not supported",
    ),
    unserved("early_stopping", is_false, "belongs to beam search, which is not supported"),
    unserved("logits_processors", is_empty, "is not supported: it would run code from the request"),
    unserved(
        "logprob_token_ids",
        is_empty,
        "is not supported: workers score the drawn token and the likeliest; request these with logprobs",
    ),
    unserved(
        "repetition_detection",
        is_empty,
        "is not supported: an answer that repeats itself goes on; bound it with max_tokens and leave the field out",
    ),
    unserved("watermarking", is_false, LEAVE_OUT),
    unserved(
        "thinking_token_budget",
        |value| *value == -1,
        "is not supported: reasoning is not cut short; bound the whole answer with max_tokens and leave the field out",
    ),
    unserved("reasoning_effort", |value| value == "none", OF_CHAT),
    unserved("include_reasoning", is_true, OF_CHAT),
    unserved("verbosity", |value| value == "medium", LEAVE_OUT),
    // Prompt formats.
    unserved("suffix", is_empty, "is not supported: no model here fills in the middle; leave it out"),
    unserved("prompt_embeds", never, LEAVE_OUT),
    unserved("chat_template", never, "is not supported: it would run code from the request; leave it out"),
    unserved("audio", never, LEAVE_OUT),
    unserved("modalities", |value| *value == json!(["text"]), LEAVE_OUT),
    unserved("prediction", never, LEAVE_OUT),
    unserved("web_search_options", never, LEAVE_OUT),
    // Delivery of the answer.
    unserved("stream_interval", |value| *value == 1, "is not supported: tokens are sent as they come"),
    unserved("return_prompt_text", is_false, OF_CHAT),
    unserved("routed_experts_prompt_start", |value| *value == 0, LEAVE_OUT),
    // Internals of vLLM.
    unserved("ec_transfer_params", is_empty, LEAVE_OUT),
    unserved("lora", never, LEAVE_OUT),
    // Fields of the other API.
    unserved("messages", never, OF_CHAT),
    unserved("max_completion_tokens", never, "is a field of /v1/chat/completions; here it is max_tokens"),
    unserved("top_logprobs", |value| *value == 0, "is a field of /v1/chat/completions; here it is logprobs"),
    unserved("add_generation_prompt", is_true, OF_CHAT),
    unserved("continue_final_message", is_false, OF_CHAT),
    unserved("chat_template_kwargs", is_empty, OF_CHAT),
    unserved("prompt", never, OF_COMPLETIONS),
    unserved("echo", is_false, OF_COMPLETIONS),
];

fn never(_: &Value) -> bool {
    false
}

fn is_true(value: &Value) -> bool {
    *value == true
}

fn is_bool(value: &Value) -> bool {
    value.is_boolean()
}

fn is_false(value: &Value) -> bool {
    *value == false
}

fn is_auto(value: &Value) -> bool {
    value == "none" || value == "auto"
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// Takes the known fields that the handler left untaken.
pub fn take_unserved(fields: &mut Fields) {
    if fields.is_empty() && !fields.is_listed() {
        return;
    }
    for name in WITHOUT_EFFECT {
        fields.take(name, Kind::WithoutEffect);
    }
    for (name, is_neutral) in IGNORED {
        if fields.take_strange(name).is_some_and(|value| !is_neutral(&value)) {
            fields.leave(name.to_owned());
        }
    }
    for Unserved { name, is_neutral, hint } in UNSERVED {
        if let Some(value) = fields.take_strange(name)
            && !is_neutral(&value)
        {
            fields.note(Refusal::invalid(name, format!("{name} {hint}.")));
        }
    }
}
