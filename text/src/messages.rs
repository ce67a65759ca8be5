//! Brings a request's messages into the form that chat templates expect, by the rules of vLLM and of
//! transformers: content is text, arguments of calls are objects, reasoning has every name that templates
//! read, and the role `developer` becomes `system` where the template does not know it.

use serde_json::{Map, Value, json};

use super::chat_template::Forms;
use crate::refused::TextRefused;

/// Names of a message's reasoning, in transformers' order of precedence.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// Types of content parts, each with the key of its text.
const TEXT_PARTS: [(&str, &str); 4] =
    [("text", "text"), ("input_text", "text"), ("output_text", "text"), ("refusal", "refusal")];

/// Validates messages and converts them for a template that expects `forms`.
///
/// # Errors
/// The first message that is malformed, with its index.
pub fn prepare(messages: &[Value], forms: Forms) -> Result<Vec<Value>, TextRefused> {
    if messages.is_empty() {
        return Err(TextRefused::invalid("messages", "messages must hold at least one message."));
    }
    let prepared = messages.iter().enumerate().map(|(at, message)| {
        let refuse = |what: String| TextRefused::invalid("messages", format!("messages[{at}]{what}"));
        prepare_message(message, forms).map(Value::Object).map_err(refuse)
    });
    let mut prepared: Vec<Value> = prepared.collect::<Result<_, _>>()?;
    let is_developer = |message: &&mut Value| !forms.developer && message["role"] == "developer";
    prepared.iter_mut().filter(is_developer).for_each(|message| message["role"] = "system".into());
    Ok(prepared)
}

/// `messages` with the texts of all `system` and `developer` messages joined in one first message, as vLLM
/// does: many templates know no other place for a system message.
pub fn one_system_message(messages: &[Value]) -> Vec<Value> {
    let is_system = |message: &&Value| message["role"] == "system" || message["role"] == "developer";
    let (system, others): (Vec<&Value>, Vec<&Value>) = messages.iter().partition(is_system);
    let texts = system.into_iter().map(|message| texts_of(&message["content"]).join("\n"));
    let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
    let first = json!({"role": "system", "content": texts.join("\n\n")});
    std::iter::once(first).chain(others.into_iter().cloned()).collect()
}

/// Texts of prepared content: a string or a list of parts.
pub fn texts_of(content: &Value) -> Vec<&str> {
    match content {
        Value::String(text) => vec![text],
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => Vec::new(),
    }
}

/// An error is what to write after the message's index.
fn prepare_message(message: &Value, forms: Forms) -> Result<Map<String, Value>, String> {
    let Some(fields) = message.as_object() else {
        return Err(" must be an object with role and content.".to_owned());
    };
    let mut message = fields.clone();
    let content = content(fields, role(fields)?, forms)?;
    message.insert("content".to_owned(), content);
    calls(&mut message, forms)?;
    reasoning(&mut message);
    Ok(message)
}

/// Some templates write the role into control tokens, so it must be a plain word.
fn role(fields: &Map<String, Value>) -> Result<&str, String> {
    let plain = |role: &str| {
        (1..=64).contains(&role.len())
            && role.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
    };
    match fields.get("role") {
        Some(Value::String(role)) if plain(role) => Ok(role),
        Some(Value::String(_)) => Err(".role must be a word of letters, digits, _ and -.".to_owned()),
        _ => Err(".role must be a string such as \"user\".".to_owned()),
    }
}

/// Content as text, or as parts if the template loops over parts. No template expects `none`.
fn content(fields: &Map<String, Value>, role: &str, forms: Forms) -> Result<Value, String> {
    match fields.get("content") {
        Some(Value::String(text)) => Ok(text.as_str().into()),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().enumerate().map(|(at, part)| text_of_part(at, part));
            let texts = texts.collect::<Result<Vec<_>, _>>()?;
            // Few templates loop over the parts of a result.
            let as_parts = forms.parts && role != "tool";
            let part = |text: &str| json!({"type": "text", "text": text});
            Ok(if as_parts { texts.into_iter().map(part).collect() } else { texts.join("\n").into() })
        }
        None | Some(Value::Null) if role == "assistant" => {
            let refusal = fields.get("refusal").and_then(Value::as_str);
            Ok(refusal.unwrap_or_default().into())
        }
        Some(Value::Null) => Ok("".into()),
        _ => Err(".content must be a string or a list of text parts.".to_owned()),
    }
}

