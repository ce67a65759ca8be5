//! Splits assistant turns as the chat templates of public models render them (transformers,
//! `tests/golden/formats.py`). Splitting must return what the template was given.

use std::collections::BTreeSet;

use super::*;
use crate::formats::Reasoning;

/// Ends of a turn: the models' end-of-sequence tokens, which are not part of an answer's text.
const ENDS: [&str; 21] = [
    "<SPECIAL_12>",
    "<turn|>",
    "<|tool_response>",
    "[|endofturn|]",
    "<|role_end|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<|return|>",
    "</assistant>",
    "<sep>",
    "<|observation|>",
    "<|message_sep|>",
    "<|endoftext|>",
    "<seed:eos>",
    "<|END_OF_TURN_TOKEN|>",
    "[e~[",
    "\n<|end|>",
];

fn answer_of(text: &str) -> &str {
    // GigaChat 3 ends a message and writes the call as another.
    let from = if text.starts_with("<|message_sep|>") { 1 } else { 0 };
    let end = ENDS.iter().filter_map(|end| Some(from + text[from..].find(end)?)).min().unwrap_or(text.len());
    text[..end].trim_end()
}

#[test]
fn turns_of_public_templates_come_apart_as_they_were_given() {
    let goldens: Value = serde_json::from_str(include_str!("../../../../tests/golden/formats.json")).unwrap();
    let (mut with_calls, mut cases, mut different) = (Vec::new(), 0, Vec::new());
    for golden in goldens.as_array().unwrap() {
        let marks: Vec<&str> =
            golden["marks"].as_array().unwrap().iter().map(|mark| mark.as_str().unwrap()).collect();
        let formats = Formats::of_template(&marks.join("\n"));
        let name = golden["name"].as_str().unwrap();
        if let Some(format) = formats.calls {
            with_calls.push((name, format.names[0]));
        }
        for case in golden["cases"].as_array().unwrap() {
            let calls = case["calls"].as_array().unwrap();
            if formats.calls.is_none() {
                continue;
            }
            let text = answer_of(case["text"].as_str().unwrap());
            let opening = formats.opening(case["prompt_end"].as_str().unwrap());
            // Nemotron Nano 2's template leaves out the end of a thought that the message does not have.
            let never_closes = |reasoning: &Reasoning| !text.contains(reasoning.close) && calls.is_empty();
            if opening == Opening::InReasoning && formats.reasoning.is_some_and(never_closes) {
                continue;
            }
            let plan = plan_of(formats, opening);
            let parts = whole(&plan, text);
            let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).skip(1).collect();
            assert_eq!(given(&plan, text, &ends).last(), Some(&format!("{parts:?}")), "{name}, streamed");
            let found: Vec<Value> = parts
                .calls
                .iter()
                .map(|(name, arguments)| {
                    json!([name, serde_json::from_str::<Value>(arguments).unwrap_or_default()])
                })
                .collect();
            let thought =
                if plan.reasoning.is_some() || plan.harmony { case["thought"].as_str().unwrap() } else { "" };
            let content_differs = parts.content.trim() != case["content"] && case["thought"] == thought;
            // GPT-OSS and GigaChat have one call per message.
            let is_single =
                plan.harmony || plan.calls.is_some_and(|format| format.names.contains(&"gigachat3"));
            let calls = if is_single { &calls[..calls.len().min(1)] } else { calls };
            if found != calls || parts.reasoning.trim() != thought || content_differs {
                different.push(format!("{name}, {opening:?}: {parts:?}\n  of {text:?}"));
            }
            cases += 1;
        }
    }
    assert!(different.is_empty(), "{} of {cases}:\n{}", different.len(), different.join("\n"));
    assert!(with_calls.len() > 25 && cases > 150, "{cases} cases, {with_calls:?}");
}

/// Templates whose calls a constrained answer writes in another form, and what differs.
const ANOTHER_FORM: [(&str, &str); 8] = [
    ("ByteDance-Seed-OSS", "lists as Python prints them"),
    ("Cohere2MoE", "each call on a line"),
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "each call on a line"),
    ("GigaChat3-10B-A1.8B", "a message of its own for the call"),
    ("Mistral-Small-3.2-24B-Instruct-2506", "an id between name and arguments"),
    ("Reka-Edge", "letters as JSON escapes"),
    ("mistralai-Mistral-Nemo-Instruct-2407", "an id after the arguments"),
    ("openai-gpt-oss-120b", "the recipient before the channel"),
];

/// A required call may be written as the model's own template writes it, so the constraint does not force the
/// model off the form that it learned.
#[test]
fn a_grammar_allows_the_calls_that_templates_write() {
    let goldens: Value = serde_json::from_str(include_str!("../../../../tests/golden/formats.json")).unwrap();
    let (mut different, mut forced, mut cases) = (Vec::new(), BTreeSet::new(), 0);
    for golden in goldens.as_array().unwrap() {
        let marks: Vec<&str> =
            golden["marks"].as_array().unwrap().iter().map(|mark| mark.as_str().unwrap()).collect();
        let formats = Formats::of_template(&marks.join("\n"));
        let name = golden["name"].as_str().unwrap();
        let with_calls = |case: &&Value| !case["calls"].as_array().unwrap().is_empty();
        for case in golden["cases"].as_array().unwrap().iter().filter(with_calls) {
            if formats.calls.is_none() {
                continue;
            }
            cases += 1;
            let opening = formats.opening(case["prompt_end"].as_str().unwrap());
            let text = answer_of(case["text"].as_str().unwrap());
            if let Err(at) = grammars::allows_required(formats, opening, text) {
                different.push(format!("{name}, {opening:?}: {:?} | {:?}", &text[..at], &text[at..]));
                forced.insert(name);
            }
        }
    }
    let expected: BTreeSet<&str> = ANOTHER_FORM.iter().map(|(name, _)| *name).collect();
    assert_eq!(forced, expected, "{} of {cases}:\n{}", different.len(), different.join("\n"));
}
