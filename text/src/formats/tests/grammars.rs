//! Samples random answers from every family's grammar. An answer that completes is split into calls that
//! match their schemas.

use std::sync::OnceLock;

use skein_grammar::token_bytes::{TokenBytes, TokenDecoder};
use skein_grammar::{JsonForm, Library, Source};
use skein_proto::TokenId;

use super::super::grammar::{Answer, holds_calls};
use super::super::tools::{Choice, ToolUse};
use super::*;
use crate::control::ControlTokens;

/// Control tokens of the test's vocabulary: those that real tokenizers mark as special.
const SPECIAL: [&str; 12] = [
    "[TOOL_CALLS]",
    "[ARGS]",
    "[THINK]",
    "[/THINK]",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|start|>",
    "<|end|>",
    "<|call|>",
    "<|tool_calls_section_begin|>",
    "<|python_tag|>",
];

/// Most tokens of reasoning before constrained text.
const THOUGHT_TOKENS: u32 = 200;

/// 256 bytes, some words, and the control tokens.
struct Vocabulary {
    words: Vec<Vec<u8>>,
    library: Library,
    control: ControlTokens,
}

fn vocabulary() -> &'static Vocabulary {
    static VOCABULARY: OnceLock<Vocabulary> = OnceLock::new();
    VOCABULARY.get_or_init(|| {
        let words = [
            "{\"name\": \"",
            "<tool_call>",
            "</tool_call>",
            "</think>",
            "\n</parameter>\n",
            "</parameter>\n",
            "</｜DSML｜parameter>\n",
            "</｜DSML｜ parameter>\n",
            "</steptml:parameter>",
            "<escape>",
            "<|\"|>",
            "\", \"",
            "e",
            " ",
        ];
        let first_word = 256 + SPECIAL.len();
        let spelling = |id: TokenId| match id as usize {
            byte @ 0..256 => Some(format!("<0x{byte:02X}>")),
            id if id < first_word => Some(SPECIAL[id - 256].to_owned()),
            id => words.get(id - first_word).map(|word| (*word).to_owned()),
        };
        let special = |id: TokenId| (256..first_word).contains(&(id as usize));
        let decoder = TokenDecoder::from_json(&json!({"type": "ByteFallback"})).unwrap();
        let size = u32::try_from(first_word + words.len()).unwrap();
        let bytes = TokenBytes::new(&decoder, size, spelling, special);
        let library = Library::new(&bytes, size).unwrap();
        let control = ControlTokens::new(SPECIAL.iter().zip(256..).map(|(text, id)| (*text, id)));
        Vocabulary { words: (0..size).map(|id| bytes.get(id).to_vec()).collect(), library, control }
    })
}

/// Samples an answer of at most `most` tokens. Also returns whether it completed.
fn answer(source: &Source, seed: u64, most: usize) -> (String, bool) {
    let vocabulary = vocabulary();
    let compiled =
        vocabulary.library.compile(source).unwrap_or_else(|error| panic!("{error}\n{}", source.text()));
    let mut matcher = compiled.matcher();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut below = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    let mut text = Vec::new();
    for step in 0..most {
        let next = matcher.next_tokens().unwrap_or_else(|stuck| panic!("{stuck}\n{}", source.text()));
        if next.mask.is_empty() || (next.may_end && below(3) == 0) {
            assert!(next.may_end);
            return (String::from_utf8_lossy(&text).into_owned(), true);
        }
        let all: Vec<TokenId> = next.mask.tokens().collect();
        // Random letters seldom close a construct, so control tokens, quotes and brackets are drawn more
        // often.
        let closes = |token: &&TokenId| {
            let word = &vocabulary.words[**token as usize];
            **token >= 256 || matches!(word.as_slice(), [b'"' | b'}' | b']' | b')' | b'<'])
        };
        let closing: Vec<TokenId> = all.iter().filter(closes).copied().collect();
        let from = if closing.is_empty() || (below(4) != 0 && step < most / 2) { &all } else { &closing };
        let token = from[below(from.len())];
        text.extend_from_slice(&vocabulary.words[token as usize]);
        matcher.advance(token).unwrap();
    }
    (String::from_utf8_lossy(&text).into_owned(), false)
}

