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

/// Bytes below which a text is found in a prompt by chance.
const SHORT: usize = 32;
/// Places where a text begins that are tried before it is searched as a whole.
const TRIES: usize = 4;

/// Renders messages with the model's template and the request's variables.
pub type Render<'a> = dyn Fn(&Value) -> Result<String, TextRefused> + 'a;

/// Renders `messages` so that each of a role other than user and assistant leaves some text. A template that
/// `reads_parts` of content may drop text that is none; instructions that one drops or refuses in their place
/// join the first. Elsewhere they stay, so that what precedes them is still found in the prefix cache.
///
/// # Errors
/// The template's, or such a message of which nothing is left, with its role.
pub fn render_all(messages: &Value, reads_parts: bool, render: &Render<'_>) -> Result<String, TextRefused> {
    let text = match render(messages) {
        Ok(text) => text,
        Err(refusal) => return with_one_system(messages, render).ok_or(refusal),
    };
    let lost = lost(messages, &text, render);
    if lost.is_empty() {
        return Ok(text);
    }
    if let Some(text) = reads_parts.then(|| whole(&in_parts(messages), render)).flatten() {
        return Ok(text);
    }
    let must_show = |at: &&usize| !KNOWN.iter().any(|role| messages[**at]["role"] == *role);
    let Some(at) = lost.iter().find(must_show) else { return Ok(text) };
    let role = messages[*at]["role"].as_str().unwrap_or_default();
    if let Some(text) = with_one_system(messages, render) {
        return Ok(text);
    }
    let message = format!(
        "messages[{at}]: the chat template drops a message of the role `{role}` here; use a role that it knows."
    );
    Err(TextRefused::invalid("messages", message))
}

/// The rendering with all instructions in the first message, if some stand elsewhere and none is lost then.
fn with_one_system(messages: &Value, render: &Render<'_>) -> Option<String> {
    let messages = messages.as_array()?;
    let is_out_of_place = |(at, message): (usize, &Value)| {
        message["role"] == "developer" || (message["role"] == "system" && at > 0)
    };
    messages
        .iter()
        .enumerate()
        .any(is_out_of_place)
        .then(|| whole(&one_system_message(messages).into(), render))?
}

/// The rendering of `messages`, if none of them is lost.
fn whole(messages: &Value, render: &Render<'_>) -> Option<String> {
    let text = render(messages).ok()?;
    lost(messages, &text, render).is_empty().then_some(text)
}

/// `messages` with each text as a list of one part, as vLLM gives them to a template that loops over parts.
fn in_parts(messages: &Value) -> Value {
    let part = |message: &Value| {
        let text = message["content"].as_str().filter(|_| message["role"] != "tool");
        text.map_or_else(
            || message.clone(),
            |text| with_content(message, json!([{"type": "text", "text": text}])),
        )
    };
    messages.as_array().into_iter().flatten().map(part).collect()
}

/// Indices of the messages of which `rendered` has nothing.
fn lost(messages: &Value, rendered: &str, render: &Render<'_>) -> Vec<usize> {
    let Some(messages) = messages.as_array() else { return Vec::new() };
    if !is_suspect(messages, rendered) {
        return Vec::new();
    }
    let says = |(at, message): (usize, &Value)| {
        if has_text(message) { saying(message, &format!("message{at}said")) } else { message.clone() }
    };
    let tried = messages.iter().enumerate().map(says).collect();
    // A template that refuses these words may still take the others. Some write in capitals.
    let Ok(tried) = render(&tried) else { return Vec::new() };
    let shown = shown(&tried.to_lowercase());
    (0..messages.len()).filter(|at| has_text(&messages[*at]) && !shown.contains(at)).collect()
}

/// Numbers of the messages whose words are in `text`, in one pass: there may be very many messages.
fn shown(text: &str) -> HashSet<usize> {
    let number = |part: &str| part.split_once("said")?.0.parse().ok();
    text.split("message").skip(1).filter_map(number).collect()
}

/// Whether `rendered` lacks a message's text, in the order of the messages, or may only seem to have it.
/// Linear in its length.
fn is_suspect(messages: &[Value], rendered: &str) -> bool {
    let mut rest = rendered;
    let with_text = messages.iter().enumerate().filter(|(_, message)| has_text(message));
    with_text.into_iter().any(|(at, message)| {
        let text = first_text(message);
        let found = find(rest, text).map(|at| &rest[at + text.len()..]);
        rest = found.unwrap_or(rest);
        found.is_none() || is_doubtful(at, message)
    })
}

/// Where `text` first stands in `rest`. Most often it stands where its beginning first does, and a search for
/// that needs no table of the whole text.
fn find(rest: &str, text: &str) -> Option<usize> {
    let beginning = &text[..text.floor_char_boundary(SHORT)];
    let mut from = 0;
    for _ in 0..TRIES {
        let at = from + rest[from..].find(beginning)?;
        if rest[at..].starts_with(text) {
            return Some(at);
        }
        from = at + beginning.chars().next().map_or(1, char::len_utf8);
    }
    rest[from..].find(text).map(|at| from + at)
}

