//! Which formats a model has: named by the operator, or recognised from its chat template.

use super::table::{FORMATS, HARMONY_REASONING, REASONING};
use super::{Body, Format, Reasoning};

/// The formats of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Formats {
    /// How it writes calls.
    pub calls: Option<&'static Format>,
    /// How it writes reasoning.
    pub reasoning: Option<&'static Reasoning>,
    /// Its answers are in GPT-OSS's channels, whatever the request.
    pub harmony: bool,
}

/// Where a prompt leaves the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// Within reasoning.
    InReasoning,
    /// At the beginning of an answer, which may begin with reasoning.
    Fresh,
    /// After reasoning that the prompt has closed.
    Closed,
}

/// A parser that nobody has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is none of {known}")]
pub struct UnknownParser {
    name: String,
    known: String,
}

/// Texts that tell a format from others, the most particular first. An empty name stands for a format that is
/// not known here, though it has the marks of another.
const MARKS: &[(&[&str], &str)] = &[
    (&["<|channel|>", "<|start|>"], "openai"),
    (&["<seed:tool_call>"], ""),
    (&["minimax"], ""),
    (&["<tool_calls>"], ""),
    (&["<function=", "<|python_tag|>"], ""),
    (&["<|tool_call_start|>"], "lfm2"),
    (&["<function=", "<parameter="], "qwen3_coder"),
    (&["<arg_key>"], "glm45"),
    (&["<|tool_calls_section_begin|>"], "kimi_k2"),
    (&["<｜tool▁calls▁begin｜>", "```json"], "deepseek_v3"),
    (&["<｜tool▁calls▁begin｜>"], "deepseek_v31"),
    (&["[TOOL_CALLS]", "[ARGS]"], "mistral_v11"),
    (&["[TOOL_CALLS]"], "mistral"),
    (&["<|tool_call|>", "<|/tool_call|>"], "phi4_mini_json"),
    (&["<|tool_call|>"], "granite"),
    (&["<tool_call>"], "hermes"),
    (&["[func_name1(params_name1=params_value1"], "pythonic"),
    (&["<|python_tag|>"], "llama3_json"),
    (&["\"parameters\": dictionary of argument name"], "llama3_json"),
    (&["\"name\": function name, \"parameters\""], "llama3_json"),
];

impl Formats {
    /// Recognises the formats from the source of a chat template.
    pub fn of_template(source: &str) -> Self {
        let found = MARKS.iter().find(|(marks, _)| marks.iter().all(|mark| source.contains(mark)));
        let calls = found.and_then(|(_, name)| format(name));
        let reasoning = REASONING.iter().find(|one| source.contains(one.close));
        Self { calls, reasoning, harmony: is_harmony(calls) }
    }

    /// The same with parsers that the operator names, as vLLM's flags do.
    ///
    /// # Errors
    /// [`UnknownParser`] for a name that is in no table.
    pub fn with(mut self, calls: Option<&str>, reasoning: Option<&str>) -> Result<Self, UnknownParser> {
        if let Some(name) = calls {
            let named = format(name).ok_or_else(|| unknown(name, call_parsers()))?;
            // Both of Mistral's forms have one name at vLLM; the template tells them apart.
            let is_newer = name == "mistral" && self.calls == format("mistral_v11");
            self.calls = if is_newer { self.calls } else { Some(named) };
            self.harmony = is_harmony(self.calls);
        }
        if let Some(name) = reasoning {
            if HARMONY_REASONING.contains(&name) {
                self.harmony = true;
                self.calls = self.calls.or(format("openai"));
            } else {
                let named = REASONING.iter().find(|one| one.names.contains(&name));
                self.reasoning = Some(named.ok_or_else(|| unknown(name, reasoning_parsers()))?);
            }
        }
        Ok(self)
    }

    /// The name of a format of calls, if it is one.
    ///
    /// # Errors
    /// A message with the known names.
    pub fn check_call_parser(name: &str) -> Result<String, String> {
        Self::default().with(Some(name), None).map(|_| name.to_owned()).map_err(|error| error.to_string())
    }

    /// The name of a format of reasoning, if it is one.
    ///
    /// # Errors
    /// A message with the known names.
    pub fn check_reasoning_parser(name: &str) -> Result<String, String> {
        Self::default().with(None, Some(name)).map(|_| name.to_owned()).map_err(|error| error.to_string())
    }

    /// Where `prompt` leaves the model.
    pub fn opening(&self, prompt: &str) -> Opening {
        let Some(reasoning) = self.reasoning else { return Opening::Fresh };
        let end = prompt.trim_end();
        if end.ends_with(reasoning.close) {
            Opening::Closed
        } else if reasoning.implicit || end.ends_with(reasoning.open) {
            Opening::InReasoning
        } else {
            Opening::Fresh
        }
    }

    /// Every marker, for control tokens that have to stay in an answer's text.
    pub fn markers(&self) -> Vec<&'static str> {
        let mut markers = Vec::new();
        if let Some(Reasoning { open, close, .. }) = self.reasoning {
            markers.extend([*open, *close]);
        }
        if let Some(format) = self.calls {
            markers.extend([format.section_begin, format.begin, format.section_end]);
            markers.extend(format.ends);
            match &format.body {
                Body::Named { before, after, .. } => markers.extend([*before, *after, "[CALL_ID]"]),
                Body::Keyed(keyed) => {
                    markers.extend([keyed.name_open, keyed.key_open, keyed.key_close]);
                    markers.extend([keyed.value_open, keyed.value_close, keyed.close]);
                }
                Body::Harmony => markers.extend(super::harmony::MARKERS),
                Body::Envelope { .. } | Body::List | Body::Pythonic => {}
            }
        }
        markers.retain(|marker| !marker.is_empty());
        markers
    }
}

fn format(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.names.contains(&name))
}

fn is_harmony(calls: Option<&Format>) -> bool {
    calls.is_some_and(|format| format.body == Body::Harmony)
}

fn call_parsers() -> Vec<&'static str> {
    FORMATS.iter().flat_map(|format| format.names).copied().collect()
}

fn reasoning_parsers() -> Vec<&'static str> {
    REASONING.iter().flat_map(|one| one.names).copied().chain(HARMONY_REASONING).collect()
}

fn unknown(name: &str, known: Vec<&str>) -> UnknownParser {
    UnknownParser { name: name.chars().take(60).collect(), known: known.join(", ") }
}
