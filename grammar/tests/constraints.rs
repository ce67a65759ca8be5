//! Follows each kind of constraint with random answers and checks them with an independent validator.

#![allow(clippy::unwrap_used)] // helpers of tests panic like tests

mod walk;

use serde_json::{Value, json};
use skein_grammar::{JsonForm, Refused, Source};
use walk::{Random, Walk, compile, vocabulary, walk};

/// Whether the constraint accepts exactly `text` in single-byte tokens.
fn accepts(source: &Source, text: &str) -> bool {
    let mut matcher = compile(source).unwrap_or_else(|error| panic!("{error}\n{}", source.text())).matcher();
    let bytes = &vocabulary().0;
    let single = |byte: u8| (0..bytes.vocab_size()).find(|token| bytes.get(*token) == [byte]).unwrap();
    for byte in text.bytes() {
        if !matcher.next_tokens().is_ok_and(|next| next.mask.allows(single(byte))) {
            return false;
        }
        matcher.advance(single(byte)).unwrap();
    }
    matcher.next_tokens().unwrap().may_end
}

fn check(source: Result<Source, Refused>, good: &[&str], bad: &[&str]) {
    let source = source.unwrap();
    for text in good {
        assert!(accepts(&source, text), "{text:?} by {}", source.text());
    }
    for text in bad {
        assert!(!accepts(&source, text), "{text:?} by {}", source.text());
    }
}

#[test]
fn each_kind_accepts_what_it_says() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 5}},
        "required": ["a"], "additionalProperties": false});
    check(
        Source::json_schema(&schema),
        &["{\"a\":3}", "{ \"a\" : 5 }"],
        &["{}", "{\"a\":6}", "{\"b\":3}", " {\"a\":3}"],
    );
    check(Source::json_object(), &["{}", "{\"x\": [1, {\"y\": null}]}"], &["[]", "1", "{"]);
    check(Source::regex("^[a-c]+/\\d{2}$"), &["abc/12"], &["abc/1", "d/12", "abc/123"]);
    check(Source::choice(&["yes", "no", "not \"now\""]), &["yes", "not \"now\""], &["maybe", "ye", "now"]);
    check(Source::grammar("start: \"(\" start \")\" | \"x\""), &["x", "((x))"], &["(x", "x)"]);
    check(
        Source::grammar(
            "root ::= \"[\" item (\",\" item)* \"]\"\nitem ::= root | [0-9]+ [a-z]? | \"a\"* \"ab\"",
        ),
        &["[1]", "[12,[3b],aab,ab]"],
        &["[]", "[1,]", "1"],
    );
}

#[test]
fn both_notations_of_structural_tags_oblige_to_what_follows_a_trigger() {
    let schema = json!({"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
        "additionalProperties": false});
    let old = json!({"type": "structural_tag", "triggers": ["<function="],
        "structures": [{"begin": "<function=f>", "schema": schema, "end": "</function>"}]});
    let new = json!({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<function="],
        "tags": [{"begin": "<function=f>", "content": {"type": "json_schema", "json_schema": schema},
                  "end": "</function>"}]}});
    let call = "<function=f>{\"city\": \"Rome\"}</function>";
    for tag in [&old, &new] {
        check(
            Source::structural_tag(tag),
            &["", "just text", call, &format!("Well.\n{call} and {call} so.")],
            &[
                "<function=g>",
                "<function=f>{\"city\": \"Bonn\"}</function>",
                "<function=f>{}",
                "a <function=f>",
            ],
        );
    }
    let mut needed = new;
    needed["format"]["at_least_one"] = json!(true);
    // As xgrammar 0.2.8: then the answer begins with a tag.
    check(
        Source::structural_tag(&needed),
        &[call, &format!("{call} x {call}")],
        &["", "just text", &format!("x {call}")],
    );
    needed["format"]["stop_after_first"] = json!(true);
    check(
        Source::structural_tag(&needed),
        &[call],
        &["", "x", &format!("{call} x"), &format!("{call}{call}")],
    );
    needed["format"]["at_least_one"] = json!(false);
    check(
        Source::structural_tag(&needed),
        &["", "x", "<f", call, &format!("x {call}")],
        &["<function=g>", &format!("{call} x"), &format!("{call}{call}")],
    );
    let message = |tag: &Value| Source::structural_tag(tag).unwrap_err().to_string();
    needed["format"]["excludes"] = json!(["x"]);
    assert!(message(&needed).contains("format.excludes is not supported"));
    needed["format"]["excludes"] = json!([]);
    let content = &mut needed["format"]["tags"][0]["content"];
    content["style"] = json!("qwen_xml");
    assert!(message(&needed).contains("content.style is not supported"));
    for kind in ["sequence", "or", "tag", "tags_with_separator", "any_text", "qwen_xml_parameter", "dispatch"]
    {
        let other = json!({"format": {"type": kind}});
        assert!(message(&other).contains(&format!("format.type is `{kind}`")), "{kind}");
    }
}