/// Whether a message's text may be found although the template drops the message: its role is rare, or it is
/// a late instruction or a result whose text is so short that it may stand elsewhere.
fn is_doubtful(at: usize, message: &Value) -> bool {
    let role = message["role"].as_str().unwrap_or_default();
    let is_late = role == "tool" || (role == "system" && at > 0);
    !USUAL.contains(&role) || (is_late && first_text(message).len() < SHORT)
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
    with_content(message, if as_parts { json!([{"type": "text", "text": word}]) } else { word.into() })
}

fn with_content(message: &Value, content: Value) -> Value {
    let mut message = message.clone();
    message["content"] = content;
    message
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

    /// Renders messages by the template `source`.
    fn by(source: &str) -> impl Fn(&Value) -> Result<String, TextRefused> {
        let template = ChatTemplate::compile(source, Vec::new(), || Duration::ZERO).unwrap();
        move |messages| template.render(messages, false, &Map::new())
    }

    /// The prompt or the refusal, and the number of renderings.
    fn rendered(messages: &Value) -> (Result<String, String>, u32) {
        let (count, by_template) = (Cell::new(0), by(TEMPLATE));
        let render = |messages: &Value| {
            count.set(count.get() + 1);
            by_template(messages)
        };
        (render_all(messages, false, &render).map_err(|refusal| refusal.to_string()), count.get())
    }

    /// A text that is not in a prompt by chance.
    const LONG: &str = "It rains in Oslo, and it will rain tomorrow.";

    fn say(role: &str, text: &str) -> Value {
        json!({"role": role, "content": text})
    }

    #[test]
    fn messages_that_leave_text_are_rendered_as_they_are() {
        let call = json!({"role": "assistant", "content": "dropped", "tool_calls": [{}]});
        for (messages, expected, renderings) in [
            (json!([say("system", "s"), say("user", " u "), say("assistant", "a")]), "S:s;U:u;A:a;", 1),
            (json!([say("user", "u"), call, say("tool", "r")]), "U:u;A:call;T:\"r\";", 2),
            (json!([say("user", "u"), say("tool", LONG)]), &format!("U:u;T:\"{LONG}\";"), 1),
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
        let refused = render_all(&messages.into(), false, &render).unwrap_err().to_string();
        assert!(refused.contains("messages[100000]"), "{refused}");
    }

    #[test]
    fn a_text_is_found_where_it_first_stands() {
        let start = "é".repeat(20);
        for (places, with_end) in [(0, true), (1, true), (3, true), (7, true), (9, false)] {
            let text = format!("{start}!");
            let rest =
                format!("x{}{}", format!("{start}?").repeat(places), if with_end { &*text } else { "" });
            assert_eq!(find(&rest, &text), rest.find(&text), "{places}");
            assert_eq!(find(&rest, "é"), Some(1));
        }
        let repeated = "ab".repeat(100);
        assert_eq!(find(&format!("{repeated}c"), &format!("{}c", "ab".repeat(50))), Some(100));
        assert_eq!((find("", "a"), find("a", ""), find("", "")), (None, Some(0), Some(0)));
    }

    #[test]
    fn a_template_may_show_the_last_turn_only() {
        let source = "{{ messages[0].content }}|{{ messages[-1].content }}";
        let render = by(source);
        let turns = json!([say("system", "s"), say("user", "a"), say("assistant", "b"), say("user", "c")]);
        assert_eq!(render_all(&turns, false, &render).unwrap(), "s|c");
        let with_tool = json!([say("system", "s"), say("user", "a"), say("tool", "b"), say("user", "c")]);
        assert!(render_all(&with_tool, false, &render).unwrap_err().to_string().contains("role `tool`"));
    }

    #[test]
    fn text_reaches_a_template_that_reads_only_parts() {
        let source = "{% for m in messages %}{{ m.role }}:{% for part in m.content %}{{ part.text }}{% endfor %};{% endfor %}";
        let render = by(source);
        let turns = json!([say("system", "s"), say("user", "a")]);
        assert_eq!(render_all(&turns, true, &render).unwrap(), "system:s;user:a;");
    }

    #[test]
    fn a_short_text_that_stands_elsewhere_does_not_hide_a_loss() {
        let source = "{% for m in messages %}{% if m.role == 'user' or loop.first %}{{ m.content }} end;{% endif %}{% endfor %}";
        let render = by(source);
        let turns = json!([say("system", "s"), say("user", "a"), say("system", "end"), say("user", "b")]);
        assert_eq!(render_all(&turns, false, &render).unwrap(), "s\n\nend end;a end;b end;");
        let result = json!([say("user", "a"), say("tool", "end"), say("user", "b")]);
        assert!(render_all(&result, false, &render).is_err());
    }

    #[test]
    fn an_instruction_that_a_template_refuses_in_its_place_joins_the_first() {
        let source = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}{{ m.content }};{% endfor %}";
        let render = by(source);
        let turns = json!([say("user", "a"), say("system", "b"), say("user", "c")]);
        assert_eq!(render_all(&turns, false, &render).unwrap(), "b;a;c;");
        let raises = json!([say("system", "b"), say("user", "c")]);
        let render = by("{{ raise_exception('no') }}");
        assert!(render_all(&raises, false, &render).unwrap_err().to_string().contains("no"));
    }

    #[test]
    fn a_late_instruction_joins_the_first() {
        let messages = json!([say("system", "a"), say("user", "u"), say("system", "b"), say("user", "v")]);
        assert_eq!(rendered(&messages).0, Ok("S:a\n\nb;U:u;U:v;".to_owned()));
    }
}
