//! Random bodies to every endpoint that generates: each gets an answer or a refusal, never a panic or a 500.

use super::tools::{MESSAGES, RESPONSES, app};
use super::*;

/// Mutated bodies per endpoint.
const BODIES: u64 = 800;

/// Splitmix64, seeded by the number of the body.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 7 } else { 10 }) {
            0 => Value::Null,
            1 => (self.below(2) == 0).into(),
            2 => [0_i64, 1, -1, i64::MAX, i64::MIN][self.below(5)].into(),
            3 => [0.5, -1e300, 1e308][self.below(3)].into(),
            4 => WORDS[self.below(WORDS.len())].into(),
            5 => "é\u{0}\u{FDEF}<think></tool_call>\\\"".into(),
            6 => json!([]),
            7 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => {
                let field = |random: &mut Self| {
                    (WORDS[random.below(WORDS.len())].to_owned(), random.value(depth - 1))
                };
                Value::Object((0..self.below(5)).map(|_| field(self)).collect())
            }
        }
    }

    /// Replaces, adds or removes a random part of `value`.
    fn change(&mut self, value: &mut Value) {
        let goes_in = self.below(4) > 0;
        match value {
            Value::Object(fields) if goes_in && !fields.is_empty() => {
                let name = fields.keys().nth(self.below(fields.len())).unwrap().clone();
                match self.below(8) {
                    0 => drop(fields.shift_remove(&name)),
                    1 => drop(fields.insert(WORDS[self.below(WORDS.len())].to_owned(), self.value(2))),
                    _ => self.change(&mut fields[&name]),
                }
            }
            Value::Array(items) if goes_in && !items.is_empty() => {
                let at = self.below(items.len());
                match self.below(6) {
                    0 => drop(items.remove(at)),
                    1 => items.push(items[at].clone()),
                    _ => self.change(&mut items[at]),
                }
            }
            value => *value = self.value(2),
        }
    }
}

/// Names and values with a meaning in some field.
const WORDS: [&str; 40] = [
    "type",
    "name",
    "function",
    "parameters",
    "strict",
    "tools",
    "tool_choice",
    "auto",
    "required",
    "allowed_tools",
    "mode",
    "content",
    "role",
    "user",
    "assistant",
    "system",
    "text",
    "input_text",
    "tool_use",
    "tool_result",
    "input",
    "call_id",
    "arguments",
    "custom",
    "namespace",
    "format",
    "definition",
    "schema",
    "json_schema",
    "response_format",
    "properties",
    "object",
    "string",
    "enum",
    "$ref",
    "#/$defs/a",
    "thinking",
    "stream",
    "n",
    "",
];

fn bodies() -> [(&'static str, Value); 4] {
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": ["integer", "null"]}}, "required": ["a"]});
    let tool = json!({"type": "function", "function": {"name": "f", "strict": true, "parameters": schema}});
    let messages = json!([{"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "r"}]}]);
    [
        (
            CHAT,
            json!({"messages": messages, "tools": [tool], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto",
            "tools": [tool]}}, "parallel_tool_calls": false, "stream": true, "n": 2, "max_tokens": 9, "seed": 3, "include_reasoning": true,
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}),
        ),
        (
            COMPLETIONS,
            json!({"prompt": ["a", "b"], "structured_outputs": {"regex": "[a-c]+"}, "stop": ["x"], "logprobs": 2, "max_tokens": 5,
            "stream_options": {"include_usage": true}, "stream": true, "logit_bias": {"5": 1}}),
        ),
        (
            RESPONSES,
            json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "q"}]},
            {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"}, {"type": "custom_tool_call", "name": "g", "call_id": "d", "input": "i"},
            {"type": "function_call_output", "call_id": "c", "output": "r"}], "tools": [{"type": "function", "name": "f", "parameters": schema},
            {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"x\""}},
            {"type": "namespace", "name": "s", "tools": [{"type": "function", "name": "h"}]}], "tool_choice": {"type": "custom", "name": "g"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}, "stream": true, "instructions": "i"}),
        ),
        (
            MESSAGES,
            json!({"max_tokens": 9, "system": [{"type": "text", "text": "s"}], "messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "id": "c", "name": "f", "input": {"a": "x"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}]}], "tools": [{"name": "f", "input_schema": schema}],
            "tool_choice": {"type": "any"}, "thinking": {"type": "enabled"}, "stream": true, "stop_sequences": ["x"]}),
        ),
    ]
}

#[tokio::test]
async fn random_bodies_are_answered_or_refused() {
    let (mut answered, mut refused) = (0, 0);
    for (path, body) in bodies() {
        let (app, _) = app(super::tools::TEXT, 4);
        let first = send(&app, post_bytes(path, body.to_string())).await;
        assert_eq!(first.status, 200, "{path}: {}", first.body);
        for seed in 0..BODIES {
            let mut random = Random(seed);
            let mut body = body.clone();
            (0..=random.below(3)).for_each(|_| random.change(&mut body));
            // The scripted workers answer with one sample.
            if body["n"].as_u64().is_some_and(|n| n <= 128) {
                body["n"] = 1.into();
            }
            let answer = send_odd(&app, post_bytes(path, body.to_string())).await;
            match answer.status {
                200 => answered += 1,
                400 | 404 | 413 | 422 => refused += 1,
                status => panic!("{path}, seed {seed}: {status} {}\n{body}", answer.body),
            }
        }
    }
    println!("{answered} answered, {refused} refused");
    assert!(answered > 200 && refused > 200, "{answered} answered, {refused} refused");
}
