//! Calls of earlier turns, written as the text of their message, for templates that never read `tool_calls`:
//! otherwise the model sees results without the calls that they answer.

use serde_json::{Map, Value};

use crate::formats::{Body, Format, Keys};

/// `messages`, prepared and shielded, with each message's calls after its text, in `format`. Markers stay
/// control tokens; names and arguments are text. A format without a marker, or that is not written
/// here, leaves messages as they are.
pub fn with_calls_as_text(mut messages: Value, format: &Format) -> Value {
    for message in messages.as_array_mut().into_iter().flatten() {
        let calls =
            message["tool_calls"].as_array().filter(|calls| !calls.is_empty() && !format.begin.is_empty());
        let Some(written) = calls.and_then(|calls| written(calls, format)) else { continue };
        if let Some(Value::String(content)) = message.get_mut("content") {
            content.push_str(&written);
        }
    }
    messages
}

fn written(calls: &[Value], format: &Format) -> Option<String> {
    let call = |call: &Value| {
        let function = &call["function"];
        let (name, arguments) = (function["name"].as_str()?, function["arguments"].as_object()?);
        match format.body {
            Body::Pythonic => Some(format!("{name}({})", keywords(arguments))),
            Body::List(Keys::Name) => {
                let arguments = serde_json::to_string(arguments).ok()?;
                Some(format!("{{\"name\": {}, \"arguments\": {arguments}}}", Value::from(name)))
            }
            _ => None,
        }
    };
    let calls: Vec<String> = calls.iter().map(call).collect::<Option<_>>()?;
    Some(format!("{}[{}]{}", format.begin, calls.join(", "), format.ends.concat()))
}

fn keywords(arguments: &Map<String, Value>) -> String {
    let members = arguments.iter().map(|(key, value)| format!("{key}={}", python(value)));
    members.collect::<Vec<_>>().join(", ")
}

/// A Python literal.
fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Array(items) => format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", ")),
        Value::Object(members) => {
            let members =
                members.iter().map(|(key, value)| format!("{}: {}", Value::from(&**key), python(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
        // JSON's numbers, and strings with JSON's escapes, are Python's.
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::formats::Formats;

    fn content_of(parser: &str, content: Value) -> Value {
        let format = Formats::default().with(Some(parser), None).unwrap().calls.unwrap();
        let call = |name: &str, arguments: Value| json!({"function": {"name": name, "arguments": arguments}});
        let calls = [
            call("f", json!({"a": "it's \"x\"", "b": [1, true, null], "c": {"d": 2.5}})),
            call("g", json!({})),
        ];
        let message = json!({"role": "assistant", "content": content, "tool_calls": calls});
        with_calls_as_text(json!([{"role": "user", "content": "Hi"}, message]), format)[1]["content"].clone()
    }

    #[test]
    fn calls_follow_the_text_as_the_model_writes_them() {
        let lfm2 = "So.<|tool_call_start|>[f(a=\"it's \\\"x\\\"\", b=[1, True, None], c={\"d\": 2.5}), \
                    g()]<|tool_call_end|>";
        assert_eq!(content_of("lfm2", json!("So.")), lfm2);
        let granite = "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\":\"it's \\\"x\\\"\",\
                       \"b\":[1,true,null],\"c\":{\"d\":2.5}}}, {\"name\": \"g\", \"arguments\": {}}]";
        assert_eq!(content_of("granite", json!("")), granite);
        assert_eq!(content_of("hermes", json!("So.")), "So.");
        let parts = json!([{"type": "text", "text": "So."}]);
        assert_eq!(content_of("lfm2", parts.clone()), parts);
    }
}
