//! Splits every family's answers, whole and in random pieces, and texts that only resemble calls.

mod arguments;
mod families;
mod goldens;
mod grammars;
mod harmony_tokens;
mod two_calls;
mod vllm;

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use self::two_calls::TWO_CALLS;
use super::table::FORMATS;
use super::tools::Function;
use super::{Formats, Opening, Piece, Plan, Splitter};

/// Result of splitting one answer.
#[derive(Debug, Default, PartialEq)]
struct Parts {
    content: String,
    reasoning: String,
    calls: Vec<(String, String)>,
    ended: Vec<u32>,
}

impl Parts {
    fn add(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Content(text) => self.content += &text,
                Piece::Reasoning(text) => self.reasoning += &text,
                Piece::Call { index, name } => {
                    assert_eq!(index as usize, self.calls.len());
                    self.calls.push((name, String::new()));
                }
                Piece::Arguments { index, json } => {
                    assert_eq!(index as usize + 1, self.calls.len());
                    self.calls.last_mut().unwrap().1 += &json;
                }
                Piece::CallEnd { index } => self.ended.push(index),
            }
        }
    }
}

fn functions() -> Arc<[Function]> {
    let function = |name: &str, parameters: Value| Function::new(name.to_owned(), Some(parameters), false);
    let weather = json!({"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "why": {"type": ["string", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["city"]});
    Arc::new([
        function("get_weather", weather),
        Function::new("now".to_owned(), None, false),
        function(
            "add",
            json!({"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}),
        ),
    ])
}

fn plan(parser: &str, reasoning: Option<&str>, opening: Opening) -> Arc<Plan> {
    let formats = Formats::default().with(Some(parser).filter(|name| !name.is_empty()), reasoning).unwrap();
    plan_of(formats, opening)
}

fn plan_of(formats: Formats, opening: Opening) -> Arc<Plan> {
    let Formats { calls, reasoning, harmony } = formats;
    Arc::new(Plan {
        calls,
        reasoning,
        opening,
        harmony,
        token_markers: Arc::new([]),
        held: false,
        functions: functions(),
    })
}

fn whole(plan: &Arc<Plan>, text: &str) -> Parts {
    let (mut splitter, mut parts) = (Splitter::new(plan.clone()), Parts::default());
    parts.add(splitter.push(text, &[]));
    parts.add(splitter.finish());
    parts
}

/// Output so far after each prefix, as text.
fn given(plan: &Arc<Plan>, text: &str, cuts: &[usize]) -> Vec<String> {
    let (mut splitter, mut parts) = (Splitter::new(plan.clone()), Parts::default());
    let mut from = 0;
    let mut states = Vec::new();
    for at in cuts.iter().copied().chain([text.len()]) {
        parts.add(splitter.push(&text[from..at], &[]));
        from = at;
        states.push(format!("{parts:?}"));
    }
    parts.add(splitter.finish());
    states.push(format!("{parts:?}"));
    states
}

fn check(parser: &str, text: &str, content: &str, calls: &[(&str, Value)]) {
    let parts = whole(&plan(parser, None, Opening::Fresh), text);
    let told: Vec<(&str, Value)> = parts
        .calls
        .iter()
        .map(|(name, arguments)| {
            (name.as_str(), serde_json::from_str(arguments).unwrap_or_else(|_| arguments.as_str().into()))
        })
        .collect();
    assert_eq!((parts.content.as_str(), told.as_slice()), (content, calls), "{parser}: {text}");
    assert_eq!(parts.ended, (0..calls.len() as u32).collect::<Vec<_>>(), "{parser}: {text}");
}

#[test]
fn every_family_writes_two_calls() {
    for (parser, text, content) in TWO_CALLS {
        check(
            parser,
            text,
            content,
            &[("get_weather", json!({"city": "Zürich", "days": 2})), ("now", json!({}))],
        );
    }
}

#[test]
fn every_format_is_in_the_tests() {
    for format in FORMATS {
        let is_tested = TWO_CALLS.iter().any(|(parser, ..)| format.names.contains(parser));
        assert!(is_tested, "{:?}", format.names);
    }
}

#[test]
fn what_does_not_parse_is_content() {
    for (parser, text) in [
        ("hermes", "<tool_call>\nno\n</tool_call>"),
        ("hermes", "<tool_call>\n{\"name\": 5}\n</tool_call> and on"),
        ("hermes", "<tool_call>\n{\"arguments\": {}}\n</tool_call>"),
        ("hermes", "a <tool_cal b <tool_call"),
        ("hermes", "  two spaces, and more at the end \n\n"),
        ("llama3_json", "{\"answer\": 1}"),
        ("llama3_json", "{\"name\": \"Ann\", \"parameters\": {}}"),
        ("llama3_json", "It is {\"name\": \"now\", \"parameters\": {}}"),
        ("pythonic", "[1, 2, 3]"),
        ("pythonic", "[now(1)]"),
        ("pythonic", "[other()]"),
        ("mistral", "[TOOL_CALLS]{}"),
        ("mistral", "[TOOL_CALLS][]"),
        ("mistral_v11", "[TOOL_CALLS]not a name[ARGS]{}"),
        ("deepseek_v31", "<｜tool▁calls▁begin｜>nothing"),
        ("qwen3_coder", "<tool_call>\n<func>x"),
        ("glm45", "<tool_call>?"),
        ("openai", "plain words, <|no channel|>"),
    ] {
        check(parser, text, text, &[]);
    }
}

/// vLLM #47901: a call without arguments swallowed the next one.
#[test]
fn an_empty_argument_call_before_another() {
    for (parser, text) in [
        (
            "hermes",
            "<tool_call>\n{\"name\": \"now\"}\n</tool_call>\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>",
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        ),
    ] {
        check(parser, text, "", &[("now", json!({})), ("add", json!({"a": 1}))]);
    }
}

/// vLLM #37937: `max_tokens` inside a call.
#[test]
fn a_call_cut_by_max_tokens_keeps_what_came() {
    let text = TWO_CALLS[1].1;
    let at = text.find("days").unwrap();
    let parts = whole(&plan("hermes", None, Opening::Fresh), &text[..at]);
    assert_eq!(parts.calls, [("get_weather".to_owned(), "{\"city\": \"Zürich\", \"".to_owned())]);
    assert_eq!((parts.ended, parts.content.as_str()), (vec![], "Well."));
}

#[test]
fn an_end_marker_cut_by_max_tokens_is_not_content() {
    for (parser, text) in [
        ("hermes", "Well.<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"),
        ("qwen3_coder", "Well.<tool_call>\n<function=now>\n</function>\n</tool_call>"),
    ] {
        let end = text.find("</tool_call>").unwrap();
        for at in end..=text.len() {
            let parts = whole(&plan(parser, None, Opening::Fresh), &text[..at]);
            assert_eq!((parts.content.as_str(), parts.calls.len()), ("Well.", 1), "{}", &text[..at]);
        }
    }
    // Anywhere else it is text.
    check("hermes", "Well.</tool_", "Well.</tool_", &[]);
}

#[test]
fn keys_may_come_in_any_order_and_arguments_as_text() {
    let call = |text: &str| format!("<tool_call>{text}</tool_call>");
    let expected = [("add", json!({"a": [1, "}"], "b": "\\\""}))];
    for text in [
        r#"{"arguments": {"a": [1, "}"], "b": "\\\""}, "name": "add"}"#,
        r#"{"id": {"x": [1]}, "name":"add","arguments":{"a": [1, "}"], "b": "\\\""},"n":1}"#,
        r#"{"name": "add", "arguments": "{\"a\": [1, \"}\"], \"b\": \"\\\\\\\"\"}"}"#,
    ] {
        check("hermes", &call(text), "", &expected);
    }
}

#[test]
fn llamas_name_the_kind_of_a_call() {
    let text = "<|python_tag|>{\"type\": \"function\", \"name\": \"now\", \"parameters\": {}}";
    check("llama3_json", text, "", &[("now", json!({}))]);
}

#[test]
fn values_between_tags_are_typed_by_the_schema() {
    let text = "<tool_call>\n<function=get_weather>\n<parameter=city>\n5 < 6 \"q\" \\ \n\n</parameter>\n<parameter=days>\n5\n</parameter>\n<parameter=why>null</parameter>\n<parameter=tags>\n[\"a\", \"b\"]\n</parameter>\n<parameter=other>\n7\n</parameter>\n</function>\n</tool_call>";
    let arguments =
        json!({"city": "5 < 6 \"q\" \\ \n", "days": 5, "why": null, "tags": ["a", "b"], "other": "7"});
    check("qwen3_coder", text, "", &[("get_weather", arguments)]);
}

#[test]
fn python_literals_become_json() {
    let text = "[add(a=-1.5e3, b={'k': [True, None, (1, 2)], \"s\": 'it\\'s'}),now( )]";
    check(
        "pythonic",
        text,
        "",
        &[("add", json!({"a": -1500.0, "b": {"k": [true, null, [1, 2]], "s": "it's"}})), ("now", json!({}))],
    );
}

#[test]
fn reasoning_is_told_apart() {
    let check = |parser: &str,
                 reasoning: &str,
                 opening: Opening,
                 text: &str,
                 expected: (&str, &str, usize)| {
        let parts = whole(&plan(parser, Some(reasoning), opening), text);
        assert_eq!((parts.reasoning.as_str(), parts.content.as_str(), parts.calls.len()), expected, "{text}");
    };
    let thought = "<think>\nHm, a <b>.\n</think>\n\nYes. ";
    check("", "qwen3", Opening::Fresh, thought, ("Hm, a <b>.", "Yes. ", 0));
    check("", "qwen3", Opening::InReasoning, "Hm\n</think>\n\nYes", ("Hm", "Yes", 0));
    // Dynamo #8636: the prompt disabled thinking, and the whole answer was classified as reasoning.
    check("", "qwen3", Opening::Closed, "Yes, no thought.", ("", "Yes, no thought.", 0));
    check("", "qwen3", Opening::Fresh, "Yes, no thought.", ("", "Yes, no thought.", 0));
    check("", "qwen3", Opening::Fresh, "Yes <think>x</think>", ("", "Yes <think>x</think>", 0));
    check("", "qwen3", Opening::Fresh, "<think>cut", ("cut", "", 0));
    check("", "mistral", Opening::Fresh, "[THINK]Hm[/THINK]Yes", ("Hm", "Yes", 0));
    let call = "<think>I <tool_call> it</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    check("hermes", "qwen3", Opening::Fresh, call, ("I <tool_call> it", "", 1));
    check(
        "llama3_json",
        "qwen3",
        Opening::InReasoning,
        "x</think>\n{\"name\": \"now\", \"parameters\": {}}",
        ("x", "", 1),
    );
    let harmony = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Yes";
    check("openai", "qwen3", Opening::Fresh, harmony, ("Hm", "Yes", 0));
}

/// As vLLM 0.33 has it for Qwen 3, GLM 4.5 and Kimi K2; what turns out to be no call stays reasoning.
#[test]
fn a_call_ends_reasoning_that_is_not_closed() {
    let now = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let keyed = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    let kimi = "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}\
                <|tool_call_end|><|tool_calls_section_end|>";
    for (parser, text, expected) in [
        ("hermes", format!("<think>abc\n{now}"), ("abc", "", 1)),
        ("qwen3_coder", format!("<think>abc{keyed}"), ("abc", "", 1)),
        ("glm45", "<think>abc<tool_call>now\n</tool_call>".to_owned(), ("abc", "", 1)),
        ("kimi_k2", format!("<think>abc{kimi}"), ("abc", "", 1)),
        ("hermes", format!("<think>abc{now}\n</think>\n\nDone."), ("abc", "Done.", 1)),
        ("hermes", format!("<think>abc{now}</think>{now}"), ("abc", "", 2)),
        ("hermes", format!("<think>a <tool_call> b{now}"), ("a <tool_call> b", "", 1)),
        ("hermes", format!("<think>{now}{now}<tool_call>x"), ("", "<tool_call>x", 2)),
        ("hermes", "<think>a <tool_call>\n".to_owned(), ("a <tool_call>", "", 0)),
        ("hermes", "<think>a <tool_call>\n</think>b".to_owned(), ("a <tool_call>", "b", 0)),
        (
            "kimi_k2",
            "<think>a<|tool_calls_section_begin|>b</think>c".to_owned(),
            ("a<|tool_calls_section_begin|>b", "c", 0),
        ),
    ] {
        let parts = whole(&plan(parser, Some("qwen3"), Opening::Fresh), &text);
        assert_eq!((parts.reasoning.as_str(), parts.content.as_str(), parts.calls.len()), expected, "{text}");
    }
    let held = Arc::new(Plan { held: true, ..(*plan("hermes", Some("qwen3"), Opening::Fresh)).clone() });
    let parts = whole(&held, &format!("<think>abc{now}</think>{now}"));
    assert_eq!((parts.reasoning, parts.calls.len()), (format!("abc{now}"), 1), "a grammar forbids the first");
}

/// As vLLM 0.33 has it.
#[test]
fn calls_of_qwen3_coder_may_lack_tags() {
    let weather = |city: &str, days: u32| ("get_weather", json!({"city": city, "days": days}));
    let bare = "<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>";
    check("qwen3_coder", bare, "", &[weather("Bern", 2)]);
    check(
        "qwen3_coder",
        &format!("Well.\n{bare}\n</tool_call>\n{bare}"),
        "Well.",
        &[weather("Bern", 2), weather("Bern", 2)],
    );
    let open = "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>";
    check("qwen3_coder", open, "", &[weather("Bern", 2)]);
    for text in ["<function=other>\n</function>", "<function=", "a <function=now b"] {
        check("qwen3_coder", text, text, &[]);
    }
    let held = Arc::new(Plan { held: true, ..(*plan("qwen3_coder", None, Opening::Fresh)).clone() });
    assert_eq!(whole(&held, bare).content, bare, "a grammar forbids it");
}

#[test]
fn a_continued_message_tells_where_its_answer_begins() {
    let formats = |name: &str| Formats::default().with(None, Some(name)).unwrap();
    for (reasoning, turn, expected) in [
        ("qwen3", "<|im_start|>assistant\n<think>\nLet me see: ", Opening::MidReasoning),
        ("qwen3", "<|im_start|>assistant\n<think>\n", Opening::InReasoning),
        ("qwen3", "<think>\nx\n</think>\n\nWell, ", Opening::Closed),
        ("qwen3", "<think>\nx\n</think>\n\n", Opening::Closed),
        ("qwen3", "Well, ", Opening::Fresh),
        ("deepseek_r1", "x</think>Well, ", Opening::Closed),
        ("deepseek_r1", "Let me see: ", Opening::MidReasoning),
        ("mistral", "[THINK]Let me", Opening::MidReasoning),
    ] {
        assert_eq!(formats(reasoning).opening_of_continued(turn), expected, "{reasoning}: {turn}");
    }
    assert_eq!(Formats::default().opening_of_continued("<think>x"), Opening::Fresh);
    let parts = whole(&plan("", Some("qwen3"), Opening::MidReasoning), " 42.\n</think>\n\nYes.");
    assert_eq!((parts.reasoning.as_str(), parts.content.as_str()), (" 42.", "Yes."));
}

/// Names of one parser in vLLM's registries.
#[test]
fn other_spellings_of_a_parser_are_known() {
    let calls = |name: &str| Formats::default().with(Some(name), None).unwrap().calls;
    let reasoning = |name: &str| Formats::default().with(None, Some(name)).unwrap().reasoning;
    for (one, other) in [("qwen3_json", "hermes"), ("step5", "qwen3_coder"), ("glm47", "glm45")] {
        assert_eq!(calls(one), calls(other), "{one}");
    }
    for (one, other) in [("glm47", "glm45"), ("step5", "deepseek_r1"), ("holo2", "deepseek_v3")] {
        assert_eq!(reasoning(one), reasoning(other), "{one}");
    }
}

#[test]
fn templates_tell_the_formats() {
    let name = |source: &str| Formats::of_template(source).calls.map(|format| format.names[0]);
    assert_eq!(name("'<tool_call>\\n{\"name\": \"'"), Some("hermes"));
    assert_eq!(name("<tool_call> <function= <parameter="), Some("qwen3_coder"));
    assert_eq!(name("[TOOL_CALLS]"), Some("mistral"));
    assert_eq!(name("[TOOL_CALLS] [ARGS]"), Some("mistral_v11"));
    assert_eq!(name("<|python_tag|>"), Some("llama3_json"));
    assert_eq!(name("hello"), None);
    let plain = Formats::of_template("{% if x %}</think>{% endif %}").reasoning.unwrap();
    assert!(plain.answer_open.is_empty() && plain.names.contains(&"qwen3"), "{:?}", plain.names);
    let unknown = Formats::default().with(Some("best"), None).unwrap_err().to_string();
    assert!(unknown.starts_with("`best` is not a known parser; use one of: hermes, "), "{unknown}");
    let newer = Formats::of_template("[TOOL_CALLS] [ARGS]").with(Some("mistral"), None).unwrap();
    assert_eq!(newer.calls.unwrap().names, ["mistral_v11"]);
}

/// Time is linear: doubling the text at most about doubles the time, with a margin for a busy machine. The
/// texts make the splitter hold back as much as possible.
#[test]
fn long_answers_are_split_in_linear_time() {
    for unit in ["<tool_call>", "<tool_call>{\"name\": \"x", " ", "<", "{\"a\":", "[TOOL_CALLS][", "<think>"]
    {
        for parser in ["hermes", "llama3_json", "mistral", "pythonic", "qwen3_coder"] {
            let text = unit.repeat(200_000 / unit.len());
            let started = skein_node::clock::now();
            whole(&plan(parser, Some("qwen3"), Opening::Fresh), &text);
            assert!(
                skein_node::clock::now().since(started).as_secs() < 20,
                "{parser} {unit:?}: {:?}",
                skein_node::clock::now().since(started)
            );
        }
    }
}

/// Fragments that stress the boundaries of every format.
fn scraps() -> impl Strategy<Value = String> {
    let mut scraps: Vec<String> = [
        "<think>",
        "</think>",
        "[THINK]",
        " ",
        "\n",
        "x",
        "é",
        "\"",
        "\\",
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "<",
        "1",
        "(",
        ")",
        "name",
        "arguments",
        "now",
        "get_weather",
        "city=",
    ]
    .map(str::to_owned)
    .to_vec();
    for format in FORMATS {
        let formats = Formats { calls: Some(format), ..Formats::default() };
        scraps.extend(formats.markers().into_iter().map(str::to_owned));
    }
    scraps.extend(TWO_CALLS.iter().map(|(_, text, _)| (*text).to_owned()));
    prop::collection::vec(prop::sample::select(scraps), 0..12).prop_map(|scraps| scraps.concat())
}

/// The same cases in every run.
fn fixed(cases: u32) -> ProptestConfig {
    ProptestConfig { rng_seed: prop::test_runner::RngSeed::Fixed(28), ..ProptestConfig::with_cases(cases) }
}

proptest! {
    #![proptest_config(fixed(10_000))]
    #[test]
    fn any_cuts_give_one_result(text in scraps(), format in 0..FORMATS.len(), opening in 0_usize..3, seeds in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
        let opening = [Opening::Fresh, Opening::InReasoning, Opening::MidReasoning][opening];
        let reasoning = if format % 2 == 0 { "qwen3" } else { "mistral" };
        let plan = plan(FORMATS[format].names[0], Some(reasoning), opening);
        let bounds: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        let mut cuts: Vec<usize> = if bounds.is_empty() { Vec::new() } else { seeds.iter().map(|seed| bounds[seed.index(bounds.len())]).collect() };
        cuts.sort_unstable();
        // The output at each cut must equal the output of that prefix fed one character at a time.
        let (some, all) = (given(&plan, &text, &cuts), given(&plan, &text, &bounds));
        for (cut, state) in cuts.iter().zip(&some) {
            let at = bounds.binary_search(cut).unwrap();
            prop_assert_eq!(state, &all[at]);
        }
        prop_assert_eq!(some.last(), all.last());
        // Without a call or reasoning, no text is lost.
        let parts = whole(&plan, &text);
        if parts.calls.is_empty() && !plan.harmony && !text.contains("think") && !text.contains("THINK") && opening == Opening::Fresh {
            prop_assert_eq!(parts.content, text);
        }
    }
}

/// Changes `text` at random: removes or duplicates pieces and inserts other characters.
fn damaged(text: &str, seeds: &[(prop::sample::Index, u8)]) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    for (place, change) in seeds {
        let at = place.index(characters.len() + 1);
        let piece = at..(at + usize::from(change % 7)).min(characters.len());
        match change % 4 {
            0 => drop(characters.drain(piece)),
            1 => {
                let doubled = characters[piece.clone()].to_vec();
                characters.splice(piece.start..piece.start, doubled);
            }
            2 => characters.insert(
                at,
                ['"', '{', '}', '\\', '<', '\n', 'é', '[', ']', ','][usize::from(change / 4 % 10)],
            ),
            _ => characters.truncate(at.max(1)),
        }
    }
    characters.into_iter().collect()
}

proptest! {
    #![proptest_config(fixed(10_000))]
    #[test]
    fn damaged_answers_are_split_alike_whole_and_in_characters(
        format in 0..TWO_CALLS.len(), thinks in any::<bool>(), opening in 0_usize..3,
        changes in prop::collection::vec(any::<(prop::sample::Index, u8)>(), 0..6),
    ) {
        let (parser, text, _) = TWO_CALLS[format];
        let opening = [Opening::Fresh, Opening::InReasoning, Opening::Closed][opening];
        let text = damaged(&format!("{}{text}", if thinks { "<think>\nHm.\n</think>\n\n" } else { "" }), &changes);
        let plan = plan(parser, Some("qwen3"), opening);
        let (mut splitter, mut streamed) = (Splitter::new(plan.clone()), Parts::default());
        for c in text.chars() {
            streamed.add(splitter.push(c.encode_utf8(&mut [0; 4]), &[]));
        }
        streamed.add(splitter.finish());
        prop_assert_eq!(&streamed, &whole(&plan, &text));
    }
}
