//! Bounds of numbers, rewritten to what the library expresses exactly.
//!
//! The library's expression of an exclusive bound lets the bound itself through where the other bound comes
//! before the next integer: `0` under `0 < x <= 0.5`. It allows nothing outside inclusive bounds, so an
//! exclusive one becomes the next double. That also holds for a reader of doubles: 0.99999999999999999999 is
//! below 1 as text, but is 1 to most JSON parsers. Inclusive bounds in turn do not allow a text that begins
//! the bound's own: 0.5 under `x <= 0.55`. These numbers are listed beside the range.

use serde_json::{Map, Value, json};

use crate::limits::{LARGEST_BOUND, SMALLEST_BOUND};
use crate::multiples::{self, Inexact, Step, is_integer};

/// What stands next to an exclusive bound of zero, whose next double has 324 digits.
const NEXT_TO_ZERO: f64 = 1e-36;
/// Whole numbers below it are all doubles.
const WHOLE_DOUBLES: f64 = 9_007_199_254_740_992.0;
/// Largest double below 2^63, the end of the library's integers.
const LARGEST_INTEGER: i64 = 9_223_372_036_854_774_784;

/// A keyword that bounds numbers.
struct Bound {
    keyword: &'static str,
    /// The other keyword of the same side.
    inclusive: &'static str,
    is_lower: bool,
}

const BOUNDS: [Bound; 4] = [
    Bound { keyword: "minimum", inclusive: "minimum", is_lower: true },
    Bound { keyword: "exclusiveMinimum", inclusive: "minimum", is_lower: true },
    Bound { keyword: "maximum", inclusive: "maximum", is_lower: false },
    Bound { keyword: "exclusiveMaximum", inclusive: "maximum", is_lower: false },
];

/// Checks the numbers of one schema.
///
/// # Errors
/// The keyword whose value the library would round, and why.
pub fn check(fields: &Map<String, Value>) -> Result<(), Inexact> {
    for bound in BOUNDS {
        let Some(Value::Number(number)) = fields.get(bound.keyword) else { continue };
        let float = number.as_f64().unwrap_or_default();
        if is_integer(fields) && is_outermost(float, bound.is_lower) {
            continue;
        }
        let reason = inexact(number).or_else(|| {
            (float != 0.0 && float.abs() < SMALLEST_BOUND)
                .then(|| format!("{number} is nearer zero than {SMALLEST_BOUND:e}; use zero"))
        });
        let is_gap = bound.keyword != bound.inclusive && is_integer(fields) && float.abs() >= WHOLE_DOUBLES;
        let reason =
            reason.or_else(|| is_gap.then(|| format!("{number} is too large; use {}", bound.inclusive)));
        if let Some(reason) = reason {
            return Err((bound.keyword, reason));
        }
    }
    for keyword in ["const", "enum"] {
        if let Some(reason) = fields.get(keyword).and_then(inexact_constant) {
            return Err((keyword, reason));
        }
    }
    multiples::check(fields)
}

/// Why the library would round `number`.
fn inexact(number: &serde_json::Number) -> Option<String> {
    let float = number.as_f64().unwrap_or_default();
    if float.abs() > LARGEST_BOUND {
        return Some(format!(
            "{number} is beyond {LARGEST_BOUND:e}; leave it out, or use a string with a pattern"
        ));
    }
    let whole = number.as_i64().filter(|whole| float as i64 != *whole);
    whole.map(|whole| format!("{whole} is not a double, so clients would round it; use a string"))
}

fn inexact_constant(constant: &Value) -> Option<String> {
    match constant {
        Value::Number(number) => inexact(number),
        Value::Array(items) => items.iter().find_map(inexact_constant),
        Value::Object(members) => members.values().find_map(inexact_constant),
        _ => None,
    }
}