fn text_of_part(at: usize, part: &Value) -> Result<&str, String> {
    let kind = part["type"].as_str();
    let known = TEXT_PARTS.iter().find(|(name, _)| kind == Some(*name));
    if let Some(text) = known.and_then(|(_, key)| part[*key].as_str()) {
        return Ok(text);
    }
    match kind.filter(|_| known.is_none()) {
        Some(kind) => {
            let kind: String = kind.chars().take(40).collect();
            Err(format!(".content[{at}]: this model reads text only, not `{kind}`."))
        }
        None => Err(format!(".content[{at}] must be {{\"type\": \"text\", \"text\": …}}.")),
    }
}

/// Converts the calls of a message. Without calls, templates expect no list of them.
fn calls(message: &mut Map<String, Value>, forms: Forms) -> Result<(), String> {
    let is_none = |calls: &Value| calls.is_null() || calls.as_array().is_some_and(Vec::is_empty);
    if message.get("tool_calls").is_none_or(is_none) {
        message.shift_remove("tool_calls");
        return Ok(());
    }
    let Some(Value::Array(calls)) = message.get_mut("tool_calls") else {
        return Err(".tool_calls must be a list of calls.".to_owned());
    };
    for (at, call) in calls.iter_mut().enumerate() {
        let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else {
            return Err(format!(
                ".tool_calls[{at}].function is required: an object with name and arguments."
            ));
        };
        let arguments = arguments(function.get("arguments"), forms);
        function.insert("arguments".to_owned(), arguments);
    }
    Ok(())
}

/// A call's arguments as an object, or as its JSON if the template reads only text. What is no object
/// becomes an empty one: the model wrote it in an earlier turn, and a refusal would end the conversation.
fn arguments(given: Option<&Value>, forms: Forms) -> Value {
    let object = match given {
        Some(Value::Object(object)) => Some(object.clone()),
        Some(Value::String(text)) => serde_json::from_str(text).ok(),
        _ => None,
    };
    match (given, object) {
        (Some(Value::String(text)), Some(_)) if forms.text_arguments => text.as_str().into(),
        (_, object) if forms.text_arguments => Value::Object(object.unwrap_or_default()).to_string().into(),
        (_, object) => Value::Object(object.unwrap_or_default()),
    }
}

