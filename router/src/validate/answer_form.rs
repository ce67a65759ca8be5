//! Determines the grammar of an answer and how the answer is split, once the prompt shows whether the answer
//! begins inside reasoning or a call.

use std::sync::Arc;

use serde_json::json;
use skein_grammar::{JsonForm, Refused, Source};
use skein_proto::sampling::Grammar;
use skein_text::formats::grammar::{Answer, holds_calls};
use skein_text::formats::tools::{Choice, Function, ToolUse};
use skein_text::formats::{Opening, Plan};
use skein_text::model_text::ModelText;

use crate::refusal::Refusal;
use crate::request::{Constraint, Draft, Prompt};
use crate::text::text_stream::Split;

/// Tokens of `max_tokens` reserved for constrained text after reasoning. In a short answer, reasoning may
/// take half.
const TOKENS_AFTER_THOUGHT: u32 = 1024;

/// Gives a constraint the server's form of JSON. Refuses one that does not compile.
pub fn compile(constraint: &mut Constraint, text: &ModelText) -> Result<(), Refusal> {
    let field = constraint.field;
    let refuse = |refused: Refused| Refusal::invalid(field, format!("{field}: {refused}."));
    constraint.source = constraint.source.in_form(text.json_form).map_err(refuse)?;
    text.grammars.compile(&constraint.source).map(drop).map_err(refuse)
}

/// Passes `reasoning_effort` to the chat template.
///
/// # Errors
/// If the template does not read it.
pub fn effort(draft: &mut Draft, text: &ModelText) -> Result<(), Refusal> {
    let Some(effort) = draft.reasoning_effort.take() else { return Ok(()) };
    let reads = |name: &str| text.chat_template.as_ref().is_some_and(|template| template.reads(name));
    let Prompt::Chat { template_kwargs, .. } = &mut draft.prompt else { return Ok(()) };
    if reads("reasoning_effort") {
        template_kwargs.entry("reasoning_effort").or_insert(effort.into());
    } else if reads("enable_thinking") && effort == "none" {
        template_kwargs.entry("enable_thinking").or_insert(false.into());
    } else if effort != "none" {
        let message = "reasoning_effort: this model's chat template does not read it; leave it out.";
        return Err(Refusal::invalid("reasoning_effort", message));
    }
    Ok(())
}

/// Grammar fragment for each function's arguments; empty if calls are not constrained.
///
/// # Errors
/// If a strict function's schema cannot be enforced, or the model has no calls.
pub fn arguments(tools: &ToolUse, is_constrained: bool, text: &ModelText) -> Result<Vec<String>, Refusal> {
    if tools.functions.is_empty() {
        return Ok(Vec::new());
    }
    let refuse = |message: &str| Err(Refusal::invalid("tools", message));
    if !text.chat_template.as_ref().is_some_and(|template| template.reads("tools")) {
        return refuse(
            "tools: this model's chat template does not render tools; configure one that does with \
             --chat-template.",
        );
    }
    if !tools.is_on() {
        return Ok(Vec::new());
    }
    if text.formats.calls.is_none() {
        return refuse(
            "tools: the chat template does not reveal this model's call format; specify it with the \
             server's --tool-call-parser.",
        );
    }
    let is_called = |name: &String| tools.functions.iter().any(|function| function.name == *name);
    if let Choice::Named(name) = &tools.choice
        && !is_called(name)
    {
        let name: String = name.chars().take(64).collect();
        let message = format!("tool_choice names the function `{name}`, which is not among the tools.");
        return Err(Refusal::invalid("tool_choice", message));
    }
    // A constraint on the rest of the answer makes a grammar, which then holds calls, too.
    if !holds_calls(tools) && !is_constrained {
        return Ok(Vec::new());
    }
    tools.functions.iter().enumerate().map(|(at, function)| arguments_of(at, function, text)).collect()
}