/// Rewrites the bounds and the multiple of one schema. Other values are left to the library's checks.
pub fn rewrite(fields: &mut Map<String, Value>) {
    for bound in BOUNDS {
        let value = fields.get(bound.keyword).cloned();
        let limit = match &value {
            Some(Value::Number(number)) => number.as_f64(),
            // Draft 4: a flag beside the bound.
            Some(Value::Bool(true)) => fields.get(bound.inclusive).and_then(Value::as_f64),
            Some(Value::Bool(false)) => None,
            _ => continue,
        };
        if bound.keyword == bound.inclusive {
            saturate(fields, &bound, limit);
            continue;
        }
        fields.shift_remove(bound.keyword);
        let Some(limit) = limit else { continue };
        let limit = if bound.is_lower { above(limit) } else { -above(-limit) };
        let other = fields.get(bound.inclusive).and_then(Value::as_f64);
        let is_stricter =
            other.is_none_or(|other| if bound.is_lower { limit > other } else { limit < other });
        if is_stricter {
            fields.insert(bound.inclusive.to_owned(), limit.into());
        }
    }
    if is_integer(fields) {
        round(fields);
    }
    let step = multiples::step(fields);
    multiples::rewrite(fields);
    let listed = beginnings(fields, step);
    let coarser = step.map(Step::coarser).unwrap_or_default();
    if !listed.is_empty() || !coarser.is_empty() {
        list_beside(fields, &listed, &coarser);
    }
}

/// Moves the bounds of integers to integers.
fn round(fields: &mut Map<String, Value>) {
    for (keyword, rounded) in [("minimum", f64::ceil as fn(f64) -> f64), ("maximum", f64::floor)] {
        let bound = fields.get(keyword).and_then(Value::as_f64).filter(|bound| bound.abs() < WHOLE_DOUBLES);
        if let Some(bound) = bound {
            fields.insert(keyword.to_owned(), (rounded(bound) as i64).into());
        }
    }
}

/// Numbers within the bounds whose digits begin those of a bound.
fn beginnings(fields: &Map<String, Value>, step: Option<Step>) -> Vec<f64> {
    let bound = |keyword: &str| fields.get(keyword).and_then(Value::as_f64);
    let (low, high) = (bound("minimum"), bound("maximum"));
    let is_within =
        |number: f64| low.is_none_or(|low| number >= low) && high.is_none_or(|high| number <= high);
    let mut found = Vec::new();
    for text in [low, high].into_iter().flatten().map(|bound| bound.to_string()) {
        let Some(point) = text.find('.') else { continue };
        let cut = (point + 2..=text.len()).map(|end| &text[..end]).filter(|text| !text.ends_with('0'));
        let cut = cut.filter(|text| step.is_none_or(|step| step.divides(text)));
        found.extend(cut.filter_map(|text| text.parse().ok()).filter(|number| is_within(*number)));
    }
    found
}

/// Allows `listed` and the multiples of `coarser` beside the range of `fields`.
fn list_beside(fields: &mut Map<String, Value>, listed: &[f64], coarser: &[f64]) {
    let mut range = json!({"type": "number"});
    for keyword in ["minimum", "maximum", "multipleOf"] {
        if let Some(value) = fields.shift_remove(keyword) {
            range[keyword] = value;
        }
    }
    let of_step = |step: &f64| {
        let mut range = range.clone();
        range["multipleOf"] = json!(step);
        range
    };
    let mut all: Vec<Value> = coarser.iter().map(of_step).collect();
    all.push(range);
    if !listed.is_empty() {
        all.push(json!({"enum": listed}));
    }
    if fields.get("type").is_none_or(|kind| *kind != "number") {
        all.push(json!({"type": ["null", "boolean", "string", "array", "object"]}));
    }
    add_to_all(fields, json!({"anyOf": all}));
}

/// Adds `schema` to what the schema of `fields` requires.
pub fn add_to_all(fields: &mut Map<String, Value>, schema: Value) {
    if let Some(Value::Array(all)) = fields.get_mut("allOf") {
        all.push(schema);
    } else {
        fields.insert("allOf".to_owned(), json!([schema]));
    }
}

/// Moves the outermost bounds of 64-bit integers to the library's.
fn saturate(fields: &mut Map<String, Value>, bound: &Bound, limit: Option<f64>) {
    if is_integer(fields) && limit.is_some_and(|limit| is_outermost(limit, bound.is_lower)) {
        let limit = if bound.is_lower { -LARGEST_INTEGER } else { LARGEST_INTEGER };
        fields.insert(bound.keyword.to_owned(), limit.into());
    }
}

/// The smallest bound above `bound`.
fn above(bound: f64) -> f64 {
    if bound == 0.0 { NEXT_TO_ZERO } else { bound.next_up() }
}

/// Whether a bound of integers excludes none of 63 bits, as the limits of types in other languages do.
fn is_outermost(bound: f64, is_lower: bool) -> bool {
    let end = 2f64.powi(63);
    if is_lower { bound <= -end } else { bound >= end }
}