/// Gives a message's reasoning every name that templates read.
fn reasoning(message: &mut Map<String, Value>) {
    let given = |name: &&str| message.get(*name).filter(|value| !value.is_null());
    let Some(text) = REASONING.iter().find_map(given).cloned() else { return };
    // GPT-OSS's template, which alone reads `thinking`, fails on a call with both thoughts and content.
    let has_both = message.contains_key("tool_calls") && message["content"] != "";
    for name in REASONING.into_iter().filter(|name| *name != "thinking" || !has_both) {
        let held = message.entry(name).or_insert(Value::Null);
        if held.is_null() {
            *held = text.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Forms = Forms { parts: false, text_arguments: false, developer: false };

    fn check(forms: Forms, messages: &Value, expected: &Value) {
        let prepared = prepare(messages.as_array().unwrap(), forms);
        assert_eq!(prepared.map(Value::from).as_ref(), Ok(expected), "{messages}");
    }

    fn check_message(forms: Forms, message: &Value, expected: &Value) {
        check(forms, &json!([message]), &json!([expected]));
    }

    /// As `parse_chat_message_content` of vLLM 0.33 returns them.
    #[test]
    fn content_that_is_null_is_empty_text() {
        for role in ["system", "user", "assistant", "tool"] {
            let empty = json!({"role": role, "content": ""});
            check_message(PLAIN, &json!({"role": role, "content": null}), &empty);
        }
        check_message(
            PLAIN,
            &json!({"role": "assistant", "tool_calls": []}),
            &json!({"role": "assistant", "content": ""}),
        );
        let refused = json!({"role": "assistant", "content": null, "refusal": "No."});
        check_message(PLAIN, &refused, &json!({"role": "assistant", "content": "No.", "refusal": "No."}));
        let part = json!([{"type": "refusal", "refusal": "No."}]);
        check_message(
            PLAIN,
            &json!({"role": "assistant", "content": part}),
            &json!({"role": "assistant", "content": "No."}),
        );
    }

    #[test]
    fn parts_have_one_type_and_results_are_text() {
        let parts = json!([{"type": "input_text", "text": "a"}, {"type": "text", "text": "b", "x": 1}]);
        let plain = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let forms = Forms { parts: true, ..PLAIN };
        let user = |content: &Value| json!({"role": "user", "content": content});
        check_message(forms, &user(&parts), &user(&plain));
        check_message(PLAIN, &user(&parts), &user(&"a\nb".into()));
        let tool = |content: &Value| json!({"role": "tool", "content": content});
        check_message(forms, &tool(&parts), &tool(&"a\nb".into()));
    }

    /// As `_postprocess_messages` of vLLM 0.33 leaves them.
    #[test]
    fn arguments_are_objects_whatever_was_sent() {
        let call = |arguments: &Value| {
            let mut function = json!({"name": "f"});
            if *arguments != "absent" {
                function["arguments"] = arguments.clone();
            }
            let call = json!({"id": "c", "type": "function", "function": function});
            json!({"role": "assistant", "content": "", "tool_calls": [call]})
        };
        let as_text = Forms { text_arguments: true, ..PLAIN };
        for (sent, object, text) in [
            (json!("{\"a\": 1}"), json!({"a": 1}), "{\"a\": 1}"),
            (json!({"a": 1}), json!({"a": 1}), "{\"a\":1}"),
            (json!(""), json!({}), "{}"),
            (json!(" "), json!({}), "{}"),
            (json!("null"), json!({}), "{}"),
            (json!("[1]"), json!({}), "{}"),
            (json!("{\"a\": "), json!({}), "{}"),
            (json!(null), json!({}), "{}"),
            (json!([1]), json!({}), "{}"),
            (json!("absent"), json!({}), "{}"),
        ] {
            check_message(PLAIN, &call(&sent), &call(&object));
            check_message(as_text, &call(&sent), &call(&text.into()));
        }
    }

    /// As `_alias_reasoning_fields` of transformers leaves them, with vLLM's `reasoning` beside them.
    #[test]
    fn reasoning_has_every_name_that_templates_read() {
        let message = |fields: Value| {
            let mut message = json!({"role": "assistant", "content": "x"});
            message.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            message
        };
        let all =
            |text: &str| message(json!({"reasoning_content": text, "thinking": text, "reasoning": text}));
        for name in REASONING {
            let prepared = prepare(&[message(json!({name: "so"}))], PLAIN).unwrap();
            assert_eq!(prepared[0], all("so"), "{name}");
        }
        let two = message(json!({"thinking": "a", "reasoning": null, "reasoning_content": "b"}));
        let prepared = prepare(&[two], PLAIN).unwrap();
        assert_eq!(
            (&prepared[0]["reasoning_content"], &prepared[0]["thinking"], &prepared[0]["reasoning"]),
            (&json!("b"), &json!("a"), &json!("b"))
        );
        let call = json!([{"function": {"name": "f", "arguments": {}}}]);
        let calls = message(json!({"tool_calls": call, "reasoning": "so"}));
        assert!(prepare(&[calls], PLAIN).unwrap()[0].get("thinking").is_none());
    }

    /// As `_convert_developer_to_system` of vLLM 0.33 leaves them, which then joins them in any case.
    #[test]
    fn a_developer_is_the_system_where_the_template_knows_none() {
        let say = |role: &str, text: &str| json!({"role": role, "content": text});
        let messages = json!([say("system", "a"), say("user", "q"), say("developer", "b")]);
        check(PLAIN, &messages, &json!([say("system", "a"), say("user", "q"), say("system", "b")]));
        let one = json!([say("system", "a\n\nb"), say("user", "q")]);
        assert_eq!(Value::from(one_system_message(messages.as_array().unwrap())), one);
        check(Forms { developer: true, ..PLAIN }, &messages, &messages);
        let late = json!([say("user", "q"), say("system", "b")]);
        check(PLAIN, &late, &late);
    }

    #[test]
    fn what_is_no_message_is_refused_with_its_index() {
        for (message, expected) in [
            (json!("x"), "messages[0] must be an object"),
            (json!({"content": "x"}), "messages[0].role"),
            (json!({"role": "a|>b", "content": "x"}), "a word of letters"),
            (json!({"role": "user"}), "messages[0].content"),
            (json!({"role": "user", "content": 5}), "messages[0].content"),
            (json!({"role": "user", "content": [{"type": "image_url"}]}), "text only, not `image_url`"),
            (json!({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0] must be"),
            (json!({"role": "assistant", "tool_calls": {}}), "messages[0].tool_calls must be a list"),
            (json!({"role": "assistant", "tool_calls": [{}]}), "messages[0].tool_calls[0].function"),
        ] {
            let refusal = prepare(&[message], PLAIN).unwrap_err();
            assert_eq!(refusal.param(), Some("messages"));
            assert!(refusal.to_string().contains(expected), "{refusal}");
        }
        assert!(prepare(&[], PLAIN).unwrap_err().to_string().contains("at least one"));
    }
}