/// What xgrammar 0.2.8 accepts, and `.` as in llama.cpp. Empty alternatives, single quotes and names that
/// begin with a digit are only ours.
#[test]
fn ebnf_of_other_servers_means_the_same() {
    for (grammar, good, bad) in [
        ("root ::= .", vec!["x", "\n"], vec!["", "xx"]),
        ("root ::= [^a]", vec!["b", "\n"], vec!["a"]),
        ("root ::= \"a\"{2,}", vec!["aa", "aaa"], vec!["a"]),
        ("root ::= \"a\"{2, 3}", vec!["aa", "aaa"], vec!["a", "aaaa"]),
        ("root ::= \"a\"{2}", vec!["aa"], vec!["a", "aaa"]),
        ("root ::= \"a\"{0} \"b\"", vec!["b"], vec!["ab"]),
        (r#"root ::= "\x41\u00e9" [\x41-\x43]"#, vec!["AéB"], vec!["AéD"]),
        ("# c\nroot ::= \"a\" # d\n", vec!["a"], vec![""]),
        ("root ::= a_1 b-2\na_1 ::= \"x\"\nb-2 ::= \"y\"", vec!["xy"], vec!["x"]),
        ("root ::=\n  \"a\"\n| \"b\"", vec!["a", "b"], vec!["ab"]),
        ("root ::= \"a\"\r\n  | \"b\"\r\n", vec!["a", "b"], vec![""]),
        ("root ::= (\"a\" |\n \"b\")", vec!["a", "b"], vec![""]),
        ("root ::= \"a\" | ", vec!["a", ""], vec!["b"]),
        ("root ::= root \"a\" | \"b\"", vec!["b", "baa"], vec!["a", "ab"]),
        (r"root ::= [\]] [a-] [a^]", vec!["]-^", "]aa"], vec!["]b^"]),
    ] {
        check(Source::grammar(grammar), &good, &bad);
    }
}

#[test]
fn a_form_closes_objects_and_forbids_white_space_in_schemas_and_tags() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let tag = json!({"triggers": ["<f>"], "structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}]});
    let (schema, tag) = (Source::json_schema(&schema).unwrap(), Source::structural_tag(&tag).unwrap());
    check(Ok(schema.clone()), &["{\"a\":1}", "{\"a\": 1, \"b\": 2}"], &[]);
    let compact = JsonForm { is_compact: true, is_closed: false };
    check(schema.in_form(compact), &["{\"a\":1}", "{\"a\":1,\"b\":2}"], &["{\"a\": 1}", "{ }"]);
    let closed = JsonForm { is_compact: false, is_closed: true };
    check(schema.in_form(closed), &["{\"a\": 1}", "{ }"], &["{\"a\": 1, \"b\": 2}"]);
    let both = schema.in_form(closed).unwrap().in_form(compact);
    check(both, &["{\"a\":1}", "{}"], &["{\"a\": 1}", "{\"b\":2}"]);
    check(
        tag.in_form(closed.and(compact)),
        &["<f>{\"a\":1}</f>"],
        &["<f>{\"a\": 1}</f>", "<f>{\"b\":2}</f>"],
    );
    let regex = Source::regex("a b").unwrap();
    assert_eq!(regex.in_form(closed.and(compact)), Ok(regex));
}

/// Schemas typical of clients; each can complete within a few dozen tokens.
fn schemas() -> Vec<Value> {
    vec![
        json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150}}, "required": ["name", "age"]}),
        json!({"type": "array", "items": {"anyOf": [{"type": "null"}, {"type": "boolean"},
            {"type": "number", "multipleOf": 0.5}]}, "maxItems": 4}),
        json!({"enum": ["red", 3, null, {"a": [1]}]}),
        json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
            "left": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]}}, "additionalProperties": false}}}),
        json!({"type": "string", "format": "date"}),
        json!({"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2,4}$"}),
        json!({"oneOf": [{"type": "integer"}, {"type": "string", "enum": ["x", "y"]}]}),
        json!({"allOf": [{"type": "object", "properties": {"k": {"const": "v"}}, "required": ["k"]},
            {"properties": {"n": {"exclusiveMinimum": -1, "type": "integer"}}}], "additionalProperties": false,
            "properties": {"k": {}, "n": {}}}),
        json!({"type": "object", "patternProperties": {"^x[0-9]$": {"type": "integer"}},
            "additionalProperties": false, "maxProperties": 2}),
    ]
}

