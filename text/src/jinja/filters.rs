//! Jinja2's filters and functions where minijinja has none or another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::{Object, ObjectRepr, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, filters};

use super::arguments::{Arguments, integer, invalid, width};
use super::line_ends::{is_space, lines};
use super::methods::{center, percent};
use super::rewrite::{ADD, ATTRIBUTE, CONCAT, ITEM, REMAINDER};
use super::{Printed, html, json, predicates, printed, sorted};
use crate::bounded_filters::check_bytes;

/// Adds them to `env`.
pub fn install(env: &mut Environment<'_>) {
    for name in ["bool", "chain", "lines", "pprint", "split", "zip"] {
        env.remove_filter(name);
    }
    env.add_filter(CONCAT, concat);
    env.add_filter(REMAINDER, |pair: &Value| {
        remainder(&pair.get_item_by_index(0)?, &pair.get_item_by_index(1)?)
    });
    env.add_filter(ADD, |pair: &Value| add(&pair.get_item_by_index(0)?, &pair.get_item_by_index(1)?));
    env.add_filter(ATTRIBUTE, attribute);
    env.add_filter(ITEM, item);
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
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("e", html::escape);
    env.add_filter("escape", html::escape);
    env.add_filter("forceescape", html::force_escape);
    env.add_function("joiner", |separator: Option<String>| {
        let separator = separator.unwrap_or_else(|| ", ".to_owned());
        Value::from_object(Joiner { separator, used: AtomicUsize::new(0) })
    });
    env.add_function("cycler", |items: Rest<Value>| match items.is_empty() {
        true => Err(invalid("cycler: give at least one item")),
        false => Ok(Value::from_object(Cycler { items: items.to_vec(), at: AtomicUsize::new(0) })),
    });
    sorted::install(env);
    predicates::install(env);
}

/// `a ~ b`: the texts of a tuple in a row.
fn concat(parts: &Value) -> Result<String, Error> {
    let mut out = Printed::default();
    parts.try_iter()?.try_for_each(|part| out.add(&part))?;
    Ok(out.text)
}

/// `a + b`, where a text may be safe: then the other one is escaped.
fn add(left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        let mut out = Printed::default();
        if !left.is_safe() && !right.is_safe() {
            [a, b].into_iter().try_for_each(|text| out.push(text))?;
            return Ok(Value::from(out.text));
        }
        [left, right].into_iter().try_for_each(|text| out.add(&html::escape(text)?))?;
        return Ok(Value::from_safe_string(out.text));
    }
    if left.is_tuple() == right.is_tuple() && [left, right].iter().all(|list| list.kind() == ValueKind::Seq) {
        let items: Vec<Value> = left.try_iter()?.chain(right.try_iter()?).collect();
        return Ok(if left.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) });
    }
    if left.is_integer() && right.is_integer() {
        let sum = i128::try_from(left.clone())?.checked_add(i128::try_from(right.clone())?);
        return sum.map(Value::from).ok_or_else(|| invalid("the sum is too large"));
    }
    Ok(Value::from(predicates::number(left)? + predicates::number(right)?))
}

/// `a % b` of numbers, whose sign is the divisor's; of a string, its format.
pub fn remainder(left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(text) = left.as_str() {
        return percent(text, right).map(Value::from);
    }
    if let (Ok(a), Ok(b)) = (i128::try_from(left.clone()), i128::try_from(right.clone()))
        && left.is_integer() | (left.kind() == ValueKind::Bool)
        && right.is_integer() | (right.kind() == ValueKind::Bool)
    {
        let rest = a.checked_rem(b).ok_or_else(|| invalid("the remainder of a division by zero"))?;
        return Ok(Value::from(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }));
    }
    let (a, b) = (predicates::number(left)?, predicates::number(right)?);
    if b == 0.0 {
        return Err(invalid("the remainder of a division by zero"));
    }
    let rest = a % b;
    Ok(Value::from(match rest {
        0.0 => 0.0_f64.copysign(b),
        _ if (rest < 0.0) != (b < 0.0) => rest + b,
        _ => rest,
    }))
}

fn is_dictionary(value: &Value) -> bool {
    let namespace = value.as_object().is_some_and(|object| object.type_name().contains("Namespace"));
    value.kind() == ValueKind::Map && !namespace
}

fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    if is_dictionary(value) {
        return Ok(Value::from_object(Method { of: value.clone(), name: name.to_owned() }));
    }
    value.get_attr(name)
}

fn item(value: &Value, name: &str) -> Result<Value, Error> {
    let item = value.get_item(&Value::from(name))?;
    if item.is_undefined() { attribute(value, name) } else { Ok(item) }
}

/// A method of a dictionary that is not called where it is named.
#[derive(Debug)]
struct Method {
    of: Value,
    name: String,
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, given: &[Value]) -> Result<Value, Error> {
        super::methods::call(state, &self.of, &self.name, given)
    }
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
        None => predicates::number(value)?,
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
        None => predicates::number(value).ok(),
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
        None => predicates::number(value).ok(),
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

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

/// `joiner`: nothing when first called, then the separator.
#[derive(Debug)]
struct Joiner {
    separator: String,
    used: AtomicUsize,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, _: &[Value]) -> Result<Value, Error> {
        let first = self.used.swap(1, Ordering::Relaxed) == 0;
        Ok(Value::from(if first { "" } else { &self.separator }))
    }
}

/// `cycler`: its items in turn.
#[derive(Debug)]
pub struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let at = self.at.load(Ordering::Relaxed) % self.items.len();
        (key.as_str() == Some("current")).then(|| self.items[at].clone())
    }

    fn call_method(self: &Arc<Self>, _: &mut State<'_, '_>, name: &str, _: &[Value]) -> Result<Value, Error> {
        match name {
            "next" => Ok(self.items[self.at.fetch_add(1, Ordering::Relaxed) % self.items.len()].clone()),
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(minijinja::ErrorKind::UnknownMethod)),
        }
    }
}
