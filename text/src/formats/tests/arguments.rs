//! Arguments that are no JSON object, Python literals, and the white space around calls.

use super::*;
use crate::formats::python_literal;

/// Values of `ast.literal_eval` and `json.dumps(…, ensure_ascii=False, separators=(",", ":"))` of CPython
/// 3.11.7.
const LITERALS: [(&str, &str); 19] = [
    (r#""\d+\x41 \. \/""#, r#""\\d+A \\. \\/""#),
    (r#"'\a\b\f\v\n\r\t\\\'\"'"#, r#""\u0007\b\f\u000b\n\r\t\\'\"""#),
    (r#""\u00e9\U0001f600""#, "\"é😀\""),
    (r#""\0\12\1234\777\8""#, "\"\\u0000\\nS4ǿ\\\\8\""),
    ("\"a\\\nb\"", "\"ab\""),
    (r#""\w\c""#, r#""\\w\\c""#),
    ("12345678901234567890123", "12345678901234567890123"),
    ("-98765432109876543210", "-98765432109876543210"),
    ("18446744073709551616", "18446744073709551616"),
    ("+7", "7"),
    ("-0", "0"),
    ("00", "0"),
    ("1_000", "1000"),
    ("1e3", "1000.0"),
    (".5", "0.5"),
    ("1.", "1.0"),
    ("-1.5e3", "-1500.0"),
    ("{'a': 1, 'b': 2, 'a': 3}", r#"{"a":3,"b":2}"#),
    (r#"["\"", (1,), {}]"#, r#"["\"",[1],{}]"#),
];

#[test]
fn literals_have_the_values_of_python() {
    for (literal, json) in LITERALS {
        assert_eq!(python_literal::json(literal).as_deref(), Some(json), "{literal}");
    }
    for (literal, json) in [
        // Python keeps the halves of a pair, which `json.dumps` writes as `\ud83d\ude00`: that is 😀.
        (r#""\ud83d\ude00 \ud83d \ude00\ud83d\u0041""#, "\"😀 \u{fffd} \u{fffd}\u{fffd}A\""),
        // Python refuses these, we keep the backslash.
        (r#""C:\Users\xyz\u12 \U00110000""#, r#""C:\\Users\\xyz\\u12 \\U00110000""#),
        (r#""\N{DASH}""#, r#""\\N{DASH}""#),
    ] {
        assert_eq!(python_literal::json(literal).as_deref(), Some(json), "{literal}");
    }
    for no_json in
        ["1__0", "_1", "1_", "--1", "inf", "nan", "1e999", "1j", "{1: 2}", "\"\\", "\"\\\"", "x", ""]
    {
        assert_eq!(python_literal::json(no_json), None, "{no_json}");
    }
}

#[test]
fn pythonic_calls_keep_backslashes_and_digits() {
    let arguments = r#"city="\d+\x41 C:\Users", days=12345678901234567890123"#;
    let json = r#"{"city":"\\d+A C:\\Users","days":12345678901234567890123}"#;
    for (parser, before, after) in [
        ("pythonic", "[", "]"),
        ("llama4_pythonic", "[", "]"),
        ("olmo3", "<function_calls>", "</function_calls>"),
        ("lfm2", "<|tool_call_start|>[", "]<|tool_call_end|>"),
    ] {
        let text = format!("{before}get_weather({arguments}){after}");
        let parts = alike(parser, &text);
        assert_eq!(parts.calls, [("get_weather".to_owned(), json.to_owned())], "{text}");
    }
}

/// Splits `text` whole and in characters, which must give the same.
fn alike(parser: &str, text: &str) -> Parts {
    let plan = plan(parser, None, Opening::Fresh);
    let (mut splitter, mut streamed) = (Splitter::new(plan.clone()), Parts::default());
    for c in text.chars() {
        streamed.add(splitter.push(c.encode_utf8(&mut [0; 4]), &[]));
    }
    streamed.add(splitter.finish());
    assert_eq!(streamed, whole(&plan, text), "{parser}: {text}");
    streamed
}

#[test]
fn arguments_that_are_no_object_make_no_call() {
    for value in ["null", "5", "[]", "true", r#""null""#, r#""[1]""#, r#""{\"a\": }""#] {
        for (parser, before, key, after) in [
            ("hermes", "<tool_call>", "arguments", "</tool_call>"),
            ("ernie45", "<tool_call>\n", "arguments", "\n</tool_call>"),
            ("longcat", "<longcat_tool_call>", "arguments", "</longcat_tool_call>"),
            ("internlm", "<|action_start|><|plugin|>\n", "parameters", "<|action_end|>"),
            ("granite-20b-fc", "<function_call> ", "arguments", ""),
            ("mistral", "[TOOL_CALLS][", "arguments", "]"),
            ("llama3_json", "", "parameters", ""),
        ] {
            for object in [
                format!("{{\"name\": \"now\", \"{key}\": {value}}}"),
                format!("{{\"{key}\": {value}, \"name\": \"now\"}}"),
            ] {
                let text = format!("{before}{object}{after} and on");
                let parts = alike(parser, &text);
                assert_eq!(
                    (parts.content.as_str(), parts.calls.len()),
                    (text.as_str(), 0),
                    "{parser}: {text}"
                );
            }
        }
    }
    check("hermes", r#"<tool_call>{"name": "now", "arguments": ""}</tool_call>"#, "", &[("now", json!({}))]);
    for (parser, text) in [
        ("mistral_v11", "[TOOL_CALLS]now[ARGS]null"),
        ("kimi_k2", "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>[]<|tool_call_end|>"),
        ("deepseek_v31", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>5<｜tool▁call▁end｜>"),
        // What can be checked before the call is emitted is.
        ("hermes", r#"<tool_call>{"arguments": {"city": }, "name": "now"}</tool_call>"#),
        ("hermes", r#"<tool_call>{"arguments": {"city": Oslo}, "name": "now"}</tool_call>"#),
    ] {
        let parts = alike(parser, text);
        assert_eq!((parts.content.as_str(), parts.calls.len()), (text, 0), "{parser}: {text}");
    }
}

#[test]
fn a_list_keeps_the_text_of_an_item_that_is_no_call() {
    let bad = "{\"name\": \"add\", \"arguments\": null}]";
    let text = format!("[TOOL_CALLS][{{\"name\": \"now\", \"arguments\": {{}}}}, {bad}");
    let parts = alike("mistral", &text);
    assert_eq!((parts.content, parts.calls.len(), parts.ended), (format!(", {bad}"), 1, vec![0]));
    let parts = alike("pythonic", "[now(), add(1)]");
    assert_eq!((parts.content.as_str(), parts.calls.len()), (", add(1)]", 1));
}

#[test]
fn white_space_stays_between_texts_around_calls() {
    let call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    for (text, content) in [
        (format!("Hi {call} bye now"), "Hi bye now"),
        (format!("Hi\n\n{call}\nbye"), "Hi\n\nbye"),
        (format!("Hi{call} bye"), "Hi bye"),
        (format!("Hi {call}bye"), "Hi bye"),
        (format!("Hi{call}bye"), "Hibye"),
        (format!("Hi {call}\n{call} bye"), "Hi bye"),
        (format!("Hi {call} and {call} bye"), "Hi and bye"),
        (format!("Hi {call} <tool_call>no"), "Hi <tool_call>no"),
        (format!("Hi \n{call}\n"), "Hi"),
        (format!(" {call} bye"), "bye"),
    ] {
        assert_eq!(alike("hermes", &text).content, content, "{text}");
    }
    // GPT-OSS's channels hold no text around calls.
    let with_text =
        TWO_CALLS.iter().filter(|(parser, _, content)| !content.is_empty() && *parser != "openai");
    for (parser, text, content) in with_text {
        let text = format!("{} {} bye", content, &text[content.len()..]);
        let parts = alike(parser, &text);
        assert_eq!(
            (parts.content.split_whitespace().collect::<Vec<_>>(), parts.calls.len()),
            (vec!["Well.", "bye"], 2),
            "{text}"
        );
    }
}