/// Whether an answer with a required call may be `text`, with functions as in `tests/golden/formats.py`.
///
/// # Errors
/// The number of bytes that are allowed.
pub fn allows_required(formats: Formats, opening: Opening, text: &str) -> Result<(), usize> {
    let text_list = json!({"type": "array", "items": {"type": "string"}});
    let weather = json!({"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "tags": text_list}});
    let now = json!({"type": "object", "properties": {"zone": {"type": "string"}}});
    let function = |name: &str, schema: Value| Function::new(name.to_owned(), Some(schema), false);
    let functions = Arc::new([function("get_weather", weather), function("now", now)]);
    let tools = ToolUse { functions, choice: Choice::Required, allowed: None, parallel: true };
    let source = Case { formats, opening, tools, last: None }.source();
    let Vocabulary { library, control, .. } = vocabulary();
    let mut matcher = library.compile(&source).unwrap().matcher();
    let found = control.find(text, '\u{FDEF}');
    let mut at = 0;
    while at < text.len() {
        let marker = found.iter().find(|(range, _)| range.start == at);
        let (token, end) =
            marker.map_or((TokenId::from(text.as_bytes()[at]), at + 1), |(range, token)| (*token, range.end));
        if !matcher.next_tokens().is_ok_and(|next| next.mask.allows(token)) {
            return Err((0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
        }
        matcher.advance(token).unwrap();
        at = end;
    }
    if matcher.next_tokens().is_ok_and(|next| next.may_end) { Ok(()) } else { Err(text.len()) }
}

fn tools(choice: Choice, parallel: bool) -> ToolUse {
    let strict = |name: &str, parameters: Value| Function::new(name.to_owned(), Some(parameters), true);
    let weather = json!({"type": "object", "properties": {
        "city": {"enum": ["Rome", "Zürich"]}, "days": {"$ref": "#/$defs/days"}, "note": {"type": "string"}},
        "required": ["city"], "additionalProperties": false, "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}}});
    let functions = [strict("get_weather", weather), Function::new("now".to_owned(), None, true)];
    ToolUse { functions: Arc::new(functions), choice, allowed: None, parallel }
}

struct Case {
    formats: Formats,
    opening: Opening,
    tools: ToolUse,
    last: Option<Source>,
}

impl Case {
    fn new(parser: &str, reasoning: Option<&str>, opening: Opening, tools: ToolUse) -> Self {
        Self {
            formats: Formats::default().with(Some(parser), reasoning).unwrap(),
            opening,
            tools,
            last: None,
        }
    }

    fn source(&self) -> Source {
        let arguments: Vec<String> = self
            .tools
            .functions
            .iter()
            .map(|function| Source::json_schema(&function.parameters).unwrap().nested())
            .collect();
        let answer = Answer {
            formats: self.formats,
            opening: self.opening,
            tools: &self.tools,
            arguments: &arguments,
            json_form: JsonForm::default(),
            last: self.last.as_ref(),
            thought_tokens: THOUGHT_TOKENS,
            control: &vocabulary().control,
        };
        answer.grammar().unwrap().expect("something is fixed")
    }

    fn parts(&self, text: &str) -> Parts {
        let Formats { calls, reasoning, harmony } = self.formats;
        let calls = calls.filter(|_| self.tools.is_on());
        let functions = self.tools.functions.clone();
        let (opening, held) = (self.opening, holds_calls(&self.tools) || self.last.is_some());
        whole(
            &Arc::new(Plan {
                calls,
                reasoning,
                opening,
                harmony,
                token_markers: Arc::new([]),
                held,
                functions,
            }),
            text,
        )
    }

    /// Samples an answer for each seed; returns those that completed.
    fn ended(&self, seeds: u64) -> Vec<(String, Parts)> {
        let source = self.source();
        let mut ended = Vec::new();
        for seed in 0..seeds {
            let (text, by_itself) = answer(&source, seed, 600);
            if by_itself {
                let parts = self.parts(&text);
                self.check_calls(&parts, &format!("seed {seed}: {text}"));
                ended.push((text, parts));
            }
        }
        assert!(
            ended.len() as u64 * 4 > seeds,
            "only {} of {seeds} ended by themselves\n{}",
            ended.len(),
            source.text()
        );
        ended
    }

    fn check_calls(&self, parts: &Parts, told: &str) {
        for (name, arguments) in &parts.calls {
            let function = self.tools.functions.iter().find(|function| function.name == *name).expect(told);
            let value: Value =
                serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error}: {told}"));
            for key in value.as_object().expect(told).keys() {
                assert!(function.properties().unwrap().contains_key(key), "{told}");
            }
            if name == "get_weather" {
                assert!(["Rome", "Zürich"].contains(&value["city"].as_str().expect(told)), "{told}");
                assert!(
                    value["days"].is_null() || (1..=9).contains(&value["days"].as_i64().expect(told)),
                    "{told}"
                );
                assert!(value["note"].is_null() || value["note"].is_string(), "{told}");
            }
        }
        assert_eq!(parts.ended.len(), parts.calls.len(), "{told}");
    }
}

fn parsers() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().map(|format| format.names[0])
}

#[test]
fn required_answers_are_calls_in_every_family() {
    for parser in parsers() {
        let case = Case::new(parser, None, Opening::Fresh, tools(Choice::Required, true));
        // GPT-OSS ends its message at the first call.
        let several = |ended: &[(String, Parts)]| ended.iter().any(|(_, parts)| parts.calls.len() > 1);
        let mut ended = case.ended(40);
        if !several(&ended) && parser != "openai" {
            ended = case.ended(120);
            assert!(several(&ended), "{parser}");
        }
        for (text, parts) in &ended {
            assert!(!parts.calls.is_empty() && parts.content.is_empty(), "{parser}: {text}");
        }
        let has_both =
            |name: &str| ended.iter().any(|(_, parts)| parts.calls.iter().any(|(called, _)| called == name));
        assert!(has_both("now") && has_both("get_weather"), "{parser}");
    }
}

#[test]
fn a_named_function_is_called_once_if_calls_are_not_parallel() {
    for parser in parsers() {
        let choice = Choice::Named("now".to_owned());
        let case = Case::new(parser, None, Opening::Fresh, tools(choice, false));
        for (text, parts) in case.ended(12) {
            assert_eq!(parts.calls, [("now".to_owned(), parts.calls[0].1.clone())], "{parser}: {text}");
        }
    }
}

#[test]
fn only_allowed_functions_are_called() {
    for parser in parsers() {
        for choice in [Choice::Auto, Choice::Required] {
            let allowed = Some(Arc::from(["now".to_owned()]));
            let is_forced = choice.is_forced();
            let tools = ToolUse { allowed, ..tools(choice, true) };
            let ended = Case::new(parser, None, Opening::Fresh, tools).ended(40);
            let mut names = ended.iter().flat_map(|(_, parts)| &parts.calls).map(|(name, _)| name.as_str());
            assert!(names.clone().count() > 0 || !is_forced, "{parser}");
            assert!(names.all(|name| name == "now"), "{parser}");
        }
    }
}

#[test]
fn strict_functions_are_held_to_their_schema_where_the_model_is_free() {
    for parser in parsers() {
        let case = Case::new(parser, None, Opening::Fresh, tools(Choice::Auto, true));
        let ended = case.ended(40);
        assert!(ended.iter().any(|(_, parts)| parts.calls.is_empty()), "{parser}");
    }
}

#[test]
fn reasoning_comes_before_calls_and_before_a_form() {
    for (parser, reasoning) in [("hermes", "qwen3"), ("mistral_v11", "mistral"), ("glm45", "glm45")] {
        for opening in [Opening::InReasoning, Opening::Fresh, Opening::Closed] {
            let case = Case::new(parser, Some(reasoning), opening, tools(Choice::Required, true));
            let ended = case.ended(24);
            let thought = ended.iter().filter(|(_, parts)| !parts.reasoning.is_empty()).count();
            assert_eq!(thought > 0, opening != Opening::Closed, "{parser} {opening:?}");
            assert!(ended.iter().all(|(_, parts)| !parts.calls.is_empty()), "{parser} {opening:?}");
        }
        for last in [
            Source::json_schema(
                &json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}),
            ),
            Source::grammar("start: \"{\\\"a\\\": \" word \"}\"\nword: \"true\" | \"false\""),
        ] {
            let nothing = ToolUse::default();
            let case = Case {
                last: Some(last.unwrap()),
                ..Case::new(parser, Some(reasoning), Opening::InReasoning, nothing)
            };
            for (text, parts) in case.ended(12) {
                let value: Value =
                    serde_json::from_str(&parts.content).unwrap_or_else(|error| panic!("{error}: {text}"));
                assert!(value["a"].is_boolean(), "{text}");
            }
        }
    }
}

#[test]
fn a_free_model_calls_or_answers_in_the_form() {
    let last = Source::choice(&["yes", "no"]).unwrap();
    for parser in ["hermes", "mistral", "openai", "llama3_json"] {
        let case = Case {
            last: Some(last.clone()),
            ..Case::new(parser, None, Opening::Fresh, tools(Choice::Auto, true))
        };
        let ended = case.ended(40);
        for (text, parts) in &ended {
            assert_eq!(
                parts.calls.is_empty(),
                ["yes", "no"].contains(&parts.content.as_str()),
                "{parser}: {text}"
            );
        }
        assert!(ended.iter().any(|(_, parts)| parts.calls.is_empty()), "{parser}");
        assert!(ended.iter().any(|(_, parts)| !parts.calls.is_empty()), "{parser}");
    }
}

#[test]
fn limits_that_tags_cannot_enforce_are_refused_by_name() {
    let parameters = json!({"type": "object", "properties": {"a/b": {"type": "string", "maxLength": 3}}});
    let refused = |strict: bool| {
        let functions = Arc::new([Function::new("f".to_owned(), Some(parameters.clone()), strict)]);
        let case = Case::new(
            "qwen3_coder",
            None,
            Opening::Fresh,
            ToolUse { functions, choice: Choice::Required, allowed: None, parallel: true },
        );
        let answer = Answer {
            formats: case.formats,
            opening: case.opening,
            tools: &case.tools,
            arguments: &["%json {}".to_owned()],
            json_form: JsonForm::default(),
            last: None,
            thought_tokens: THOUGHT_TOKENS,
            control: &vocabulary().control,
        };
        answer.grammar().err().map(|refused| refused.to_string())
    };
    assert!(refused(true).unwrap().starts_with("the schema has `maxLength` at \"/properties/a~1b\""));
    assert_eq!(refused(false), None);
}

#[test]
fn arguments_in_braces_follow_nested_schemas() {
    let parameters = |any: bool| {
        let mut properties = json!({
            "l": {"type": "array", "items": {"enum": ["a", "b"]}},
            "o": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}, "t": {"type": "boolean"}}, "required": ["n"]}});
        if any {
            properties["x"] = json!({"anyOf": [{"type": "string"}, {"type": "integer"}]});
        }
        json!({"type": "object", "properties": properties, "required": ["l", "o"], "$defs": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}})
    };
    let case = |any: bool, strict: bool| {
        let functions = Arc::new([Function::new("f".to_owned(), Some(parameters(any)), strict)]);
        let tools = ToolUse { functions, choice: Choice::Required, allowed: None, parallel: false };
        Case::new("gemma4", None, Opening::Fresh, tools)
    };
    let (mut ended, mut others) = (0, 0);
    for (case, seed) in
        [case(false, true), case(true, false)].iter().flat_map(|case| (0..40).map(move |seed| (case, seed)))
    {
        let (text, by_itself) = answer(&case.source(), seed, 600);
        if !by_itself {
            continue;
        }
        let parts = case.parts(&text);
        let value: Value =
            serde_json::from_str(&parts.calls[0].1).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(value["l"].as_array().unwrap().iter().all(|item| item == "a" || item == "b"), "{text}");
        assert!((1..=9).contains(&value["o"]["n"].as_i64().unwrap()), "{text}");
        assert!(value["o"]["t"].is_null() || value["o"]["t"].is_boolean(), "{text}");
        others += usize::from(value.get("x").is_some());
        ended += 1;
    }
    assert!(ended > 40 && others > 0, "{ended} ended, {others} with a value of any content");
    let strict = case(true, true);
    let answer = Answer {
        formats: strict.formats,
        opening: strict.opening,
        tools: &strict.tools,
        arguments: &["%json {}".to_owned()],
        json_form: JsonForm::default(),
        last: None,
        thought_tokens: THOUGHT_TOKENS,
        control: &vocabulary().control,
    };
    let refused = answer.grammar().unwrap_err().to_string();
    assert!(refused.starts_with("the schema has `anyOf` at \"/properties/x\""), "{refused}");
}

