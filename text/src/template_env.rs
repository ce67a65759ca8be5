//! The Jinja environment, set up like Hugging Face's: block trimming, loop controls, Python's methods,
//! `tojson`, `raise_exception` and `strftime_now`; and with limits, which Hugging Face's lacks.

use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};

use super::jinja;
use super::strftime::{MAX_WIDTH, strftime};

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
    jinja::install(&mut env);
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
    });
    env.add_function("strftime_now", move |format: String| {
        jinja::limits::check_bytes(format.matches('%').count().saturating_mul(MAX_WIDTH))?;
        Ok::<_, Error>(strftime(&format, clock()))
    });
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
