//! Hostile constraints: each is refused, or compiled and followed within a second and 64 MiB.

#![allow(clippy::unwrap_used)] // helpers of tests panic like tests
#![allow(clippy::disallowed_methods)] // the limit is about real time

mod walk;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skein_grammar::Source;
use walk::{Random, compile, vocabulary};

/// Time limit to compile a constraint and to compute a mask.
const MOST_TIME: Duration = Duration::from_secs(1);
/// Memory limit of a constraint, in bytes.
const MOST_BYTES: u64 = 64 << 20;

fn nested(depth: usize, wrap: impl Fn(Value) -> Value) -> Value {
    (0..depth).fold(json!({"type": "integer"}), |inner, _| wrap(inner))
}

fn sources() -> Vec<(&'static str, Result<Source, skein_grammar::Refused>)> {
    let schema = |value: Value| Source::json_schema(&value);
    let many: Vec<String> = (0..4000).map(|at| format!("{:x}", at * 7919)).collect();
    let properties: serde_json::Map<_, _> =
        (0..1500).map(|at| (format!("p{at}"), json!({"type": "string"}))).collect();
    vec![
        ("nested oneOf", schema(nested(14, |inner| json!({"oneOf": [inner, inner, {"type": "null"}]})))),
        (
            "nested oneOf of objects",
            schema(nested(
                9,
                |inner| json!({"oneOf": [{"properties": {"a": inner}}, {"properties": {"b": inner}}]}),
            )),
        ),
        (
            "nested allOf of anyOf",
            schema(nested(8, |inner| json!({"allOf": [{"anyOf": [inner, {}]}, {"anyOf": [inner, {}]}]}))),
        ),
        ("huge enum", schema(json!({"enum": many.clone()}))),
        ("many choices", Source::choice(&many)),
        ("recursive $ref", schema(json!({"$ref": "#"}))),
        (
            "recursive $refs in a circle",
            schema(
                json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
            ),
        ),
        ("recursive allOf", schema(json!({"allOf": [{"$ref": "#"}, {"type": "object"}]}))),
        (
            "exponential $refs",
            schema({
                let mut defs = serde_json::Map::new();
                for at in 0..40 {
                    let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
                    defs.insert(format!("d{at}"), json!({"allOf": [next, next]}));
                }
                defs.insert("d40".into(), json!({"type": "integer"}));
                json!({"$ref": "#/$defs/d0", "$defs": defs})
            }),
        ),
        ("long strings", schema(json!({"type": "string", "minLength": 1_000_000, "maxLength": 2_000_000}))),
        (
            "long arrays",
            schema(
                json!({"type": "array", "items": {"type": "array", "minItems": 5000, "items": {"type": "integer"}}, "minItems": 100_000}),
            ),
        ),
        ("many properties", schema(json!({"type": "object", "properties": properties}))),
        ("evil regex", Source::regex("(a|a)*(a|a)*(a|aa)*b(?:.{0,500}x){20}")),
        ("counted regex", Source::regex("((a{0,100}){0,100}){0,100}")),
        ("wide regex", Source::regex(&"(x+x+)+y".repeat(500))),
        ("regex that looks around", Source::regex("(?=a)(?!b)a(?<=a)")),
        ("back-reference", Source::regex("(a)\\1")),
        ("ambiguous grammar", Source::grammar("start: start start | \"a\" | \"aa\" | \"\"")),
        ("left recursion", Source::grammar("start: start \"a\" | start \"b\"")),
        ("counted grammar", Source::grammar("start: a{0,100000}\na: b{0,100000}\nb: \"x\"")),
        ("deep groups", Source::grammar(&format!("start: {}\"a\"{}", "(".repeat(250), ")".repeat(250)))),
        (
            "EBNF in EBNF",
            Source::grammar(&format!("root ::= {}", "(\"a\" | ".repeat(60) + "\"b\"" + &")*".repeat(60))),
        ),
        ("imports", Source::grammar("%import common.WORD\nstart: WORD")),
        ("nothing", Source::grammar("")),
    ]
}

/// Peak memory of this process so far, in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    1024 * line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
}

#[test]
fn hostile_constraints_cost_a_second_and_64_mib_at_most() {
    vocabulary();
    for (name, source) in sources() {
        // Resets the peak counter.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        let (before, started) = (peak_bytes(), Instant::now());
        let compiled = source.and_then(|source| compile(&source));
        let (took, refusal) = (started.elapsed(), compiled.as_ref().err().map(ToString::to_string));
        assert!(took < MOST_TIME, "{name}: compiled in {took:?}");
        assert!(refusal.as_ref().is_none_or(|refusal| refusal.len() < 600), "{name}: {refusal:?}");
        let mut slowest = Duration::ZERO;
        if let Ok(compiled) = compiled {
            let (mut matcher, mut random) = (compiled.matcher(), Random(1));
            for _ in 0..60 {
                let started = Instant::now();
                let next = matcher.next_tokens();
                slowest = slowest.max(started.elapsed());
                // Only the answer that exceeds a limit ends.
                let Ok(next) = next else { break };
                let all: Vec<u32> = next.mask.tokens().collect();
                if all.is_empty() || matcher.advance(all[random.below(all.len() as u64) as usize]).is_err() {
                    break;
                }
            }
        }
        let grown = peak_bytes().saturating_sub(before);
        println!("{name}: {took:?}, slowest mask {slowest:?}, {} MiB, {refusal:?}", grown >> 20);
        assert!(slowest < MOST_TIME, "{name}: a mask took {slowest:?}");
        assert!(grown < MOST_BYTES, "{name}: {} MiB", grown >> 20);
    }
}