/// A schema that cannot be enforced is refused if the function is strict; otherwise any object is allowed.
fn arguments_of(at: usize, function: &Function, text: &ModelText) -> Result<String, Refusal> {
    let strict = JsonForm { is_closed: function.strict, ..JsonForm::default() };
    let form = text.json_form.and(strict);
    let compiled = Source::json_schema_in(&function.parameters, form)
        .and_then(|source| text.grammars.compile(&source).map(|_| source.nested()));
    match compiled {
        Ok(nested) => Ok(nested),
        Err(refused) if function.strict => {
            let message = format!("tools[{at}] ({}): {refused}.", function.name);
            Err(Refusal::invalid("tools", message))
        }
        Err(_) => {
            let any = Source::json_schema_in(&json!({"type": "object"}), form);
            any.map(|source| source.nested()).map_err(|_| Refusal::Internal)
        }
    }
}

/// Grammar of the answer, for the worker.
pub fn grammar(
    draft: &Draft,
    opening: Option<Opening>,
    arguments: &[String],
    max_tokens: u32,
    text: &ModelText,
) -> Result<Option<Arc<Grammar>>, Refusal> {
    let last = draft.constraint.as_ref();
    let field = last.map_or("tools", |constraint| constraint.field);
    let refuse = |refused: Refused| Refusal::invalid(field, format!("{field}: {refused}."));
    let formats = text.formats;
    let is_split = formats.harmony || formats.reasoning.is_some() || draft.tools.is_on();
    let source = match opening.filter(|_| is_split) {
        None => last.map(|constraint| constraint.source.clone()),
        Some(opening) => {
            let last = last.map(|constraint| &constraint.source);
            let control = text.tokenizer.control();
            let thought_tokens = thought_tokens(max_tokens);
            let (tools, json_form) = (&draft.tools, text.json_form);
            let answer =
                Answer { formats, opening, tools, arguments, json_form, last, thought_tokens, control };
            answer.grammar().map_err(refuse)?
        }
    };
    let Some(source) = source else { return Ok(None) };
    text.grammars.compile(&source).map_err(refuse)?;
    let (text, fingerprint) = (source.text().to_owned(), text.grammars.fingerprint());
    Ok(Some(Arc::new(Grammar { text, fingerprint })))
}

/// Most tokens of reasoning before constrained text. Rounded down to three binary digits, so that requests
/// with prompts of different lengths share a compiled grammar.
fn thought_tokens(max_tokens: u32) -> u32 {
    let most = max_tokens.saturating_sub(TOKENS_AFTER_THOUGHT).max(max_tokens / 2).max(1);
    let dropped = most.ilog2().saturating_sub(2);
    most >> dropped << dropped
}

/// How the answer's text is split; `None` if all of it is content.
pub fn split(draft: &Draft, opening: Opening, text: &ModelText) -> Option<Split> {
    let (formats, tools) = (text.formats, &draft.tools);
    let calls = formats.calls.filter(|_| tools.is_on());
    if calls.is_none() && formats.reasoning.is_none() && !formats.harmony {
        return None;
    }
    let plan = Plan {
        calls,
        reasoning: formats.reasoning,
        opening,
        harmony: formats.harmony,
        token_markers: text.token_markers.clone(),
        held: holds_calls(tools) || draft.constraint.is_some(),
        functions: tools.functions.clone(),
    };
    Some(Split { plan: Arc::new(plan), kept: text.kept.clone() })
}

#[cfg(test)]
mod tests {
    use super::thought_tokens;

    #[test]
    fn reasoning_leaves_room_for_what_must_follow() {
        let check = |max_tokens: u32, expected: u32| assert_eq!(thought_tokens(max_tokens), expected);
        check(1, 1);
        check(7, 3);
        check(100, 48);
        check(2048, 1024);
        check(4096, 3072);
        check(32_768, 28_672);
        check(131_072, 114_688);
    }
}
