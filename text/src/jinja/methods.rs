//! Methods of Python's strings, lists and dictionaries that do not change them.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::arguments::{Arguments, integer, invalid, text};
use super::characters::{is_cased, is_space, lines, words};
use super::formatted::formatted;
use super::limits::{check_bytes, check_replaced};
use super::printed::Printed;

/// Calls the method `name` of `value`.
///
/// # Errors
/// If there is no such method, it refuses its arguments, or its result is too large.
pub fn call(state: &mut State<'_, '_>, value: &Value, name: &str, given: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), value.kind(), name) {
        (Some(own), ..) => string(own, name, given),
        (None, ValueKind::Seq | ValueKind::Iterable, "index") => index(value, &one(given)?),
        (None, ValueKind::Iterable, "count") => {
            let wanted = one(given)?;
            Ok(Value::from(value.try_iter()?.filter(|item| *item == wanted).count()))
        }
        (None, ValueKind::Seq | ValueKind::Map, "copy") => {
            Arguments::new(given)?.bind([])?;
            Ok(value.clone())
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, given),
    }
}

fn one(given: &[Value]) -> Result<Value, Error> {
    let [first] = Arguments::new(given)?.bind([""])?;
    Ok(first)
}

fn index(value: &Value, wanted: &Value) -> Result<Value, Error> {
    let at = value.try_iter()?.position(|item| item == *wanted);
    at.map(Value::from).ok_or_else(|| invalid("index: the item is not in the list"))
}