/// Generates the answer of a model that writes `begin` and then repeats `wish` wherever that is allowed.
/// Returns its text, its number of tokens, and whether it completed.
fn stubborn(source: &Source, begin: &str, wish: &str) -> (String, usize, bool) {
    let Vocabulary { words, library, control } = vocabulary();
    let compiled = library.compile(source).unwrap();
    let (mut matcher, mut tokens) = (compiled.matcher(), Vec::new());
    let found = control.find(begin, '\u{FDEF}');
    let is_marker = |at: usize| found.iter().find(|(range, _)| range.contains(&at));
    let byte = |(at, byte): (usize, u8)| match is_marker(at) {
        Some((range, token)) => (range.start == at).then_some(*token),
        None => Some(TokenId::from(byte)),
    };
    let begin: Vec<TokenId> = begin.bytes().enumerate().filter_map(byte).collect();
    let text = |tokens: &[TokenId]| {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| words[*token as usize].clone()).collect();
        String::from_utf8(bytes).unwrap()
    };
    let mut wishes = wish.bytes().map(TokenId::from).cycle();
    while tokens.len() < 2 * THOUGHT_TOKENS as usize {
        let next = matcher.next_tokens().unwrap();
        // A worker that resumes the stream here allows the same tokens.
        let mut taken_up = compiled.matcher();
        tokens.iter().for_each(|token| taken_up.advance(*token).unwrap());
        assert_eq!(taken_up.next_tokens().as_ref(), Ok(&next), "after {} tokens", tokens.len());
        let wished = begin.get(tokens.len()).copied().or_else(|| wishes.next());
        let wished = wished.filter(|token| next.mask.allows(*token));
        let Some(token) = wished.or_else(|| next.mask.tokens().last()) else {
            return (text(&tokens), tokens.len(), true);
        };
        tokens.push(token);
        matcher.advance(token).unwrap();
    }
    (text(&tokens), tokens.len(), false)
}

