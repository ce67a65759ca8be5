//! Operators of Jinja's expressions as filters, which [`rewrite`](super::rewrite) puts in their place.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr, Tuple, ValueKind};
use minijinja::{Environment, Error, State, Value};

use super::arguments::{integer, invalid};
use super::formatted::percent;
use super::limits::{MAX_ITEMS, check, check_bytes};
use super::number::whole;
use super::printed::Printed;
use super::rewrite::{ADD, ATTRIBUTE, CONCAT, ITEM, REMAINDER, SLICE, TIMES};
use super::{html, methods, number};

/// Adds them to `env`.
pub fn install(env: &mut Environment<'_>) {
    env.add_filter(CONCAT, concat);
    env.add_filter(REMAINDER, |pair: &Value| {
        remainder(&pair.get_item_by_index(0)?, &pair.get_item_by_index(1)?)
    });
    env.add_filter(ADD, |pair: &Value| add(&pair.get_item_by_index(0)?, &pair.get_item_by_index(1)?));
    env.add_filter(TIMES, |pair: &Value| times(&pair.get_item_by_index(0)?, &pair.get_item_by_index(1)?));
    env.add_filter(ATTRIBUTE, attribute);
    env.add_filter(ITEM, item);
    env.add_filter(SLICE, slice);
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
    if let (Some(a), Some(b)) = (whole(left), whole(right)) {
        return a.checked_add(b).map(Value::from).ok_or_else(|| invalid("the sum is too large"));
    }
    Ok(Value::from(number::real(left)? + number::real(right)?))
}

/// `a * b` of numbers; a text or list so many times.
fn times(left: &Value, right: &Value) -> Result<Value, Error> {
    let is_text = |value: &Value| value.as_str().is_some() || value.kind() == ValueKind::Seq;
    match (is_text(left), is_text(right)) {
        (true, _) => return repeated(left, right),
        (_, true) => return repeated(right, left),
        _ => {}
    }
    if let (Some(a), Some(b)) = (whole(left), whole(right)) {
        return a.checked_mul(b).map(Value::from).ok_or_else(|| invalid("the product is too large"));
    }
    Ok(Value::from(number::real(left)? * number::real(right)?))
}

fn repeated(value: &Value, count: &Value) -> Result<Value, Error> {
    let count = whole(count).ok_or_else(|| invalid("a text or list is multiplied by integers only"))?;
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    if let Some(text) = value.as_str() {
        check_bytes(text.len().saturating_mul(count))?;
        return Ok(Value::from(text.repeat(count)));
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    check(items.len().saturating_mul(count), MAX_ITEMS, "items")?;
    let items: Vec<Value> = std::iter::repeat_n(items, count).flatten().collect();
    Ok(if value.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) })
}

/// `a % b` of numbers, whose sign is the divisor's; of a string, its format.
pub fn remainder(left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(text) = left.as_str() {
        return percent(text, right).map(Value::from);
    }
    if let (Some(a), Some(b)) = (whole(left), whole(right)) {
        let rest = a.checked_rem(b).ok_or_else(|| invalid("the remainder of a division by zero"))?;
        return Ok(Value::from(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }));
    }
    let (a, b) = (number::real(left)?, number::real(right)?);
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

/// `value[start:stop:step]`.
fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let items: Vec<Value> = match (value.as_str(), value.kind()) {
        (Some(text), _) => text.chars().map(Value::from).collect(),
        (None, ValueKind::Seq | ValueKind::Iterable) => value.try_iter()?.collect(),
        (None, ValueKind::Undefined) => return Err(invalid("a slice of an undefined value")),
        _ => return Ok(Value::UNDEFINED),
    };
    let step = integer(step)?.unwrap_or(1);
    let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
    let (low, high) = if step < 0 { (-1, length - 1) } else { (0, length) };
    let at = |place: Option<i64>, default: i64| {
        place.map_or(default, |place| {
            if place < 0 { place.saturating_add(length) } else { place }.clamp(low, high)
        })
    };
    let (first, last) = if step < 0 { (high, low) } else { (low, high) };
    let (mut place, end) = (at(integer(start)?, first), at(integer(stop)?, last));
    if step == 0 {
        return Err(invalid("a slice with a step of 0"));
    }
    let mut taken = Vec::new();
    while if step < 0 { place > end } else { place < end } {
        taken.extend(usize::try_from(place).ok().and_then(|place| items.get(place).cloned()));
        place = place.saturating_add(step);
    }
    Ok(match value.as_str() {
        Some(_) => taken.iter().filter_map(Value::as_str).collect::<String>().into(),
        None if value.is_tuple() => Value::from(Tuple::from(taken)),
        None => Value::from(taken),
    })
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

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {} of dict object>", self.name)
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, given: &[Value]) -> Result<Value, Error> {
        methods::call(state, &self.of, &self.name, given)
    }
}
