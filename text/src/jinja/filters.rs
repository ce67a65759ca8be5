//! Jinja2's filters where minijinja has none or another one.

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, Value, filters};

use super::arguments::{Arguments, integer, invalid, width};
use super::characters::{is_space, lines};
use super::limits::check_bytes;
use super::methods::{center, without_arguments};
use super::printed::{Printed, printed};
use super::{html, json, number, operators, predicates, sorted, turns};

/// Adds them to `env`.
pub fn install(env: &mut Environment<'_>) {
    for name in ["bool", "chain", "lines", "pprint", "split", "zip"] {
        env.remove_filter(name);
    }
    env.add_filter("tojson", json::to_json);
    env.add_filter("center", centered);
    env.add_filter("filesizeformat", file_size);
    env.add_filter("truncate", truncate);
    env.add_filter("urlencode", html::url_encode);
    env.add_filter("wordcount", word_count);
    env.add_filter("indent", indent);
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("trim", trim);
    env.add_filter("items", items);
    for name in ["upper", "lower", "capitalize"] {
        env.add_filter(name, move |value: &Value| cased(value, name));
    }
    env.add_filter("title", |value: &Value| Ok::<_, Error>(filters::title(printed(value)?.into())));
    env.add_filter("first", |value: &Value| end(value, filters::first));
    env.add_filter("last", |value: &Value| end(value, |value| filters::last(value.clone())));
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("safe", |value: &Value| printed(value).map(Value::from_safe_string));
    env.add_filter("e", html::escape);
    env.add_filter("escape", html::escape);
    env.add_filter("forceescape", html::force_escape);
    operators::install(env);
    turns::install(env);
    sorted::install(env);
    predicates::install(env);
}

fn centered(value: &Value, given: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let given = given.into_values();
    let [wide] = Arguments::new(&given)?.bind(["width"])?;
    center(&printed(value)?, width(&wide, 80)?, ' ')
}

