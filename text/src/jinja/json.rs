//! The filter `tojson` of transformers: `json.dumps`, with `ensure_ascii` off.

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Error, Value};

use super::arguments::{Arguments, invalid};
use super::limits::{MAX_DEPTH, check_bytes};
use super::number;

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub fn to_json(value: &Value, options: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let options = options.into_values();
    let [ascii, indent, separators, sort_keys] =
        Arguments::new(&options)?.bind(["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = indentation(&indent)?;
    let default_item = if indent.is_some() { "," } else { ", " };
    let [item, key] = separated(&separators, [default_item, ": "])?;
    let (ascii, sort_keys) = (ascii.is_true(), sort_keys.is_true());
    let mut writer = Writer { out: String::new(), indent, item, key, ascii, sort_keys };
    writer.value(value, 0)?;
    check_bytes(writer.out.len())?;
    Ok(writer.out)
}

/// One step of indentation: a text, or so many spaces.
fn indentation(indent: &Value) -> Result<Option<String>, Error> {
    if indent.is_undefined() || indent.is_none() {
        return Ok(None);
    }
    if let Some(text) = indent.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let width = usize::try_from(i64::try_from(indent.clone())?).unwrap_or(0);
    check_bytes(width)?;
    Ok(Some(" ".repeat(width)))
}

fn separated(given: &Value, defaults: [&str; 2]) -> Result<[String; 2], Error> {
    if given.is_undefined() || given.is_none() {
        return Ok(defaults.map(str::to_owned));
    }
    let texts = given.try_iter()?.map(|text| text.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
    let pair = texts.and_then(|texts| <[String; 2]>::try_from(texts).ok());
    pair.ok_or_else(|| invalid("tojson: separators must be two strings"))
}

struct Writer {
    out: String,
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    sort_keys: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid("tojson: nested too deeply"));
        }
        check_bytes(self.out.len())?;
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                return self.container(['[', ']'], items.len(), depth, |writer, at| {
                    writer.value(&items[at], depth + 1)
                });
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                return self.container(['{', '}'], keys.len(), depth, |writer, at| {
                    let name = key_text(&keys[at])?;
                    writer.string(&name);
                    writer.out.push_str(&writer.key.clone());
                    writer.value(&value.get_item(&keys[at])?, depth + 1)
                });
            }
            _ => self.out.push_str(&scalar(value)?),
        }
        Ok(())
    }

    fn container(
        &mut self,
        brackets: [char; 2],
        length: usize,
        depth: usize,
        mut write: impl FnMut(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(brackets[0]);
        for at in 0..length {
            if at > 0 {
                self.out.push_str(&self.item.clone());
            }
            self.new_line(depth + 1)?;
            write(self, at)?;
        }
        if length > 0 {
            self.new_line(depth)?;
        }
        self.out.push(brackets[1]);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            check_bytes(indent.len().saturating_mul(depth).saturating_add(self.out.len()))?;
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
        Ok(())
    }

    fn string(&mut self, text: &str) {
        // serde_json escapes the same characters as Python does with `ensure_ascii=False`, in the same form.
        let written = serde_json::Value::from(text).to_string();
        if !self.ascii {
            return self.out.push_str(&written);
        }
        for c in written.chars() {
            match c {
                ..'\x7f' => self.out.push(c),
                _ => self.out.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}"))),
            }
        }
    }
}

/// A key in JSON, where all keys are strings.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => scalar(key),
    }
}

fn scalar(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if value.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number if value.is_integer() => Ok(value.to_string()),
        ValueKind::Number => Ok(match f64::try_from(value.clone())? {
            value if value.is_nan() => "NaN".to_owned(),
            f64::INFINITY => "Infinity".to_owned(),
            f64::NEG_INFINITY => "-Infinity".to_owned(),
            value => number::float(value),
        }),
        other => Err(invalid(format!("tojson: a value of type {other} is not JSON"))),
    }
}