#[test]
fn random_answers_validate() {
    let mut ended = 0;
    for schema in schemas() {
        let source = Source::json_schema(&schema).unwrap();
        let compiled = compile(&source).unwrap_or_else(|error| panic!("{schema}: {error}"));
        let judge = jsonschema::validator_for(&schema).unwrap();
        for seed in 0..40 {
            let answer = walk(&mut compiled.matcher(), &mut Random(seed), 300, |_| false);
            if let Walk::Ended(text) = answer {
                let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
                assert!(judge.is_valid(&value), "seed {seed}: {text} for {schema}");
                ended += 1;
            }
        }
    }
    assert!(ended > 9 * 40 / 2, "only {ended} answers ended");
}

#[test]
fn a_model_that_prefers_white_space_still_ends() {
    let source = Source::json_schema(&schemas()[0]).unwrap();
    let compiled = compile(&source).unwrap();
    let blank = |bytes: &[u8]| !bytes.is_empty() && bytes.iter().all(u8::is_ascii_whitespace);
    for seed in 0..10 {
        match walk(&mut compiled.matcher(), &mut Random(seed), 400, blank) {
            Walk::Ended(text) => {
                let longest = text.split(|c: char| !c.is_whitespace()).map(str::len).max();
                assert!(longest <= Some(skein_grammar::limits::MAX_WHITESPACE), "{longest:?}: {text:?}");
            }
            Walk::Cut(text) => assert!(text.contains('"'), "it is within a string: {text:?}"),
        }
    }
}

#[test]
fn a_replayed_matcher_allows_what_the_running_one_allows() {
    let mut positions = 0;
    for (seed, schema) in schemas().into_iter().cycle().enumerate().take(700) {
        let compiled = compile(&Source::json_schema(&schema).unwrap()).unwrap();
        let (mut running, mut random, mut tokens) = (compiled.matcher(), Random(seed as u64), Vec::new());
        for _ in 0..30 {
            let next = running.next_tokens().unwrap();
            let mut replayed = compiled.matcher();
            tokens.iter().for_each(|token| replayed.advance(*token).unwrap());
            assert_eq!(replayed.next_tokens().unwrap(), next, "after {} tokens of {schema}", tokens.len());
            assert_eq!(replayed.is_done(), running.is_done());
            positions += 1;
            let all: Vec<u32> = next.mask.tokens().collect();
            if all.is_empty() {
                break;
            }
            tokens.push(all[random.below(all.len() as u64) as usize]);
            running.advance(*tokens.last().unwrap()).unwrap();
        }
    }
    assert!(positions > 10_000, "{positions}");
}

