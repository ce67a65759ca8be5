//! Finds messages that a chat template drops. A template without an `else` after its roles ignores a message
//! of any other role, and an instruction is lost without a word.
//!
//! A rendering without a message's text is only a hint: templates trim, escape and reorder. The proof is a
//! second rendering, in which every message says a word of its own.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::messages::{one_system_message, texts_of};
use crate::refused::TextRefused;

/// Roles that nearly every template knows. A message of another role is always tried.
const USUAL: [&str; 4] = ["system", "user", "assistant", "tool"];
/// Roles that every template knows. One that drops such a message means it: a guard judges the last turn
/// only.
const KNOWN: [&str; 2] = ["user", "assistant"];

/// Renders messages with the model's template and the request's variables.
pub type Render<'a> = dyn Fn(&Value) -> Result<String, TextRefused> + 'a;

/// Renders `messages` so that each of a role other than user and assistant leaves some text. Instructions
/// that the template drops where they stand join the first system message.
///
/// # Errors
/// The template's, or such a message of which nothing is left, with its role.
pub fn render_all(messages: &Value, render: &Render<'_>) -> Result<String, TextRefused> {
    let text = render(messages)?;
    let Some(lost) = lost(messages, &text, render) else { return Ok(text) };
    let role = messages[lost]["role"].as_str().unwrap_or_default();
    if ["system", "developer"].contains(&role) {
        let joined = one_system_message(messages.as_array().map_or(&[], Vec::as_slice)).into();
        let text = render(&joined)?;
        if self::lost(&joined, &text, render).is_none() {
            return Ok(text);
        }
    }
    let message = format!(
        "messages[{lost}]: the chat template drops a message of the role `{role}` here; use a role that it knows."
    );
    Err(TextRefused::invalid("messages", message))
}

/// Index of the first message that must leave text and of which `rendered` has nothing.
fn lost(messages: &Value, rendered: &str, render: &Render<'_>) -> Option<usize> {
    let messages = messages.as_array()?;
    if !is_suspect(messages, rendered) {
        return None;
    }
    let says = |(at, message): (usize, &Value)| {
        if has_text(message) { saying(message, &format!("message{at}said")) } else { message.clone() }
    };
    let tried = messages.iter().enumerate().map(says).collect();
    // A template that refuses these words may still take the others. Some write in capitals.
    let shown = shown(&render(&tried).ok()?.to_lowercase());
    let must_show = |message: &Value| has_text(message) && !KNOWN.iter().any(|role| message["role"] == *role);
    (0..messages.len()).find(|at| must_show(&messages[*at]) && !shown.contains(at))
}

/// Numbers of the messages whose words are in `text`, in one pass: there may be very many messages.
fn shown(text: &str) -> HashSet<usize> {
    let number = |part: &str| part.split_once("said")?.0.parse().ok();
    text.split("message").skip(1).filter_map(number).collect()
}

/// Whether `rendered` lacks a message's text, in the order of the messages. Linear in its length.
fn is_suspect(messages: &[Value], rendered: &str) -> bool {
    let mut rest = rendered;
    messages.iter().filter(|message| has_text(message)).any(|message| {
        let text = first_text(message);
        let found = rest.find(text).map(|at| &rest[at + text.len()..]);
        rest = found.unwrap_or(rest);
        found.is_none() || !message["role"].as_str().is_some_and(|role| USUAL.contains(&role))
    })
}

/// Whether the template must show the message's text. Beside calls, some leave it out.
fn has_text(message: &Value) -> bool {
    message.get("tool_calls").is_none() && !first_text(message).is_empty()
}

/// First text of a message that is not blank.
fn first_text(message: &Value) -> &str {
    let texts = texts_of(&message["content"]);
    texts.into_iter().map(str::trim).find(|text| !text.is_empty()).unwrap_or_default()
}

