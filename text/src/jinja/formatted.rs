//! Python's two kinds of formats, with a limit on what they may produce.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, Value};

use super::limits::check_bytes;
use super::printed::printed;

/// `str.format`.
pub fn formatted(own: &str, given: &[Value]) -> Result<Value, Error> {
    check_formatted(own, '{', given)?;
    let given = given.iter().map(|value| if own.contains('[') { Ok(value.clone()) } else { plain(value) });
    format(FormatStyle::StrFormat, own, &given.collect::<Result<Vec<_>, _>>()?).map(Value::from)
}

/// `own % right`.
pub fn percent(own: &str, right: &Value) -> Result<String, Error> {
    let given = match right.kind() {
        _ if right.is_tuple() => {
            right.try_iter()?.map(|value| plain(&value)).collect::<Result<Vec<_>, _>>()?
        }
        ValueKind::Map if own.contains("%(") => {
            let pair = |key: Value| Ok((printed(&key)?, plain(&right.get_item(&key)?)?));
            vec![Value::from(right.try_iter()?.map(pair).collect::<Result<Kwargs, Error>>()?)]
        }
        _ => vec![plain(right)?],
    };
    check_formatted(own, '%', &given)?;
    format(FormatStyle::Printf, own, &given)
}

/// Containers as their text, which minijinja would write with other numbers.
pub fn plain(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        _ if value.is_kwargs() => {
            let pair = |key: Value| Ok((printed(&key)?, plain(&value.get_item(&key)?)?));
            Ok(Value::from(value.try_iter()?.map(pair).collect::<Result<Kwargs, Error>>()?))
        }
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => printed(value).map(Value::from),
        _ => Ok(value.clone()),
    }
}

/// Upper bound: every placeholder may take the longest argument, and every number may be a width.
pub fn check_formatted(text: &str, place: char, arguments: &[Value]) -> Result<(), Error> {
    let mut longest = 0;
    let mut widths = 0_usize;
    for argument in arguments {
        longest = longest.max(printed(argument)?.len());
        // With `*`, an argument is the width.
        widths = widths.saturating_add(usize::try_from(argument.clone()).unwrap_or(0));
    }
    if !text.contains('*') {
        widths = 0;
    }
    for digits in text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty()) {
        widths = widths.saturating_add(digits.parse().unwrap_or(usize::MAX));
    }
    let places = text.matches(place).count();
    check_bytes(places.saturating_mul(longest).saturating_add(widths).saturating_add(text.len()))
}