#[test]
fn a_token_that_does_not_fit_is_an_error_and_not_a_panic() {
    let compiled = compile(&Source::choice(&["a"]).unwrap()).unwrap();
    let bytes = &vocabulary().0;
    let b = (0..bytes.vocab_size()).find(|token| bytes.get(*token) == b"b").unwrap();
    for token in [b, 0, 1 << 20] {
        let mut matcher = compiled.matcher();
        assert!(matcher.advance(token).is_err(), "{token}");
        assert!(matcher.next_tokens().is_err() && !matcher.is_done());
    }
}

#[test]
fn control_tokens_match_no_text() {
    let mut matcher = compile(&Source::regex("(?s:.*)").unwrap()).unwrap().matcher();
    let next = matcher.next_tokens().unwrap();
    let bytes = &vocabulary().0;
    assert!((0..bytes.vocab_size()).all(|token| !(bytes.is_special(token) && next.mask.allows(token))));
    assert!(next.may_end && next.mask.count() > 3000);
}

#[test]
fn the_version_is_that_of_the_lock_file() {
    let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock")).unwrap();
    let (name, version) = skein_grammar::VERSION.split_once(' ').unwrap();
    assert!(lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"\n")));
}

/// An object of `count` optional properties, each of type `kind`.
fn optional(count: usize, name: &str, kind: &Value) -> Value {
    let properties: serde_json::Map<_, _> =
        (0..count).map(|at| (format!("{name}{at}"), kind.clone())).collect();
    json!({"type": "object", "properties": properties})
}

#[test]
fn an_object_of_500_optional_properties_is_refused_at_once_and_the_most_allowed_never_gets_stuck() {
    let most = skein_grammar::limits::MAX_OPTIONAL_PROPERTIES;
    let refused = |schema: Value| Source::json_schema(&schema).unwrap_err().to_string();
    let nested = json!({"properties": {"a": optional(500, "p", &json!({}))}});
    assert_eq!(
        refused(nested),
        "the schema has `properties` at \"/properties/a\": 500 of them are optional at one place, the limit is 450; \
         list more in `required`, or divide the object"
    );
    let integer = json!({"type": "integer"});
    let half = |name| optional(most / 2 + 1, name, &integer);
    assert!(refused(json!({"anyOf": [half("a"), half("b")]})).contains("452 of them are optional"));
    assert!(
        refused(json!({"$ref": "#/$defs/x", "$defs": {"x": optional(most + 1, "p", &integer)}}))
            .contains("451")
    );
    for kind in [json!({}), integer.clone(), json!({"type": "string", "maxLength": 20})] {
        for closed in [true, false] {
            let mut schema = optional(most, "p", &kind);
            schema["additionalProperties"] = Value::Bool(!closed);
            never_stuck(&Source::json_schema(&schema).unwrap());
        }
    }
    let (a, b) = (optional(most / 2, "a", &integer), optional(most / 2, "b", &integer));
    never_stuck(&Source::json_schema(&json!({"anyOf": [a, b]})).unwrap());
}

#[test]
fn long_lists_of_choices_and_items_never_get_stuck() {
    let choices: Vec<String> = (0..4096).map(|at| format!("{:x}", at * 7919)).collect();
    never_stuck(&Source::choice(&choices[..skein_grammar::limits::MAX_CHOICES]).unwrap());
    never_stuck(&Source::json_schema(&json!({"enum": choices})).unwrap());
    let items: Vec<Value> = (0..1000).map(|_| json!({"type": "integer"})).collect();
    never_stuck(&Source::json_schema(&json!({"type": "array", "prefixItems": items})).unwrap());
}

/// Random answers of up to 150 tokens; a limit that is exceeded panics.
fn never_stuck(source: &Source) {
    let compiled = compile(source).unwrap();
    for seed in 1..4 {
        walk(&mut compiled.matcher(), &mut Random(seed), 150, |bytes| bytes.contains(&b','));
    }
}