/// `message` with `word` as its content.
fn saying(message: &Value, word: &str) -> Value {
    let as_parts = message["content"].is_array();
    let content = || if as_parts { json!([{"type": "text", "text": word}]) } else { word.into() };
    let fields = message.as_object().into_iter().flatten();
    let said = |(name, value): (&String, &Value)| {
        (name.clone(), if name == "content" { content() } else { value.clone() })
    };
    Value::Object(fields.map(said).collect())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use serde_json::Map;

    use super::*;
    use crate::chat_template::ChatTemplate;

    /// Knows four roles, and a system message only in the first place.
    const TEMPLATE: &str = "{% for m in messages %}\
        {% if m.role == 'system' and loop.first %}S:{{ m.content }};\
        {% elif m.role == 'user' %}U:{{ m.content | trim }};\
        {% elif m.role == 'assistant' %}A:{% if m.tool_calls %}call{% else %}{{ m.content.split('</think>')[-1] }}{% endif %};\
        {% elif m.role == 'tool' %}T:{{ m.content | tojson }};{% endif %}{% endfor %}";

    /// The prompt or the refusal, and the number of renderings.
    fn rendered(messages: &Value) -> (Result<String, String>, u32) {
        let template = ChatTemplate::compile(TEMPLATE, Vec::new(), || Duration::ZERO).unwrap();
        let count = Cell::new(0);
        let render = |messages: &Value| {
            count.set(count.get() + 1);
            template.render(messages, false, &Map::new())
        };
        (render_all(messages, &render).map_err(|refusal| refusal.to_string()), count.get())
    }

    fn say(role: &str, text: &str) -> Value {
        json!({"role": role, "content": text})
    }

    #[test]
    fn messages_that_leave_text_are_rendered_as_they_are() {
        let call = json!({"role": "assistant", "content": "dropped", "tool_calls": [{}]});
        for (messages, expected, renderings) in [
            (json!([say("system", "s"), say("user", " u "), say("assistant", "a")]), "S:s;U:u;A:a;", 1),
            (json!([say("user", "u"), call, say("tool", "r")]), "U:u;A:call;T:\"r\";", 1),
            (json!([say("user", " \n"), say("assistant", "")]), "U:;A:;", 1),
            // Escaped and shortened texts take a second rendering.
            (json!([say("tool", "{\"a\": 1}")]), "T:\"{\\\"a\\\": 1}\";", 2),
            (json!([say("assistant", "<think>x</think>")]), "A:;", 2),
        ] {
            assert_eq!(rendered(&messages), (Ok(expected.to_owned()), renderings), "{messages}");
        }
    }

    #[test]
    fn a_message_of_which_nothing_is_left_is_refused_with_its_role() {
        for role in ["banana", "function", "developer"] {
            // The same words elsewhere do not hide it.
            for (lost, text) in [(1, "x"), (1, "U"), (0, "x")] {
                let mut messages = vec![say("user", "x"), say("assistant", "x")];
                messages.insert(lost, say(role, text));
                let (result, _) = rendered(&messages.into());
                if role == "developer" {
                    let first = format!("S:{text};U:x;A:x;");
                    assert_eq!(result, Ok(first), "an instruction joins the system message");
                } else {
                    let message = result.unwrap_err();
                    assert!(
                        message.contains(&format!("messages[{lost}]")) && message.contains(role),
                        "{message}"
                    );
                }
            }
        }
    }

    /// The search for each message's word in all of the text took minutes.
    #[test]
    fn a_hundred_thousand_messages_are_searched_in_one_pass() {
        let mut messages: Vec<Value> = (0..100_000).map(|_| say("user", "x")).collect();
        messages.push(say("banana", "x"));
        let render = |messages: &Value| {
            let shown = messages.as_array().into_iter().flatten().filter(|message| message["role"] == "user");
            Ok(shown.filter_map(|message| message["content"].as_str()).collect())
        };
        let refused = render_all(&messages.into(), &render).unwrap_err().to_string();
        assert!(refused.contains("messages[100000]"), "{refused}");
    }

    #[test]
    fn a_template_may_show_the_last_turn_only() {
        let source = "{{ messages[0].content }}|{{ messages[-1].content }}";
        let template = ChatTemplate::compile(source, Vec::new(), || Duration::ZERO).unwrap();
        let render = |messages: &Value| template.render(messages, false, &Map::new());
        let turns = json!([say("system", "s"), say("user", "a"), say("assistant", "b"), say("user", "c")]);
        assert_eq!(render_all(&turns, &render).unwrap(), "s|c");
        let with_tool = json!([say("system", "s"), say("user", "a"), say("tool", "b"), say("user", "c")]);
        assert!(render_all(&with_tool, &render).unwrap_err().to_string().contains("role `tool`"));
    }

    #[test]
    fn a_late_instruction_joins_the_first() {
        let messages = json!([say("system", "a"), say("user", "u"), say("system", "b"), say("user", "v")]);
        assert_eq!(rendered(&messages).0, Ok("S:a\n\nb;U:u;U:v;".to_owned()));
    }
}
