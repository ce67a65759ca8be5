//! Ranges of numbers, judged in whole numbers of 10^-18. `tests/grammar/number_ranges.py` judges many more
//! with another program.

#![allow(clippy::unwrap_used)] // helpers of tests panic like tests

mod walk;

use serde_json::{Value, json};
use skein_grammar::token_bytes::TokenBytes;
use skein_grammar::{Compiled, Library, Source};
use walk::Random;

/// Digits after the point that the judge compares.
const PLACES: usize = 18;

fn library() -> Library {
    Library::new(&TokenBytes::of_bytes(), 256).unwrap()
}

fn accepts(compiled: &Compiled, text: &str) -> bool {
    let mut matcher = compiled.matcher();
    text.bytes().all(|byte| matcher.advance(u32::from(byte)).is_ok())
        && matcher.next_tokens().is_ok_and(|next| next.may_end)
}

#[track_caller]
fn check(schema: Value, good: &[&str], bad: &[&str]) {
    let compiled = library().compile(&Source::json_schema(&schema).unwrap()).unwrap();
    for text in good {
        assert!(accepts(&compiled, text), "{text} is not allowed by {schema}");
    }
    for text in bad {
        assert!(!accepts(&compiled, text), "{text} is allowed by {schema}");
    }
}

#[test]
fn an_exclusive_bound_is_no_answer_however_near_the_other_bound_is() {
    let open = |low: f64, high: f64| json!({"type": "number", "exclusiveMinimum": low, "maximum": high});
    check(open(0.0, 0.5), &["0.5", "0.1", "0.0000000001"], &["0", "-0", "0.0", "0.00", "0.51"]);
    check(open(0.0, 1e-6), &["0.000001", "0.0000000001"], &["0", "0.0", "0.0000011"]);
    check(open(10.0, 10.5), &["10.5", "10.00001", "10.49"], &["10", "10.0", "10.51", "11"]);
    check(open(1e-9, 2e-9), &["0.000000002", "0.0000000011"], &["0.000000001", "0", "0.0000000021"]);
    let negative = json!({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0});
    check(negative, &["-0.5", "-0.01"], &["0", "-0", "-0.0", "-0.51"]);
    let below = json!({"type": "number", "minimum": -3.5, "exclusiveMaximum": -3});
    check(below, &["-3.5", "-3.01"], &["-3", "-3.0", "-3.51"]);
    // The bounds meet only when the library merges the parts.
    let parts = json!({"allOf": [{"type": "number", "exclusiveMinimum": 0}, {"$ref": "#/$defs/half"}],
        "$defs": {"half": {"type": "number", "maximum": 0.5}}});
    check(parts, &["0.5", "0.1"], &["0", "0.0", "0.6"]);
    let draft_4 = json!({"type": "number", "minimum": 0, "exclusiveMinimum": true, "maximum": 0.5,
        "exclusiveMaximum": false});
    check(draft_4, &["0.5", "0.1"], &["0", "0.0"]);
    // Rounds to 1 where a client reads it.
    let below_one = json!({"type": "number", "minimum": 0, "exclusiveMaximum": 1});
    check(below_one, &["0", "0.999999999999999"], &["1", "0.99999999999999999999"]);
    let none = json!({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1});
    assert!(library().compile(&Source::json_schema(&none).unwrap()).is_err());
}

#[test]
fn multiples_are_exact() {
    let multiple = |of: f64, low: f64, high: f64| json!({"type": "number", "multipleOf": of, "minimum": low, "maximum": high});
    check(multiple(0.1, 0.3, 0.3), &["0.3"], &["0.2", "0.4"]);
    check(multiple(0.07, 0.0, 0.7), &["0.07", "0.14", "0.7", "0"], &["0.1", "0.77"]);
    check(multiple(0.25, 0.0, 2.0), &["0.5", "0.25", "1", "1.5"], &["0.2", "0.3", "2.5"]);
    check(multiple(0.07, -0.6, 0.4), &["0.07", "-0.49"], &["0.3", "-0.6"]);
    check(multiple(0.00000001, 0.0, 0.5), &["0.00000001", "0.12345678"], &["0.123456789"]);
    let open = json!({"type": "number", "multipleOf": 0.1, "exclusiveMinimum": 0, "maximum": 0.5});
    check(open, &["0.1", "0.5"], &["0", "0.0", "0.05", "0.6"]);
    check(json!({"type": "integer", "multipleOf": 2.5}), &["0", "5", "-10"], &["1", "2", "2.5", "3"]);
    check(json!({"type": "number", "multipleOf": 0.1}), &["0.3", "-7.1", "12"], &["0.35"]);
    let optional = json!({"type": "object", "properties": {"a": multiple(0.5, 0.1, 0.4)}, "additionalProperties": false});
    check(optional, &["{}"], &["{\"a\":0.5}"]);
}

#[test]
fn the_limits_of_other_languages_types_are_no_bounds() {
    let of = |low: Value, high: Value| json!({"type": "integer", "minimum": low, "maximum": high});
    check(of(i64::MIN.into(), i64::MAX.into()), &["0", "-9007199254740993", "123456789012345678"], &["1.5"]);
    check(of(0.into(), u64::MAX.into()), &["0", "9007199254740993"], &["-1"]);
}

