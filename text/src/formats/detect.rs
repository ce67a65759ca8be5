//! Selects a model's output formats: the operator names them, or the chat template reveals them.

use super::table::{FORMATS, HARMONY_REASONING, REASONING};
use super::{Body, Format, Reasoning};

/// Output formats of one model.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Formats {
    /// Tool-call format; `None` if unknown.
    pub calls: Option<&'static Format>,
    /// Reasoning format; `None` if unknown.
    pub reasoning: Option<&'static Reasoning>,
    /// Every answer uses GPT-OSS's channels, with or without tools.
    pub harmony: bool,
}

/// State in which the prompt leaves the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// The prompt ends inside an open reasoning block.
    InReasoning,
    /// A continued message ends inside its reasoning; white space that follows is part of it.
    MidReasoning,
    /// The answer starts from scratch and may begin with reasoning.
    Fresh,
    /// The prompt has already closed the reasoning block.
    Closed,
}

/// Parser name that no table lists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not a known parser; use one of: {known}")]
pub struct UnknownParser {
    name: String,
    known: String,
}

/// Substrings of a chat template that identify its format, most specific first. An empty name marks a
/// format that we do not support although its template resembles a supported one.
const MARKS: &[(&[&str], &str)] = &[
    (&["<|channel|>", "<|start|>"], "openai"),
    (&["<seed:tool_call>"], "seed_oss"),
    (&["<minimax:tool_call>"], "minimax_m2"),
    (&["minimax"], ""),
    (&["<dots_function_call>"], "dots"),
    (&["｜DSML｜ calls"], "deepseek_v41"),
    (&["｜DSML｜", " calls>"], "deepseek_v41"),
    (&["｜DSML｜", "tool_calls>"], "deepseek_v4"),
    (&["｜DSML｜", "function_calls>"], "deepseek_v32"),
    (&["<longcat_tool_call>"], "longcat"),
    (&["<|tool_call>call:"], "gemma4"),
    (&["<start_function_call>"], "functiongemma"),
    (&["<|START_ACTION|>", "tool_name"], "cohere_command3"),
    (&["<TOOLCALL>["], "nemotron_json"),
    (&["<|action_start|>", "<|plugin|>"], "internlm"),
    (&["<|function_call|>", "<|role_sep|>"], "gigachat3"),
    (&["function call", "<|role_sep|>"], "gigachat3"),
    (&["<｜tool_calls_begin｜>", "<steptml:invoke"], "step3"),
    (&["<tool_calls>["], "hunyuan_a13b"),
    (&["<tool_calls>"], ""),
    (&["functools["], "functools"),
    (&["<function_calls>", "<invoke"], ""),
    (&["<function_calls>"], "olmo3"),
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

/// Control tokens that identify a format where the template shows the tools and never a call.
const TOKENS: &[(&str, &str)] = &[("<|tool_call_start|>", "lfm2")];

/// Names in vLLM that stand for two formats, and our name of the second.
const VARIANTS: [(&str, &str); 2] = [("mistral", "mistral_v11"), ("phi4_mini_json", "functools")];

impl Formats {
    /// Detects the formats from the source of a chat template.
    pub fn of_template(source: &str) -> Self {
        let found = MARKS.iter().find(|(marks, _)| marks.iter().all(|mark| source.contains(mark)));
        let calls = found.and_then(|(_, name)| format(name));
        let shows = |one: &&Reasoning| source.contains(one.close);
        let answers = |one: &&Reasoning| one.answer_open.iter().any(|open| source.contains(open));
        let with_answer = REASONING.iter().filter(shows).find(answers);
        // Answers between marks are for templates that show the marks.
        let is_plain = |one: &&Reasoning| one.answer_open.is_empty() && !one.names.is_empty();
        let reasoning = with_answer.or_else(|| REASONING.iter().filter(shows).find(is_plain));
        Self { calls, reasoning, harmony: is_harmony(calls) }
    }

    /// Detects the tool-call format from the vocabulary if the template does not reveal it: LFM2's shows
    /// tools, and calls only as the text of a message.
    pub fn or_of_vocabulary(mut self, source: &str, is_token: impl Fn(&str) -> bool) -> Self {
        if self.calls.is_none() && source.contains("tools") {
            let found = TOKENS.iter().find(|(token, _)| is_token(token));
            self.calls = found.and_then(|(_, name)| format(name));
        }
        self
    }

    /// Overrides the detected formats with the parsers that the operator names, as vLLM's flags do.
    ///
    /// # Errors
    /// [`UnknownParser`] if no table lists the name.
    pub fn with(mut self, calls: Option<&str>, reasoning: Option<&str>) -> Result<Self, UnknownParser> {
        if let Some(name) = calls {
            let named = format(name).ok_or_else(|| unknown(name, call_parsers()))?;
            // vLLM uses one name for two formats; the template distinguishes them.
            let is_other = VARIANTS.iter().any(|(one, other)| name == *one && self.calls == format(other));
            self.calls = if is_other { self.calls } else { Some(named) };
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

    /// Validates a tool-call parser's name and returns it.
    ///
    /// # Errors
    /// A message that lists the known names.
    pub fn check_call_parser(name: &str) -> Result<String, String> {
        Self::default().with(Some(name), None).map(|_| name.to_owned()).map_err(|error| error.to_string())
    }

    /// Validates a reasoning parser's name and returns it.
    ///
    /// # Errors
    /// A message that lists the known names.
    pub fn check_reasoning_parser(name: &str) -> Result<String, String> {
        Self::default().with(None, Some(name)).map(|_| name.to_owned()).map_err(|error| error.to_string())
    }

    /// State in which `prompt` leaves the model.
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

    /// State in which a prompt leaves the model that ends with `turn`, a message of the assistant to
    /// continue.
    pub fn opening_of_continued(&self, turn: &str) -> Opening {
        let Some(reasoning) = self.reasoning else { return Opening::Fresh };
        let (open, close) = (turn.rfind(reasoning.open), turn.rfind(reasoning.close));
        match open.max(close) {
            Some(_) if close > open => Opening::Closed,
            Some(at) if turn[at + reasoning.open.len()..].trim().is_empty() => Opening::InReasoning,
            Some(_) => Opening::MidReasoning,
            None if reasoning.implicit => Opening::MidReasoning,
            None => Opening::Fresh,
        }
    }

    /// Every marker of the formats. Detokenization must keep control tokens among them in the text.
    pub fn markers(&self) -> Vec<&'static str> {
        let mut markers = Vec::new();
        if let Some(reasoning) = self.reasoning {
            markers.extend([reasoning.open, reasoning.close]);
            markers.extend(reasoning.answer_open.iter().chain(reasoning.answer_close));
        }
        if let Some(format) = self.calls {
            markers.extend([format.section_begin, format.begin, format.section_end]);
            markers.extend(format.also_begin.iter().chain(format.ends));
            match &format.body {
                Body::Named { before, after, .. } => markers.extend([*before, *after, "[CALL_ID]"]),
                Body::Keyed(keyed) => {
                    markers.extend([keyed.name_open, keyed.key_open, keyed.key_close]);
                    markers.extend([keyed.value_open, keyed.value_close, keyed.close]);
                }
                Body::Harmony => markers.extend(super::harmony::MARKERS),
                Body::Braced { quote } => markers.push(*quote),
                Body::Envelope { .. } | Body::List(_) | Body::Pythonic | Body::PythonicLines => {}
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