fn string(own: &str, name: &str, given: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new(given)?;
    match name {
        "format" => return formatted(own, given),
        "split" | "rsplit" => return split(own, name == "rsplit", arguments),
        "find" | "rfind" | "index" | "rindex" | "count" => return search(own, name, arguments),
        "startswith" | "endswith" => return at_end(own, name == "startswith", arguments),
        "center" | "ljust" | "rjust" | "zfill" => return padded(own, name, arguments).map(Value::from),
        "replace" => return replace(own, arguments).map(Value::from),
        "join" => return join(own, &one(given)?).map(Value::from),
        "splitlines" => {
            let [keep] = arguments.bind(["keepends"])?;
            return Ok(lines(own, keep.is_true()).into_iter().map(Value::from).collect());
        }
        _ => {}
    }
    if given.is_empty()
        && let Some(value) = without_arguments(own, name)
    {
        return Ok(value);
    }
    let cut = |from_start: bool, from_end: bool| strip(own, from_start, from_end, &one(given)?);
    match name {
        "strip" => cut(true, true),
        "lstrip" => cut(true, false),
        "rstrip" => cut(false, true),
        "partition" | "rpartition" => partition(own, name == "partition", &one(given)?),
        "removeprefix" => Ok(Value::from(own.strip_prefix(text(&one(given)?, "prefix")?).unwrap_or(own))),
        "removesuffix" => Ok(Value::from(own.strip_suffix(text(&one(given)?, "suffix")?).unwrap_or(own))),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// Methods that take no arguments.
pub fn without_arguments(own: &str, name: &str) -> Option<Value> {
    let all = |accept: fn(char) -> bool| Value::from(!own.is_empty() && own.chars().all(accept));
    Some(match name {
        "upper" => Value::from(own.to_uppercase()),
        "lower" => Value::from(own.to_lowercase()),
        "title" => Value::from(title(own)),
        "capitalize" => {
            let mut chars = own.chars();
            let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
            Value::from(first + &chars.as_str().to_lowercase())
        }
        "islower" => Value::from(is_cased(own, char::is_lowercase)),
        "isupper" => Value::from(is_cased(own, char::is_uppercase)),
        "isspace" => all(is_space),
        "isdigit" | "isnumeric" | "isdecimal" => all(char::is_numeric),
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => Value::from(own.is_ascii()),
        _ => return None,
    })
}

/// `str.title`: a letter after none is large, one after another small.
fn title(own: &str) -> String {
    let (mut out, mut inside) = (String::with_capacity(own.len()), false);
    for c in own.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_lowercase() || c.is_uppercase();
    }
    out
}

fn strip(own: &str, from_start: bool, from_end: bool, chars: &Value) -> Result<Value, Error> {
    let chars = if chars.is_undefined() || chars.is_none() { None } else { Some(text(chars, "chars")?) };
    let cut = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let own = if from_start { own.trim_start_matches(cut) } else { own };
    Ok(Value::from(if from_end { own.trim_end_matches(cut) } else { own }))
}

fn split(own: &str, from_right: bool, arguments: Arguments<'_>) -> Result<Value, Error> {
    let [separator, most] = arguments.bind(["sep", "maxsplit"])?;
    let most = integer(&most)?.and_then(|most| usize::try_from(most).ok());
    if separator.is_undefined() || separator.is_none() {
        return Ok(words(own, most, from_right).into_iter().map(Value::from).collect());
    }
    let separator = text(&separator, "the separator")?;
    if separator.is_empty() {
        return Err(invalid("split: the separator is empty"));
    }
    let parts = most.map_or(usize::MAX, |most| most.saturating_add(1));
    if !from_right {
        return Ok(own.splitn(parts, separator).map(Value::from).collect());
    }
    let mut found: Vec<Value> = own.rsplitn(parts, separator).map(Value::from).collect();
    found.reverse();
    Ok(Value::from(found))
}

fn partition(own: &str, from_left: bool, separator: &Value) -> Result<Value, Error> {
    let separator = text(separator, "the separator")?;
    if separator.is_empty() {
        return Err(invalid("partition: the separator is empty"));
    }
    let cut = if from_left { own.split_once(separator) } else { own.rsplit_once(separator) };
    let parts = match cut {
        Some((before, after)) => [before, separator, after],
        None if from_left => [own, "", ""],
        None => ["", "", own],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

/// The part between the characters `start` and `end`, as a slice takes them, and the characters before it.
struct Window<'a> {
    text: &'a str,
    before: usize,
}

impl<'a> Window<'a> {
    /// `None` = `start` is behind the end of the text.
    fn new(own: &'a str, start: &Value, end: &Value) -> Result<Option<Self>, Error> {
        let (start, end) = (integer(start)?, integer(end)?);
        if start.is_none() && end.is_none() {
            return Ok(Some(Self { text: own, before: 0 }));
        }
        let length = own.chars().count();
        let at = |place: i64| {
            usize::try_from(place).unwrap_or_else(|_| {
                length.saturating_sub(usize::try_from(place.unsigned_abs()).unwrap_or(usize::MAX))
            })
        };
        let (before, end) = (start.map_or(0, at), end.map_or(length, at).min(length));
        if before > end {
            return Ok(None);
        }
        let byte = |chars: usize| own.char_indices().nth(chars).map_or(own.len(), |(byte, _)| byte);
        Ok(Some(Self { text: &own[byte(before)..byte(end)], before }))
    }
}

fn search(own: &str, name: &str, arguments: Arguments<'_>) -> Result<Value, Error> {
    let [wanted, start, end] = arguments.bind(["", "", ""])?;
    let (wanted, window) = (text(&wanted, "the text")?, Window::new(own, &start, &end)?);
    if name == "count" {
        return Ok(Value::from(window.map_or(0, |window| window.text.matches(wanted).count())));
    }
    let found = window.and_then(|window| {
        let byte = if name.starts_with('r') { window.text.rfind(wanted) } else { window.text.find(wanted) }?;
        Some(window.before + window.text[..byte].chars().count())
    });
    match found {
        Some(at) => Ok(Value::from(at)),
        None if name.ends_with("find") => Ok(Value::from(-1)),
        None => Err(invalid(format!("{name}: the text is not found"))),
    }
}

fn at_end(own: &str, at_start: bool, arguments: Arguments<'_>) -> Result<Value, Error> {
    let [wanted, start, end] = arguments.bind(["", "", ""])?;
    let Some(Window { text: own, .. }) = Window::new(own, &start, &end)? else {
        return Ok(Value::from(false));
    };
    let is = |wanted: &str| if at_start { own.starts_with(wanted) } else { own.ends_with(wanted) };
    if let Some(wanted) = wanted.as_str() {
        return Ok(Value::from(is(wanted)));
    }
    if !wanted.is_tuple() {
        return Err(invalid(format!(
            "the text must be a string or a tuple of strings, not {}",
            wanted.kind()
        )));
    }
    for wanted in wanted.try_iter()? {
        if is(text(&wanted, "the text")?) {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

fn padded(own: &str, name: &str, arguments: Arguments<'_>) -> Result<String, Error> {
    let [wide, fill] = arguments.bind(["", ""])?;
    let wide = integer(&wide)?.map(|wide| usize::try_from(wide).unwrap_or(0));
    let wide = wide.ok_or_else(|| invalid(format!("{name}: give a width")))?;
    let fill = if fill.is_undefined() { " " } else { text(&fill, "the fill character")? };
    let mut chars = fill.chars();
    let (Some(fill), None) = (chars.next(), chars.next()) else {
        return Err(invalid(format!("{name}: the fill character must be one character")));
    };
    let missing = wide.saturating_sub(own.chars().count());
    check_bytes(missing.saturating_mul(4).saturating_add(own.len()))?;
    let pad = |count: usize| fill.to_string().repeat(count);
    Ok(match name {
        "center" => return center(own, wide, fill),
        "ljust" => own.to_owned() + &pad(missing),
        "rjust" => pad(missing) + own,
        _ => {
            let sign = own.len() - own.strip_prefix(['+', '-']).map_or(own.len(), str::len);
            own[..sign].to_owned() + &"0".repeat(missing) + &own[sign..]
        }
    })
}

/// `str.center`: an odd blank goes left if the width is odd.
pub fn center(own: &str, wide: usize, fill: char) -> Result<String, Error> {
    let missing = wide.saturating_sub(own.chars().count());
    check_bytes(missing.saturating_mul(4).saturating_add(own.len()))?;
    let left = missing / 2 + (missing & wide & 1);
    let pad = |count: usize| fill.to_string().repeat(count);
    Ok(pad(left) + own + &pad(missing - left))
}

fn replace(own: &str, arguments: Arguments<'_>) -> Result<String, Error> {
    let [from, to, most] = arguments.bind(["", "", "count"])?;
    let (from, to) = (text(&from, "the old text")?, text(&to, "the new text")?);
    check_replaced(own, from, to)?;
    let most = integer(&most)?.and_then(|most| usize::try_from(most).ok());
    Ok(most.map_or_else(|| own.replace(from, to), |most| own.replacen(from, to, most)))
}

fn join(own: &str, items: &Value) -> Result<String, Error> {
    let mut out = Printed::default();
    for (at, item) in items.try_iter()?.enumerate() {
        out.push(if at > 0 { own } else { "" })?;
        out.push(text(&item, "an item to join")?)?;
    }
    Ok(out.text)
}