#[test]
fn a_number_that_cannot_be_exact_is_refused_by_name() {
    let check = |schema: Value, expected: &str| {
        let message = Source::json_schema(&schema).unwrap_err().to_string();
        assert!(message.contains(expected), "{schema}: {message}");
    };
    check(json!({"const": 9_007_199_254_740_993u64}), "`const` at \"\": 9007199254740993 is not a double");
    check(json!({"enum": ["x", [9_007_199_254_740_993u64]]}), "`enum` at \"\": 9007199254740993");
    check(json!({"minimum": 9_007_199_254_740_993u64}), "`minimum` at \"\": 9007199254740993");
    check(json!({"maximum": 1e300}), "`maximum` at \"\": 1e+300 is beyond 1e18");
    check(json!({"exclusiveMinimum": 1e-40}), "`exclusiveMinimum` at \"\": 1e-40 is nearer zero than 1e-30");
    for multiple in [0.0, -2.0, 1e-9, 4e9, 0.123_456_789_1] {
        check(json!({"multipleOf": multiple}), "`multipleOf` at \"\"");
    }
    let parts = json!([{"multipleOf": 100_003}, {"multipleOf": 100_019}]);
    check(json!({"allOf": parts}), "least common multiple of its multiples is too large");
}

/// `units` of 10^-`places` as text, without trailing zeros.
fn decimal(units: i128, places: usize) -> String {
    let digits = format!("{:0width$}", units.unsigned_abs(), width = places + 1);
    let (whole, part) = digits.split_at(digits.len() - places);
    let part = part.trim_end_matches('0');
    let sign = if units < 0 { "-" } else { "" };
    if part.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{part}") }
}

/// A decimal text in units of 10^-18, and whether there are digits beyond them.
fn units(text: &str) -> (i128, bool) {
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let kept = part.len().min(PLACES);
    let digits: i128 = format!("{whole}{:0<PLACES$}", &part[..kept]).parse().unwrap();
    (sign * digits, part[kept..].bytes().any(|digit| digit != b'0'))
}

/// A range of decimals in units of 10^-18.
struct Range {
    low: i128,
    high: i128,
    excludes: [bool; 2],
    is_integer: bool,
}

impl Range {
    /// Near an integer or zero in most cases.
    fn random(random: &mut Random) -> Self {
        let mut bound = || {
            let places = random.below(10) as u32;
            let fraction = i128::from(random.below(12)) * 10i128.pow(18 - places);
            let whole = [0, 0, 1, 10, 99, 12_345][random.below(6) as usize] * 10i128.pow(18);
            (whole + fraction) * [1, -1][random.below(2) as usize]
        };
        let (low, high) = (bound(), bound());
        let excludes = [random.below(2) == 0, random.below(2) == 0];
        Self { low: low.min(high), high: low.max(high), excludes, is_integer: random.below(5) == 0 }
    }

    fn schema(&self) -> Value {
        let number = |units: i128| serde_json::from_str::<Value>(&decimal(units, PLACES)).unwrap();
        let names = [["minimum", "exclusiveMinimum"], ["maximum", "exclusiveMaximum"]];
        let kind = if self.is_integer { "integer" } else { "number" };
        let [low, high] = [0, 1].map(|side| names[side][usize::from(self.excludes[side])]);
        json!({"type": kind, low: number(self.low), high: number(self.high)})
    }

    fn contains(&self, text: &str) -> bool {
        let (value, more) = units(text);
        let further = i128::from(more) * if text.starts_with('-') { -1 } else { 1 };
        let above =
            (value, further) > (self.low, 0) || (!self.excludes[0] && (value, further) == (self.low, 0));
        let below =
            (value, further) < (self.high, 0) || (!self.excludes[1] && (value, further) == (self.high, 0));
        above && below && (!self.is_integer || !text.contains('.'))
    }

    /// The bounds, one and two units of several last places beside them, and the middle.
    fn probes(&self) -> Vec<String> {
        let beside = |bound: i128| {
            let steps = [1, 10i128.pow(6), 10i128.pow(9), 10i128.pow(17), 10i128.pow(18)];
            let near = steps.into_iter().flat_map(move |step| [bound - step, bound + step, bound + 2 * step]);
            // What a double tells apart.
            near.filter(|units| decimal(*units, PLACES).len() <= 15)
        };
        let all = beside(self.low).chain(beside(self.high));
        let all = all.chain([self.low, self.high, 0, self.low.midpoint(self.high)]);
        all.map(|units| decimal(units, PLACES)).collect()
    }
}

#[test]
fn random_ranges_allow_what_is_in_them_and_nothing_else() {
    let (library, mut random) = (library(), Random(1));
    let mut probed = [0, 0];
    for at in 0..400 {
        let range = Range::random(&mut random);
        let Ok(compiled) = library.compile(&Source::json_schema(&range.schema()).unwrap()) else {
            assert!(range.probes().iter().all(|probe| !range.contains(probe)), "{at}: {}", range.schema());
            continue;
        };
        for probe in range.probes() {
            let expected = range.contains(&probe);
            probed[usize::from(expected)] += 1;
            assert_eq!(accepts(&compiled, &probe), expected, "{at}: {probe} under {}", range.schema());
        }
        for _ in 0..4 {
            let text = answer(&compiled, &mut random);
            assert!(range.contains(&text), "{at}: {text} under {}", range.schema());
        }
    }
    assert!(probed.iter().all(|count| *count > 2000), "{probed:?}");
}

/// A random answer of digits.
fn answer(compiled: &Compiled, random: &mut Random) -> String {
    let (mut matcher, mut text) = (compiled.matcher(), String::new());
    loop {
        let next = matcher.next_tokens().unwrap();
        if next.mask.is_empty() || (next.may_end && random.below(3) == 0) {
            return text;
        }
        let all: Vec<u32> = next.mask.tokens().collect();
        let token = all[random.below(all.len() as u64) as usize];
        text.push(char::from(u8::try_from(token).unwrap()));
        matcher.advance(token).unwrap();
    }
}