#[test]
fn reasoning_without_end_is_ended_where_a_call_or_a_form_must_follow() {
    // Formats whose end of reasoning is a control token.
    let families =
        [("mistral_v11", Some("mistral"), "[THINK]"), ("openai", None, "<|channel|>analysis<|message|>")];
    let call = tools(Choice::Named("now".to_owned()), false);
    let form = Source::choice(&["yes", "no"]).unwrap();
    let wanted = [(call, None), (ToolUse::default(), Some(form))];
    for (parser, reasoning, open) in families {
        for (opening, begin) in [(Opening::Fresh, open), (Opening::InReasoning, "")] {
            // A GPT-OSS prompt ends before the channel marker.
            if parser == "openai" && opening == Opening::InReasoning {
                continue;
            }
            for (tools, last) in &wanted {
                let (tools, last) = (tools.clone(), last.clone());
                let case = Case { last, ..Case::new(parser, reasoning, opening, tools) };
                for wish in ["x", "<", "</thin"] {
                    let (text, tokens, by_itself) = stubborn(&case.source(), begin, wish);
                    let told = format!("{parser} {opening:?} {wish}: {text}");
                    let parts = case.parts(&text);
                    assert!(by_itself, "{told}");
                    assert!(case.last.is_some() || parts.calls.len() == 1, "{told}");
                    let follows = if case.last.is_some() { parts.content } else { parts.calls[0].0.clone() };
                    assert!(["now", "yes", "no"].contains(&&*follows), "{told}");
                    let thought = parts.reasoning.len();
                    assert!(thought.abs_diff(THOUGHT_TOKENS as usize) < 8, "{thought}, {tokens}: {told}");
                }
            }
        }
    }
}
