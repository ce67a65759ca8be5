//! Tests a chat template and a tokenizer in a separate process, which may crash. The operating system limits
//! that process where the template engine and the tokenizer library cannot (see
//! [`chat_template`](super::chat_template)). The server waits for the result before it starts.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::files::{chat_template_of, tokenizer_of};
use super::messages::prepare;
use super::sources::TextSources;

/// Compiles the template of the model in `directory` and renders some conversations. Only returning matters:
/// unreadable files and refused conversations are ignored.
pub fn probe(directory: &Path, sources: &TextSources) {
    let Ok(Some(template)) = chat_template_of(directory, sources) else { return };
    let tool = json!({"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}});
    let with_tools = Map::from_iter([("tools".to_owned(), json!([tool]))]);
    let (conversations, without) = (conversations(), Map::new());
    let chats = conversations.iter().flat_map(|messages| [(messages, &without), (messages, &with_tools)]);
    for (messages, arguments) in chats {
        if let Ok(messages) = prepare(messages, template.for_arguments(arguments).forms()) {
            let _ = template.render(&Value::Array(messages), true, arguments);
        }
    }
}

/// Loads the tokenizer of the model in `directory` and tokenizes difficult texts. Ignores an unreadable file.
///
/// # Errors
/// The text on which the tokenizer fails.
pub fn probe_tokenizer(directory: &Path, sources: &TextSources) -> Result<(), String> {
    tokenizer_of(directory, sources).map_or(Ok(()), |tokenizer| tokenizer.try_out())
}

/// One conversation of each kind in use.
fn conversations() -> Vec<Vec<Value>> {
    let say = |role: &str, content: &str| json!({"role": role, "content": content});
    let parts = json!([{"type": "text", "text": "What is"}, {"type": "text", "text": "this?"}]);
    let call = json!({"id": "call-000", "type": "function",
        "function": {"name": "clock", "arguments": "{\"zone\": \"UTC\"}"}});
    let turns = (0..20).flat_map(|_| [say("user", "And then?"), say("assistant", "Then it went on.")]);
    vec![
        vec![say("user", "Hello!")],
        vec![say("system", "You are brief."), say("user", "Hello!")],
        turns.chain([say("user", "How does it end?")]).collect(),
        vec![json!({"role": "user", "content": parts})],
        vec![
            say("user", "What time is it?"),
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": "call-000", "content": "12:00"}),
        ],
        vec![say("user", &"A long message. ".repeat(2000))],
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_normal_template_and_a_missing_one_pass() {
        probe(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/skein-7m")), &TextSources::default());
        probe(Path::new("/nowhere"), &TextSources::default());
        assert_eq!(probe_tokenizer(Path::new("/nowhere"), &TextSources::default()), Ok(()));
    }
}
