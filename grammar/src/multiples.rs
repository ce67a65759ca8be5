//! `multipleOf`, which the library keeps as `coefficient / 10^digits` of 32 bits.
//!
//! The library finds the digits by multiplying a double by ten, which fails for 0.07; divides doubles to see
//! whether a range contains a multiple, which fails for [0.3, 0.3]; and does not check for overflow. So the
//! multiples of a range are computed here, in whole numbers.

use serde_json::{Map, Value, json};

/// A keyword whose numbers cannot be expressed exactly, and why.
pub type Inexact = (&'static str, String);

const KEYWORD: &str = "multipleOf";
/// Most digits after the point.
const MOST_DIGITS: u32 = 8;
/// Digits of a decimal that a double always keeps.
const KEPT_DIGITS: usize = 15;
/// How many doubles next to a multiple are tried.
const NEIGHBOURS: u64 = 64;

/// `coefficient / 10^digits`, without trailing zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    coefficient: u64,
    digits: u32,
}

impl Step {
    /// The decimal number that `float` is written as; `None` if it is not positive or has too many digits.
    fn new(float: f64) -> Option<Self> {
        let text = Some(float).filter(|float| *float > 0.0)?.to_string();
        let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
        let digits = u32::try_from(part.len()).ok().filter(|digits| *digits <= MOST_DIGITS)?;
        let coefficient = format!("{whole}{part}").parse().ok()?;
        Some(Self { coefficient, digits }).filter(Step::fits)
    }

    /// Whether the library's arithmetic stays within 32 bits.
    fn fits(&self) -> bool {
        let digit = 9 * 10u64.pow(self.digits);
        self.coefficient.checked_mul(10).is_some_and(|most| most + digit <= u64::from(u32::MAX))
    }

    /// The step among integers: its smallest multiple that is one.
    fn among_integers(self) -> Self {
        let unit = 10u64.pow(self.digits);
        Self { coefficient: self.coefficient / gcd(self.coefficient, unit), digits: 0 }
    }

    /// Steps whose multiples are those with fewer digits. The library allows them only with zeros at the end:
    /// 0.50 for a step of 0.25.
    pub fn coarser(self) -> Vec<f64> {
        let cut = |dropped: u32| {
            let unit = 10u64.pow(dropped);
            let common = self.coefficient / gcd(self.coefficient, unit);
            Step { coefficient: common, digits: self.digits - dropped }
        };
        let dropped = (1..self.digits).filter(|dropped| 10u64.pow(*dropped) <= self.coefficient);
        dropped.filter_map(|dropped| cut(dropped).for_library()).collect()
    }

    /// A double from which the library reads this step.
    fn for_library(self) -> Option<f64> {
        let float = self.coefficient as f64 / 10f64.powi(self.digits as i32);
        let near = (0..NEIGHBOURS).flat_map(|at| [float.to_bits() + at, float.to_bits() - at]);
        near.map(f64::from_bits).find(|float| as_read(*float) == Some(self))
    }
}

