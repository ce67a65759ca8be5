//! Splits assistant turns as the chat templates of public models render them (transformers,
//! `tests/golden/formats.py`). Splitting must return what the template was given.

use super::*;

/// Ends of a turn: the models' end-of-sequence tokens, which are not part of an answer's text.
const ENDS: [&str; 17] = [
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
            let plan = plan_of(formats, opening);
            let parts = whole(&plan, text);
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
