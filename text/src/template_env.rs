//! The Jinja environment, set up like Hugging Face's: block trimming, loop controls, Python's methods,
//! `tojson`, `raise_exception` and `strftime_now`; and with limits, which Hugging Face's lacks.

use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::bounded_filters::{self, check_bytes};
use super::strftime::strftime;

/// Most instructions of one rendering. Long conversations take some hundred thousand.
const FUEL: u64 = 5_000_000;
/// Most nested calls, loops and macros; well within a thread's stack.
const RECURSION: usize = 160;
/// Prefix of messages from `raise_exception`, which the template addresses to the client.
pub const RAISED: &str = "raised by the template: ";

/// An environment without templates. `clock` returns the time since 1970.
pub fn environment(clock: fn() -> Duration) -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(RECURSION);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    // Otherwise errors of a debug build would carry every variable, however large.
    env.set_debug(false);
    bounded_filters::install(&mut env);
    env.add_filter("tojson", tojson);
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
    });
    env.add_function("strftime_now", move |format: String| strftime(&format, clock()));
    Ok(env)
}

/// Converts JSON to a template variable.
pub fn to_value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (_, Some(value)) => Value::from(value),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => Value::from(items.iter().map(to_value).collect::<Vec<_>>()),
        serde_json::Value::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), to_value(value))))
        }
    }
}

/// `json.dumps` with `ensure_ascii=False`, as in transformers' `apply_chat_template`.
fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        Some(indent) if !indent.is_none() => Some(usize::try_from(indent)?.min(16)),
        _ => None,
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let _: Option<bool> = options.get("ensure_ascii")?;
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut separators = separators.unwrap_or_default().into_iter();
    let default_item = if indent.is_some() { "," } else { ", " };
    let mut writer = Writer {
        out: String::new(),
        indent,
        item: separators.next().unwrap_or_else(|| default_item.to_owned()),
        key: separators.next().unwrap_or_else(|| ": ".to_owned()),
        sort_keys,
    };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer {
    out: String,
    indent: Option<usize>,
    item: String,
    key: String,
    sort_keys: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > RECURSION {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: nested too deeply"));
        }
        check_bytes(self.out.len())?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&value.to_string()),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.container(['[', ']'], items.len(), depth, |writer, at| {
                    writer.value(&items[at], depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.container(['{', '}'], keys.len(), depth, |writer, at| {
                    writer.string(&keys[at].to_string());
                    writer.out.push_str(&writer.key.clone());
                    writer.value(&value.get_item(&keys[at])?, depth + 1)
                })?;
            }
            other => {
                let message = format!("tojson: a value of type {other} is not JSON");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
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
            self.new_line(depth + 1);
            write(self, at)?;
        }
        if length > 0 {
            self.new_line(depth);
        }
        self.out.push(brackets[1]);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&mut self, text: &str) {
        // serde_json escapes the same characters as Python does with `ensure_ascii=False`, in the same form.
        self.out.push_str(&serde_json::Value::from(text).to_string());
    }
}