fn file_size(value: &Value, given: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let given = given.into_values();
    let [binary] = Arguments::new(&given)?.bind(["binary"])?;
    let (base, names) = if binary.is_true() {
        (1024.0, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"])
    } else {
        (1000.0, ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"])
    };
    let bytes = match value.as_str() {
        Some(text) => {
            text.trim_matches(is_space).parse().map_err(|_| invalid("filesizeformat: no number"))?
        }
        None => number::real(value)?,
    };
    if bytes == 1.0 {
        return Ok("1 Byte".to_owned());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", bytes.trunc()));
    }
    let (mut scaled, mut name) = (bytes / base, names[0]);
    for next in &names[1..] {
        if scaled < base {
            break;
        }
        (scaled, name) = (scaled / base, next);
    }
    Ok(format!("{scaled:.1} {name}"))
}

fn truncate(value: &Value, given: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let (given, text) = (given.into_values(), printed(value)?);
    let [length, cut_words, end, leeway] =
        Arguments::new(&given)?.bind(["length", "killwords", "end", "leeway"])?;
    let (length, leeway) = (width(&length, 255)?, width(&leeway, 5)?);
    let end = if end.is_undefined() { "...".to_owned() } else { printed(&end)? };
    let kept = length.checked_sub(end.chars().count());
    let kept = kept.ok_or_else(|| invalid("truncate: length is below that of the end"))?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let kept: String = text.chars().take(kept).collect();
    let words = if cut_words.is_true() { None } else { kept.rsplit_once(' ') };
    Ok(words.map_or(kept.as_str(), |(words, _)| words).to_owned() + &end)
}

fn word_count(value: &Value) -> Result<usize, Error> {
    let text = printed(value)?;
    Ok(text.split(|c: char| c != '_' && !c.is_alphanumeric()).filter(|word| !word.is_empty()).count())
}

fn indent(value: &Value, given: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let (given, text) = (given.into_values(), printed(value)? + "\n");
    let [by, first, blank] = Arguments::new(&given)?.bind(["width", "first", "blank"])?;
    let by = match by.as_str() {
        Some(text) => text.to_owned(),
        None => {
            let width = width(&by, 4)?;
            check_bytes(width)?;
            " ".repeat(width)
        }
    };
    let mut out = Printed::default();
    for (at, line) in lines(&text, false).into_iter().enumerate() {
        out.push(if at > 0 { "\n" } else { "" })?;
        let indented = if at == 0 { first.is_true() } else { blank.is_true() || !line.is_empty() };
        out.push(if indented { &by } else { "" })?;
        out.push(line)?;
    }
    Ok(out.text)
}

fn default(value: &Value, given: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let given = given.into_values();
    let [other, falsy] = Arguments::new(&given)?.bind(["default_value", "boolean"])?;
    let missing = value.is_undefined() || (falsy.is_true() && !value.is_true());
    let absent = given.is_empty() || other.is_undefined();
    Ok(if !missing {
        value.clone()
    } else if absent {
        Value::from("")
    } else {
        other
    })
}

fn int(value: &Value, given: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let given = given.into_values();
    let [default, base] = Arguments::new(&given)?.bind(["default", "base"])?;
    let base = u32::try_from(integer(&base)?.unwrap_or(10)).ok().filter(|base| (2..=36).contains(base));
    let base = base.ok_or_else(|| invalid("int: base must be from 2 to 36"))?;
    let default = if default.is_undefined() { Value::from(0) } else { default };
    if value.is_undefined() {
        return Err(invalid("int: the value is undefined"));
    }
    let whole = value.as_str().and_then(|text| parsed(text, base)).map(Value::from);
    let number = match value.as_str() {
        Some(text) => text.trim_matches(is_space).parse::<f64>().ok(),
        None if value.is_integer() && value.kind() == ValueKind::Number => return Ok(value.clone()),
        None => number::real(value).ok(),
    };
    // A double beyond i128 has no exact integer here.
    let cut = number.filter(|number| number.abs() < 1.7e38).map(|number| Value::from(number.trunc() as i128));
    Ok(whole.or(cut).unwrap_or(default))
}

/// `int(text, base)`.
fn parsed(text: &str, base: u32) -> Option<i128> {
    let text = text.trim_matches(is_space);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let mark = match base {
        16 => ["0x", "0X"],
        8 => ["0o", "0O"],
        2 => ["0b", "0B"],
        _ => ["+", "+"],
    };
    let digits = mark.iter().find_map(|mark| digits.strip_prefix(mark)).unwrap_or(digits);
    if digits.starts_with(['_', '+', '-']) || digits.ends_with('_') || digits.contains("__") {
        return None;
    }
    let value = i128::from_str_radix(&digits.replace('_', ""), base).ok()?;
    Some(if negative { -value } else { value })
}

fn float(value: &Value, given: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let given = given.into_values();
    let [default] = Arguments::new(&given)?.bind(["default"])?;
    if value.is_undefined() {
        return Err(invalid("float: the value is undefined"));
    }
    let number = match value.as_str() {
        Some(text) => text.trim_matches(is_space).parse::<f64>().ok(),
        None => number::real(value).ok(),
    };
    Ok(number.map_or(if default.is_undefined() { Value::from(0.0) } else { default }, Value::from))
}

fn trim(value: &Value, chars: Option<String>) -> Result<Value, Error> {
    let text = printed(value)?;
    let cut = match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)),
        None => text.trim_matches(is_space),
    };
    Ok(if value.is_safe() { Value::from_safe_string(cut.to_owned()) } else { Value::from(cut) })
}

fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::from(Vec::<Value>::new())) } else { filters::items(value) }
}

/// The method `name` of the value's text, which stays safe.
fn cased(value: &Value, name: &str) -> Result<Value, Error> {
    let text = without_arguments(&printed(value)?, name).unwrap_or_default();
    Ok(if value.is_safe() { Value::from_safe_string(text.to_string()) } else { text })
}

/// The first or last item, which nothing has if it is undefined.
fn end(value: &Value, of: impl Fn(&Value) -> Result<Value, Error>) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::UNDEFINED) } else { of(value) }
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}