/// The step as the library reads it.
fn as_read(mut float: f64) -> Option<Step> {
    let mut digits = 0;
    while float.fract() != 0.0 && digits <= MOST_DIGITS {
        float *= 10.0;
        digits += 1;
    }
    (float.fract() == 0.0).then_some(Step { coefficient: float as u64, digits })
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Whether only integers are allowed.
pub fn is_integer(fields: &Map<String, Value>) -> bool {
    fields.get("type").is_some_and(|kind| *kind == "integer")
}

/// The step of a schema; `None` if it has none that can be enforced.
pub fn step(fields: &Map<String, Value>) -> Option<Step> {
    let step = fields.get(KEYWORD).and_then(Value::as_f64).and_then(Step::new)?;
    Some(if is_integer(fields) { step.among_integers() } else { step })
}

/// Checks the multiple of one schema.
///
/// # Errors
/// The keyword and why it cannot be enforced.
pub fn check(fields: &Map<String, Value>) -> Result<(), Inexact> {
    let Some(Value::Number(number)) = fields.get(KEYWORD) else { return Ok(()) };
    if step(fields).and_then(Step::for_library).is_some() {
        return Ok(());
    }
    let reason = format!(
        "{number} is not a positive number of few digits: at most {MOST_DIGITS} after the point, and less than 3e8 \
         without it"
    );
    Err((KEYWORD, reason))
}

/// Whether the least common multiple of all steps fits, as the library computes it for schemas that it
/// merges.
pub fn can_be_merged(steps: &[Step]) -> bool {
    let digits = steps.iter().map(|step| step.digits).max().unwrap_or(0);
    let scaled = steps.iter().map(|step| step.coefficient.saturating_mul(10u64.pow(digits - step.digits)));
    let (mut common, mut most) = (1u64, 1u64);
    for one in scaled {
        common = (common / gcd(common, one)).saturating_mul(one);
        most = most.max(one);
    }
    let merged = Step { coefficient: common, digits };
    merged.fits() && common.saturating_mul(most) <= u64::from(u32::MAX)
}

/// Moves the bounds to multiples, and a single multiple between them to its value.
pub fn rewrite(fields: &mut Map<String, Value>) {
    let Some((step, float)) = step(fields).and_then(|step| Some((step, step.for_library()?))) else { return };
    let whole = step.digits == 0;
    fields.insert(KEYWORD.to_owned(), if whole { step.coefficient.into() } else { float.into() });
    let bound = |keyword: &str| fields.get(keyword).and_then(Value::as_f64);
    let first = bound("minimum").and_then(|bound| step.at_least(bound));
    let last = bound("maximum").and_then(|bound| step.at_least(-bound)).map(|count| -count);
    let ends = [("minimum", first), ("maximum", last)];
    for (keyword, count) in ends {
        if let Some(value) = count.and_then(|count| step.times(count)) {
            fields.insert(keyword.to_owned(), value);
        }
    }
    if first.is_some() && first == last {
        fields.shift_remove(KEYWORD);
    } else if first.zip(last).is_some_and(|(first, last)| first > last) {
        // No multiple: a range that the library sees to be empty.
        fields.insert("minimum".to_owned(), json!(1));
        fields.insert("maximum".to_owned(), json!(0));
    }
}

impl Step {
    /// The smallest count of steps that is at least `bound`; `None` if it is too large.
    fn at_least(&self, bound: f64) -> Option<i128> {
        let text = bound.abs().to_string();
        let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
        let kept = part.len().min(self.digits as usize);
        let padded = format!("{whole}{}{}", &part[..kept], "0".repeat(self.digits as usize - kept));
        let units: i128 = padded.parse().ok()?;
        let is_more = part[kept..].bytes().any(|digit| digit != b'0');
        let (size, more) = (i128::from(self.coefficient), i128::from(is_more));
        // Upwards for a positive bound, towards zero for a negative one.
        Some(if bound < 0.0 { -(units / size) } else { (units + more + size - 1) / size })
    }

    /// Whether the decimal number in `text` is a multiple.
    pub fn divides(&self, text: &str) -> bool {
        let text = text.trim_start_matches('-');
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let missing = (self.digits as usize).checked_sub(part.len());
        let digits = missing.map(|missing| format!("{whole}{part}{}", "0".repeat(missing)));
        digits
            .and_then(|digits| digits.parse::<u128>().ok())
            .is_some_and(|units| units % u128::from(self.coefficient) == 0)
    }

    /// `count` steps as a number; `None` if a double would round it.
    fn times(&self, count: i128) -> Option<Value> {
        let units = count * i128::from(self.coefficient);
        if units.unsigned_abs().to_string().len() > KEPT_DIGITS {
            return None;
        }
        let units = units as f64 / 10f64.powi(self.digits as i32);
        Some(if units.fract() == 0.0 { (units as i64).into() } else { units.into() })
    }
}
